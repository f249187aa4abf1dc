"""Waiting: single samples are put aside until somebody asks, and then learnt together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.known import Known
from edgemerge.core.learning import learn_one, learn_rows
from edgemerge.core.room import Room

Array = NDArray[np.float64]

MOST = 64  # samples that may wait
FEW = 8  # samples up to which following P is cheaper than solving it


class Waiting:
    """Samples on the grid that are as good as learnt: they are sure to fit into the sums."""

    def __init__(self, known: Known) -> None:
        """Put samples aside for what will know them."""
        self._known = known
        self._room = Room(known.projection)
        self._rows: list[Array] = []
        self._load = 0.0  # at least what they add to the largest sum

    def __len__(self) -> int:
        """Count the samples that wait."""
        return len(self._rows)

    def push(self, x: Array) -> None:
        """Put one sample (n,) aside, or learn it now if it might not fit later."""
        load = self._room.load(x)
        if len(self._rows) >= MOST or not self._known.own.fits(self._load + load):
            self.clear()
        if self._known.own.fits(load):
            self._rows.append(x)
            self._load += load
        else:
            learn_rows(self._known, x[None])

    def must_fit(self, X: Array) -> None:
        """Refuse rows (k, n) that would not all fit, before the first of them is learnt."""
        self._room.must_hold(self._known.own, X)
        if self._known.ridge(0.0) == 0.0:
            self._known.cache()  # which is refused where samples are too few to solve for

    def clear(self) -> None:
        """Learn all that wait."""
        if not self._rows:
            return
        rows, self._rows, self._load = self._rows, [], 0.0
        if len(rows) > FEW or not self._known.is_solved:
            learn_rows(self._known, np.array(rows))
        else:
            for x in rows:
                learn_one(self._known, x, self._known.look(x))
