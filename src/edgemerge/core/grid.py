"""The grid: the one way in for samples, which are checked, mapped to [−1, 1] and rounded here.

X is (k, n) on the way in and out. Rounding to steps of 2⁻ᵍ is what makes sums exact later.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import blas

from edgemerge.core.errors import SampleError, SettingError

Array = NDArray[np.float64]

STRIP = 2**14  # values rounded at a time: they stay in the cache from the first step to the last
NARROW = 1e-290  # a range below it cannot be told from a constant
REACH = 256.0  # in half-ranges: a value further out than this counts as this far out


class Grid:
    """Maps readings from [low, high] to grid values about [−1, 1]."""

    def __init__(self, n: int, low: ArrayLike, high: ArrayLike, bits: int) -> None:
        """Fix the map for n inputs; low and high are one number or one for each input."""
        self.n, self.step = n, 2.0**-bits
        self._far = REACH / self.step
        bottom, top = np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)
        self._gain = 2.0 / (top - bottom) / self.step
        self._shift = -bottom * self._gain - 1.0 / self.step
        spare = max(self._far - float(np.abs(self._shift).max()), 0.0)
        near = spare / float(np.abs(self._gain).max())
        self._near = near * near  # |x|² below it: none is far

    def one(self, x: ArrayLike) -> Array:
        """Take in one sample (n,)."""
        values = self._shaped(x, 1)
        if not blas.ddot(values, values) < self._near:  # which overflows without a word
            return self._round(values)
        steps = values * self._gain
        steps += self._shift
        np.rint(steps, out=steps)
        steps *= self.step
        return steps

    def rows(self, X: ArrayLike) -> Array:
        """Take in samples (k, n), or one sample (n,) as a single row."""
        values = np.asarray(X)
        return self._round(self._shaped(X, 2 if values.ndim == 2 else 1)).reshape(-1, self.n)

    def back(self, X: Array) -> Array:
        """Turn grid values into readings again."""
        return np.asarray((X / self.step - self._shift) / self._gain)

    def _shaped(self, X: ArrayLike, ndim: int) -> Array:
        try:
            values = np.asarray(X, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise SampleError(f"a sample must be {self.n} numbers: {error}") from error
        if values.ndim != ndim or values.shape[-1] != self.n:
            raise SampleError(
                f"found samples of shape {values.shape}, expected ({self.n},) or (k, {self.n}): "
                "give every input of the projection, in its order"
            )
        return values

    def _round(self, values: Array) -> Array:
        rows, some = values.reshape(-1, self.n), max(1, STRIP // self.n)
        steps = np.empty(rows.shape)
        with np.errstate(over="ignore", invalid="ignore"):
            for i in range(0, len(rows), some):
                part = steps[i : i + some]
                np.multiply(rows[i : i + some], self._gain, out=part)
                part += self._shift
                np.rint(part, out=part)
                if not np.vdot(part, part) < self._far**2:  # one look for NaN, infinity, far values
                    self._refuse_unless_finite(values)
                    np.clip(part, -self._far, self._far, out=part)
                part *= self.step
        return steps.reshape(values.shape)

    def _refuse_unless_finite(self, values: Array) -> None:
        bad = np.argwhere(~np.isfinite(values))
        if len(bad):
            where = tuple(int(i) for i in bad[0])
            raise SampleError(
                f"found {values[where]} at input {where[-1]}"
                + (f" of row {where[0]}" if values.ndim == 2 else "")
                + ", expected a finite number: drop or repair such samples first"
            )


def range_of(X: ArrayLike, margin: float) -> tuple[Array, Array]:
    """Find where the inputs of some samples lie, with a margin on either side as a share of it."""
    if not margin >= 0.0:
        raise SettingError(f"found margin={margin}, expected 0 or more")
    try:
        rows = np.atleast_2d(np.asarray(X, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise SampleError(f"the range needs samples of numbers: {error}") from error
    if rows.size == 0 or not np.isfinite(rows).all():
        raise SampleError("the range needs at least one sample of finite numbers")
    low, high = rows.min(0), rows.max(0)
    spare = margin * (high - low)
    spare += np.where(high - low > NARROW, 0.0, np.maximum(1.0, np.abs(low)))  # a constant input
    return low - spare, high + spare
