"""Comparing: how well each of many readouts explains each of many sets of data, all at once.

⟨B,V⟩ and ⟨B,UB⟩ = ⟨BBᵀ,U⟩ are inner products, so those of all pairs are a few large products of
matrices with one flattened B, V, BBᵀ or U to a row. R (D, D) are ratios: a row for whose readout, a
column for whose data.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import log

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, leaves_list, linkage
from scipy.spatial.distance import squareform

from edgemerge.core.likeness import FACTOR, Profile

Array = NDArray[np.float64]

BLOCK = 2**25  # bytes of flattened matrices that are held at once, for rows and for columns


def ratios(readouts: Sequence[Profile], data: Sequence[Profile]) -> Array:
    """Give `explains(a, b)` for each a of the readouts (rows) and each b of the data (columns)."""
    R = np.empty((len(readouts), len(data)))
    if R.size:
        stats = data[0].stats
        many = max(1, BLOCK // (8 * (stats.U.size + stats.V.size)))
        for i in range(0, len(readouts), many):
            rows = _Readouts(readouts[i : i + many])
            for j in range(0, len(data), many):
                R[i : i + many, j : j + many] = rows.explain(data[j : j + many])
    return R


class _Readouts:
    """Some readouts, flattened."""

    def __init__(self, profiles: Sequence[Profile]) -> None:
        self._B = _flat(p.readout.B for p in profiles)
        self._G = _flat(p.readout.B @ p.readout.B.T for p in profiles)
        self._usual = np.array([p.usual for p in profiles])

    def explain(self, data: Sequence[Profile]) -> Array:
        """Give the mean loss of each of the data, as a multiple of what is usual for them."""
        V, U = _flat(d.stats.V for d in data), _flat(d.stats.U for d in data)
        S = np.array([d.stats.S.sum() for d in data])
        size = np.array([max(d.stats.count, d.stats.projection.quantum) for d in data])
        losses = S - 2.0 * self._B @ V.T + self._G @ U.T  # M10
        usual = np.array([d.usual for d in data])
        level = np.where([d.known for d in data], usual, self._usual[:, None])
        return np.asarray(np.maximum(losses, 0.0) / (size * data[0].stats.S.size) / level)


def _flat(arrays: Iterable[Array]) -> Array:
    return np.array([array.ravel() for array in arrays])


def of_owners(R: Array, sizes: Sequence[int], samples: Sequence[float]) -> Array:
    """Bring ratios between patterns down to those between their owners, who come one by one.

    `sizes` says how many patterns each owner has, `samples` how many samples each pattern has. A
    pattern is explained by the best of another's patterns, and weighs as much as it has samples.
    """
    starts = np.cumsum([0, *sizes[:-1]])
    weights = np.asarray(samples, dtype=np.float64)
    best = np.minimum.reduceat(R, starts, axis=0)
    return np.asarray(np.add.reduceat(best * weights, starts, axis=1)) / np.add.reduceat(
        weights, starts
    )


def arrange(R: Array, factor: float = FACTOR) -> tuple[list[int], list[int]]:
    """Give an order in which like ones stand together, and for each place in it its group.

    In a group each explains each other's data within the factor: complete linkage.
    """
    if len(R) < 2:
        return list(range(len(R))), [0] * len(R)
    apart = np.log(np.maximum(np.maximum(R, R.T), 1.0))
    np.fill_diagonal(apart, 0.0)
    near = squareform(apart)
    tree = linkage(near, "complete", optimal_ordering=True)
    order = leaves_list(tree).tolist()
    found = fcluster(tree, log(factor), "distance")[order]
    return order, np.cumsum([0, *(found[1:] != found[:-1])]).tolist()
