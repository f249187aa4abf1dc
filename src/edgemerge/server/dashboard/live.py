"""Live updates: the events of a fleet's table and of a device's page."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response

from edgemerge.server.dashboard import formatting
from edgemerge.server.dashboard.device import DeviceView, chart_series, device_view
from edgemerge.server.dashboard.fleet_table import FleetTables
from edgemerge.server.dashboard.pages import TEMPLATES
from edgemerge.server.dashboard.sign_in import DataSession, cookie_of
from edgemerge.server.dashboard.stream import (
    Event,
    EventSource,
    EventStreamResponse,
    Viewers,
    ViewersDep,
    event_stream,
)
from edgemerge.server.fleets import NAME_PATTERN
from edgemerge.server.http import Name, ServiceDep
from edgemerge.server.service import Service

PAGE_PARTS = (
    "head",
    "words",
    "reasons",
    "patterns",
    "status",
    "told",
    "merges",
    "alarms",
    "shared",
)
REFRESH_S = 5.0  # after which states and what others shared are looked at again


class DeviceEvents:
    """Sees what changes of a device; the parts are made by the templates of the page."""

    def __init__(
        self, service: Service, watching: Viewers, fleet: str, device: str, mark: str
    ) -> None:
        """Begin after the last point that somebody saw, or with all."""
        self._service, self._watching = service, watching
        self._fleet, self._device = fleet, device
        self._run, self._last = watching.run, _last_seen(mark, watching.run)
        self._seq, self._looked = -1, -inf
        self._parts: dict[str, str] = {}
        self._alarmed: float | None = None

    def look(self) -> Event | None:
        """Give what changed."""
        glimpse = self._service.history.latest(self._fleet, self._device)
        seq, now = glimpse.seq if glimpse else 0, self._service.clock()
        if seq == self._seq and 0.0 <= now - self._looked < REFRESH_S:
            return None
        first, self._seq, self._looked = self._seq == -1, seq, now
        view = device_view(self._service, self._watching.boards, self._fleet, self._device)
        data = self._points(view) | self._changed(view) | self._alarm(view, first=first)
        return Event(f"{self._run}-{self._last}", data) if data else None

    def _points(self, view: DeviceView) -> dict[str, Any]:
        """Return points newer than the client's last; all of them after a restart of the server."""
        new = [point for point in view.points if point.at > self._last]
        if not new:
            return {}
        name = "all" if self._last == -inf else "points"
        self._last = new[-1].at
        return {name: chart_series(new)}

    def _changed(self, view: DeviceView) -> dict[str, Any]:
        made = render_parts(view)
        changed = {name: text for name, text in made.items() if self._parts.get(name) != text}
        self._parts = made
        return {"parts": changed} if changed else {}

    def _alarm(self, view: DeviceView, *, first: bool) -> dict[str, Any]:
        """Give the words of an alarm that came while somebody looks, to be read aloud."""
        before, self._alarmed = self._alarmed, view.row.alarmed
        if first or before == self._alarmed or view.latest is None or view.latest.alarm is None:
            return {}
        alarm = view.latest.alarm
        against = f", threshold {formatting.score(alarm.threshold)}" if alarm.threshold else ""
        return {"alarm": f"Alarm of {self._device}: score {formatting.score(alarm.score)}{against}"}


def render_parts(view: DeviceView) -> dict[str, str]:
    """Make the parts of the page; they are equal as long as nothing in them changes."""
    return {
        name: TEMPLATES.get_template(f"_device_{name}.html").render(view=view, figures=formatting)
        for name in PAGE_PARTS
    }


def _last_seen(mark: str, run: str) -> float:
    """Return the time of the client's last point, or none if it is of an earlier run."""
    seen, _, at = mark.partition("-")
    try:
        return float(at) if seen == run else -inf
    except ValueError:
        return -inf


router = APIRouter(include_in_schema=False)

Since = Annotated[str, Query(max_length=100)]
LastSeen = Annotated[str | None, Header(alias="Last-Event-ID", max_length=100)]


@router.get("/session")
def session(session: DataSession) -> dict[str, Any]:
    """Say who is signed in, to a script that has lost its stream."""
    return {"name": session.name, "expires": session.expires}


@router.get("/fleets/{fleet}/live")
async def live(
    request: Request,
    fleet: Name,
    _session: DataSession,
    service: ServiceDep,
    lookers: ViewersDep,
    device: Annotated[str | None, Query(pattern=NAME_PATTERN)] = None,
    since: Since = "",
    last_seen: LastSeen = None,
) -> Response:
    """Send what changes, as long as somebody looks."""
    mark, cookie = last_seen or since, cookie_of(request)
    watch: EventSource = FleetEvents(lookers.boards, fleet, mark)
    if device is not None:
        watch = DeviceEvents(service, lookers, fleet, device, mark)
    over = is_stopping(request)
    there = service.sessions.session
    told = event_stream(watch, signed_in=lambda: there(cookie) is not None, leaving=over)
    return EventStreamResponse(told, lookers, over)


def is_stopping(request: Request) -> Callable[[], bool]:
    """Give what says whether the server was asked to stop: streams must not hold it up."""
    found: Callable[[], bool] = getattr(request.app.state, "leaving", lambda: False)
    return found


class FleetEvents:
    """Sees the rows of a fleet that change, and its totals."""

    def __init__(self, boards: FleetTables, fleet: str, mark: str) -> None:
        """Begin where somebody stopped to look, or anew."""
        self._boards, self._fleet, self._mark = boards, fleet, mark
        self._totals: dict[str, str] | None = None

    def look(self) -> Event | None:
        """Give what changed."""
        seen = self._boards.look(self._fleet, since=self._mark)
        words = seen.totals.words()
        if not seen.rows and words == self._totals:
            return None
        self._mark, self._totals = seen.mark, words
        return Event(seen.mark, {"rows": [row.told() for row in seen.rows], "totals": words})
