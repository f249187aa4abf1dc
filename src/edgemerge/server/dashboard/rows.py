"""Rows of the fleet's table: one device each, made from what it reported and what it shared."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from edgemerge.server.dashboard.enrolled import Enrolled
from edgemerge.server.dashboard.figures import count, score
from edgemerge.server.dashboard.sparkline import Sparkline, sparkline
from edgemerge.server.reports.glimpses import STATES, Glimpse

HOLD_S = 60.0  # for which an alarm counts as one of now


class Row(NamedTuple):
    """What the table shows of a device; None where nothing is known."""

    device: str
    state: str
    alarm: bool  # now
    alarmed: float | None  # when it last was
    pattern: str | None
    learnt: float
    revision: int | None
    shared: float | None
    merged: float | None
    score: float | None
    threshold: float | None
    spark: Sparkline

    @property
    def above(self) -> bool:
        """Whether its last score is above the threshold."""
        if self.score is None or self.threshold is None:
            return False
        return self.score > self.threshold

    def told(self) -> list[Any]:
        """Give what the stream sends of it; the page's script knows the order."""
        return [
            *(self.device, self.state, int(self.alarm), self.alarmed, self.pattern),
            *(count(self.learnt), self.learnt, self.revision, self.shared, self.merged),
            *(score(self.score), self.score, score(self.threshold), int(self.above)),
            *self.spark,
        ]


BLANK = Row("", "", False, None, None, 0.0, None, None, None, None, None, Sparkline())  # noqa: FBT003 - of a tuple


def row_of(known: Enrolled, glimpse: Glimpse | None, state: str, *, alarm: bool) -> Row:
    """Make the row of a device; one that never reported is known by what it shared."""
    shared = known.shared if known.shared is not None else known.seen
    if glimpse is None:
        nothing = (None, None, None, Sparkline())
        known_of = (None, None, known.samples, known.revision, shared)
        return Row(known.device, state, alarm, *known_of, *nothing)
    points = glimpse.points
    last = points[-1] if points else None
    return Row(
        device=known.device,
        state=state,
        alarm=alarm,
        alarmed=alarmed(glimpse),
        pattern=glimpse.status.pattern,
        learnt=glimpse.status.learnt,
        revision=glimpse.status.revision or known.revision,
        shared=shared,
        merged=glimpse.merge.at if glimpse.merge else None,
        score=last.score if last else None,
        threshold=last.threshold if last else None,
        spark=sparkline(points),
    )


def alarmed(glimpse: Glimpse | None) -> float | None:
    """Say when a device raised its last alarm."""
    return glimpse.alarm.at if glimpse and glimpse.alarm else None


def in_alarm(glimpse: Glimpse | None, state: str, now: float) -> bool:
    """Say whether an alarm of a device is one of now: of the last minute, or of its last report."""
    last = alarmed(glimpse)
    if glimpse is None or last is None or state == "revoked":
        return False
    return now - last <= max(HOLD_S, 2.0 * glimpse.every_s)


KEYS: dict[str, Callable[[Row], Any]] = {
    "device": lambda row: row.device,
    "state": lambda row: STATES.index(row.state),
    "alarm": lambda row: row.alarmed,
    "pattern": lambda row: row.pattern,
    "learnt": lambda row: row.learnt,
    "revision": lambda row: row.revision,
    "shared": lambda row: row.shared,
    "merged": lambda row: row.merged,
    "score": lambda row: row.score,
}


def in_order(rows: Iterable[Row], sort: str) -> list[Row]:
    """Sort by a column, "-" before its name for the largest first; by no column: alarms first.

    Equal ones stand in order of their names, and what is not known comes last.
    """
    by_name = sorted(rows, key=lambda row: row.device)
    key = KEYS.get(sort.removeprefix("-"))
    if key is None:
        return sorted(by_name, key=lambda row: not row.alarm)
    known = [row for row in by_name if key(row) is not None]
    unknown = [row for row in by_name if key(row) is None]
    return sorted(known, key=key, reverse=sort.startswith("-")) + unknown


def matches(row: Row, words: str) -> bool:
    """Say whether all words are in the name, the state or the pattern of a device."""
    text = f"{row.device} {row.state} {row.pattern or ''}{' alarm' if row.alarm else ''}".lower()
    return all(word in text for word in words.lower().split())
