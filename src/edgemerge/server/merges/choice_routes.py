"""Routes for choices, previews and likeness."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from anyio import CapacityLimiter
from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel

from edgemerge.server.answers import (
    AdoptAsked,
    ChoiceAsked,
    ChoiceTold,
    LikenessTold,
    PreviewAsked,
    PreviewTold,
    RevokeAsked,
)
from edgemerge.server.asking import (
    Name,
    Number,
    Operator,
    Serving,
    asked,
    in_thread,
    json_body,
)
from edgemerge.server.merges.merging import Choice, Likeness, Previewed
from edgemerge.server.problems import problems
from edgemerge.server.pull_routes import Names

router = APIRouter()
CHOICES = "/fleets/{fleet}/choices"
CHANGING = problems(400, 401, 403, 404, 413, 422, 503, 507)
LOOKING = problems(401, 403, 404, 422, 503)


async def weighing(request: Request) -> CapacityLimiter:
    """Give the limiter for what computes long, so that shares find threads and a processor."""
    limiter: CapacityLimiter = request.app.state.weighing
    return limiter


Weighing = Annotated[CapacityLimiter, Depends(weighing)]


def _either(*models: type[BaseModel]) -> dict[str, object]:
    """Describe a body in JSON that has one of several forms."""
    schema = {"oneOf": [model.model_json_schema() for model in models]}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


@router.get(CHOICES, responses=problems(401, 403, 404, 422))
def list_choices(fleet: Name, _caller: Operator, service: Serving) -> list[ChoiceTold]:
    """Give the choices of a fleet, newest first, with the last ones that were undone."""
    return [told(choice) for choice in service.merging.choices(fleet)]


@router.post(
    CHOICES,
    status_code=201,
    responses=CHANGING,
    openapi_extra=_either(AdoptAsked, RevokeAsked),
)
async def choose(
    fleet: Name,
    caller: Operator,
    service: Serving,
    wish: Annotated[ChoiceAsked, Depends(asked(ChoiceAsked))],
) -> ChoiceTold:
    """Choose who is told what; what is in force already is not chosen again."""
    act, one = service.merging, wish.root
    if isinstance(one, AdoptAsked):
        sources, targets = one.sources, one.targets
        return told(await in_thread(lambda: act.adopt(fleet, sources, targets, caller)))
    key = (one.device, one.incarnation, one.pattern)
    return told(await in_thread(lambda: act.revoke(fleet, key, caller)))


@router.delete(CHOICES + "/{number}", responses=problems(401, 403, 404, 422, 503, 507))
def undo(fleet: Name, number: Number, caller: Operator, service: Serving) -> ChoiceTold:
    """Undo a choice, as if it had never been; repeating it does no harm."""
    return told(service.merging.undo(fleet, number, caller))


@router.post(
    "/fleets/{fleet}/preview",
    responses=problems(400, 401, 403, 404, 413, 422, 503),
    openapi_extra=json_body(PreviewAsked),
)
async def preview(
    fleet: Name,
    _caller: Operator,
    service: Serving,
    limiter: Weighing,
    wish: Annotated[PreviewAsked, Depends(asked(PreviewAsked))],
) -> list[PreviewTold]:
    """Say what telling targets of these sources only would do to their level; nothing changes."""
    look = service.merging.preview
    rows = await in_thread(lambda: look(fleet, wish.sources, wish.targets), limiter)
    return [_previewed(row) for row in rows]


@router.get("/fleets/{fleet}/likeness", responses=LOOKING)
async def likeness(
    fleet: Name, _caller: Operator, service: Serving, limiter: Weighing, device: Names = None
) -> LikenessTold:
    """Compare devices, 60 with most samples or up to 200 named ones, in an order of groups."""
    found = await in_thread(lambda: service.merging.likeness(fleet, device), limiter)
    return _likeness(found)


def told(choice: Choice) -> ChoiceTold:
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


def _previewed(row: Previewed) -> PreviewTold:
    return PreviewTold(**asdict(row), shift=row.shift)


def _likeness(found: Likeness) -> LikenessTold:
    return LikenessTold(
        devices=list(found.devices),
        ratios=found.ratios.tolist(),
        groups=list(found.groups),
        samples=list(found.samples),
        left_out=found.left_out,
    )
