"""Live updates: the events of a fleet's table and of a device's page."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response

from edgemerge.server.dashboard import formatting
from edgemerge.server.dashboard.chart import point_series
from edgemerge.server.dashboard.device import DeviceView, device_view
from edgemerge.server.dashboard.episodes import (
    Wanted,
    cards_digest,
    episodes_view,
    render_cards,
)
from edgemerge.server.dashboard.fleet_table import FleetTables
from edgemerge.server.dashboard.pages import TEMPLATES
from edgemerge.server.dashboard.sign_in import DataSession, WallLink, cookie_of
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

# Each is a template, and an element of the page.
PAGE_PARTS = [
    "head",
    "words",
    "values",
    "reasons",
    "review",
    "settings",
    "patterns",
    "status",
    "sources",
    "merges",
    "alarms",
    "shared",
]
EPISODES_REFRESH_S = 1.5  # between two looks at the episodes of a fleet
REFRESH_S = 5.0  # after which states and what others shared are looked at again


class DeviceEvents:
    """The changes of a device: points of its chart, and parts of its page as templates."""

    def __init__(
        self,
        service: Service,
        viewers: Viewers,
        fleet: str,
        device: str,
        last_id: str,
        *,
        csrf: str = "",
    ) -> None:
        """Begin after the event that the client saw last, or with everything.

        Forms carry `csrf`, which belongs to the session of the page; without it there are none.
        """
        self._service, self._viewers, self._csrf = service, viewers, csrf
        self._fleet, self._device = fleet, device
        self._last = _last_point_at(last_id, viewers.run)
        self._seq, self._polled = -1, -inf
        self._parts: dict[str, str] = {}
        self._bands: list[list[float | None]] = []
        self._alarmed: float | None = None

    def poll(self) -> Event | None:
        """Return what changed."""
        latest = self._service.history.latest(self._fleet, self._device)
        seq, now = latest.seq if latest else 0, self._service.clock()
        if seq == self._seq and 0.0 <= now - self._polled < REFRESH_S:
            return None
        first, self._seq, self._polled = self._seq == -1, seq, now
        view = device_view(self._service, self._viewers.tables, self._fleet, self._device)
        data = self._points(view) | self._changed(view) | self._alarm(view, first=first)
        data |= self._episodes(view)
        return Event(f"{self._viewers.run}-{self._last}", data) if data else None

    def _points(self, view: DeviceView) -> dict[str, Any]:
        """Return points newer than the client's last; all of them after a restart of the server."""
        new = [point for point in view.points if point.at > self._last]
        if not new:
            return {}
        name = "all" if self._last == -inf else "points"
        self._last = new[-1].at
        return {name: point_series(new).columns}

    def _episodes(self, view: DeviceView) -> dict[str, Any]:
        """Return the episodes that the chart marks, when they have changed."""
        bands = [list(band) for band in view.bands]
        if bands == self._bands:
            return {}
        self._bands = bands
        return {"episodes": bands}

    def _changed(self, view: DeviceView) -> dict[str, Any]:
        made = render_parts(view, self._csrf)
        changed = {name: text for name, text in made.items() if self._parts.get(name) != text}
        self._parts = made
        return {"parts": changed} if changed else {}

    def _alarm(self, view: DeviceView, *, first: bool) -> dict[str, Any]:
        """Return the text of an alarm that came while the page is open, to be read aloud."""
        before, self._alarmed = self._alarmed, view.row.alarmed
        if first or before == self._alarmed or view.latest is None or view.latest.alarm is None:
            return {}
        alarm = view.latest.alarm
        against = f", limit {formatting.score(alarm.threshold)}" if alarm.threshold else ""
        return {"alarm": f"Alarm of {self._device}: score {formatting.score(alarm.score)}{against}"}


class EpisodeEvents:
    """The cards of a fleet's episodes that change, and which are in each section."""

    def __init__(
        self, service: Service, viewers: Viewers, fleet: str, last_id: str, *, csrf: str
    ) -> None:
        """Begin after what the client has, or with everything.

        Forms carry `csrf`, which belongs to the session of the page; without it there are none.
        """
        self._service, self._viewers, self._fleet = service, viewers, fleet
        self._csrf, self._polled, self._last_id = csrf, -inf, last_id
        self._cards: dict[str, str] | None = None  # that the client has; None: unknown

    def poll(self) -> Event | None:
        """Return what changed."""
        now = self._service.clock()
        if 0.0 <= now - self._polled < EPISODES_REFRESH_S:
            return None
        self._polled = now
        view = episodes_view(self._service, self._viewers, self._fleet, Wanted())
        made = render_cards(view, self._csrf)
        known, last_id = self._cards, self._last_id
        self._last_id = cards_digest(made)
        self._cards = {number: text for some in made.values() for number, text in some.items()}
        if self._last_id == last_id:
            return None
        has = known or {}
        cards = {number: text for number, text in self._cards.items() if has.get(number) != text}
        opened = [card.episode for card in view.sections[0].cards]
        begun = [each.device for each in opened if known is not None and str(each.id) not in has]
        sections = {name: list(some) for name, some in made.items()}
        data = {"cards": cards, "sections": sections, "begun": begun}
        totals = {"counts": view.counts._asdict(), "mark": view.mark}
        return Event(self._last_id, data | totals)


def render_parts(view: DeviceView, csrf: str = "") -> dict[str, str]:
    """Render the parts of the page; they are equal as long as nothing in them changes."""
    return {
        name: TEMPLATES.get_template(f"_device_{name}.html").render(view=view, csrf=csrf)
        for name in PAGE_PARTS
    }


def _last_point_at(event_id: str, run: str) -> float:
    """Return the time of the client's last point, or none if it is of an earlier run."""
    seen, _, at = event_id.partition("-")
    try:
        return float(at) if seen == run else -inf
    except ValueError:
        return -inf


router = APIRouter(include_in_schema=False)

Since = Annotated[str, Query(max_length=100)]
LastSeen = Annotated[str | None, Header(alias="Last-Event-ID", max_length=100)]


@router.get("/session")
def session(session: DataSession) -> dict[str, Any]:
    """Return who is signed in, for a script that has lost its stream."""
    return {"name": session.name, "role": session.role, "expires": session.expires}


@router.get("/fleets/{fleet}/live")
async def live(
    *,
    request: Request,
    fleet: Name,
    session: DataSession,
    service: ServiceDep,
    viewers: ViewersDep,
    device: Annotated[str | None, Query(pattern=NAME_PATTERN)] = None,
    page: Annotated[Literal["devices", "episodes"], Query()] = "devices",
    since: Since = "",
    last_seen: LastSeen = None,
) -> Response:
    """Send what changes, as long as the page is open."""
    last_id, cookie = last_seen or since, cookie_of(request)
    source: EventSource = FleetEvents(viewers.tables, fleet, last_id)
    if device is not None:
        source = DeviceEvents(service, viewers, fleet, device, last_id, csrf=session.form_csrf)
    elif page == "episodes":
        source = EpisodeEvents(service, viewers, fleet, last_id, csrf=session.form_csrf)

    def signed_in() -> bool:
        return service.sessions.session(cookie) is not None

    return _stream(request, service, viewers, source, signed_in)


@router.get("/wall/{link}/live")
async def live_wall(
    *,
    request: Request,
    link: str,
    account: WallLink,
    service: ServiceDep,
    viewers: ViewersDep,
    since: Since = "",
    last_seen: LastSeen = None,
) -> Response:
    """Send what changes in the fleet of a wall link, as long as the link works."""
    source = FleetEvents(viewers.tables, account.fleet or "", last_seen or since)
    return _stream(
        request, service, viewers, source, lambda: service.accounts.wall(link) is not None
    )


def _stream(
    request: Request,
    service: Service,
    viewers: Viewers,
    source: EventSource,
    signed_in: Callable[[], bool],
) -> Response:
    stopping: Callable[[], bool] = getattr(request.app.state, "is_stopping", lambda: False)
    events = event_stream(
        source,
        signed_in=signed_in,
        is_stopping=stopping,
        generation=lambda: service.accounts.generation,
    )
    return EventStreamResponse(events, viewers, stopping)


class FleetEvents:
    """The rows of a fleet that change, and its totals."""

    def __init__(self, tables: FleetTables, fleet: str, last_id: str) -> None:
        """Begin after the event that the client saw last, or with everything."""
        self._tables, self._fleet, self._last_id = tables, fleet, last_id
        self._totals: dict[str, str] | None = None

    def poll(self) -> Event | None:
        """Return what changed."""
        view = self._tables.look(self._fleet, since=self._last_id)
        totals = view.totals.words()
        if not view.rows and totals == self._totals:
            return None
        self._last_id, self._totals = view.event_id, totals
        return Event(view.event_id, {"rows": [row.event() for row in view.rows], "totals": totals})
