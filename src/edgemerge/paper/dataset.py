"""A data set: readings X (k, n), the pattern y (k,) of each, and whom it came from."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ints = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled readings; `y` counts patterns from 0, `origin` says which person or trip.

    >>> import numpy as np
    >>> two = Dataset("toy", np.eye(3), np.array([0, 1, 1]), ("idle", "fast"), np.array([5, 5, 6]))
    >>> two.rows("fast")
    array([1, 2])
    >>> two
    Dataset(toy, 3 samples of 3 inputs, 2 patterns, 2 origins)
    """

    name: str
    X: Array
    y: Ints
    patterns: tuple[str, ...]
    origin: Ints
    low: float = 0.0
    high: float = 1.0

    @property
    def n_inputs(self) -> int:
        """The number of inputs of one sample."""
        return int(self.X.shape[1])

    def rows(self, pattern: str) -> Ints:
        """Give the places of a pattern's samples."""
        return np.flatnonzero(self.y == self.patterns.index(pattern))

    def fewer(self, most: int, seed: int) -> Dataset:
        """Keep at most so many samples of each pattern, chosen by the seed, in their order."""
        rng = np.random.default_rng(seed)
        kept = [rng.permutation(self.rows(pattern))[:most] for pattern in self.patterns]
        return self.only(np.sort(np.concatenate(kept)))

    def only(self, rows: Ints) -> Dataset:
        """Keep these samples."""
        return replace(self, X=self.X[rows], y=self.y[rows], origin=self.origin[rows])

    def between_0_and_1(self, rows: Ints) -> Array:
        """Give readings as a network with a sigmoid at its end wants them."""
        return (self.X[rows] - self.low) / (self.high - self.low)

    def __repr__(self) -> str:
        """Show the sizes."""
        k, n = self.X.shape
        origins = len(np.unique(self.origin))
        patterns = f"{len(self.patterns)} patterns, {origins} origins"
        return f"Dataset({self.name}, {k} samples of {n} inputs, {patterns})"
