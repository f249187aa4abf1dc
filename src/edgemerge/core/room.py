"""Room: whether samples will fit into sums, told before any of them is learnt.

A bound on what samples add to the largest sum decides nearly always; near the end of the exact
range the samples are summed up to see.
"""

from __future__ import annotations

from math import inf, sqrt

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.activation import BOUNDS
from edgemerge.core.projection import Projection
from edgemerge.core.sums import Sums, sum_up

Array = NDArray[np.float64]


class Room:
    """Bounds what samples of one projection add to the largest sum."""

    def __init__(self, projection: Projection) -> None:
        """Measure the weights: |h| ≤ |A||x| + |b|, and rounding."""
        self.projection = projection
        N, step = projection.n_hidden, projection.step
        self._stretch = float(np.linalg.norm(projection.A))
        self._shift = float(np.linalg.norm(projection.b)) + step * sqrt(N)
        self._most = float(N) if projection.activation in BOUNDS else inf

    def load(self, x: Array) -> float:
        """Bound what one sample (n,) adds."""
        squares = float(x.dot(x))
        hidden = (self._stretch * sqrt(squares) + self._shift) ** 2
        return max(squares, min(hidden, self._most), 1.0)

    def loads(self, X: Array) -> float:
        """Bound what rows (k, n) add together."""
        k, squares = len(X), float(np.vdot(X, X))
        hidden = 2.0 * (self._stretch**2 * squares + k * self._shift**2)  # (a + b)² ≤ 2a² + 2b²
        return max(squares, min(hidden, k * self._most), float(k))

    def must_hold(self, sums: Sums, X: Array) -> None:
        """Refuse rows that would not all fit into these sums."""
        if not sums.fits(self.loads(X)):
            sums.must_hold(sum_up(self.projection, X, X))
