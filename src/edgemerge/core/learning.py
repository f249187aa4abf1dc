"""Learning: one sample that was just looked at, or rows into the sums alone.

x (n,), X (k, n) on the grid.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.known import Known, Look
from edgemerge.core.sums import CHUNK, sum_up

Array = NDArray[np.float64]


def learn_one(known: Known, x: Array, look: Look) -> None:
    """Learn one sample, and follow P instead of solving it again."""
    cache, Ph = known.cache(), look.HP
    fit, squares, more = cache.fit, float(Ph.dot(Ph)), float(look.H.dot(look.H))
    across = 0.0 if fit is None else float(known.times_V(cache.gains(Ph)).dot(look.errors))
    weight = 1.0 / (known.frame * known.fade)  # M8: U ← a²U + hᵀh, in the frame of the sums
    known.own.add(look.H, x, weight, more)
    known.frame *= known.fade
    known.learnt += 1
    d = weight / (1.0 + weight * look.leverage)  # M4
    cache.take(Ph, d, squares)
    if fit is not None:  # M5, B + d(Ph)(t − hB), as seen by J and ‖B‖²
        fit.J += d * look.squares
        fit.norm += d * (2.0 * across + d * squares * look.squares)
    known.watch(more)


def learn_rows(known: Known, X: Array) -> None:
    """Add rows to the sums alone: the fastest way, when nobody asks in between."""
    if known.fade != 1.0 or len(X) > CHUNK or not _add_at_once(known, X):
        _add_apart(known, X)
    known.learnt += len(X)
    known.stale()


def _add_at_once(known: Known, X: Array) -> bool:
    """Add a few rows in place; not if it might be too much, which needs a closer look."""
    H = known.projection.project(X)
    fits = known.own.fits(max(float(np.vdot(H, H)), float(np.vdot(X, X)), float(len(X))))
    if fits:
        known.own.add_rows(H, X)
    return fits


def _add_apart(known: Known, X: Array) -> None:
    """Sum rows up by themselves, see that they fit, and add that."""
    age = np.arange(len(X) - 1.0, -1.0, -1.0)
    fresh = sum_up(known.projection, X, X, None if known.fade == 1.0 else known.fade**age)
    known.own.must_hold(fresh)
    if known.fade != 1.0:
        known.own.settle(known.frame * known.fade ** len(X))  # M8
        known.frame = 1.0
    known.own.add_all(fresh)
