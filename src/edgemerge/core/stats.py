"""Stats: everything a learner has seen, as sums that add up across devices, exactly.

U (N, N), V (N, m), C (m,), S (m,), count. All are multiples of the quantum 2⁻²ᵍ and below 2⁵³
quanta, so float64 adds and subtracts them without rounding, in any order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgemerge.core.errors import MismatchError, SettingError
from edgemerge.core.projection import Projection
from edgemerge.core.readout import Readout, ridge_for
from edgemerge.core.sums import Sums, must_fit, sum_up
from edgemerge.core.targets import checked_weights, targets_on_grid

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Stats:
    """What was seen, as a value: `+` merges, `-` takes back, `*` weighs, `==` compares bits.

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
        """Freeze the arrays too: a value does not change."""
        for array in self.arrays:
            if isinstance(array, np.ndarray):  # anything else is for `admit` to refuse
                array.setflags(write=False)

    @classmethod
    def empty(cls, projection: Projection, n_outputs: int | None = None) -> Self:
        """Nothing seen yet: the zero of `+`."""
        m = projection.n_inputs if n_outputs is None else n_outputs
        return cls.snapshot(projection, Sums(projection.n_hidden, m, projection.quantum))

    @classmethod
    def of(
        cls,
        projection: Projection,
        X: ArrayLike,
        T: ArrayLike | None = None,
        *,
        weights: ArrayLike | None = None,
    ) -> Self:
        """Sum up samples X (k, n) with targets T (k, m); without T the target is X itself.

        Targets are rounded to the grid, so bring them to about [−1, 1]. A weight of 2 counts a
        row twice; weights that are not whole round the sums to the grid.
        """
        rows = projection.grid.rows(X)
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
        """Sum up samples and targets that are on the grid already."""
        w = None if weights is None else checked_weights(weights, len(X))
        return cls.snapshot(projection, sum_up(projection, X, X if T is None else T, w))

    @classmethod
    def snapshot(cls, projection: Projection, sums: Sums) -> Self:
        """Copy what an accumulator holds now."""
        copies = (sums.full_U(), sums.V.copy(), sums.C.copy(), sums.S.copy())
        return cls(projection, *copies, sums.count)

    @classmethod
    def total(
        cls, projection: Projection, parts: Iterable[Self], *, n_outputs: int | None = None
    ) -> Self:
        """Add up any number of them: the same as `+`, in one place of memory."""
        whole = cls.empty(projection, n_outputs)
        sums = whole.sums()
        for part in parts:
            part.must_be_of(projection, len(whole.C))
            sums.merge(*part.arrays, part.count)
        must_fit(sums.largest(), projection.quantum)  # squares only grow: the end tells of all
        return cls.snapshot(projection, sums)

    def sums(self) -> Sums:
        """Give an accumulator that goes on from here."""
        return Sums.holding(*self.arrays, self.count, self.projection.quantum)

    def __add__(self, other: Self) -> Self:
        """Merge: the sums of everything that both have seen."""
        return self._with(other, 1.0)  # M7

    def __radd__(self, zero: int) -> Self:
        """Let `sum` start from 0."""
        return self if zero == 0 else NotImplemented

    def __sub__(self, other: Self) -> Self:
        """Take back, exactly: a + b − b is a."""
        return self._with(other, -1.0)  # M7

    def __mul__(self, weight: float) -> Self:
        """Weigh every sample alike; rounds to the grid, so that the result still adds exactly."""
        if not 0.0 <= weight < np.inf:
            raise SettingError(f"found weight {weight}, expected a finite number of 0 or more")
        q = self.projection.quantum
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
        """Pickle what it is made of: it is made again, so its arrays are frozen there too."""
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
    def digest(self) -> str:
        """SHA-256 of projection and sums: equal on every replica that holds the same."""
        parts = (np.asarray(a, "<f8").tobytes() for a in (*self.arrays, self.count))
        return sha256(self.projection.fingerprint.encode() + b"".join(parts)).hexdigest()

    def solve(self, ridge: float | None = None) -> Readout:
        """Solve for the readout; without `ridge`, a small one that suits these sums is used."""
        return Readout.solve(self.U, self.V, self.ridge if ridge is None else ridge)

    @property
    def ridge(self) -> float:
        """The ridge that `solve` takes when none is given."""
        return ridge_for(self.projection, float(np.trace(self.U)))

    def mean_loss(self, readout: Readout) -> float:
        """Give the exact mean loss of these data under any readout, without one raw row."""
        return float(self.mean_losses(readout).mean())

    def mean_losses(self, readout: Readout) -> Array:
        """Give the mean squared error of each output under any readout, (m,)."""
        B = readout.B
        sums = self.S - np.einsum("ij,ij->j", B, 2.0 * self.V - self.U @ B)  # M10
        return np.asarray(np.maximum(sums, 0.0) / max(self.count, self.projection.quantum))

    def _with(self, other: Self, sign: float) -> Self:
        if not isinstance(other, Stats):
            return NotImplemented
        other.must_be_of(self.projection, len(self.C))
        pairs = zip(self.arrays, other.arrays, strict=True)
        U, V, C, S = (a + b if sign > 0 else a - b for a, b in pairs)
        return self._replace(U, V, C, S, self.count + sign * other.count)

    def must_be_of(self, projection: Projection, n_outputs: int) -> None:
        """Refuse to be added to sums of another projection or task."""
        projection.must_equal(self.projection)
        if len(self.C) != n_outputs:
            raise MismatchError(
                f"found {len(self.C)} outputs, expected {n_outputs}: only sums of the same task add"
            )

    def _replace(self, U: Array, V: Array, C: Array, S: Array, count: float) -> Self:
        new = type(self)(self.projection, U, V, C, S, float(count))
        must_fit(new.largest, self.projection.quantum)
        return new
