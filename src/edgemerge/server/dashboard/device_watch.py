"""What somebody sees who looks at the page of a device: new points, and parts of the page."""

from __future__ import annotations

from math import inf
from typing import Any

from edgemerge.server.dashboard import figures
from edgemerge.server.dashboard.device_view import DeviceView, device_view, numbers
from edgemerge.server.dashboard.events import Event
from edgemerge.server.dashboard.rendering import TEMPLATES
from edgemerge.server.dashboard.watching import Watching
from edgemerge.server.reports.glimpses import Point
from edgemerge.server.service import Service

PARTS = ("head", "words", "reasons", "patterns", "status", "told", "merges", "alarms", "shared")
AGAIN_S = 5.0  # after which states and what others shared are looked at again


class DeviceWatch:
    """Sees what changes of a device; the parts are made by the templates of the page."""

    def __init__(
        self, service: Service, watching: Watching, fleet: str, device: str, mark: str
    ) -> None:
        """Begin after the last point that somebody saw, or with all."""
        self._service, self._watching = service, watching
        self._fleet, self._device = fleet, device
        self._run, self._last = watching.run, _last_of(mark, watching.run)
        self._seq, self._looked = -1, -inf
        self._parts: dict[str, str] = {}
        self._alarmed: float | None = None

    def look(self) -> Event | None:
        """Give what changed."""
        glimpse = self._service.history.glimpse(self._fleet, self._device)
        seq, now = glimpse.seq if glimpse else 0, self._service.clock()
        if seq == self._seq and 0.0 <= now - self._looked < AGAIN_S:
            return None
        first, self._seq, self._looked = self._seq == -1, seq, now
        view = device_view(self._service, self._watching.boards, self._fleet, self._device)
        data = self._points(view) | self._changed(view) | self._alarm(view, first=first)
        return Event(f"{self._run}-{self._last}", data) if data else None

    def _points(self, view: DeviceView) -> dict[str, Any]:
        """Give points that are new; to who has none of this run, all, in the place of any."""
        new = [point for point in view.points if point.at > self._last]
        if not new:
            return {}
        name = "all" if self._last == -inf else "points"
        self._last = new[-1].at
        return {name: numbers(new)}

    def _changed(self, view: DeviceView) -> dict[str, Any]:
        made = parts(view)
        changed = {name: text for name, text in made.items() if self._parts.get(name) != text}
        self._parts = made
        return {"parts": changed} if changed else {}

    def _alarm(self, view: DeviceView, *, first: bool) -> dict[str, Any]:
        """Give the words of an alarm that came while somebody looks, to be read aloud."""
        before, self._alarmed = self._alarmed, view.row.alarmed
        if first or before == self._alarmed or view.glimpse is None or view.glimpse.alarm is None:
            return {}
        alarm = view.glimpse.alarm
        against = f", threshold {figures.score(alarm.threshold)}" if alarm.threshold else ""
        return {"alarm": f"Alarm of {self._device}: score {figures.score(alarm.score)}{against}"}


def parts(view: DeviceView) -> dict[str, str]:
    """Make the parts of the page; they are equal as long as nothing in them changes."""
    return {
        name: TEMPLATES.get_template(f"_device_{name}.html").render(view=view, figures=figures)
        for name in PARTS
    }


def mark_of(points: list[Point], run: str) -> str:
    """Mark what somebody has seen who has seen these points."""
    return f"{run}-{points[-1].at if points else -inf}"


def _last_of(mark: str, run: str) -> float:
    """Give the time of the last point that was seen; what was seen of another run counts not."""
    seen, _, at = mark.partition("-")
    try:
        return float(at) if seen == run else -inf
    except ValueError:
        return -inf
