"""The page that adds a device: it makes an invitation and shows the commands to paste."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from edgemerge.core.errors import EdgemergeError, SettingError
from edgemerge.server.auth import Session
from edgemerge.server.dashboard.fleet import server_url
from edgemerge.server.dashboard.pages import render_page
from edgemerge.server.dashboard.sign_in import Form, FormDep, FormSession, PageSession
from edgemerge.server.fleets import must_be_plain_name
from edgemerge.server.http import Name, ServiceDep, error_answer, run_in_thread

HOUR_S = 3600.0
VALID_HOURS = {"1": "1 hour", "24": "1 day", "168": "1 week"}

router = APIRouter(include_in_schema=False)


@router.get("/fleets/{fleet}/add")
def show_form(request: Request, fleet: Name, session: PageSession, service: ServiceDep) -> Response:
    """Ask for the name of a device."""
    service.fleet(fleet)
    return _render(request, fleet, session)


@router.post("/fleets/{fleet}/add")
async def add_device(
    request: Request, fleet: Name, session: FormSession, form: FormDep, service: ServiceDep
) -> Response:
    """Make an invitation; its token is on this page, and nowhere else."""

    def work() -> Response:
        device = form.one("device")
        try:
            hours = _read_device(form)
            token, expires = service.invite(fleet, device, HOUR_S * hours, session.caller)
        except EdgemergeError as problem:
            return _render(request, fleet, session, device=device, problem=problem)
        made = {"token": token, "expires": expires}
        return _render(request, fleet, session, device=device, made=made)

    return await run_in_thread(work)


def _read_device(form: Form) -> int:
    """Check the name, and return for how many hours the invitation is valid."""
    device, hours = form.one("device"), form.one("hours")
    must_be_plain_name("device", device)
    if hours not in VALID_HOURS:
        raise SettingError(f"found hours {hours[:20]!r}, expected {', '.join(VALID_HOURS)}")
    return int(hours)


def _render(
    request: Request,
    fleet: str,
    session: Session,
    *,
    device: str = "",
    made: dict[str, Any] | None = None,
    problem: EdgemergeError | None = None,
) -> Response:
    values: dict[str, Any] = {"fleet": fleet, "tab": "", "here": server_url(request)}
    values |= {"device": device, "made": made, "hours": VALID_HOURS, "csrf": session.csrf}
    values["problem"] = "" if problem is None else str(problem)
    status = 200 if problem is None else error_answer(problem).status
    return render_page(request, "add_device.html", session, status=status, **values)
