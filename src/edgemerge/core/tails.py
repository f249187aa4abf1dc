"""Tails: which of some samples lie far out, told by ranks alone, before anything is learnt.

A score cannot tell: samples that were learnt look normal, the more so the more alike they are.
Ranks of single inputs cannot be masked like that. X (k, n), weights (k,).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SHARE = 0.08  # of the samples that are left out: costs little where all are good


def rarity(X: Array, weights: Array) -> Array:
    """Sum up over the inputs −log of the share of samples that lie as far out or further, (k,)."""
    rare = np.zeros(len(X))
    for column in X.T:
        _, place = np.unique(column, return_inverse=True)
        mass = np.bincount(place, weights)
        below = np.cumsum(mass)
        beyond = np.minimum(below, below[-1] - below + mass) / below[-1]
        rare -= np.log(np.maximum(beyond, 1e-300))[place]
    return rare


def within(X: Array, weights: Array | None = None, *, share: float = SHARE) -> NDArray[np.bool_]:
    """Mark the samples that are left when this share, the rarest, is left out, (k,)."""
    weights = np.ones(len(X)) if weights is None else weights
    rare = rarity(X, weights)
    return rare <= limit_above(rare, weights, share)


def limit_above(values: Array, weights: Array, share: float) -> float:
    """Find a number above which lies this share of the weight, midway between two values."""
    seen = weights > 0.0  # float32: equal rows then have equal values, wherever they stand
    levels, place = np.unique(np.float32(values[seen]), return_inverse=True)
    mass = np.bincount(place, weights[seen])
    above = np.cumsum(mass[::-1])[::-1] - mass
    i = int(np.argmax(above <= share * mass.sum() * (1.0 + 1e-9)))
    return float(np.append(levels, levels[-1] + 1.0)[i : i + 2].mean(dtype=np.float64))
