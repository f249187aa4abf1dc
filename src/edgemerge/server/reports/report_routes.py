"""The route for reports: what a device says about itself, between its contributions.

It has few dependencies, because solving those of other routes takes longer than all that it does.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import ValidationError

from edgemerge.core.errors import DeniedError, SettingError
from edgemerge.server.asking import Name, Token, in_thread
from edgemerge.server.problems import NobodyError, in_words, problems
from edgemerge.server.reports.report_forms import LONGEST, ReportAsked, ReportTold
from edgemerge.server.service import Service
from edgemerge.server.tokens import Caller

router = APIRouter()
ERRORS = 20  # of a report that are told


def described() -> dict[str, object]:
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
    responses=problems(400, 401, 403, 413, 422, 429, 503),
    openapi_extra=described(),
)
async def report(fleet: Name, device: Name, token: Token, request: Request) -> Response:
    """Take a device's own report; operators see it at once, and it may be lost in a crash."""
    service, load = request.app.state.service, request.app.state.load
    caller = await _reporter(service, token, fleet, device)
    with service.metrics.refusals():
        service.reception.admit(caller)
        async with load.body(request, LONGEST) as data:
            told = _read(data)
    now = service.clock()
    service.history.take(fleet, device, told, now)
    service.metrics.note(told)
    choice = service.merging.newest_for(fleet, device)
    return JSONResponse({"every_s": service.history.every_s(now), "choice": choice})


async def _reporter(service: Service, token: str, fleet: str, device: str) -> Caller:
    """Let only the device itself pass; usually without a look into the database."""
    caller = service.reception.known(token)
    if caller is None:
        try:
            caller = await in_thread(lambda: _looked_up(service, token))
        except DeniedError as error:
            raise NobodyError(str(error)) from error
        service.reception.remember(token, caller)
    if (caller.fleet, caller.name) != (fleet, device):
        raise DeniedError(f"only {device} itself, in its fleet, may report")
    return caller


def _looked_up(service: Service, token: str) -> Caller:
    """Find out who reports, and what was chosen: later that is known without waiting for it."""
    caller = service.caller(token)
    if caller.fleet is not None:
        service.merging.newest_for(caller.fleet, caller.name)
    return caller


def _read(data: bytes) -> ReportAsked:
    try:
        return ReportAsked.model_validate_json(data)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        raise SettingError(in_words(found[:ERRORS])) from error
