"""Sparklines: the last scores of a device as a small curve, on one logarithmic scale for all.

The heights are whole numbers, so that a page draws the same curve from what the stream sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import log
from typing import NamedTuple

from edgemerge.server.reports.glimpses import Point

WIDTH, HEIGHT = 120, 28
STEP = 2  # between two points
MOST = WIDTH // STEP  # points
EDGE = 2  # above and below
LOW, HIGH = 0.25, 100.0  # scores at the bottom and at the top: 1, 4 and 50 are well apart
_SCALE = (HEIGHT - 2 * EDGE) / log(HIGH / LOW)


class Sparkline(NamedTuple):
    """Heights from the top, oldest first; that of the threshold; which points are alarms."""

    heights: tuple[int, ...] = ()
    threshold: int | None = None
    alarms: tuple[int, ...] = ()

    @property
    def curve(self) -> str:
        """The curve as a path; it ends at the right."""
        if not self.heights:
            return ""
        steps = (f"{STEP} {now - before}" for before, now in pairwise(self.heights))
        return f"M{self._x(0)} {self.heights[0]}l" + " ".join(["0 0", *steps])

    @property
    def line(self) -> str:
        """The threshold as a path."""
        return "" if self.threshold is None else f"M0 {self.threshold}H{WIDTH}"

    @property
    def marks(self) -> str:
        """The alarms as a path of dots."""
        return "".join(f"M{self._x(i)} {self.heights[i]}h0" for i in self.alarms)

    def _x(self, i: int) -> int:
        return WIDTH - EDGE - STEP * (len(self.heights) - 1 - i)


def sparkline(points: Sequence[Point]) -> Sparkline:
    """Draw the last points."""
    last = points[-MOST:]
    if not last:
        return Sparkline()
    threshold = last[-1].threshold
    return Sparkline(
        tuple(height(point.score) for point in last),
        None if threshold is None else height(threshold),
        tuple(i for i, point in enumerate(last) if point.alarm),
    )


def height(score: float) -> int:
    """Say how far below the top a score is drawn.

    >>> [height(score) for score in (0.0, 1.0, 4.0, 50.0, 1e300)]
    [26, 20, 15, 5, 2]
    """
    if score <= LOW:
        return HEIGHT - EDGE
    return max(EDGE, round(HEIGHT - EDGE - _SCALE * log(score / LOW)))
