"""What the page of a device shows, gathered from its reports, its shares and its merges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from edgemerge.core.contribution import Key
from edgemerge.core.errors import UnknownError
from edgemerge.server import contributions
from edgemerge.server.contributions import Entry
from edgemerge.server.dashboard.board import Boards
from edgemerge.server.dashboard.figures import digits, share, times
from edgemerge.server.dashboard.provenance import Teller, standing_words, tellers
from edgemerge.server.dashboard.rows import Row
from edgemerge.server.reports.glimpses import Glimpse, Point
from edgemerge.server.reports.report_forms import AlarmAsked, MergeAsked, Reason
from edgemerge.server.service import Service

ALARMS, MERGES = 100, 10  # that the page shows
SPAN_S = 600.0  # of the chart


class Bar(NamedTuple):
    """A length beside a name; `width` is in percent of the longest."""

    name: str
    words: str
    width: str


class PatternView(NamedTuple):
    """A pattern: how many of the last samples belonged to it, and how many are behind it."""

    name: str
    used: Bar
    own: float
    told: float
    current: bool


class ChartView(NamedTuple):
    """The chart in words."""

    latest: Point | None
    highest: Point | None
    alarms: int


@dataclass(frozen=True)
class DeviceView:
    """Everything that is known of a device; `glimpse` is None if it never reported."""

    fleet: str
    row: Row
    glimpse: Glimpse | None
    alarms: list[AlarmAsked]
    merges: list[MergeAsked]
    shared: list[Entry]
    told: list[Teller]
    revoked: frozenset[Key]
    now: float

    @property
    def reasons(self) -> list[Bar]:
        """The inputs that carry the last alarm, the strongest first."""
        last = self.glimpse.alarm if self.glimpse else None
        why = sorted(last.why if last else (), key=lambda reason: -reason.factor)
        return [_bar(reason, why[0].factor) for reason in why]

    @property
    def standing(self) -> str:
        """Whether what it holds of others is what the server has."""
        return standing_words(self.told)

    @property
    def patterns(self) -> list[PatternView]:
        """The patterns of the device, the most used first."""
        status = self.glimpse.status if self.glimpse else None
        found = sorted(status.patterns if status else (), key=lambda one: -one.used)
        whole = sum(one.used for one in found)
        return [
            PatternView(
                one.pattern,
                Bar(one.pattern, share(one.used, whole), _width(one.used, whole)),
                one.own,
                one.told,
                current=status is not None and one.pattern == status.pattern,
            )
            for one in found
        ]

    @property
    def points(self) -> list[Point]:
        """The scores of the last ten minutes before the newest."""
        points = list(self.glimpse.points) if self.glimpse else []
        return [point for point in points if point.at >= points[-1].at - SPAN_S]

    @property
    def chart(self) -> ChartView:
        """The chart in words, for those who cannot see it."""
        points = self.points
        highest = max(points, key=lambda point: point.score, default=None)
        return ChartView(points[-1] if points else None, highest, sum(p.alarm for p in points))


def device_view(service: Service, boards: Boards, fleet: str, device: str) -> DeviceView:
    """Gather what is known of a device, which must have enrolled."""
    seen = boards.look(fleet, database_s=0.0)
    rows = {row.device: row for row in seen.rows}
    if device not in rows:
        raise UnknownError(f"no device {device} in {fleet}: it has not enrolled")
    with service.database.reading() as tx:
        entries = contributions.every(tx, fleet)
    revoked = service.merging.revoked(fleet)
    merges = service.history.merges(fleet, device, limit=MERGES)
    revisions = {entry.key: entry.revision for entry in entries}
    return DeviceView(
        fleet=fleet,
        row=rows[device],
        glimpse=service.history.glimpse(fleet, device),
        alarms=service.history.alarms(fleet, device, limit=ALARMS),
        merges=merges,
        shared=_newest_first([entry for entry in entries if entry.device == device]),
        told=tellers(merges[0] if merges else None, revisions, revoked, rows.keys()),
        revoked=revoked,
        now=service.clock(),
    )


def numbers(points: Sequence[Point]) -> list[list[float | None]]:
    """Give points as the chart takes them: times, scores, thresholds, and the scores of alarms."""
    return [
        [round(point.at, 3) for point in points],
        [float(digits(point.score, 6)) for point in points],
        [point.threshold for point in points],
        [float(digits(point.score, 6)) if point.alarm else None for point in points],
    ]


def _newest_first(entries: list[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda entry: -entry.received)


def _bar(reason: Reason, largest: float) -> Bar:
    return Bar(reason.input, f"{times(reason.factor)} of usual", _width(reason.factor, largest))


def _width(part: float, whole: float) -> str:
    return f"{max(1.0, 100.0 * part / whole) if whole > 0 else 0:.0f}%"
