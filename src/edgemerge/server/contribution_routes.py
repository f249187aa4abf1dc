"""Routes for contributions."""

from __future__ import annotations

from asyncio import wrap_future
from dataclasses import asdict
from typing import Annotated

from anyio import CapacityLimiter
from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import JSONResponse
from pydantic import AfterValidator

from edgemerge.core.contribution import Key
from edgemerge.core.errors import EdgemergeError
from edgemerge.server.answers import (
    Conflict,
    ContributionsTold,
    ContributionTold,
    Dropped,
    KeptTold,
)
from edgemerge.server.asking import (
    Loading,
    Member,
    Name,
    Number,
    Sender,
    Serving,
    bytes_answer,
    bytes_body,
    in_thread,
    known_tag,
    tagged,
)
from edgemerge.server.contributions import Entry, Parcel
from edgemerge.server.fleets import Fleet
from edgemerge.server.intake import Kept, keeping, opened
from edgemerge.server.names import must_be_pattern
from edgemerge.server.problems import problems

router = APIRouter()
SMALL = 2**20  # bytes
ADDRESS = "/fleets/{fleet}/contributions/{device}/{incarnation}/{pattern}"


def _pattern(value: str) -> str:
    must_be_pattern(value)
    return value


Pattern = Annotated[str, Path(min_length=1, max_length=200), AfterValidator(_pattern)]


@router.put(
    ADDRESS,
    status_code=201,
    response_model=KeptTold,
    responses={
        200: {"model": KeptTold, "description": "The very same was there already."},
        **problems(400, 401, 403, 404, 413, 422, 503, 507),
        409: {"model": Conflict, "description": "The revision is late, or tells another story."},
    },
    openapi_extra=bytes_body("A contribution whose origin is the address."),
)
async def put_contribution(
    sender: Sender,
    incarnation: Number,
    pattern: Pattern,
    service: Serving,
    load: Loading,
    request: Request,
) -> Response:
    """Keep a device's own contribution; once answered it is on disk, and repeats do no harm."""
    caller, agreed = sender
    async with load.body(request, agreed.limit) as data:
        service.metrics.received.inc(len(data))
        key = (caller.name, incarnation, pattern)
        try:
            parcel = await _opened(data, agreed, key, request.app.state.checking)
            change = keeping(agreed, parcel, caller, service.clock())
            kept = await wrap_future(service.writer.submit(change))
        except EdgemergeError:
            service.metrics.contributions.labels("refused").inc()
            raise
    service.metrics.contributions.labels(kept.problem or ("new" if kept.new else "same")).inc()
    if kept.new:
        service.history.pushed(agreed.fleet, caller.name, len(data))
    return _answer(kept)


async def _opened(data: bytes, fleet: Fleet, key: Key, limiter: CapacityLimiter) -> Parcel:
    """Read and check a contribution; beside the loop only if it would hold that up for long.

    Two milliseconds here cost less than in a thread, which would fight the loop for Python's lock
    at each of a hundred steps: 640 kB at 100 devices, twice as many in a second.
    """
    if len(data) <= SMALL:
        return opened(data, fleet, key)
    return await in_thread(lambda: opened(data, fleet, key), limiter)


def _answer(kept: Kept) -> JSONResponse:
    if not kept.problem:
        told = KeptTold(kept=kept.new, revision=kept.revision, epoch=kept.epoch)
        return JSONResponse(told.model_dump(), 201 if kept.new else 200)
    words = {
        "stale": f"revision {kept.revision} is known already: share under a higher one, or start "
        "a new incarnation if this device runs on an old copy of its state",
        "equivocation": f"revision {kept.revision} came before with other bytes; both were noted: "
        "never share two things under one revision",
    }[kept.problem]
    content = {"error": words, "problem": kept.problem, "newest": kept.revision}
    return JSONResponse(content, 409)


@router.get(
    ADDRESS,
    responses={**bytes_answer("The contribution."), **problems(401, 403, 404, 422)},
    response_class=Response,
)
def get_contribution(
    fleet: Name,
    device: Name,
    incarnation: Number,
    pattern: Pattern,
    caller: Member,
    service: Serving,
    request: Request,
) -> Response:
    """Give a single contribution, where the fleet allows it."""
    entry, data = service.contribution(fleet, (device, incarnation, pattern), caller)
    return tagged(None if known_tag(request) == entry.digest else data, entry.digest)


@router.get("/fleets/{fleet}/contributions", responses=problems(401, 403, 404, 422))
def list_contributions(fleet: Name, caller: Member, service: Serving) -> ContributionsTold:
    """List contributions without their numbers: all of them, or one's own in a fleet of totals."""
    agreed, entries = service.contributions(fleet, caller)
    return ContributionsTold(epoch=agreed.epoch, contributions=list(map(_told, entries)))


def _told(entry: Entry) -> ContributionTold:
    words = asdict(entry)
    return ContributionTold(**{name: words[name] for name in ContributionTold.model_fields})


@router.delete(
    "/fleets/{fleet}/contributions/{device}", responses=problems(401, 403, 404, 422, 503, 507)
)
def drop(fleet: Name, device: Name, caller: Member, service: Serving) -> Dropped:
    """Forget all that a device contributed, as if never heard; a device may say so of itself."""
    return Dropped(dropped=service.drop(fleet, device, caller))
