"""Routes for fleets, invitations and devices."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from edgemerge.core.errors import DeniedError, SettingError
from edgemerge.server.answers import (
    Enrolment,
    EnrolmentAsked,
    FleetTold,
    Invitation,
    InvitationAsked,
    Reads,
)
from edgemerge.server.asking import (
    BYTES,
    Asker,
    Loading,
    Member,
    Name,
    Operator,
    Serving,
    Token,
    asked,
    bytes_answer,
    bytes_body,
    in_thread,
    json_body,
    load_of,
)
from edgemerge.server.fleets import Fleet
from edgemerge.server.limits import Load
from edgemerge.server.problems import NobodyError, problems
from edgemerge.server.service import Counts
from edgemerge.server.tokens import Device

router = APIRouter()
PROJECTION = 2**20  # bytes that a projection may have


def told(fleet: Fleet, counts: Counts) -> FleetTold:
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


@router.get("/fleets", responses=problems(401))
def list_fleets(service: Serving, caller: Asker) -> list[FleetTold]:
    """Give all fleets to an operator, and its own to a device."""
    return [told(fleet, counts) for fleet, counts in service.fleets(caller)]


@router.put(
    "/fleets/{fleet}",
    status_code=201,
    responses={
        200: {"model": FleetTold, "description": "The same is there already."},
        **problems(400, 401, 403, 409, 413, 422, 503, 507),
    },
    openapi_extra=bytes_body("A projection."),
)
async def create_fleet(
    *,
    fleet: Name,
    caller: Operator,
    service: Serving,
    load: Loading,
    request: Request,
    response: Response,
    reads: Reads = "totals",
    least: Annotated[int, Query(ge=1, le=10_000)] = 1,
    growing: Annotated[bool, Query()] = False,
) -> FleetTold:
    """Make a fleet with a projection that all its devices will share."""
    async with load.body(request, PROJECTION) as data:
        made = Fleet(fleet, data, reads, least, growing, 0, service.clock())
        await in_thread(lambda: _must_fit(made, load))
        new = await in_thread(lambda: service.create(made, caller))
    response.status_code = 201 if new else 200
    return await in_thread(lambda: _told(service, fleet, caller))


@router.get("/fleets/{fleet}", responses=problems(401, 403, 404, 422))
def get_fleet(fleet: Name, caller: Member, service: Serving) -> FleetTold:
    """Say what a fleet has agreed on, and how much is in it."""
    return _told(service, fleet, caller)


@router.delete("/fleets/{fleet}", status_code=204, responses=problems(401, 403, 404, 422, 503))
def delete_fleet(fleet: Name, caller: Operator, service: Serving) -> None:
    """Remove a fleet and everything in it; the audit log stays."""
    service.delete(fleet, caller)


@router.get(
    "/fleets/{fleet}/projection",
    responses={200: bytes_answer("The projection.")[200], **problems(401, 403, 404, 422)},
    response_class=Response,
)
def get_projection(fleet: Name, _caller: Member, service: Serving) -> Response:
    """Give the projection of a fleet."""
    return Response(service.fleet(fleet).body, media_type=BYTES)


@router.post(
    "/fleets/{fleet}/invitations",
    status_code=201,
    responses=problems(400, 401, 403, 404, 413, 422, 503),
    openapi_extra=json_body(InvitationAsked),
)
async def invite(
    fleet: Name,
    caller: Operator,
    service: Serving,
    wish: Annotated[InvitationAsked, Depends(asked(InvitationAsked))],
) -> Invitation:
    """Make an invitation with which one device can enrol, once."""
    token, expires = await in_thread(
        lambda: service.invite(fleet, wish.device, wish.valid_s, caller)
    )
    return Invitation(token=token, fleet=fleet, device=wish.device, expires=expires)


@router.post(
    "/fleets/{fleet}/devices",
    status_code=201,
    responses=problems(400, 401, 413, 422, 503),
    openapi_extra=json_body(EnrolmentAsked),
)
async def enrol(fleet: Name, invitation: Token, service: Serving, request: Request) -> Enrolment:
    """Enrol a device, with an invitation as token; the answer shows the device's own, once."""
    wish = await asked(EnrolmentAsked)(request, await load_of(request))
    try:
        token, agreed = await in_thread(lambda: service.enrol(invitation, fleet, wish.device))
    except DeniedError as error:
        raise NobodyError(str(error)) from error
    reads = agreed.reads
    return Enrolment(token=token, fleet=fleet, device=wish.device, reads=reads)  # type: ignore[arg-type]  # one of the two words


@router.get("/fleets/{fleet}/devices", responses=problems(401, 403, 404, 422))
def list_devices(fleet: Name, _caller: Operator, service: Serving) -> list[Device]:
    """Give the devices of a fleet."""
    return service.devices(fleet)


@router.delete(
    "/fleets/{fleet}/devices/{device}",
    status_code=204,
    responses=problems(401, 403, 404, 422, 503),
)
def revoke(fleet: Name, device: Name, caller: Operator, service: Serving) -> None:
    """Let a device in no more; what it contributed stays until it is dropped."""
    service.revoke(fleet, device, caller)


def _must_fit(fleet: Fleet, load: Load) -> None:
    most = load.limits.bytes_under_way
    if fleet.numbers > most:
        raise SettingError(
            f"contributions of this fleet would have {fleet.numbers} bytes, expected at most "
            f"{most}: choose fewer inputs or hidden values"
        )


def _told(service: Serving, fleet: str, caller: Asker) -> FleetTold:
    service.fleet(fleet)  # 404 before anything else
    seen = service.fleets(caller)
    return next(told(found, counts) for found, counts in seen if found.fleet == fleet)
