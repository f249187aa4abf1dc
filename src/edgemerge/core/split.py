"""Splitting: two halves of a set of samples, and whether two readouts explain them better.

X (k, n) on the grid.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

ROUNDS = 20


def halves(X: Array) -> Mask:
    """Part samples by 2-means, started along their principal direction: no chance in it."""
    centred = X - X.mean(0)
    along = centred @ _direction(centred)
    second = along > np.median(along)
    for _ in range(ROUNDS):
        if second.all() or not second.any():
            break
        near, far = X[~second].mean(0), X[second].mean(0)
        moved = ((X - far) ** 2).sum(1) < ((X - near) ** 2).sum(1)
        if np.array_equal(moved, second):
            break
        second = moved
    return np.asarray(second)


def _direction(centred: Array) -> Array:
    k, n = centred.shape
    if n <= k:
        vector: Array = np.linalg.eigh(centred.T @ centred)[1][:, -1]
    else:
        vector = np.linalg.eigh(centred @ centred.T)[1][:, -1] @ centred
    return np.asarray(
        vector * np.sign(vector[np.argmax(np.abs(vector))])
    )  # one of the two signs, always
