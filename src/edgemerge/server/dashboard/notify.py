"""The page of a fleet's receivers: who gets messages, add, remove, and send a test message."""

from __future__ import annotations

from typing import Any, get_args

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from edgemerge.core.errors import EdgemergeError, SettingError
from edgemerge.server.auth import Session
from edgemerge.server.dashboard.pages import render_page
from edgemerge.server.dashboard.sign_in import Form, FormDep, FormSession, PageSession
from edgemerge.server.fleets import must_be_plain_name
from edgemerge.server.http import Name, ServiceDep, error_answer, refuse_invalid, run_in_thread
from edgemerge.server.schemas import NotificationEvent, ReceiverRequest
from edgemerge.server.service import Service

SECONDS_PER_MINUTE = 60.0
EVENTS = get_args(NotificationEvent)
EVENT_WORDS = {
    "alarm": "an episode begins",
    "all clear": "it ends",
    "problem": "a device has a problem with its data, or no longer",
    "offline": "a device is offline, or back",
    "merge refused": "a device refuses what others saw",
}
TEXT_FIELDS = ("url", "host", "sender", "username", "secret_file")
router = APIRouter(include_in_schema=False)


@router.get("/fleets/{fleet}/notify")
async def show_receivers(
    request: Request, fleet: Name, session: PageSession, service: ServiceDep
) -> Response:
    """Show the receivers of a fleet."""
    done = request.query_params.get("done", "")
    return await _page(request, fleet, session, service, done=done)


@router.post("/fleets/{fleet}/notify/add")
async def add_receiver(
    request: Request, fleet: Name, session: FormSession, form: FormDep, service: ServiceDep
) -> Response:
    """Set a receiver."""
    name = form.one("name")

    def work() -> None:
        must_be_plain_name("receiver", name)
        service.notifications.put(fleet, name, read_receiver(form), session.caller)

    return await _run(request, fleet, session, service, work, "set")


@router.post("/fleets/{fleet}/notify/remove")
async def remove_receiver(
    request: Request, fleet: Name, session: FormSession, form: FormDep, service: ServiceDep
) -> Response:
    """Remove a receiver."""
    name = form.one("name")

    def work() -> None:
        service.notifications.remove(fleet, name, session.caller)

    return await _run(request, fleet, session, service, work, "removed")


@router.post("/fleets/{fleet}/notify/test")
async def send_test(
    request: Request, fleet: Name, session: FormSession, form: FormDep, service: ServiceDep
) -> Response:
    """Send a test message."""
    name = form.one("name")

    def work() -> None:
        trouble = service.notifications.test(fleet, name, session.caller)
        if trouble:
            raise SettingError(f"the test message to {name} was not accepted: {trouble}")

    return await _run(request, fleet, session, service, work, "tested")


def read_receiver(form: Form) -> ReceiverRequest:
    """Read a receiver from the form of the page; empty fields are left out."""
    asked: dict[str, Any] = {name: form.one(name) for name in TEXT_FIELDS if form.one(name)}
    asked |= {"kind": form.one("kind"), "events": form.every("event")}
    asked["to"] = [each.strip() for each in form.one("to").split(",") if each.strip()]
    if form.one("secret"):
        asked["secret"] = form.every("secret")[0]
    if form.one("security"):
        asked["security"] = form.one("security")
    try:
        asked["every_s"] = float(form.one("minutes") or 1) * SECONDS_PER_MINUTE
        asked |= {"port": int(form.one("port"))} if form.one("port") else {}
    except ValueError as error:
        raise SettingError("found minutes or a port that is no number, expected one") from error
    with refuse_invalid():
        return ReceiverRequest(**asked)


async def _run(
    request: Request, fleet: str, session: Session, service: Service, work: Any, done: str
) -> Response:
    """Redirect to the page, which says what was done; or show there why it was not."""
    try:
        await run_in_thread(work)
    except EdgemergeError as problem:
        return await _page(request, fleet, session, service, problem=problem)
    return RedirectResponse(f"/ui/fleets/{fleet}/notify?done={done}", 303)


NOTICES = {
    "set": "The receiver was set. Send it a test message to see that it works.",
    "removed": "The receiver was removed.",
    "tested": "The test message was taken.",
}


async def _page(
    request: Request,
    fleet: str,
    session: Session,
    service: Service,
    *,
    done: str = "",
    problem: EdgemergeError | None = None,
) -> Response:
    values: dict[str, Any] = {"tab": "Notify", "fleet": fleet, "events": EVENT_WORDS}
    values |= {"notice": NOTICES.get(done, ""), "problem": str(problem) if problem else ""}
    status = 200 if problem is None else error_answer(problem).status

    def work() -> Response:
        found = service.notifications.receivers(fleet)
        return render_page(request, "notify.html", session, status=status, found=found, **values)

    return await run_in_thread(work)
