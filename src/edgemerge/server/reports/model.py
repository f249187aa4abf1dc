"""Values of a device's reports: score points, minutes, traffic, the latest report.

A point table is an array (k, 4): at, score, threshold (NaN: none), alarm; in order of time, one row
for each moment, at most `MAX_POINTS`, the newest. Merging what two servers know gives the same in
any order, and twice is once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import ceil, isnan
from typing import Any, NamedTuple, Self, TypeVar, overload

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from edgemerge.server.schemas import (
    MAX_MOMENT,
    ReportedAlarm,
    ReportedMerge,
    ReportedMonitor,
    ReportedPoint,
    ReportedStatus,
    ReportRequest,
)

ONLINE_S = 30.0  # after the last report, or three times as long as its reporting interval
QUIET_S = 300.0  # after it was last heard of, if it has ever reported
# Likewise, of a device that does not report: it shares now and then.
QUIET_WITHOUT_REPORTS_S = 7_200.0
DEVICE_STATES = ("online", "problem", "quiet", "offline", "revoked")


class ScorePoint(NamedTuple):
    """The highest score within a moment, by the server's clock."""

    at: float
    score: float
    threshold: float | None
    alarm: bool


class MinuteSummary(NamedTuple):
    """What was scored within a minute, or a longer time; `at` is its beginning."""

    at: float
    scores: int
    mean: float
    highest: float
    threshold: float | None
    alarms: int


@dataclass(frozen=True)
class Traffic:
    """What a device has pushed and pulled, ever, and when it last did; two add up.

    `grouped` says whether it asked for patterns, the last time it asked; None: unknown.
    """

    pushes: int = 0
    pushed_bytes: int = 0
    pulls: int = 0
    pulled_bytes: int = 0
    last: float = 0.0
    grouped: bool | None = None

    def __add__(self, other: Traffic) -> Traffic:
        older, newer = sorted((self, other), key=lambda one: one.last)
        return Traffic(
            self.pushes + other.pushes,
            self.pushed_bytes + other.pushed_bytes,
            self.pulls + other.pulls,
            self.pulled_bytes + other.pulled_bytes,
            newer.last,
            older.grouped if newer.grouped is None else newer.grouped,
        )


@dataclass(frozen=True)
class LatestReport:
    """The newest that is known of a device; all times are by the server's clock."""

    device: str
    heard: float
    every_s: float
    left: bool
    status: ReportedStatus
    points: Sequence[ScorePoint]  # oldest first, at most 600; made when looked at, so look at few
    alarm: ReportedAlarm | None
    merge: ReportedMerge | None  # without its origins: `History.merges` has them
    seq: int


def is_reporting(latest: LatestReport | None, now: float) -> bool:
    """Return whether a device is one of those that report now."""
    if latest is None or latest.left:
        return False
    return now - latest.heard <= max(ONLINE_S, 3.0 * latest.every_s)


def last_contact(seen: float | None, traffic: Traffic | None) -> float | None:
    """Return when a device pushed or pulled last, by what is stored and what is in memory."""
    return max(seen or 0.0, traffic.last if traffic else 0.0) or None


def device_state(
    now: float, *, latest: LatestReport | None, seen: float | None, revoked: float | None
) -> str:
    """Describe how a device is: one of `DEVICE_STATES`."""
    if revoked is not None:
        return "revoked"
    if latest is None:
        return "quiet" if seen is not None and now - seen <= QUIET_WITHOUT_REPORTS_S else "offline"
    if latest.left:
        return "offline"
    if is_reporting(latest, now):
        return "problem" if problem_words(latest) else "online"
    return "quiet" if now - max(latest.heard, seen or 0.0) <= QUIET_S else "offline"


def problem_words(latest: LatestReport) -> str:
    """Return the names of the problems with a device's data; none if there are none."""
    status = latest.status
    names = [each.name for each in status.problems]
    if not names and not status.samples:
        names = ["no sample yet"]
    return ", ".join(names)


MAX_POINTS = 600
DAY_S = 86_400.0
MAX_CLOCK_SKEW_S = 60.0  # by which clocks of several servers may differ
CLOCK_STEP_S = 10.0  # of the correction of a monitor's times: delays vary less
ModelT = TypeVar("ModelT", bound=BaseModel)
POINT_DTYPE = np.dtype("<f8")
PointTable = NDArray[np.float64]
NO_POINTS: PointTable = np.empty((0, 4))


class PointSequence(Sequence[ScorePoint]):
    """A table seen as points; each is made when it is looked at."""

    def __init__(self, table: PointTable) -> None:
        """Show a table."""
        self._table = table

    def __len__(self) -> int:
        return len(self._table)

    @overload
    def __getitem__(self, index: int) -> ScorePoint: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[ScorePoint, ...]: ...
    def __getitem__(self, index: int | slice) -> ScorePoint | tuple[ScorePoint, ...]:
        if isinstance(index, slice):
            return tuple(map(_point_from_row, self._table[index].tolist()))
        return _point_from_row(self._table[index].tolist())

    def __iter__(self) -> Iterator[ScorePoint]:
        return map(_point_from_row, self._table.tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"Points({len(self)})"


def _point_from_row(row: list[float]) -> ScorePoint:
    at, score, threshold, alarm = row
    return ScorePoint(at, score, None if threshold != threshold else threshold, bool(alarm))  # noqa: PLR0124 - NaN


def points_to_server_clock(
    points: Sequence[ReportedPoint], *, shift: float, now: float
) -> PointTable:
    """Return reported points by the server's clock; none is of the future or older than a day."""
    rows = [
        (p.at, p.score, np.nan if p.threshold is None else p.threshold, p.alarm) for p in points
    ]
    table = np.array(rows, POINT_DTYPE).reshape(-1, 4)
    table[:, 0] = np.minimum(table[:, 0] + shift, now)
    return newest_points(table[table[:, 0] >= now - DAY_S])


def drop_future(table: PointTable, now: float) -> PointTable:
    """Return the points up to now: after a clock was set back, older ones look newest."""
    ahead = len(table) > 0 and table[-1, 0] > now + MAX_CLOCK_SKEW_S
    return table[table[:, 0] <= now] if ahead else table


def newest_points(table: PointTable) -> PointTable:
    """Put points in order; of those of one moment the highest stays, of all the newest."""
    if len(table) < 2:
        return table
    table = table[np.lexsort(table.T[::-1])]
    last_of_its_moment = np.append(table[1:, 0] != table[:-1, 0], True)
    kept: PointTable = table[last_of_its_moment][-MAX_POINTS:]
    return kept


def merge_points(known: PointTable, more: PointTable) -> PointTable:
    """Return the newest of both."""
    if not len(more):
        return known
    both = np.concatenate([known, more])
    if not len(known) or known[-1, 0] < more[0, 0]:  # nearly always: no need to sort
        return both[-MAX_POINTS:]
    return newest_points(both)


def new_points(known: PointTable, more: PointTable) -> PointTable:
    """Return those that uniting adds."""
    if not len(known) or not len(more) or known[-1, 0] < more[0, 0]:
        return more
    kept = more[:, 0] >= merge_points(known, more)[0, 0]
    fresh: PointTable = more[kept & ~np.isin(more[:, 0], known[:, 0])]
    return fresh


def pack_points(table: PointTable) -> bytes:
    """Return points as bytes: little-endian numbers of 64 bits."""
    return table.astype(POINT_DTYPE).tobytes()


def unpack_points(data: bytes) -> PointTable:
    """Read points; of bytes that are none, no point."""
    if len(data) % (4 * POINT_DTYPE.itemsize):
        return NO_POINTS
    table = np.frombuffer(data, POINT_DTYPE).reshape(-1, 4).astype(np.float64)
    return newest_points(table[np.isfinite(table[:, [0, 1, 3]]).all(axis=1)])


MINUTE_S = 60.0
QUARTER_MINUTES = 15  # of an hour
KEPT_DAYS = 90.0  # of history, unless the server is told otherwise
MINUTE_DAYS = 7.0  # for which there are minutes; what is older is kept in quarters of an hour
# The lengths of time over which scores are joined for a chart, in seconds.
CHART_STEPS_S = (
    *(60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0, 10_800.0, 21_600.0),
    *(43_200.0, 86_400.0, 172_800.0, 604_800.0),
)


def minute_of(at: float) -> int:
    """Return the number of the minute in which a moment lies."""
    return int(at // MINUTE_S)


def summarize_minutes(table: PointTable) -> dict[int, MinuteSummary]:
    """Gather points into their minutes."""
    rows = groupby(table.tolist(), key=lambda row: minute_of(row[0]))
    return {minute: _summarize(minute, list(some)) for minute, some in rows}


def _summarize(minute: int, rows: list[list[float]]) -> MinuteSummary:
    _, scores, thresholds, alarms = zip(*rows, strict=True)
    given = [threshold for threshold in thresholds if not isnan(threshold)]
    mean, highest = sum(scores) / len(scores), max(scores)
    threshold = given[-1] if given else None
    return MinuteSummary(minute * MINUTE_S, len(rows), mean, highest, threshold, int(sum(alarms)))


def add_summaries(known: MinuteSummary | None, more: MinuteSummary) -> MinuteSummary:
    """Return a minute with all that two know of it; the limit is that of the second."""
    if known is None:
        return more
    scores = known.scores + more.scores
    return MinuteSummary(
        known.at,
        scores,
        known.mean + (more.mean - known.mean) * (more.scores / scores),
        max(known.highest, more.highest),
        known.threshold if more.threshold is None else more.threshold,
        known.alarms + more.alarms,
    )


def merge_minutes(
    known: dict[int, MinuteSummary], more: Iterable[tuple[int, MinuteSummary]]
) -> dict[int, MinuteSummary]:
    """Add minutes to those that are known."""
    both = dict(known)
    for minute, one in more:
        both[minute] = add_summaries(both.get(minute), one)
    return both


def chart_step_s(span_s: float, most: int) -> float:
    """Return the shortest step of which at most so many make up a time.

    >>> chart_step_s(3600.0, 600), chart_step_s(7 * 86_400.0, 600), chart_step_s(1e9, 600)
    (60.0, 1800.0, 1814400.0)
    """
    least = span_s / most
    weeks = ceil(least / CHART_STEPS_S[-1]) * CHART_STEPS_S[-1]
    return next((step for step in CHART_STEPS_S if step >= least), weeks)


def join_summaries(found: Iterable[MinuteSummary], step_s: float) -> list[MinuteSummary]:
    """Join what lies within the same step; the highest stays the highest.

    Args:
        found: Summaries in order of time.
        step_s: The step in seconds, not shorter than what a summary is of.
    """
    joined: list[MinuteSummary] = []
    for each in found:
        one = each._replace(at=each.at // step_s * step_s)
        if joined and joined[-1].at == one.at:
            joined[-1] = add_summaries(joined[-1], one)
        else:
            joined.append(one)
    return joined


@dataclass(frozen=True)
class ReceivedReport:
    """A report by the server's clock: nothing in it is of the future."""

    heard: float
    left: bool
    status: ReportedStatus
    points: PointTable
    alarms: list[ReportedAlarm]
    merge: ReportedMerge | None


def to_server_clock(report: ReportRequest, now: float) -> ReceivedReport:
    """Move the times of a report by as much as the device's clock is off."""
    shift = now - report.sent

    def at(moment: float) -> float:
        return max(0.0, min(moment + shift, now))

    status, merge = report.status, report.merge
    changed: dict[str, Any] = {}
    if status.synced is not None:
        changed["synced"] = at(status.synced)
    if status.monitor is not None:
        changed["monitor"] = _monitor_to_server_clock(status.monitor, shift)
    if status.problems:
        steady = CLOCK_STEP_S * round(shift / CLOCK_STEP_S)
        changed["problems"] = [_moved(each, steady, "since") for each in status.problems]
    if changed:
        status = status.model_copy(update=changed)
    return ReceivedReport(
        heard=now,
        left=report.leaving,
        status=status,
        points=points_to_server_clock(report.points, shift=shift, now=now),
        alarms=[alarm.model_copy(update={"at": at(alarm.at)}) for alarm in report.alarms],
        merge=merge and merge.model_copy(update={"at": at(merge.at)}),
    )


def _monitor_to_server_clock(monitor: ReportedMonitor, shift: float) -> ReportedMonitor:
    """Move the times of episodes and patterns in steps, so that they stay the same in all reports.

    They are those of samples, which may have been recorded long ago.
    """
    steady = CLOCK_STEP_S * round(shift / CLOCK_STEP_S)
    if not steady:
        return monitor

    def moved(part: ModelT, *names: str) -> ModelT:
        return _moved(part, steady, *names)

    return moved(monitor, "snoozed_until").model_copy(
        update={
            "episodes": [moved(each, "began", "ended") for each in monitor.episodes],
            "patterns": [moved(each, "first", "last") for each in monitor.patterns],
        }
    )


def _moved(part: ModelT, shift: float, *names: str) -> ModelT:
    times = {name: getattr(part, name) for name in names}
    return part.model_copy(
        update={
            name: min(max(at + shift, -MAX_MOMENT), MAX_MOMENT)
            for name, at in times.items()
            if at is not None
        }
    )


def without_origins(merge: ReportedMerge) -> ReportedMerge:
    """Return a merge without the list of what is in it, which may be long."""
    return merge.model_copy(update={"origins": []})


MAX_STORED_ALARMS = 100
MAX_STORED_MERGES = 50
MAX_PENDING_MINUTES = 120  # that wait; in the database there is a day of them


@dataclass(frozen=True)
class PendingHistory:
    """What is new of a device since `since`; two of them add up."""

    since: float
    reported: bool = False
    points: PointTable = field(default_factory=lambda: NO_POINTS)
    minutes: dict[int, MinuteSummary] = field(default_factory=dict)
    alarms: list[ReportedAlarm] = field(default_factory=list)
    merges: list[ReportedMerge] = field(default_factory=list)
    merged: int = 0  # there may have been more than are kept
    traffic: Traffic = field(default_factory=Traffic)

    @classmethod
    def of(cls, report: ReceivedReport, unknown: PointTable, merge: ReportedMerge | None) -> Self:
        """Return what a report brings; `unknown` are those of its points that are new."""
        return cls(
            since=report.heard,
            reported=True,
            points=unknown,
            minutes=summarize_minutes(unknown),
            alarms=report.alarms,
            merges=[] if merge is None else [merge],
            merged=int(merge is not None),
        )

    def __add__(self, other: PendingHistory) -> PendingHistory:
        gathered = merge_minutes(self.minutes, other.minutes.items())
        alarms = sorted(self.alarms + other.alarms, key=lambda alarm: (alarm.at, alarm.sample))
        merges = sorted(self.merges + other.merges, key=lambda merge: merge.at)
        return PendingHistory(
            since=min(self.since, other.since),
            reported=self.reported or other.reported,
            points=merge_points(self.points, other.points),
            minutes=dict(sorted(gathered.items())[-MAX_PENDING_MINUTES:]),
            alarms=alarms[-MAX_STORED_ALARMS:],
            merges=merges[-MAX_STORED_MERGES:],
            merged=self.merged + other.merged,
            traffic=self.traffic + other.traffic,
        )

    def is_due(self, minute: int) -> bool:
        """Return whether there is more than the minute that has only begun."""
        beside = self.reported or self.traffic != Traffic()
        return beside or next(iter(self.minutes), minute) < minute  # they are in order

    def parted(self, minute: int, now: float) -> tuple[PendingHistory, PendingHistory | None]:
        """Return what can be written now, and what is left: minutes that are not over."""
        over = {begun: one for begun, one in self.minutes.items() if begun < minute}
        left = {begun: one for begun, one in self.minutes.items() if begun >= minute}
        return replace(self, minutes=over), PendingHistory(
            since=now, minutes=left
        ) if left else None
