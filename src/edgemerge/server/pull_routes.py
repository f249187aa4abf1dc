"""Routes that tell sums: the total, and one for each pattern."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from edgemerge.exchange.protocol import Wish
from edgemerge.server.asking import Member, Name, Serving, bytes_answer, known_tag, tagged
from edgemerge.server.names import NAME
from edgemerge.server.problems import problems

router = APIRouter()
Names = Annotated[list[Annotated[str, Query(pattern=NAME)]] | None, Query(max_length=1000)]


async def wish_of(
    caller: Member,
    incarnation: Annotated[int | None, Query(ge=0, lt=2**63)] = None,
    device: Names = None,
    without: Names = None,
    pattern: Annotated[str | None, Query(min_length=1, max_length=200)] = None,
    largest: Annotated[int | None, Query(ge=1, le=1_000_000)] = None,
) -> Wish:
    """Say what is wanted; a device's own contributions, of this incarnation or all, are not."""
    return Wish(
        device=None if caller.is_operator else caller.name,
        incarnation=incarnation,
        devices=None if device is None else tuple(device),
        without=tuple(without or ()),
        pattern=pattern,
        largest=largest,
    )


Wanted = Annotated[Wish, Depends(wish_of)]
ALSO = problems(401, 403, 404, 422, 503)


@router.get(
    "/fleets/{fleet}/total",
    responses={**bytes_answer("What was told: one sum, or none."), **ALSO},
    response_class=Response,
)
def total(
    fleet: Name, caller: Member, service: Serving, wish: Wanted, request: Request
) -> Response:
    """Give the exact sum of what others contributed, and the list of what is in it."""
    answer = service.tell(fleet, wish, caller, known_tag(request))
    return tagged(answer.data, answer.tag)


@router.get(
    "/fleets/{fleet}/patterns",
    responses={**bytes_answer("What was told: one sum for each pattern."), **ALSO},
    response_class=Response,
)
def patterns(
    fleet: Name, caller: Member, service: Serving, wish: Wanted, request: Request
) -> Response:
    """Give an exact sum for each pattern of what others contributed, largest first."""
    grouped = Wish(**{**vars(wish), "grouped": True})
    answer = service.tell(fleet, grouped, caller, known_tag(request))
    return tagged(answer.data, answer.tag)
