"""The cache of a detector: P solved from sums, then followed sample by sample.

P (N, N) = (U + ρI)⁻¹ for the sums of everything known; its output layer is B = PV, never stored:
hB = (hP)V. Weights are those of the sums' own frame, where forgetting makes newer samples heavier.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, lapack

from edgemerge.core.readout import factor

Array = NDArray[np.float64]


def cholesky(U: Array, ridge: float) -> tuple[Array, float]:
    """Give L, lower triangular, with LLᵀ = U + ρI, and the ρ that it took."""
    K = np.array(U, order="F")
    K.flat[:: len(K) + 1] += ridge
    L, failed = lapack.dpotrf(K, lower=1, clean=1, overwrite_a=1)
    if not failed and ridge > 0.0 and np.isfinite(L).all():
        return L, ridge
    R, ridge = factor(U, ridge)  # doubts, raises the ridge, or refuses
    return lapack.dtrtri(R, lower=1)[0], ridge


@dataclass(frozen=True)
class Preview:
    """What k samples would bring, each seen before it is learnt: the rows of one Woodbury step."""

    weights: Array  # (k,)
    errors: Array  # (k, m): t − hB, with B as it was before that sample
    leverage: Array  # (k,): hPhᵀ, likewise
    W: Array  # (N, k): P shrinks by WWᵀ
    E: Array  # (k, m): B grows by WE


@dataclass
class Fit:
    """How well B fits: `J` is the least of Σ‖t − hB‖² + ρ‖B‖² over all B, `norm` is ‖B‖²."""

    J: Any
    norm: Any

    def loss(self, ridge: float) -> Any:
        """Give Σ‖t − hB‖², for each entry."""
        return self.J - ridge * self.norm


class Cache:
    """P and its trace; and the fit of B, once somebody who has V and S fills it in."""

    def __init__(self, U: Array, ridge: float) -> None:
        """Factor U + ρI, of which the lower triangle is read; P waits until it is asked for."""
        self._L, self.ridge = cholesky(U, ridge)
        self._P: Array | None = None
        self._trace = 0.0
        self.fit: Fit | None = None
        self.steps = 0

    @property
    def P(self) -> Array:
        """P, whose lower triangle is in use, in Fortran's order: BLAS changes it in place."""
        return self._solved() if self._P is None else self._P

    @property
    def trace(self) -> float:
        """tr(P)."""
        if self._P is None:
            self._solved()
        return self._trace

    @property
    def freedom(self) -> float:
        """f = tr(UP), how many parameters the data really pin down."""
        return len(self.P) - self.ridge * self.trace  # M11

    def fit_to(self, V: Array, S: Array) -> Fit:
        """Compute the fit for sums V (N, m), S (m,) of the same samples as P."""
        B = blas.dsymm(1.0, self.P, V.T, side=1, lower=1)  # M3, transposed
        return Fit(max(float(S.sum() - np.vdot(B.T, V)), 0.0), float(np.vdot(B.T, B.T)))

    def gains(self, H: Array) -> Array:
        """Give HP, (k, N), or hP for one sample (N,)."""
        if self._P is None:
            return np.asarray(lapack.dpotrs(self._L, H.T, lower=1)[0].T)
        if H.ndim == 1:
            return np.asarray(blas.dsymv(1.0, self._P, H, lower=1))
        return np.asarray(blas.dsymm(1.0, self._P, H.T, lower=1)).T

    def take(self, Ph: Array, d: float, squares: float) -> None:
        """Follow one sample without any inverse; `squares` is ‖Ph‖²."""
        blas.dsyr(-d, Ph, lower=1, a=self.P, overwrite_a=1)  # M4; one triangle stays symmetric
        self._trace -= d * squares
        self.steps += 1

    def preview(self, H: Array, weights: Array, errors: Array, HP: Array) -> Preview:
        """See k samples one after the other, all at once: (k, N), (k,), (k, m), (k, N)."""
        M = H @ HP.T
        M.flat[:: len(M) + 1] += 1.0 / weights
        L, _ = lapack.dpotrf(M, lower=1, clean=1)
        D = np.diag(L)
        E = lapack.dtrtrs(L, errors, lower=1)[0]
        W = lapack.dtrtrs(L, HP, lower=1)[0].T
        return Preview(weights, E * D[:, None], D * D - 1.0 / weights, W, E)

    def accept(self, W: Array) -> None:
        """Follow the samples of the first columns of a preview's W."""
        P = self.P
        P -= W @ W.T  # M4
        self._trace -= float(np.vdot(W, W))
        self.steps += W.shape[1]

    def _solved(self) -> Array:
        R, _ = lapack.dtrtrs(self._L, np.eye(len(self._L), order="F"), lower=1, overwrite_b=1)
        self._P, self._trace, self._L = (R.T @ R).T, float(np.vdot(R, R)), R[:0]
        return self._P
