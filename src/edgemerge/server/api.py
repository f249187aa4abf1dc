"""The HTTP API: contributions, reports, pulls, fleets and devices, status, choices, sign-in links.

The names of the route functions are part of the OpenAPI description (operation ids and summaries).
"""

from __future__ import annotations

import logging
from asyncio import wrap_future
from dataclasses import asdict
from typing import Annotated, Any

from anyio import CapacityLimiter
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import AfterValidator, BaseModel, ValidationError

from edgemerge import __version__
from edgemerge.core.errors import DeniedError, EdgemergeError, SettingError
from edgemerge.core.ledger import Key, Selection
from edgemerge.exchange.audit import FIRST_HASH
from edgemerge.server.auth import Caller, Device
from edgemerge.server.choices.preview import DeviceSimilarity, PatternPreview
from edgemerge.server.choices.rules import Choice
from edgemerge.server.contributions import (
    PutResult,
    ReceivedContribution,
    StoredContribution,
    decode_and_check,
    put_change,
)
from edgemerge.server.db.base import DiskFullError
from edgemerge.server.fleets import NAME_PATTERN, Fleet, must_be_pattern_name
from edgemerge.server.http import (
    ETAG_HEADER,
    NOT_MODIFIED,
    OCTET_STREAM,
    CallerDep,
    HeavyLimiter,
    InFlight,
    InFlightDep,
    Member,
    Name,
    Number,
    Operator,
    Sender,
    ServiceDep,
    Token,
    UnauthenticatedError,
    bytes_body_schema,
    bytes_response_schema,
    etag_response,
    if_none_match,
    json_body_schema,
    json_request,
    load_of,
    problem_responses,
    run_in_thread,
    validation_message,
)
from edgemerge.server.metrics import CONTENT_TYPE
from edgemerge.server.schemas import (
    MAX_REPORT_BYTES,
    AdoptAsked,
    AdoptTold,
    AuditTold,
    ChoiceAsked,
    ChoiceTold,
    Conflict,
    ContributionsTold,
    ContributionTold,
    DesiredTold,
    Dropped,
    Enrolment,
    EnrolmentAsked,
    FleetTold,
    Health,
    Invitation,
    InvitationAsked,
    KeptTold,
    LikenessTold,
    PreviewAsked,
    PreviewTold,
    Reads,
    ReportAsked,
    ReportTold,
    RevokeAsked,
    Status,
)
from edgemerge.server.service import FleetCounts, Service

router = APIRouter()
MAX_INLINE_BYTES = 2**20  # bytes
CONTRIBUTION_PATH = "/fleets/{fleet}/contributions/{device}/{incarnation}/{pattern}"


def _valid_pattern(value: str) -> str:
    must_be_pattern_name(value)
    return value


PatternName = Annotated[str, Path(min_length=1, max_length=200), AfterValidator(_valid_pattern)]


@router.put(
    CONTRIBUTION_PATH,
    status_code=201,
    response_model=KeptTold,
    responses={
        200: {"model": KeptTold, "description": "The very same was there already."},
        **problem_responses(400, 401, 403, 404, 413, 422, 503, 507),
        409: {
            "model": Conflict,
            "description": "The revision is stale, or contradicts the one that is stored.",
        },
    },
    openapi_extra=bytes_body_schema("A contribution whose origin is the address."),
)
async def put_contribution(
    sender: Sender,
    incarnation: Number,
    pattern: PatternName,
    service: ServiceDep,
    load: InFlightDep,
    request: Request,
) -> Response:
    """Keep a device's own contribution; once answered it is on disk, and repeats do no harm."""
    caller, agreed = sender
    async with load.body(request, agreed.limit) as data:
        service.metrics.received.inc(len(data))
        key = (caller.name, incarnation, pattern)
        try:
            parcel = await _decode_and_check(data, agreed, key, request.app.state.check_limiter)
            change = put_change(agreed, parcel, caller, service.clock())
            kept = await wrap_future(service.writer.submit(change))
        except EdgemergeError:
            service.metrics.contributions.labels("refused").inc()
            raise
    service.metrics.contributions.labels(kept.problem or ("new" if kept.new else "same")).inc()
    if kept.new:
        service.history.pushed(agreed.fleet, caller.name, len(data))
    return _put_response(kept)


async def _decode_and_check(
    data: bytes, fleet: Fleet, key: Key, limiter: CapacityLimiter
) -> ReceivedContribution:
    """Read and check a contribution; beside the loop only if it would hold that up for long.

    Two milliseconds here cost less than in a thread, which would fight the loop for Python's lock
    at each of a hundred steps: 640 kB at 100 devices, twice as many in a second.
    """
    if len(data) <= MAX_INLINE_BYTES:
        return decode_and_check(data, fleet, key)
    return await run_in_thread(lambda: decode_and_check(data, fleet, key), limiter)


def _put_response(kept: PutResult) -> JSONResponse:
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
    CONTRIBUTION_PATH,
    responses={
        **bytes_response_schema("The contribution."),
        **problem_responses(401, 403, 404, 422),
    },
    response_class=Response,
)
def get_contribution(
    fleet: Name,
    device: Name,
    incarnation: Number,
    pattern: PatternName,
    caller: Member,
    service: ServiceDep,
    request: Request,
) -> Response:
    """Give a single contribution, where the fleet allows it."""
    entry, data = service.contribution(fleet, (device, incarnation, pattern), caller)
    return etag_response(None if if_none_match(request) == entry.digest else data, entry.digest)


@router.get("/fleets/{fleet}/contributions", responses=problem_responses(401, 403, 404, 422))
def list_contributions(fleet: Name, caller: Member, service: ServiceDep) -> ContributionsTold:
    """List contributions without their numbers: all of them, or one's own in a fleet of totals."""
    agreed, entries = service.contributions(fleet, caller)
    return ContributionsTold(
        epoch=agreed.epoch, contributions=list(map(_contribution_json, entries))
    )


def _contribution_json(entry: StoredContribution) -> ContributionTold:
    words = asdict(entry)
    return ContributionTold(**{name: words[name] for name in ContributionTold.model_fields})


@router.delete(
    "/fleets/{fleet}/contributions/{device}",
    responses=problem_responses(401, 403, 404, 422, 503, 507),
)
def drop(fleet: Name, device: Name, caller: Member, service: ServiceDep) -> Dropped:
    """Forget all that a device contributed, as if never heard; a device may say so of itself."""
    return Dropped(dropped=service.drop(fleet, device, caller))


MAX_SHOWN_ERRORS = 20  # of a report that are told


def report_body_schema() -> dict[str, object]:
    """Describe the body; all that it consists of stands where it is used."""
    schema = ReportAsked.model_json_schema()
    parts = schema.pop("$defs")

    def whole(part: Any) -> Any:
        if isinstance(part, list):
            return list(map(whole, part))
        if not isinstance(part, dict):
            return part
        if "$ref" in part:
            return whole(parts[part["$ref"].rpartition("/")[2]])
        return {name: whole(value) for name, value in part.items()}

    content = {"application/json": {"schema": whole(schema)}}
    return {"requestBody": {"required": True, "content": content}}


@router.post(
    "/fleets/{fleet}/devices/{device}/report",
    response_model=ReportTold,
    responses=problem_responses(400, 401, 403, 413, 422, 429, 503),
    openapi_extra=report_body_schema(),
)
async def report(fleet: Name, device: Name, token: Token, request: Request) -> Response:
    """Take a device's own report; operators see it at once, and it may be lost in a crash."""
    service, load = request.app.state.service, request.app.state.load
    caller = await _reporter(service, token, fleet, device)
    with service.metrics.refusals():
        service.reception.admit(caller)
        async with load.body(request, MAX_REPORT_BYTES) as data:
            told = _parse_report(data)
    now = service.clock()
    service.history.take(fleet, device, told, now)
    service.metrics.note(told)
    revision = service.merging.desired_revision(fleet, device)
    every_s = service.history.every_s(now)
    return JSONResponse({"every_s": every_s, "choice": revision, "desired": revision})


async def _reporter(service: Service, token: str, fleet: str, device: str) -> Caller:
    """Let only the device itself pass; usually without a look into the database."""
    caller = service.reception.known(token)
    if caller is None:
        try:
            caller = await run_in_thread(lambda: _find_caller(service, token))
        except DeniedError as error:
            raise UnauthenticatedError(str(error)) from error
        service.reception.remember(token, caller)
    if (caller.fleet, caller.name) != (fleet, device):
        raise DeniedError(f"only {device} itself, in its fleet, may report")
    return caller


def _find_caller(service: Service, token: str) -> Caller:
    """Find out who reports, and what was chosen: later that is known without waiting for it."""
    caller = service.caller(token)
    if caller.fleet is not None:
        service.merging.desired_revision(caller.fleet, caller.name)
    return caller


def _parse_report(data: bytes) -> ReportAsked:
    try:
        return ReportAsked.model_validate_json(data)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        raise SettingError(validation_message(found[:MAX_SHOWN_ERRORS])) from error


@router.get(
    "/fleets/{fleet}/devices/{device}/desired",
    response_model=DesiredTold,
    responses={
        200: {"headers": ETAG_HEADER},
        304: {"description": NOT_MODIFIED},
        **problem_responses(401, 403, 404, 422, 503),
    },
)
def desired(
    fleet: Name, device: Name, caller: Member, service: ServiceDep, request: Request
) -> Response:
    """Return what a device should do: whose contributions to adopt. The revision is the ETag."""
    if not caller.is_operator and caller.name != device:
        raise DeniedError(f"only {device} itself or an operator may read its desired state")
    agreed, found = service.merging.desired(fleet, device)
    headers = {"ETag": f'"{found.revision}"', "Cache-Control": "no-cache"}
    if if_none_match(request) == str(found.revision):
        return Response(status_code=304, headers=headers)
    counted = agreed.reads == "totals" and not caller.is_operator
    adopt = AdoptTold(
        devices=None if found.devices is None else list(found.devices),
        excluded=len(found.excluded) if counted else list(found.excluded),
    )
    told = DesiredTold(format=1, revision=found.revision, adopt=adopt)
    return JSONResponse(told.model_dump(), headers=headers)


DeviceFilter = Annotated[
    list[Annotated[str, Query(pattern=NAME_PATTERN)]] | None, Query(max_length=1000)
]


async def selection_of(
    caller: Member,
    incarnation: Annotated[int | None, Query(ge=0, lt=2**63)] = None,
    device: DeviceFilter = None,
    without: DeviceFilter = None,
    pattern: Annotated[str | None, Query(min_length=1, max_length=200)] = None,
    largest: Annotated[int | None, Query(ge=1, le=1_000_000)] = None,
) -> Selection:
    """Say what is wanted; a device's own contributions, of this incarnation or all, are not."""
    return Selection(
        receiver=None if caller.is_operator else caller.name,
        incarnation=incarnation,
        devices=None if device is None else tuple(device),
        without=tuple(without or ()),
        pattern=pattern,
        largest=largest,
    )


SelectionDep = Annotated[Selection, Depends(selection_of)]
PULL_PROBLEMS = problem_responses(401, 403, 404, 422, 503)


@router.get(
    "/fleets/{fleet}/total",
    responses={**bytes_response_schema("What was told: one sum, or none."), **PULL_PROBLEMS},
    response_class=Response,
)
def total(
    fleet: Name, caller: Member, service: ServiceDep, selection: SelectionDep, request: Request
) -> Response:
    """Give the exact sum of what others contributed, and the list of what is in it."""
    answer = service.tell(fleet, selection, caller, if_none_match(request))
    return etag_response(answer.data, answer.tag)


@router.get(
    "/fleets/{fleet}/patterns",
    responses={
        **bytes_response_schema("What was told: one sum for each pattern."),
        **PULL_PROBLEMS,
    },
    response_class=Response,
)
def patterns(
    fleet: Name, caller: Member, service: ServiceDep, selection: SelectionDep, request: Request
) -> Response:
    """Give an exact sum for each pattern of what others contributed, largest first."""
    answer = service.tell(fleet, selection, caller, if_none_match(request), grouped=True)
    return etag_response(answer.data, answer.tag)


MAX_PROJECTION_BYTES = 2**20  # bytes that a projection may have


def fleet_json(fleet: Fleet, counts: FleetCounts) -> FleetTold:
    """Say what can be told of a fleet."""
    p = fleet.projection
    return FleetTold(
        fleet=fleet.fleet,
        reads=fleet.reads,  # type: ignore[arg-type]  # one of the two words
        least=fleet.least,
        growing=fleet.growing,
        fingerprint=p.fingerprint,
        inputs=p.n_inputs,
        hidden=p.n_hidden,
        devices=counts.devices,
        contributions=counts.contributions,
        samples=counts.samples,
        epoch=fleet.epoch,
        created=fleet.created,
    )


@router.get("/fleets", responses=problem_responses(401))
def list_fleets(service: ServiceDep, caller: CallerDep) -> list[FleetTold]:
    """Give all fleets to an operator, and its own to a device."""
    return [fleet_json(fleet, counts) for fleet, counts in service.fleets(caller)]


@router.put(
    "/fleets/{fleet}",
    status_code=201,
    responses={
        200: {"model": FleetTold, "description": "The same is there already."},
        **problem_responses(400, 401, 403, 409, 413, 422, 503, 507),
    },
    openapi_extra=bytes_body_schema("A projection."),
)
async def create_fleet(
    *,
    fleet: Name,
    caller: Operator,
    service: ServiceDep,
    load: InFlightDep,
    request: Request,
    response: Response,
    reads: Reads = "totals",
    least: Annotated[int, Query(ge=1, le=10_000)] = 1,
    growing: Annotated[bool, Query()] = False,
) -> FleetTold:
    """Make a fleet with a projection that all its devices will share."""
    async with load.body(request, MAX_PROJECTION_BYTES) as data:
        made = Fleet(fleet, data, reads, least, growing, 0, service.clock())
        await run_in_thread(lambda: _must_fit(made, load))
        new = await run_in_thread(lambda: service.create(made, caller))
    response.status_code = 201 if new else 200
    return await run_in_thread(lambda: _get_fleet_json(service, fleet, caller))


@router.get("/fleets/{fleet}", responses=problem_responses(401, 403, 404, 422))
def get_fleet(fleet: Name, caller: Member, service: ServiceDep) -> FleetTold:
    """Say what a fleet has agreed on, and how much is in it."""
    return _get_fleet_json(service, fleet, caller)


@router.delete(
    "/fleets/{fleet}", status_code=204, responses=problem_responses(401, 403, 404, 422, 503)
)
def delete_fleet(fleet: Name, caller: Operator, service: ServiceDep) -> None:
    """Remove a fleet and everything in it; the audit log stays."""
    service.delete(fleet, caller)


@router.get(
    "/fleets/{fleet}/projection",
    responses={
        200: bytes_response_schema("The projection.")[200],
        **problem_responses(401, 403, 404, 422),
    },
    response_class=Response,
)
def get_projection(fleet: Name, _caller: Member, service: ServiceDep) -> Response:
    """Give the projection of a fleet."""
    return Response(service.fleet(fleet).body, media_type=OCTET_STREAM)


@router.post(
    "/fleets/{fleet}/invitations",
    status_code=201,
    responses=problem_responses(400, 401, 403, 404, 413, 422, 503),
    openapi_extra=json_body_schema(InvitationAsked),
)
async def invite(
    fleet: Name,
    caller: Operator,
    service: ServiceDep,
    wish: Annotated[InvitationAsked, Depends(json_request(InvitationAsked))],
) -> Invitation:
    """Make an invitation with which one device can enrol, once."""
    token, expires = await run_in_thread(
        lambda: service.invite(fleet, wish.device, wish.valid_s, caller)
    )
    return Invitation(token=token, fleet=fleet, device=wish.device, expires=expires)


@router.post(
    "/fleets/{fleet}/devices",
    status_code=201,
    responses=problem_responses(400, 401, 413, 422, 503),
    openapi_extra=json_body_schema(EnrolmentAsked),
)
async def enrol(fleet: Name, invitation: Token, service: ServiceDep, request: Request) -> Enrolment:
    """Enrol a device, with an invitation as token; the answer shows the device's own, once."""
    wish = await json_request(EnrolmentAsked)(request, await load_of(request))
    try:
        token, agreed = await run_in_thread(lambda: service.enrol(invitation, fleet, wish.device))
    except DeniedError as error:
        raise UnauthenticatedError(str(error)) from error
    reads = agreed.reads
    return Enrolment(token=token, fleet=fleet, device=wish.device, reads=reads)  # type: ignore[arg-type]  # one of the two words


@router.get("/fleets/{fleet}/devices", responses=problem_responses(401, 403, 404, 422))
def list_devices(fleet: Name, _caller: Operator, service: ServiceDep) -> list[Device]:
    """Give the devices of a fleet."""
    return service.devices(fleet)


@router.delete(
    "/fleets/{fleet}/devices/{device}",
    status_code=204,
    responses=problem_responses(401, 403, 404, 422, 503),
)
def revoke(fleet: Name, device: Name, caller: Operator, service: ServiceDep) -> None:
    """Revoke a device's token; its contributions stay until they are dropped."""
    service.revoke(fleet, device, caller)


def _must_fit(fleet: Fleet, load: InFlight) -> None:
    most = load.limits.max_bytes_in_flight
    if fleet.numbers > most:
        raise SettingError(
            f"contributions of this fleet would have {fleet.numbers} bytes, expected at most "
            f"{most}: choose fewer inputs or hidden values"
        )


def _get_fleet_json(service: ServiceDep, fleet: str, caller: CallerDep) -> FleetTold:
    service.fleet(fleet)  # 404 before anything else
    seen = service.fleets(caller)
    return next(fleet_json(found, counts) for found, counts in seen if found.fleet == fleet)


log = logging.getLogger(__name__)


@router.get("/healthz")
async def healthz() -> Health:
    """Say that the server is alive."""
    return Health(status="ok")


@router.get("/readyz", responses={503: {"model": Health, "description": "Not ready."}})
def readyz(service: ServiceDep) -> Response:
    """Say whether the database can be read and written."""
    try:
        service.check()
    except (EdgemergeError, TimeoutError) as error:
        log.warning("not ready", extra={"values": {"problem": str(error)}})
        words = (
            "the disk is full" if isinstance(error, DiskFullError) else "see the log of the server"
        )
        body = Health(status="not ready", detail=words).model_dump()
        return JSONResponse(body, 503, {"Retry-After": "5"})
    return JSONResponse(Health(status="ready").model_dump())


@router.get("/metrics", responses={200: {"content": {"text/plain": {}}}})
def metrics(service: ServiceDep) -> Response:
    """Give counts and durations in the text form of Prometheus."""
    with service.database.reading() as tx:
        text = service.metrics.text(tx, service.history, service.clock())
    return Response(text, media_type=CONTENT_TYPE)


@router.get("/status", responses=problem_responses(401, 403))
def status(service: ServiceDep, caller: Operator) -> Status:
    """Give an overview of all fleets."""
    fleets = [fleet_json(fleet, counts) for fleet, counts in service.fleets(caller)]
    waiting = service.writer.waiting
    return Status(version=__version__, ready=True, waiting=waiting, fleets=fleets)


@router.get("/audit", responses=problem_responses(401, 403, 422))
def audit(
    service: ServiceDep,
    _caller: Operator,
    fleet: Annotated[str | None, Query(pattern=NAME_PATTERN)] = None,
    after: Annotated[int, Query(ge=0, lt=2**63)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> AuditTold:
    """Give a stretch of the audit log, in order; `head` is the hash of the last entry given."""
    found = service.audit(fleet, after, limit)
    return AuditTold(entries=found, head=found[-1].hash if found else FIRST_HASH)


CHOICES_PATH = "/fleets/{fleet}/choices"
CHANGE_PROBLEMS = problem_responses(400, 401, 403, 404, 413, 422, 503, 507)
READ_PROBLEMS = problem_responses(401, 403, 404, 422, 503)


def _one_of_schema(*models: type[BaseModel]) -> dict[str, object]:
    """Describe a body in JSON that has one of several forms."""
    schema = {"oneOf": [model.model_json_schema() for model in models]}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


@router.get(CHOICES_PATH, responses=problem_responses(401, 403, 404, 422))
def list_choices(fleet: Name, _caller: Operator, service: ServiceDep) -> list[ChoiceTold]:
    """Give the choices of a fleet, newest first, with the last ones that were undone."""
    return [choice_json(choice) for choice in service.merging.choices(fleet)]


@router.post(
    CHOICES_PATH,
    status_code=201,
    responses=CHANGE_PROBLEMS,
    openapi_extra=_one_of_schema(AdoptAsked, RevokeAsked),
)
async def choose(
    fleet: Name,
    caller: Operator,
    service: ServiceDep,
    wish: Annotated[ChoiceAsked, Depends(json_request(ChoiceAsked))],
) -> ChoiceTold:
    """Choose who is told what; what is in force already is not chosen again."""
    act, one = service.merging, wish.root
    if isinstance(one, AdoptAsked):
        sources, targets = one.sources, one.targets
        return choice_json(await run_in_thread(lambda: act.adopt(fleet, sources, targets, caller)))
    key = (one.device, one.incarnation, one.pattern)
    return choice_json(await run_in_thread(lambda: act.exclude(fleet, key, caller)))


@router.delete(
    CHOICES_PATH + "/{number}", responses=problem_responses(401, 403, 404, 422, 503, 507)
)
def undo(fleet: Name, number: Number, caller: Operator, service: ServiceDep) -> ChoiceTold:
    """Undo a choice, as if it had never been; repeating it does no harm."""
    return choice_json(service.merging.undo(fleet, number, caller))


@router.post(
    "/fleets/{fleet}/preview",
    responses=problem_responses(400, 401, 403, 404, 413, 422, 503),
    openapi_extra=json_body_schema(PreviewAsked),
)
async def preview(
    fleet: Name,
    _caller: Operator,
    service: ServiceDep,
    limiter: HeavyLimiter,
    wish: Annotated[PreviewAsked, Depends(json_request(PreviewAsked))],
) -> list[PreviewTold]:
    """Say what telling targets of these sources only would do to their level; nothing changes."""
    look = service.merging.preview
    rows = await run_in_thread(lambda: look(fleet, wish.sources, wish.targets), limiter)
    return [_preview_json(row) for row in rows]


@router.get("/fleets/{fleet}/similarity", responses=READ_PROBLEMS)
async def similarity(
    fleet: Name,
    _caller: Operator,
    service: ServiceDep,
    limiter: HeavyLimiter,
    device: DeviceFilter = None,
) -> LikenessTold:
    """Compare devices, 60 with most samples or up to 200 named ones, in an order of groups."""
    found = await run_in_thread(lambda: service.merging.similarity(fleet, device), limiter)
    return _likeness_json(found)


router.add_api_route(
    "/fleets/{fleet}/likeness",
    similarity,
    responses=READ_PROBLEMS,
    deprecated=True,
    name="likeness",
    description="The old name of `/similarity`.",
)


def choice_json(choice: Choice) -> ChoiceTold:
    """Say what can be told of a choice."""
    device, incarnation, pattern = choice.key or (None, None, None)
    return ChoiceTold(
        number=choice.number,
        at=choice.at,
        actor=choice.actor,
        kind=choice.kind,
        sources=choice.sources,
        targets=choice.targets,
        device=device,
        incarnation=incarnation,
        pattern=pattern,
        undone=choice.undone,
    )


def _preview_json(row: PatternPreview) -> PreviewTold:
    return PreviewTold(**asdict(row), shift=row.shift)


def _likeness_json(found: DeviceSimilarity) -> LikenessTold:
    return LikenessTold(
        devices=list(found.devices),
        ratios=found.ratios.tolist(),
        groups=list(found.groups),
        samples=list(found.samples),
        left_out=found.left_out,
    )


class SignInLink(BaseModel):
    """Where the dashboard lets its operator in, once, and until when."""

    path: str
    expires: float


@router.post("/sign-in-links", status_code=201, responses=problem_responses(401, 403, 503))
def make_sign_in_link(service: ServiceDep, caller: Operator) -> SignInLink:
    """Make a link to the dashboard that signs the operator in, once, within ten minutes."""
    link = service.sessions.link(caller)
    return SignInLink(path=f"/ui/sign-in?link={link.token}", expires=link.expires)
