"""Stats: what a learner has seen, as sums that can be added exactly across devices.

U (N, N), V (N, m), C (m,), S (m,), count; H (k, N), T (k, m). All sums are multiples of the quantum
2⁻²ᵍ and below 2⁵³ quanta, so float64 adds and subtracts them without rounding, in any order.
`Stats` is the value, `Sums` the accumulator (which uses the lower triangle of U). `Capacity` bounds
what samples will add before they are learnt. `elm` is the paper's batch training; it gives the same
B. `Covariance` is what sums tell about the inputs among each other: which of them moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from math import inf, sqrt
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import blas, eigh, lapack, qr, solve_triangular

from edgemerge import kernel
from edgemerge.core.errors import (
    CapacityError,
    MismatchError,
    SampleError,
    SettingError,
    SolveError,
    must_be,
)
from edgemerge.core.projection import (
    Projection,
    Samples,
    aligned_zeros,
    as_floats,
    as_int,
    as_number,
    is_plain,
    weights_of_rows,
)
from edgemerge.core.readout import Readout, inverse_factor, ridge_for

Array = NDArray[np.float64]
CHUNK_ROWS = 256  # rows per step: enough for BLAS-3, few enough for the cache
COVARIANCE_RIDGE = 1e-6  # times the mean of diag(U): less than a readout's, so that more is rebuilt
MIN_SPARE = 0.1  # keeps 1 − f/c above 0 while samples are few
SUMMED_TOGETHER = 8  # stats that are added at once
MOVED = 9.0  # least share of an input that has moved: three standard deviations
MAX_MOVED = 8  # inputs that are left out of estimates at most, and never more than half of all


def exact_limit(quantum: float) -> float:
    """Return the bound below which sums of multiples of the quantum are exact in float64."""
    return 2.0**53 * quantum


def must_fit(largest: float, quantum: float) -> None:
    """Refuse sums too large to be exact. `largest` is the largest of diag(U), S and count.

    That bounds the rest: |U_ij|² ≤ U_ii·U_jj, |V_ij|² ≤ U_ii·S_j and |C_j|² ≤ count·S_j.
    """
    if not largest < exact_limit(quantum):
        raise CapacityError(
            f"found a sum of {largest:.3g}, expected below {exact_limit(quantum):.3g}, up to which "
            "sums are exact: share and start again, use forgetting, or build the projection with "
            "fewer grid_bits"
        )


def largest_of(*sums: float) -> float:
    """Return the largest, or infinity if one is not a number, which `max` may overlook."""
    return max(sums) if sum(sums) < inf else inf


def _column_sums(wT: Array, T: Array) -> tuple[Array, Array]:
    """Return the sum of weighted rows, and of their squares, which are weighted once, (m,) each."""
    if kernel.Run is None or wT is not T or not is_plain(T):
        return np.asarray(wT.sum(0)), np.einsum("ij,ij->j", wT, T)
    C, S = np.zeros(T.shape[1]), np.zeros(T.shape[1])
    kernel.MODULE.column_sums(T, C, S)
    return C, S


class Sums:
    """Adds samples to U, V, C, S and count; raises CapacityError before a sum becomes inexact."""

    def __init__(
        self, n_hidden: int, n_outputs: int, quantum: float, *, for_kernel: bool = False
    ) -> None:
        """Start with zeros; for the kernel, each row of V starts at a cache line."""
        self.U = aligned_zeros(n_hidden, n_hidden).T
        self.V = aligned_zeros(n_hidden, n_outputs, pad=for_kernel and kernel.Run is not None)
        self.C, self.S = np.zeros(n_outputs), np.zeros(n_outputs)
        self.count = 0.0
        self.quantum = quantum
        self._limit = exact_limit(quantum)
        self._largest = 0.0  # at least the largest of diag(U), S and count
        self._for_kernel = for_kernel

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Lay out copied or unpickled arrays as before: how BLAS rounds depends on it.

        Unpickled ones may be mapped from a file, and then they can only be read.
        """
        self.__dict__.update(state)
        self.C, self.S = self.C.copy(), self.S.copy()
        if state.get("_for_kernel"):
            U, V = self.U, self.V
            self.U = aligned_zeros(*U.shape).T
            self.V = aligned_zeros(*V.shape, pad=kernel.Run is not None)
            self.U[:], self.V[:] = U, V

    def add(self, h: Array, t: Array, weight: float, squares: float) -> None:
        """Add one sample, (N,) and (m,), in place; `squares` is ‖h‖²."""
        self._make_room(weight * largest_of(squares, float(t.dot(t)), 1.0))
        if weight == 1.0 and self.V.flags.c_contiguous:
            blas.dsyr(1.0, h, lower=1, a=self.U, overwrite_a=1)  # M2
            blas.dger(1.0, t, h, a=self.V.T, overwrite_a=1)
            wt = t
        else:  # BLAS would change a copy of a padded V, and round weighted products as it likes
            part, wt = sqrt(weight) * h, weight * t
            self.U += np.multiply.outer(part, part)  # M2, symmetric to the bit
            self.V += np.multiply.outer(weight * h, t)
        self.C += wt  # M10
        self.S += wt * t
        self.count += weight

    def add_rows(self, H: Array, T: Array, weights: Array | None = None) -> None:
        """Add k samples, (k, N) and (k, m), each with its weight."""
        wH, wT = (H, T) if weights is None else (H * weights[:, None], T * weights[:, None])
        C, S = _column_sums(wT, T)
        count = float(len(T) if weights is None else weights.sum())
        self._make_room(
            largest_of(float(np.einsum("ij,ij->j", wH, H).max()), float(S.max()), count)
        )
        self.U += wH.T @ H  # M2
        if self.V.flags.c_contiguous:  # V += wHᵀT in place
            blas.dgemm(1.0, T.T, wH.T, 1.0, self.V.T, trans_b=1, overwrite_c=1)
        else:
            self.V += wH.T @ T
        self.C += C  # M10
        self.S += S
        self.count += count

    @classmethod
    def from_arrays(
        cls,
        U: Array,
        V: Array,
        C: Array,
        S: Array,
        count: float,
        quantum: float,
        *,
        for_kernel: bool = False,
    ) -> Self:
        """Return an accumulator that starts with these sums."""
        sums = cls(len(U), len(C), quantum, for_kernel=for_kernel)
        sums.U[:], sums.V[:], sums.C[:], sums.S[:], sums.count = U, V, C, S, count
        sums._make_room(sums.largest())
        return sums

    @property
    def room(self) -> tuple[float, float]:
        """What the largest sum is at most, and what it must stay below."""
        return self._largest, self._limit

    def follow(self, count: float, largest: float) -> None:
        """Note what a kernel that added to the sums counted, and what the largest is at most."""
        self.count, self._largest = count, largest

    def must_hold(self, other: Sums) -> None:
        """Raise CapacityError if the sums of `other` do not fit; nothing changes."""
        if not self.fits(other.largest()):  # the largest entries may be in different places
            together = self.U.diagonal() + other.U.diagonal(), self.S + other.S
            largest = max(*(a.max() for a in together), self.count + other.count)
            must_fit(float(largest), self.quantum)

    def add_sums(self, other: Sums) -> None:
        """Add the sums of another accumulator; they must fit."""
        self.merge(other.U, other.V, other.C, other.S, other.count)
        self._largest = self.largest()  # it may be lower after `settle`

    def merge(self, U: Array, V: Array, C: Array, S: Array, count: float) -> None:
        """Add sums, U with both triangles; they must fit."""
        self.U += U if U.flags.f_contiguous else U.T  # M7
        self.V += V
        self.C += C
        self.S += S
        self.count += count

    def merge_all(self, few: Sequence[Stats]) -> None:
        """Add the sums of a few stats at once; they must fit."""
        ours = (self.U.T, self.V, self.C, self.S)
        for total, arrays in zip(
            ours, zip(*(each.arrays for each in few), strict=True), strict=True
        ):
            # U is symmetric, so that the order of its memory does not matter
            if kernel.Run is None or not kernel.MODULE.add_arrays(total, arrays):
                for array in arrays:
                    np.add(total, array, out=total)  # M7
        self.count += sum(each.count for each in few)

    def settle(self, weight: float) -> None:
        """Multiply all sums by a weight and round them to the grid."""
        for sums in (self.U, self.V, self.C, self.S):
            if kernel.Run is not None:
                kernel.MODULE.settle_sums(weight / self.quantum, self.quantum, sums)
                continue
            sums *= weight / self.quantum
            np.rint(sums, out=sums)
            sums *= self.quantum
            sums += 0.0  # −0 equals 0 but has other bytes
        self.count = round(self.count * weight / self.quantum) * self.quantum
        self._largest = self.largest()

    def largest(self) -> float:
        """Return the largest of diag(U), S and count, which bounds all other entries."""
        return float(max(self.U.diagonal().max(), self.S.max(), self.count))

    def full_U(self) -> Array:
        """Return U with both triangles."""
        lower = np.tril(self.U)
        return lower + np.tril(lower, -1).T

    def fits(self, more: float) -> bool:
        """Return whether every entry can grow by this much and stay exact."""
        if not self._largest + more < self._limit:
            self._largest = self.largest()  # exact; the cheap bound above nearly always decides
        return self._largest + more < self._limit

    def _make_room(self, more: float) -> None:
        if not self.fits(more):
            must_fit(self._largest + more, self.quantum)
        self._largest += more


def sum_up(
    projection: Projection,
    X: Array,
    T: Array,
    weights: Array | None = None,
    H: Array | None = None,
) -> Sums:
    """Sum up samples X (k, n) on the grid with targets T (k, m), weights (k,) and H, if known."""
    sums = Sums(projection.n_hidden, T.shape[1], projection.quantum)
    for i in range(0, len(X), CHUNK_ROWS):
        part = slice(i, i + CHUNK_ROWS)
        w = None if weights is None else weights[part]
        sums.add_rows(projection.project(X[part]) if H is None else H[part], T[part], w)
    if weights is not None:
        sums.settle(1.0)
    return sums


def targets_of(T: ArrayLike, rows: int) -> Array:
    """Return targets (k, m), or (k,) as one column, or raise SampleError."""
    targets = as_floats(T, "targets")
    targets = targets[:, None] if targets.ndim == 1 else targets
    if targets.ndim != 2 or len(targets) != rows:
        raise SampleError(
            f"found targets of shape {np.shape(T)}, expected {rows} rows of finite numbers"
        )
    bad = np.argwhere(~np.isfinite(targets))
    if len(bad):
        row, column = (int(i) for i in bad[0])
        raise SampleError(
            f"found the target {targets[row, column]} in column {column} of row {row}, expected "
            f"{rows} rows of finite numbers: drop or repair such samples first"
        )
    return targets


def targets_on_grid(T: ArrayLike, rows: int, step: float) -> Array:
    """Return targets (k, m), or (k,) as one column, rounded to the grid."""
    return np.asarray(np.rint(targets_of(T, rows) / step) * step)


def outputs_of(projection: Projection, n_outputs: int | None) -> int:
    """Return how many outputs sums have: as many as inputs, unless a number is given."""
    must_be(projection, Projection, "build one that all devices share")
    m = projection.n_inputs if n_outputs is None else as_int("n_outputs", n_outputs)
    if m < 0:
        raise SettingError(f"found n_outputs={m}, expected 0 or more")
    return m


@dataclass(frozen=True, eq=False, repr=False)
class Stats:
    """The sums of samples, as a value: `+` merges, `-` removes, `*` weighs, `==` compares bits.

    Use `Stats.of`, `Stats.empty` or a detector's `own` rather than the constructor.

    Args:
        projection: The projection that gave the hidden values.
        U: The sum of hᵀh over the samples, (N, N).
        V: The sum of hᵀt, (N, m); the target t is the sample itself by default.
        C: The sum of the targets, (m,).
        S: The sum of their squares, (m,).
        count: The number of samples; weights and forgetting make it fractional.

    >>> shared = Projection(n_inputs=2, n_hidden=3)
    >>> a, b = Stats.of(shared, [[0.1, 0.2]]), Stats.of(shared, [[0.3, 0.4], [0.5, 0.6]])
    >>> a + b
    Stats(3 hidden, 2 outputs, 3 samples)
    >>> a + b - b == a
    True
    """

    projection: Projection
    U: Array
    V: Array
    C: Array
    S: Array
    count: float

    def __post_init__(self) -> None:
        """Make the arrays read-only."""
        for array in self.arrays:
            if isinstance(array, np.ndarray):  # `admit` refuses anything else
                array.setflags(write=False)

    @classmethod
    def empty(cls, projection: Projection, n_outputs: int | None = None) -> Self:
        """Return the sums of no samples.

        Args:
            projection: The projection that all devices share.
            n_outputs: The number of outputs; None (the default): as many as inputs.
        """
        m = outputs_of(projection, n_outputs)
        return cls.snapshot(projection, Sums(projection.n_hidden, m, projection.quantum))

    @classmethod
    def of(
        cls,
        projection: Projection,
        X: Samples,
        T: ArrayLike | None = None,
        *,
        weights: ArrayLike | None = None,
    ) -> Self:
        """Return the sums of samples.

        Args:
            projection: The projection that all devices share.
            X: Samples (k, n), or one (n,). Samples with names are matched by them.
            T: Targets (k, m), or (k,) for one output; by default the samples themselves. They are
                rounded to the grid, so scale them to about [−1, 1].
            weights: A weight of 0 or more for each row, 1 by default; 2 counts a row twice.
                With fractional weights the sums are rounded to the grid.
        """
        must_be(projection, Projection, "build one that all devices share")
        rows = projection.to_rows(X)
        targets = rows if T is None else targets_on_grid(T, len(rows), projection.step)
        return cls.of_rows(projection, rows, targets, weights)

    @classmethod
    def of_rows(
        cls,
        projection: Projection,
        X: Array,
        T: Array | None = None,
        weights: ArrayLike | None = None,
    ) -> Self:
        """Return the sums of samples and targets that are already on the grid.

        Args:
            projection: The projection that all devices share.
            X: What `Projection.to_rows` returned, (k, n).
            T: Targets on the grid, (k, m); None (the default): the samples themselves.
            weights: A weight of 0 or more for each row; None (the default): 1 each.
        """
        w = None if weights is None else weights_of_rows(weights, len(X))
        return cls.snapshot(projection, sum_up(projection, X, X if T is None else T, w))

    @classmethod
    def snapshot(cls, projection: Projection, sums: Sums) -> Self:
        """Return a copy of an accumulator's sums.

        Args:
            projection: The projection that gave the hidden values.
            sums: The accumulator; it may go on afterwards.
        """
        copies = (sums.full_U(), sums.V.copy(), sums.C.copy(), sums.S.copy())
        return cls(projection, *copies, sums.count)

    @classmethod
    def total(
        cls, projection: Projection, parts: Iterable[Self], *, n_outputs: int | None = None
    ) -> Self:
        """Return the sum of all `parts`: the same as `+`, without copies in between.

        Args:
            projection: The projection of all parts.
            parts: The sums to add; there may be none.
            n_outputs: The number of outputs, if the target is not the sample itself; None (the
                default): as many as inputs.
        """
        whole = cls.empty(projection, n_outputs)
        sums, rest = whole.sums(), iter(parts)
        while few := tuple(islice(rest, SUMMED_TOGETHER)):
            for part in few:
                must_be(part, Stats, "give the stats of contributions")
                part.must_be_compatible(projection, len(whole.C))
            sums.merge_all(few)
        # squares only grow, so checking the end is enough
        must_fit(sums.largest(), projection.quantum)
        return cls.snapshot(projection, sums)

    def sums(self, *, for_kernel: bool = False) -> Sums:
        """Return an accumulator that starts with these sums.

        Args:
            for_kernel: Lay out V for the kernel; False unless given.
        """
        quantum = self.projection.quantum
        return Sums.from_arrays(*self.arrays, self.count, quantum, for_kernel=for_kernel)

    def __add__(self, other: Self) -> Self:
        """Return the sums of the samples of both."""
        return self._with(other, 1.0)  # M7

    def __radd__(self, zero: int) -> Self:
        """Support `sum`, which starts with 0."""
        return self if zero == 0 else NotImplemented

    def __sub__(self, other: Self) -> Self:
        """Remove the samples of `other` exactly: a + b − b == a."""
        return self._with(other, -1.0)  # M7

    def __mul__(self, weight: float) -> Self:
        """Multiply by a weight and round to the grid, so that sums stay exact."""
        if not 0.0 <= as_number("weight", weight) < np.inf:
            raise SettingError(f"found weight {weight}, expected a finite number of 0 or more")
        q = self.projection.quantum
        must_fit(self.largest * weight, q)
        U, V, C, S = (np.rint(a * (weight / q)) * q + 0.0 for a in self.arrays)  # no −0
        return self._replace(U, V, C, S, round(self.count * weight / q) * q)

    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        """Compare bit for bit."""
        return (
            isinstance(other, Stats)
            and self.projection == other.projection
            and self.count == other.count
            and all(map(np.array_equal, self.arrays, other.arrays))
        )

    __hash__ = None  # type: ignore[assignment]  # holds arrays

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the constructor's arguments, so that the arrays are read-only again."""
        return type(self), (self.projection, *self.arrays, self.count)

    def __repr__(self) -> str:
        """Show the sizes and the number of samples."""
        return f"Stats({len(self.U)} hidden, {len(self.C)} outputs, {self.count:g} samples)"

    @property
    def arrays(self) -> tuple[Array, Array, Array, Array]:
        """U, V, C and S, in this order."""
        return self.U, self.V, self.C, self.S

    @property
    def largest(self) -> float:
        """The largest of diag(U), S and count, which bounds all other entries."""
        return float(max(self.U.diagonal().max(), self.S.max(), self.count))

    @property
    def load(self) -> float:
        """The largest sum as a part of what is exact; sums whose loads add up to 1 may not fit."""
        return self.largest / exact_limit(self.projection.quantum)

    @property
    def digest(self) -> str:
        """SHA-256 of projection and sums, equal for equal stats."""
        parts = (np.asarray(a, "<f8").tobytes() for a in (*self.arrays, self.count))
        return sha256(self.projection.fingerprint.encode() + b"".join(parts)).hexdigest()

    def solve(self, ridge: float | None = None) -> Readout:
        """Return the readout.

        Args:
            ridge: ρ, added to the diagonal of U; None (the default) chooses a small one that suits
                these sums, 0 adds nothing.

        Raises:
            SolveError: There are too few independent samples for this ridge.
        """
        return Readout.solve(self.U, self.V, self.ridge if ridge is None else ridge)

    @property
    def ridge(self) -> float:
        """The ridge that `solve` takes when none is given."""
        return ridge_for(self.projection, float(np.trace(self.U)))

    def mean_loss(self, readout: Readout) -> float:
        """Return the exact mean loss of these samples under any readout.

        Args:
            readout: Of these sums or of others, with the same projection.
        """
        return float(self.mean_losses(readout).mean())

    def mean_losses(self, readout: Readout) -> Array:
        """Return the mean squared error of each output under any readout, (m,).

        Args:
            readout: Of these sums or of others, with the same projection.
        """
        must_be(readout, Readout, "solve() of sums returns one")
        B = readout.B
        if B.shape != self.V.shape:
            raise MismatchError(
                f"found a readout of shape {B.shape}, expected {self.V.shape}: take one of sums of "
                "the same projection and task"
            )
        sums = self.S - np.einsum("ij,ij->j", B, 2.0 * self.V - self.U @ B)  # M10
        return np.asarray(np.maximum(sums, 0.0) / max(self.count, self.projection.quantum))

    def _with(self, other: Self, sign: float) -> Self:
        if not isinstance(other, Stats):
            return NotImplemented
        other.must_be_compatible(self.projection, len(self.C))
        pairs = zip(self.arrays, other.arrays, strict=True)
        U, V, C, S = (a + b if sign > 0 else a - b for a, b in pairs)
        return self._replace(U, V, C, S, self.count + sign * other.count)

    def must_be_compatible(self, projection: Projection, n_outputs: int) -> None:
        """Raise MismatchError unless projection and number of outputs are these.

        Args:
            projection: The projection that is expected.
            n_outputs: The number of outputs that is expected.
        """
        projection.must_equal(self.projection)
        if len(self.C) != n_outputs:
            raise MismatchError(
                f"found {len(self.C)} outputs, expected {n_outputs}: add only sums of the same task"
            )

    def _replace(self, U: Array, V: Array, C: Array, S: Array, count: float) -> Self:
        new = type(self)(self.projection, U, V, C, S, float(count))
        must_fit(new.largest, self.projection.quantum)
        return new


class Capacity:
    """Bounds what samples of one projection add to the largest sum."""

    def __init__(self, projection: Projection) -> None:
        """Compute the norms of the weights: |h| ≤ |A||x| + |b|, plus rounding."""
        self.projection = projection
        N, step = projection.n_hidden, projection.step
        self._stretch = float(np.linalg.norm(projection.A))
        self._shift = float(np.linalg.norm(projection.b)) + step * sqrt(N)
        self._most = N * projection.rule.largest**2

    @property
    def bounds(self) -> tuple[float, float, float]:
        """The numbers of `load`: |h| ≤ first·|x| + second, and |h|² ≤ third."""
        return self._stretch, self._shift, self._most

    def load(self, x: Array) -> float:
        """Return a bound of what one sample (n,) adds."""
        squares = float(x.dot(x))
        hidden = (self._stretch * sqrt(squares) + self._shift) ** 2
        return max(squares, min(hidden, self._most), 1.0)

    def loads(self, X: Array) -> float:
        """Return a bound of what rows (k, n) add together."""
        k, squares = len(X), float(np.vdot(X, X))
        hidden = 2.0 * (self._stretch**2 * squares + k * self._shift**2)  # (a + b)² ≤ 2a² + 2b²
        return max(squares, min(hidden, k * self._most), float(k))

    def must_hold(self, sums: Sums, X: Array) -> None:
        """Raise CapacityError if the rows do not all fit into these sums."""
        if not sums.fits(self.loads(X)):
            sums.must_hold(sum_up(self.projection, X, X))


Solver = Literal["svd", "qr", "normal"]


def elm(
    projection: Projection, X: Samples, T: ArrayLike | None = None, *, by: Solver = "svd"
) -> Array:
    """Return the output layer B = H⁺T, trained in one batch.

    Args:
        projection: The hidden layer.
        X: Samples (k, n).
        T: Targets (k, m); by default the samples themselves.
        by: "svd" (default), "qr" or "normal" (the normal equations, E²LM's sums). SVD also gives
            the smallest of all solutions when there are fewer samples than hidden values; the
            other two need as many independent samples as hidden values.

    Raises:
        SolveError: If there are too few independent samples for "qr" or "normal".
        SampleError: If targets are not finite, or not as many as samples.

    >>> shared = Projection(n_inputs=2, n_hidden=2, activation="identity", seed=1)
    >>> X = [[0.1, 0.2], [0.3, -0.4], [0.5, 0.6]]
    >>> bool(np.allclose(elm(shared, X, by="svd"), elm(shared, X, by="normal")))
    True
    """
    if by == "normal":
        return Stats.of(projection, X, T).solve(ridge=0.0).B  # M3
    must_be(projection, Projection, "build one that all devices share")
    H = np.atleast_2d(projection.hidden(X))
    targets = projection.to_rows(X) if T is None else targets_of(T, len(H)).reshape(np.shape(T))
    if by == "svd":
        return np.asarray(np.linalg.pinv(H) @ targets)
    if by == "qr":
        return _solve_by_qr(H, targets)
    raise SettingError(f"found by={by!r}, expected 'svd', 'qr' or 'normal'")


def _solve_by_qr(H: Array, T: Array) -> Array:
    if len(H) < H.shape[1]:
        raise SolveError(
            f"found {len(H)} samples, expected at least {H.shape[1]} (hidden values): give more, "
            "or use by='svd'"
        )
    Q, R = qr(H, mode="economic")
    if np.abs(np.diag(R)).min() <= len(H) * np.finfo(float).eps * np.abs(np.diag(R)).max():
        raise SolveError(
            "found linearly dependent hidden values: give more samples, or use by='svd'"
        )
    return np.asarray(solve_triangular(R, Q.T @ T))


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
    R, ridge = inverse_factor(stats.U, max(COVARIANCE_RIDGE * float(np.trace(stats.U)) / N, least))
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
    if most is not None and as_int("most", most) < 0:
        raise SettingError(f"found most={most}, expected 0 or more inputs")
    labels = names or [str(i) for i in range(len(shares))]
    return {labels[i]: float(shares[i]) for i in np.argsort(-shares, kind="stable")[:most]}
