"""The readout: the output layer, solved from sums or updated by sample, and the score.

U (N, N), V (N, m) are sums; P = (U + ρI)⁻¹ is (N, N), B = PV is (N, m); h (N,), t (m,). `Readout`
is a value with P and B. `Cache` keeps P alone and changes it in place: hB = (hP)V, so B is never
stored; its weights are those of the sums' own frame, where forgetting makes newer samples heavier.
`Level` is the usual loss of a readout, from sums alone, and the score relative to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, inf, isfinite, log2
from typing import Any, NamedTuple, Self
from warnings import warn

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, lapack

from edgemerge import kernel
from edgemerge.core.errors import RidgeWarning, SettingError, SolveError
from edgemerge.core.projection import Projection, aligned_empty, as_number

Array = NDArray[np.float64]

MAX_RIDGE_TRIES = 4  # each ridge is ten times the last
LAPACK_SIDE = 32  # of a triangle that LAPACK inverts fastest
SMALL_RIDGE = 1e-2  # of the mean of diag(U), where a larger one would hide fine structure


def ridge_for(projection: Projection, trace: float, *, small: bool = False) -> float:
    """Choose ρ for sums whose U has this trace: small against U, in steps of powers of two.

    The steps make ρ a function of what was seen, not of the way there: it changes a few dozen
    times in a detector's life, and in between one-sample updates are exact. `small` limits it to
    a hundredth of the mean of diag(U), whatever the activation.
    """
    N, share = projection.n_hidden, projection.rule.ridge
    share = min(share, SMALL_RIDGE) if small else share
    relative = share * 2.0 ** ceil(log2(trace / N)) if trace > 0.0 else 0.0
    return max(relative, N * projection.quantum)


def largest_trace(projection: Projection, trace: float) -> float:
    """Return a trace up to which the ridge is surely the same as for this one, or less."""
    N = projection.n_hidden
    return N * 2.0 ** ceil(log2(trace / N)) * (1.0 - 1e-9) if trace > 0.0 else 0.0


def inverse_factor(U: Array, ridge: float) -> tuple[Array, float]:
    """Return R, lower triangular, with RᵀR = (U + ρI)⁻¹, and the ρ that it took."""
    if not 0.0 <= as_number("ridge", ridge, "0 or more") < inf:
        raise SettingError(f"found ridge={ridge}, expected 0 or more")
    if not np.isfinite(U).all():
        raise SolveError("the sums hold NaN or infinity: they were not made by Stats")
    tries = MAX_RIDGE_TRIES if ridge > 0.0 else 1
    for rho in (ridge * 10.0**k for k in range(tries)):
        A = np.array(U, order="F")
        A.flat[:: len(A) + 1] += rho
        L, failed = lapack.dpotrf(A, lower=1, clean=1, overwrite_a=1)
        if not failed and (ridge > 0.0 or _has_full_rank(L)):
            if rho > ridge:
                warn(f"ridge {ridge:.3g} was too small, raised to {rho:.3g}", RidgeWarning, 3)
            R, _ = lapack.dtrtrs(L, np.eye(len(L), order="F"), lower=1, overwrite_b=1)
            return R, rho
    raise SolveError(
        f"U does not determine a readout with ridge {ridge:g}: learn more samples than there are "
        f"hidden values ({len(U)}), or give a ridge above 0"
    )


def _has_full_rank(L: Array) -> bool:
    # without a ridge, a pivot at rounding level means rank below N, whatever Cholesky says
    pivots = np.diag(L)
    return bool(pivots.min() ** 2 > len(L) * np.finfo(float).eps * pivots.max() ** 2)


@dataclass(frozen=True, eq=False)
class Readout:
    """The output layer, solved from sums: a sample's hidden values h give the output hB.

    Use `solve`, or `Stats.solve`, rather than the constructor.

    Args:
        P: (U + ρI)⁻¹, (N, N).
        B: The output layer, (N, m).
        ridge: The ρ in P; 0 (the default) means none.

    >>> readout = Readout.solve(np.array([[2.0]]), np.array([[1.0]]), ridge=0.5)
    >>> readout, float(readout.B[0, 0])
    (Readout(1 hidden, 1 outputs, ridge 0.5), 0.4)
    """

    P: Array
    B: Array
    ridge: float = 0.0

    @classmethod
    def solve(cls, U: Array, V: Array, ridge: float) -> Self:
        """Solve sums for the output layer by Cholesky.

        Args:
            U: The sum of hᵀh over the samples, (N, N).
            V: The sum of hᵀt, (N, m).
            ridge: ρ, added to the diagonal of U. If it is too small to solve, it is raised up to a
                thousandfold, with a RidgeWarning. 0 adds nothing, and is never raised.

        Raises:
            SettingError: `ridge` is below 0.
            SolveError: U does not determine a readout with this ridge.
        """
        R, rho = inverse_factor(U, ridge)
        P = R.T @ R
        return cls(P, P @ V, rho)  # M3

    def step(self, h: Array, t: Array) -> Self:
        """Return the readout with one more sample, without inverting anything: O(N² + Nm).

        Args:
            h: The hidden values of the sample, (N,).
            t: Its target, (m,).
        """
        Ph = self.P @ h
        d = 1.0 / (1.0 + h @ Ph)
        P = self.P - d * np.outer(Ph, Ph)  # M4
        B = self.B + d * np.outer(Ph, t - h @ self.B)  # M5
        return type(self)(P, B, self.ridge)

    def chunk(self, H: Array, T: Array) -> Self:
        """Return the readout with k more samples, by Woodbury: inverts a k × k matrix.

        Args:
            H: The hidden values of the samples, (k, N).
            T: Their targets, (k, m).
        """
        G = self.P @ H.T
        R, _ = inverse_factor(H @ G, 1.0)
        W = G @ R.T
        P = self.P - W @ W.T  # M4
        B = self.B + W @ (R @ (T - H @ self.B))  # M5
        return type(self)(P, B, self.ridge)

    def sums(self) -> tuple[Array, Array]:
        """Return U and V, computed from P and B as in the paper; digits get lost on the way."""
        K = np.linalg.inv(self.P)
        U = K - self.ridge * np.eye(len(K))
        return U, K @ self.B  # M6

    def __repr__(self) -> str:
        """Show the sizes and the ridge."""
        return f"Readout({self.B.shape[0]} hidden, {self.B.shape[1]} outputs, ridge {self.ridge:g})"


def ridge_cholesky(U: Array, ridge: float, more: Array | float = 0.0) -> tuple[Array, float]:
    """Return L with LLᵀ = U + `more` + ρI, in a lower triangle, and the ρ that it took."""
    K = np.add(U, more, out=aligned_empty(*U.shape).T)
    K.T.reshape(-1)[:: len(K) + 1] += ridge
    L, failed = lapack.dpotrf(K, lower=1, clean=0, overwrite_a=1)
    # a pivot sums up its row, so that what is not finite shows in one
    if not failed and ridge > 0.0 and isfinite(L.trace()):
        return L, ridge
    R, ridge = inverse_factor(U + more, ridge)  # raises the ridge, or an error
    return lapack.dtrtri(R, lower=1)[0], ridge


def invert_triangle(L: Array) -> None:
    """Invert a lower triangle in place, by halves: LAPACK takes twice as long from N = 128 on."""
    half = len(L) // 2
    if len(L) <= LAPACK_SIDE:
        L[:] = lapack.dtrtri(L, lower=1)[0]
        return
    first, second, below = L[:half, :half], L[half:, half:], L[half:, :half]
    invert_triangle(first)
    invert_triangle(second)
    product = blas.dtrmm(-1.0, second, below, lower=1)
    below[:] = blas.dtrmm(1.0, first, product, side=1, lower=1, overwrite_b=1)


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

    @property
    def numbers(self) -> tuple[Any, Any]:
        """Both numbers."""
        return self.J, self.norm

    def loss(self, ridge: float) -> Any:
        """Return Σ‖t − hB‖², for each entry."""
        return self.J - ridge * self.norm

    def at(self, which: Any) -> Fit:
        """Return some entries, or one."""
        return Fit(self.J[which], self.norm[which])


@dataclass
class OwnFit:
    """How well B fits a device's own samples: Σ‖t − hB‖² over them, and tr(U_own P)."""

    squares: Any
    freedom: Any

    @property
    def numbers(self) -> tuple[Any, Any]:
        """Both numbers."""
        return self.squares, self.freedom

    def at(self, which: Any) -> OwnFit:
        """Return some entries, or one."""
        return OwnFit(self.squares[which], self.freedom[which])


@lru_cache(maxsize=4)
def lower_weights(N: int) -> Array:
    """Return how often each entry of a symmetric (N, N) counts if only the lower ones are read."""
    weights: Array = np.asfortranarray(2.0 * np.tri(N) - np.eye(N))
    weights.flags.writeable = False
    return weights


class Cache:
    """P and its trace, and the fit of B once it was computed from V and S."""

    def __init__(self, U: Array, ridge: float, more: Array | float = 0.0) -> None:
        """Factor the lower triangle of U + `more` + ρI; P is computed when it is first needed."""
        self._L, self.ridge = ridge_cholesky(U, ridge, more)
        self._P: Array | None = None
        self._trace = 0.0
        self.fit: Fit | OwnFit | None = None
        self.steps = 0

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Own the arrays, which change in place: a file that is mapped can only be read."""
        self.__dict__.update(state)
        self._L = self._L.copy(order="F")
        self._P = None if self._P is None else self._P.copy(order="F")

    @classmethod
    def resume(
        cls, P: Array, ridge: float, trace: float, fit: Fit | OwnFit | None, steps: int
    ) -> Self:
        """Continue with P as it was after so many steps."""
        cache = cls.__new__(cls)
        cache._L, cache._P, cache._trace = P[:0], P, trace
        cache.ridge, cache.fit, cache.steps = ridge, fit, steps
        return cache

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

    def fit_to(self, V: Array, S: Array) -> Fit:
        """Compute the fit for sums V (N, m), S (m,) of the same samples as P."""
        B = self._readout(V)
        return Fit(max(float(S.sum() - np.vdot(B, V)), 0.0), float(np.vdot(B, B)))

    def own_fit_to(self, own_V: Array, U: Array, S: Array, others_V: Array) -> OwnFit:
        """Compute the fit to own samples, with B from V of own and others' samples.

        U is that of own samples, its lower triangle in Fortran's order.
        """
        found = None
        if kernel.Run is not None:
            found = kernel.MODULE.own_fit(self.P, U, own_V, others_V)
        BV, BUB, freedom = found or self._own_products(own_V, U, own_V + others_V)
        return OwnFit(max(float(S.sum() - 2.0 * BV + BUB), 0.0), float(freedom))  # M10

    def _own_products(self, own_V: Array, U: Array, V: Array) -> tuple[Any, Any, Any]:
        """Return ⟨B, V⟩ and ⟨B, UB⟩ of own samples, and tr(UP)."""
        B = self._readout(V)
        # tr(BᵀUB) from U and BBᵀ, which is half of a product and lies in one triangle
        BB = blas.dsyrk(1.0, B.T, trans=1, lower=1)
        UU = (U * lower_weights(len(U))).T  # in the order of memory, as both products are
        return np.einsum("ij,ij->", B, own_V), np.vdot(UU, BB.T), np.vdot(UU, self.P.T)

    def _readout(self, V: Array) -> Array:
        B = np.empty_like(V)  # without one, SciPy fills B with zeros first
        return np.asarray(
            blas.dsymm(1.0, self.P, V.T, c=B.T, side=1, lower=1, overwrite_c=1)
        ).T  # M3

    def gains(self, H: Array) -> Array:
        """Return HP, (k, N), or hP for one sample (N,)."""
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

    def follow(self, trace: float, first: float, second: float, steps: int) -> None:
        """Note what a kernel that changed P counted: tr(P), the two numbers of the fit, samples."""
        self._trace, self.steps = trace, self.steps + steps
        self.fit = (OwnFit if isinstance(self.fit, OwnFit) else Fit)(first, second)

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
        invert_triangle(self._L)
        P, _ = lapack.dlauum(self._L, lower=1, overwrite_c=1)
        self._P, self._trace, self._L = P, float(P.trace()), P[:0]
        return np.asarray(P)


MIN_SPARE = 1e-6  # keeps f and 1 − f/c above 0 where all hidden values are 0, or pinned down


def effective_count(own: Any, others: float, fade: float) -> Any:
    """Count samples as a mean over them counts: (Σw)²/Σw² for weights that fade.

    A fading sum remembers 1/(1 − fade) samples, but its mean is as steady as one of twice as many.
    """
    return own * (1.0 + fade) / (2.0 - own * (1.0 - fade)) + others


class Ceiling(NamedTuple):
    """The largest usual loss and the largest usual leverage that others may claim.

    Args:
        loss: Of the usual loss; unbounded unless given.
        leverage: Of the mean leverage of fresh samples; unbounded unless given.
    """

    loss: float = inf
    leverage: float = inf

    def below(self, other: Ceiling) -> Ceiling:
        """Return the lower of both, one by one."""
        return Ceiling(min(self.loss, other.loss), min(self.leverage, other.leverage))


NO_CEILING = Ceiling()


class Level(NamedTuple):
    """Numbers for one readout, or arrays with one entry for each of several in a row.

    `loss` is the sum of all losses; `weight` the samples in that sum; `count` how many samples
    that is worth; `floor` the rounding of the grid, below which no loss means anything;
    `loss_share` the share of the loss in the score; `ceiling` what others may claim to be usual at
    most. `largest` is `max`, or `numpy.maximum` for arrays.
    """

    loss: Any
    freedom: Any
    weight: Any
    count: Any
    floor: float
    loss_share: float
    largest: Callable[[Any, Any], Any] = max
    ceiling: Ceiling = NO_CEILING

    @property
    def residual_share(self) -> Any:
        """The share of the samples that is left after fitting, 1 − f/c."""
        return self.largest(1.0 - self.freedom / self.count, MIN_SPARE)

    @property
    def usual_loss(self) -> Any:
        """The loss that fresh samples of the same kind have."""
        usual = self.largest(self.loss / self.weight / self.residual_share**2, self.floor)  # M11
        return usual if self.ceiling.loss == inf else np.minimum(usual, self.ceiling.loss)

    def score(self, loss: Any, leverage: Any) -> Any:
        """Return how unusual samples are; 1 is typical."""
        strange = (
            leverage * self.residual_share * self.count / self.largest(self.freedom, MIN_SPARE)
        )
        if self.ceiling.leverage < inf:
            strange = np.maximum(strange, leverage / self.ceiling.leverage)
        share = self.loss_share
        return share * (loss / self.usual_loss) + (1.0 - share) * strange  # M11
