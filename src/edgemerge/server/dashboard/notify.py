"""The page of a fleet's receivers: who gets messages, add, remove, and send a test message."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, get_args

from fastapi import APIRouter, Response

from edgemerge.core.errors import EdgemergeError, SettingError
from edgemerge.server.dashboard.pages import answer_form
from edgemerge.server.dashboard.sign_in import Form, FormDep, OperatorForm, Page, ViewerPage
from edgemerge.server.fleets import must_be_plain_name
from edgemerge.server.http import Name, refuse_invalid
from edgemerge.server.schemas import NotificationEvent, ReceiverRequest

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
def show_receivers(fleet: Name, page: ViewerPage) -> Response:
    """Show the receivers of a fleet."""
    return _render(page, fleet, done=page.request.query_params.get("done", ""))


@router.post("/fleets/{fleet}/notify/add")
def add_receiver(fleet: Name, page: OperatorForm, form: FormDep) -> Response:
    """Set a receiver."""
    name = form.one("name")

    def change() -> None:
        must_be_plain_name("receiver", name)
        page.service.notifications.put(fleet, name, read_receiver(form), page.caller)

    return _change(page, fleet, change, "set")


@router.post("/fleets/{fleet}/notify/remove")
def remove_receiver(fleet: Name, page: OperatorForm, form: FormDep) -> Response:
    """Remove a receiver."""
    name, remove = form.one("name"), page.service.notifications.remove
    return _change(page, fleet, lambda: remove(fleet, name, page.caller), "removed")


@router.post("/fleets/{fleet}/notify/test")
def send_test(fleet: Name, page: OperatorForm, form: FormDep) -> Response:
    """Send a test message."""
    name = form.one("name")

    def change() -> None:
        trouble = page.service.notifications.test(fleet, name, page.caller)
        if trouble:
            raise SettingError(f"the test message to {name} was not accepted: {trouble}")

    return _change(page, fleet, change, "tested")


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


def _change(page: Page, fleet: str, change: Callable[[], object], done: str) -> Response:
    """Redirect to the page, which says what was done; or show there why it was not."""
    return answer_form(
        change, f"/ui/fleets/{fleet}/notify?done={done}", partial(_render, page, fleet)
    )


NOTICES = {
    "set": "The receiver was set. Send it a test message to see that it works.",
    "removed": "The receiver was removed.",
    "tested": "The test message was taken.",
}


def _render(
    page: Page, fleet: str, *, done: str = "", problem: EdgemergeError | None = None
) -> Response:
    values: dict[str, Any] = {"tab": "Receivers", "fleet": fleet, "events": EVENT_WORDS}
    values |= {
        "notice": NOTICES.get(done, ""),
        "found": page.service.notifications.receivers(fleet),
    }
    return page.render("notify.html", problem=problem, **values)
