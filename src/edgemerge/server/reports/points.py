"""Points of a score's history as one array, (k, 4): at, score, threshold (NaN: none), alarm.

In order of time, one for each moment, at most `KEPT`: the newest. So uniting what two servers
know gives the same in any order, and twice is once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from edgemerge.server.reports.glimpses import Point
from edgemerge.server.reports.report_forms import PointAsked

KEPT = 600
DAY_S = 86_400.0
SKEW_S = 60.0  # by which clocks of several servers may differ
FORM = np.dtype("<f8")
Table = NDArray[np.float64]
NONE: Table = np.empty((0, 4))


class Points(Sequence[Point]):
    """A table seen as points; each is made when it is looked at."""

    def __init__(self, table: Table) -> None:
        """Show a table."""
        self._table = table

    def __len__(self) -> int:
        return len(self._table)

    @overload
    def __getitem__(self, index: int) -> Point: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Point, ...]: ...
    def __getitem__(self, index: int | slice) -> Point | tuple[Point, ...]:
        if isinstance(index, slice):
            return tuple(map(_point, self._table[index].tolist()))
        return _point(self._table[index].tolist())

    def __iter__(self) -> Iterator[Point]:
        return map(_point, self._table.tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"Points({len(self)})"


def _point(row: list[float]) -> Point:
    at, score, threshold, alarm = row
    return Point(at, score, None if threshold != threshold else threshold, bool(alarm))  # noqa: PLR0124 - NaN


def arrived(points: Sequence[PointAsked], *, shift: float, now: float) -> Table:
    """Give reported points by the server's clock; none is of the future or older than a day."""
    rows = [
        (p.at, p.score, np.nan if p.threshold is None else p.threshold, p.alarm) for p in points
    ]
    table = np.array(rows, FORM).reshape(-1, 4)
    table[:, 0] = np.minimum(table[:, 0] + shift, now)
    return newest(table[table[:, 0] >= now - DAY_S])


def past(table: Table, now: float) -> Table:
    """Give the points up to now: after the clock was set back, older ones look like the newest."""
    ahead = len(table) > 0 and table[-1, 0] > now + SKEW_S
    return table[table[:, 0] <= now] if ahead else table


def newest(table: Table) -> Table:
    """Put points in order; of those of one moment the highest stays, of all the newest."""
    if len(table) < 2:
        return table
    table = table[np.lexsort(table.T[::-1])]
    last_of_its_moment = np.append(table[1:, 0] != table[:-1, 0], True)
    kept: Table = table[last_of_its_moment][-KEPT:]
    return kept


def unite(known: Table, more: Table) -> Table:
    """Give the newest of both."""
    if not len(more):
        return known
    both = np.concatenate([known, more])
    if not len(known) or known[-1, 0] < more[0, 0]:  # nearly always: no need to sort
        return both[-KEPT:]
    return newest(both)


def unknown(known: Table, more: Table) -> Table:
    """Give those that uniting adds."""
    if not len(known) or not len(more) or known[-1, 0] < more[0, 0]:
        return more
    kept = more[:, 0] >= unite(known, more)[0, 0]
    fresh: Table = more[kept & ~np.isin(more[:, 0], known[:, 0])]
    return fresh


def pack(table: Table) -> bytes:
    """Give points as bytes: little-endian numbers of 64 bits."""
    return table.astype(FORM).tobytes()


def unpack(data: bytes) -> Table:
    """Read points; of bytes that are none, no point."""
    if len(data) % (4 * FORM.itemsize):
        return NONE
    table = np.frombuffer(data, FORM).reshape(-1, 4).astype(np.float64)
    return newest(table[np.isfinite(table[:, [0, 1, 3]]).all(axis=1)])
