"""Rounding: how far sums may be from those of real samples, and what is definite in spite of it.

Every sum is below 2⁵³ quanta, so one operation of float64 on it errs by half a quantum at most. A
sample that is weighed or faded meets eight at most: weighing (2), summing (1) and, twice, scaling
and rounding (2) and adding (1 of these is exact). Its error fades with it, so that a sum of count c
is off by at most 4(c + 1) quanta; without weights or forgetting it is not off at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, lapack

from edgemerge.core.stats import Stats

Array = NDArray[np.float64]

UNIT = 2.0**-53  # what one operation of float64 may err by, relative
# Relative to √(U_ii U_jj): of U, V, S as one Gram matrix, and of each as a value. In float32 both
# are 2⁻²⁴ and a little more; root16 sends a Gram matrix whatever its rounding, of 2 · 2⁻¹¹ and a
# little more where small numbers lose digits.
FORMS = {"exact": (0.0, 0.0), "float32": (2.0**-23, 2.0**-23), "root16": (0.0, 2.0**-9)}


@dataclass(frozen=True)
class Rounding:
    """What an entry of the sums may be off by: `slack`, plus a part relative to its bound."""

    slack: float
    gram: float
    value: float

    @classmethod
    def of(cls, stats: Stats, form: str = "exact") -> Rounding:
        """Give the rounding of sums that arrived in this form."""
        slack = 4.0 * stats.projection.quantum * (stats.count + 1.0)
        lift = 2.0 * (stats.projection.n_hidden + 1) if form == "root16" else 1  # see `forms`
        return cls(lift * slack, *FORMS[form])


def factor(U: Array, scale: Array, size: int, slack: float, relative: float) -> Array | None:
    """Give L, lower triangular, with LLᵀ = U lifted by its rounding, or None if U is indefinite.

    A symmetric error with entries up to s + r√(d_i d_j) moves no eigenvalue by more than `size`
    times as much (scaled by d). Cholesky and a triangular solve add 4(N + 2) units to r.
    """
    lift = size * (slack + (relative + 4.0 * (len(U) + 2) * UNIT) * scale)
    M = np.array(U, order="F")
    M.flat[:: len(M) + 1] += lift
    L, failed = lapack.dpotrf(M, lower=1, clean=1, overwrite_a=1)
    return None if failed else np.asarray(L)


def solved(L: Array, V: Array) -> Array:
    """Give L⁻¹V."""
    return np.asarray(blas.dtrsm(1.0, L, V.T, side=1, lower=1, trans_a=1).T)
