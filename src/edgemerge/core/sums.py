"""Sums: the accumulator behind Stats and Detector, changed in place, exact on the grid.

U (N, N) has its lower triangle in use; V (N, m), C (m,), S (m,), count. H (k, N), T (k, m).
"""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

from edgemerge.core.errors import CapacityError
from edgemerge.core.projection import Projection

Array = NDArray[np.float64]

CHUNK = 256  # rows at a time: enough for BLAS-3, little enough for the cache


def limit(quantum: float) -> float:
    """Below this, sums of multiples of the quantum are exact in float64."""
    return 2.0**53 * quantum


def must_fit(largest: float, quantum: float) -> None:
    """Refuse sums too large to be exact. `largest` is the largest of diag(U), S and count.

    That bounds the rest: |U_ij|² ≤ U_ii·U_jj, |V_ij|² ≤ U_ii·S_j and |C_j|² ≤ count·S_j.
    """
    if not largest < limit(quantum):
        raise CapacityError(
            f"a sum of {largest:.3g} passes {limit(quantum):.3g}, up to which sums are exact: "
            "share and start again, forget, or build the projection with fewer grid_bits"
        )


class Sums:
    """Adds samples to U, V, C, S and count; refuses what would make a sum inexact."""

    def __init__(self, n_hidden: int, n_outputs: int, quantum: float) -> None:
        """Start from nothing."""
        self.U = np.zeros((n_hidden, n_hidden), order="F")
        self.V = np.zeros((n_hidden, n_outputs))
        self.C, self.S = np.zeros(n_outputs), np.zeros(n_outputs)
        self.count = 0.0
        self.quantum = quantum
        self._limit = limit(quantum)
        self._largest = 0.0  # at least the largest of diag(U), S and count

    def add(self, h: Array, t: Array, weight: float, squares: float) -> None:
        """Add one sample, (N,) and (m,), in place; `squares` is ‖h‖²."""
        self._make_room(weight * max(squares, float(t.dot(t)), 1.0))
        blas.dsyr(weight, h, lower=1, a=self.U, overwrite_a=1)  # M2
        blas.dger(weight, t, h, a=self.V.T, overwrite_a=1)
        wt = t if weight == 1.0 else weight * t
        self.C += wt  # M10
        self.S += wt * t
        self.count += weight

    def add_rows(self, H: Array, T: Array, weights: Array | None = None) -> None:
        """Add k samples, (k, N) and (k, m), each with its weight."""
        wH, wT = (H, T) if weights is None else (H * weights[:, None], T * weights[:, None])
        S = np.einsum("ij,ij->j", wT, T)
        count = float(len(T) if weights is None else weights.sum())
        self._make_room(max(float(np.einsum("ij,ij->j", wH, H).max()), float(S.max()), count))
        self.U += wH.T @ H  # M2
        blas.dgemm(1.0, T.T, wH.T, 1.0, self.V.T, trans_b=1, overwrite_c=1)  # V += wHᵀT in place
        self.C += wT.sum(0)  # M10
        self.S += S
        self.count += count

    @classmethod
    def holding(cls, U: Array, V: Array, C: Array, S: Array, count: float, quantum: float) -> Self:
        """Go on from sums that were taken earlier."""
        sums = cls(len(U), len(C), quantum)
        sums.U[:], sums.V[:], sums.C[:], sums.S[:], sums.count = U, V, C, S, count
        sums._make_room(sums.largest())
        return sums

    def must_hold(self, other: Sums) -> None:
        """Refuse, before anything changes, what would not fit."""
        if not self.fits(other.largest()):  # their largest may stand elsewhere than ours
            together = self.U.diagonal() + other.U.diagonal(), self.S + other.S
            largest = max(*(a.max() for a in together), self.count + other.count)
            must_fit(float(largest), self.quantum)

    def add_all(self, other: Sums) -> None:
        """Add everything that another accumulator holds, which must fit."""
        self.merge(other.U, other.V, other.C, other.S, other.count)
        self._largest = self.largest()  # settling may have lowered it since there was room

    def merge(self, U: Array, V: Array, C: Array, S: Array, count: float) -> None:
        """Add sums taken elsewhere, U with both triangles, which must fit."""
        self.U += U if U.flags.f_contiguous else U.T  # M7
        self.V += V
        self.C += C
        self.S += S
        self.count += count

    def settle(self, weight: float) -> None:
        """Weigh everything and round to the grid."""
        for sums in (self.U, self.V, self.C, self.S):
            sums *= weight / self.quantum
            np.rint(sums, out=sums)
            sums *= self.quantum
            sums += 0.0  # −0 would be equal, yet other bytes
        self.count = round(self.count * weight / self.quantum) * self.quantum
        self._largest = self.largest()

    def largest(self) -> float:
        """Give the largest of diag(U), S and count, which bounds all other entries."""
        return float(max(self.U.diagonal().max(), self.S.max(), self.count))

    def full_U(self) -> Array:
        """Give U with both triangles."""
        lower = np.tril(self.U)
        return lower + np.tril(lower, -1).T

    def fits(self, more: float) -> bool:
        """Say whether every entry may grow by this much and still be exact."""
        if not self._largest + more < self._limit:
            self._largest = (
                self.largest()
            )  # a cheap bound decides nearly always; this is the true one
        return self._largest + more < self._limit

    def _make_room(self, more: float) -> None:
        if not self.fits(more):
            must_fit(self._largest + more, self.quantum)
        self._largest += more


def sum_up(projection: Projection, X: Array, T: Array, weights: Array | None = None) -> Sums:
    """Sum up samples X (k, n) on the grid with targets T (k, m) and weights (k,)."""
    sums = Sums(projection.n_hidden, T.shape[1], projection.quantum)
    for i in range(0, len(X), CHUNK):
        part = slice(i, i + CHUNK)
        w = None if weights is None else weights[part]
        sums.add_rows(projection.project(X[part]), T[part], w)
    if weights is not None:
        sums.settle(1.0)
    return sums
