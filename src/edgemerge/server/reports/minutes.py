"""Minutes: what was scored within each, gathered from points; two of one minute add up."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from math import isnan

from edgemerge.server.reports.glimpses import Minute
from edgemerge.server.reports.points import Table

MINUTE_S = 60.0
DAY = 1440  # minutes


def number(at: float) -> int:
    """Give the number of the minute in which a moment lies."""
    return int(at // MINUTE_S)


def of(table: Table) -> dict[int, Minute]:
    """Gather points into their minutes."""
    rows = groupby(table.tolist(), key=lambda row: number(row[0]))
    return {minute: _gathered(minute, list(some)) for minute, some in rows}


def _gathered(minute: int, rows: list[list[float]]) -> Minute:
    _, scores, thresholds, alarms = zip(*rows, strict=True)
    given = [threshold for threshold in thresholds if not isnan(threshold)]
    mean, highest = sum(scores) / len(scores), max(scores)
    threshold = given[-1] if given else None
    return Minute(minute * MINUTE_S, len(rows), mean, highest, threshold, int(sum(alarms)))


def add(known: Minute | None, more: Minute) -> Minute:
    """Give a minute with all that two know of it; the threshold is that of the second."""
    if known is None:
        return more
    scores = known.scores + more.scores
    return Minute(
        known.at,
        scores,
        known.mean + (more.mean - known.mean) * (more.scores / scores),
        max(known.highest, more.highest),
        known.threshold if more.threshold is None else more.threshold,
        known.alarms + more.alarms,
    )


def joined(known: dict[int, Minute], more: Iterable[tuple[int, Minute]]) -> dict[int, Minute]:
    """Add minutes to those that are known."""
    both = dict(known)
    for minute, one in more:
        both[minute] = add(both.get(minute), one)
    return both
