"""The projection: the hidden layer that every device shares and nobody trains.

A (n, N), b (N,): H = g(XA + b) is (k, N) for samples X (k, n). Inputs are mapped from [low, high]
to [−1, 1]; x and h lie on a grid of 2⁻ᵍ, A and b on one coarse enough for XA + b to be exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import sha256
from math import ceil, log2
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgemerge.core.activation import BOUNDS, Activation, table
from edgemerge.core.errors import MismatchError
from edgemerge.core.grid import REACH, Grid, range_of
from edgemerge.core.settings import plain_end, refuse_bad, usual_width, whole
from edgemerge.core.splitmix import BIAS_KEY, key_of, weights

Array = NDArray[np.float64]

FORMAT = 1
WHOLE = ("n_inputs", "n_hidden", "seed", "grid_bits")


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Projection:
    """What devices agree on before they learn; equal settings give equal numbers everywhere.

    `low` and `high` say where each input usually lies: one number, or one for each input.
    `width` is the half-width of the uniform weights; 1.0 is the paper's uniform(−1, 1).
    With `names`, each input's weights follow from its name instead of its position.

    >>> Projection(n_inputs=3, n_hidden=4, seed=7)
    Projection(3 inputs, 4 hidden, tanh, seed 7, 12 bits, 6e3a2749)
    """

    n_inputs: int
    n_hidden: int = 64
    seed: int = 0
    activation: Activation = "tanh"
    low: float | Sequence[float] | Array = -1.0
    high: float | Sequence[float] | Array = 1.0
    width: float = 0.0
    grid_bits: int = 12
    names: Sequence[str] | None = None

    def __post_init__(self) -> None:
        """Write the settings out as plain values, and refuse those that cannot work."""
        plain: dict[str, Any] = {name: whole(name, getattr(self, name)) for name in WHOLE}
        plain |= {"low": plain_end(self.low), "high": plain_end(self.high)}
        if self.names is not None:
            plain["names"] = tuple(map(str, self.names))
        plain["width"] = float(self.width) or usual_width(self.activation, plain["n_inputs"])
        for name, value in plain.items():
            object.__setattr__(self, name, value)
        refuse_bad(self)

    @classmethod
    def of_data(cls, X: ArrayLike, *, margin: float = 0.0, **settings: Any) -> Self:
        """Fix the input range once, from a first stretch of samples (k, n)."""
        low, high = range_of(X, margin)
        return cls(n_inputs=len(low), low=low, high=high, **settings)

    @cached_property
    def A(self) -> Array:
        """The input weights, (n, N)."""
        keys = range(self.n_inputs) if self.names is None else map(key_of, self.names)
        return self._draw(keys, self.width)

    @cached_property
    def b(self) -> Array:
        """The bias, (N,), uniform in [−1, 1)."""
        return np.asarray(self._draw([BIAS_KEY], 1.0)[0])

    def _draw(self, keys: Iterable[int], width: float) -> Array:
        # |Σ xA| < 2⁵³ steps of the product grid, for n (or up to 4096) inputs all at REACH
        room = 52 - self.grid_bits - log2(REACH) - ceil(log2(max(self.n_inputs, 4096)))
        bits = int(room - max(0, ceil(log2(self.width))))
        return weights(self.seed, keys, self.n_hidden, width, bits)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over every number that decides what a sample becomes."""
        names = "\0".join(self.names or ())
        head = f"edgemerge {FORMAT} {self.activation} {self.grid_bits} {names}"
        ends = (np.broadcast_to(np.asarray(end), self.n_inputs) for end in (self.low, self.high))
        numbers = b"".join(np.asarray(a, "<f8").tobytes() for a in (self.A, self.b, *ends))
        return sha256(head.encode() + b"\0" + numbers).hexdigest()

    @property
    def step(self) -> float:
        """The grid of samples and hidden values."""
        return float(2.0**-self.grid_bits)

    @property
    def quantum(self) -> float:
        """The grid of sums: every product of two grid values is a multiple of it."""
        return self.step**2

    @cached_property
    def grid(self) -> Grid:
        """The map from readings to grid values."""
        return Grid(self.n_inputs, self.low, self.high, self.grid_bits)

    def hidden(self, X: ArrayLike) -> Array:
        """Give the hidden values of samples: (k, N), or (N,) for one sample."""
        H = self.project(self.grid.rows(X))
        return H[0] if np.ndim(X) == 1 else H

    def project(self, X: Array) -> Array:
        """Give the hidden values of samples that are on the grid already."""
        steps: Array = X.dot(self.A)
        steps += self._b
        steps *= 2.0**self.grid_bits
        np.rint(steps, out=steps)
        if self._table is not None:
            return self._table.take(steps.astype(np.intp), mode="clip")  # M1
        if self.activation == "relu":
            np.maximum(steps, 0.0, out=steps)
        steps *= self.step
        return steps  # M1

    @cached_property
    def _b(self) -> Array:  # where there is a table, steps count from its start
        return self.b + (0 if self._table is None else len(self._table) // 2) * self.step

    @cached_property
    def _table(self) -> Array | None:
        return table(self.activation, self.grid_bits) if self.activation in BOUNDS else None

    def must_equal(self, other: Projection) -> None:
        """Refuse, naming both, unless `other` is the same agreement."""
        if self is not other and self.fingerprint != other.fingerprint:
            raise MismatchError(
                f"{other} does not fit {self}: every device must build the same Projection"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the settings alone: every number follows from them, and is drawn but once."""
        settings = ((name, self.__dict__[name]) for name in self.__dataclass_fields__)
        return _agreed, (self.fingerprint, *settings)

    def __eq__(self, other: object) -> bool:
        """Two projections are equal when every number in them is."""
        return isinstance(other, Projection) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        """Hash by fingerprint."""
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        """Show the settings and the first digits of the fingerprint."""
        return (
            f"Projection({self.n_inputs} inputs, {self.n_hidden} hidden, {self.activation}, "
            f"seed {self.seed}, {self.grid_bits} bits, {self.fingerprint[:8]})"
        )


@lru_cache(maxsize=16)
def _agreed(fingerprint: str, *settings: tuple[str, Any]) -> Projection:
    projection = Projection(**dict(settings))
    if projection.fingerprint == fingerprint:
        return projection
    raise MismatchError(f"found {projection}, expected {fingerprint[:8]}: use one version for all")
