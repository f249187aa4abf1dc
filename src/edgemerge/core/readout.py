"""The readout: the trained output layer, solved from sums or carried along sample by sample.

U (N, N), V (N, m) are sums; P = (U + ρI)⁻¹ is (N, N), B = PV is (N, m); h (N,), t (m,).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2
from typing import Self
from warnings import warn

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from edgemerge.core.errors import RidgeWarning, SettingError, SolveError
from edgemerge.core.projection import Projection

Array = NDArray[np.float64]

RIDGES = {"identity": 1e-4, "relu": 1e-4, "sigmoid": 1e-2, "tanh": 1e-2}  # times mean of diag(U)
RAISES = 4  # how many ridges are tried, each ten times the last


def ridge_for(projection: Projection, trace: float) -> float:
    """Choose ρ for sums whose U has this trace: small against U, in steps of powers of two.

    The steps make ρ a function of what was seen, not of the way there: it changes a few dozen
    times in a detector's life, and in between one-sample updates are exact.
    """
    N = projection.n_hidden
    relative = RIDGES[projection.activation] * 2.0 ** ceil(log2(trace / N)) if trace > 0.0 else 0.0
    return max(relative, N * projection.quantum)


def factor(U: Array, ridge: float) -> tuple[Array, float]:
    """Give R, lower triangular, with RᵀR = (U + ρI)⁻¹, and the ρ that it took."""
    if not ridge >= 0.0:
        raise SettingError(f"found ridge={ridge}, expected 0 or more")
    if not np.isfinite(U).all():
        raise SolveError("the sums hold NaN or infinity: they were not made by Stats")
    tries = RAISES if ridge > 0.0 else 1
    for rho in (ridge * 10.0**k for k in range(tries)):
        A = np.array(U, order="F")
        A.flat[:: len(A) + 1] += rho
        L, failed = lapack.dpotrf(A, lower=1, clean=1, overwrite_a=1)
        if not failed and (ridge > 0.0 or _independent(L)):
            if rho > ridge:
                warn(f"ridge {ridge:.3g} was too small, raised to {rho:.3g}", RidgeWarning, 3)
            R, _ = lapack.dtrtrs(L, np.eye(len(L), order="F"), lower=1, overwrite_b=1)
            return R, rho
    raise SolveError(
        f"U does not determine a readout with ridge {ridge:g}: learn more samples than there are "
        f"hidden values ({len(U)}), or give a ridge above 0"
    )


def _independent(L: Array) -> bool:
    # without a ridge, a pivot at rounding level means rank below N, whatever Cholesky says
    pivots = np.diag(L)
    return bool(pivots.min() ** 2 > len(L) * np.finfo(float).eps * pivots.max() ** 2)


@dataclass(frozen=True, eq=False)
class Readout:
    """The output layer B and the inverse P that belongs to it; `ridge` is the ρ in P."""

    P: Array
    B: Array
    ridge: float = 0.0

    @classmethod
    def solve(cls, U: Array, V: Array, ridge: float) -> Self:
        """Solve sums for the output layer by Cholesky."""
        R, rho = factor(U, ridge)
        P = R.T @ R
        return cls(P, P @ V, rho)  # M3

    def step(self, h: Array, t: Array) -> Self:
        """Take in one sample without inverting anything: O(N² + Nm)."""
        Ph = self.P @ h
        d = 1.0 / (1.0 + h @ Ph)
        P = self.P - d * np.outer(Ph, Ph)  # M4
        B = self.B + d * np.outer(Ph, t - h @ self.B)  # M5
        return type(self)(P, B, self.ridge)

    def chunk(self, H: Array, T: Array) -> Self:
        """Take in k samples at once by Woodbury, which inverts a k × k matrix."""
        G = self.P @ H.T
        R, _ = factor(H @ G, 1.0)
        W = G @ R.T
        P = self.P - W @ W.T  # M4
        B = self.B + W @ (R @ (T - H @ self.B))  # M5
        return type(self)(P, B, self.ridge)

    def sums(self) -> tuple[Array, Array]:
        """Go back from P and B to U and V, as the paper does; loses digits with every sample."""
        K = np.linalg.inv(self.P)
        U = K - self.ridge * np.eye(len(K))
        return U, K @ self.B  # M6

    def __repr__(self) -> str:
        """Show the sizes and the ridge."""
        return f"Readout({self.B.shape[0]} hidden, {self.B.shape[1]} outputs, ridge {self.ridge:g})"
