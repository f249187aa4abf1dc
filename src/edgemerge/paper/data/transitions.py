"""How often one level of speed follows another: the paper's 225 inputs of a drive.

A window of readings gives a table of 15 × 15 probabilities, row by row: of the seconds at level a,
the share that was followed by level b. A level that was not left in the window has a row of zeros.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgemerge.paper.dataset import Array, Ints

LEVELS = 15
WIDTH_KMH = 10.0
WINDOW_S = 120  # readings in a window: there is one a second
STEP_S = 10  # from the start of a window to the start of the next


def levels(speed: Array) -> Ints:
    """Give the level of each speed in km/h; what is faster than the top level counts as it.

    >>> levels(np.array([0.0, 9.9, 10.0, 148.8, 210.0]))
    array([ 0,  0,  1, 14, 14])
    """
    return np.minimum(speed // WIDTH_KMH, LEVELS - 1).astype(np.intp)


def table(level: Ints, follows: NDArray[np.bool_]) -> Array:
    """Count the steps that `follows` admits, and divide by the times each level was left, (225,).

    >>> T = table(np.array([0, 0, 1, 0]), np.array([True, True, False])).reshape(15, 15)
    >>> T[:2, :2]
    array([[0.5, 0.5],
           [0. , 0. ]])
    """
    pairs = (level[:-1] * LEVELS + level[1:])[follows]
    counts = np.bincount(pairs, minlength=LEVELS**2).reshape(LEVELS, LEVELS)
    return np.asarray((counts / np.maximum(counts.sum(1, keepdims=True), 1)).reshape(-1))


def windows(speed: Array, follows: NDArray[np.bool_]) -> Array:
    """Give the tables of all whole windows of a drive, (k, 225).

    A window may hold a gap in the readings, but the step across it is not counted.
    """
    level = levels(speed)
    starts = range(0, len(level) - WINDOW_S + 1, STEP_S)
    found = [table(level[s : s + WINDOW_S], follows[s : s + WINDOW_S - 1]) for s in starts]
    return np.array(found, dtype=np.float64).reshape(-1, LEVELS**2)
