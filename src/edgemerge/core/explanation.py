"""Explanation: which inputs of samples moved, judged by what the other inputs say.

Sums do not hold XᵀX, but nearly: what the readout rebuilds of it, VᵀPV, and its diagonal S. So the
covariance of the inputs is about LLᵀ + D, with factors L (n, r), r ≤ N + 1, and what is left of the
variance of each input, D (n,). The share of an input is its squared distance from the best estimate
that the other inputs give, in units of what is usual for it. As an input that moved spoils the
estimates of its neighbours, those that moved are found one after the other and left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh, lapack, qr

from edgemerge.core.readout import inverse_factor
from edgemerge.core.stats import Stats

Array = NDArray[np.float64]

RIDGE = 1e-6  # times the mean of diag(U): less than a readout's, which takes from what is rebuilt
MIN_SPARE = 0.1  # keeps 1 − f/c above 0 while samples are few
MOVED = 9.0  # least share of an input that has moved: three standard deviations
MAX_MOVED = 8  # inputs that are left out of estimates at most, and never more than half of all


@dataclass(frozen=True, eq=False)
class Covariance:
    """The inputs' mean, variance and D, (n,), and precision diag(1/D) − YYᵀ, with Y (n, r)."""

    mean: Array
    variance: Array
    D: Array
    Y: Array

    @classmethod
    def of(cls, stats: Stats) -> Self:
        """Return that of the samples in sums, of which there must be at least one."""
        mean, floor = stats.C / stats.count, stats.projection.rounding_loss
        L, residual_share = _factors(stats)
        variance, rebuilt = stats.S / stats.count - mean**2, np.einsum("ij,ij->i", L, L)
        # the ridge takes from the mean, too, so that more than the variance may seem to be rebuilt
        part = np.clip(variance / np.maximum(rebuilt, floor**2), 0.0, 1.0)
        L, rebuilt = L * np.sqrt(part)[:, None], rebuilt * part
        D = np.maximum((variance - rebuilt) / residual_share**2, floor)  # M12
        scaled = L / D[:, None]
        K = L.T @ scaled
        K.flat[:: len(K) + 1] += 1.0
        R, _ = lapack.dpotrf(K, lower=1, clean=1)
        Y = lapack.dtrtrs(R, scaled.T, lower=1)[0].T  # Woodbury: K⁻¹ instead of (LLᵀ + D)⁻¹
        return cls(mean, rebuilt + D, D, Y)

    def shares(self, rows: Array) -> Array:
        """Return the share of each input in samples that belong together, (n,); 1 or less is usual.

        Args:
            rows: The samples on the grid, (k, n).
        """
        away = rows - self.mean
        first = away / self.D - away @ self.Y @ self.Y.T
        distance, moved, lost = first.copy(), list[int](), np.empty((0, len(self.D)))
        precision = self._bounded(1.0 / self.D - np.einsum("ij,ij->i", self.Y, self.Y))
        shares = (distance**2).mean(0) / precision  # M12
        for _ in range(min(MAX_MOVED, len(shares) // 2)):
            shares[moved] = 0.0
            j = int(shares.argmax())
            if shares[j] < MOVED:
                break
            column = self._column(j) - lost[:, j] @ lost  # of the precision without those before
            moved.append(j)
            lost = np.vstack([lost, column / sqrt(precision[j])])
            distance -= np.outer(distance[:, j] / precision[j], column)
            precision = self._bounded(precision - lost[-1] ** 2)
            shares = (distance**2).mean(0) / precision
        shares[moved] = self._shares_given_the_rest(first[:, moved], moved)
        return np.asarray(shares)

    def _column(self, j: int) -> Array:
        column = -self.Y @ self.Y[j]
        column[j] += 1.0 / self.D[j]
        return np.asarray(column)

    def _bounded(self, precision: Array) -> Array:
        """Return the precision, at least that of an input of which the others say nothing."""
        return np.maximum(precision, 1.0 / self.variance)

    def _shares_given_the_rest(self, distance: Array, moved: list[int]) -> Array:
        """Return the shares of inputs if estimates come from all but them, (len(moved),)."""
        Y = self.Y[moved]
        spread = np.linalg.inv(np.diag(1.0 / self.D[moved]) - Y @ Y.T)
        away = distance @ spread
        return np.asarray((away**2).mean(0) / np.diag(spread))


def _factors(stats: Stats) -> tuple[Array, float]:
    """Return L with LLᵀ = VᵀPV/c − μμᵀ, (n, r), and the share of the samples left, 1 − f/c.

    Where the difference is below 0 it counts as 0.
    """
    N, c = len(stats.U), stats.count
    least = N * stats.projection.quantum
    R, ridge = inverse_factor(stats.U, max(RIDGE * float(np.trace(stats.U)) / N, least))
    rebuilt = stats.V.T @ R.T / sqrt(c)
    Q, T = qr(np.column_stack([rebuilt, stats.C / c]), mode="economic")
    signs = np.ones(T.shape[1])
    signs[-1] = -1.0
    values, W = eigh((T * signs) @ T.T)
    freedom = N - ridge * float(np.vdot(R, R))
    return (Q @ W) * np.sqrt(np.maximum(values, 0.0)), max(1.0 - freedom / c, MIN_SPARE)


def largest_by_name(
    shares: Array, names: Sequence[str] | None, most: int | None = None
) -> dict[str, float]:
    """Return the largest shares by the name of the input, or by its number; None means all."""
    labels = names or [str(i) for i in range(len(shares))]
    return {labels[i]: float(shares[i]) for i in np.argsort(-shares, kind="stable")[:most]}
