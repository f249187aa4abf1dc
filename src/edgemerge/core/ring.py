"""The ring: the last few samples, in bounded memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Ring:
    """Keeps the newest `capacity` rows (k, n); float32 holds every grid value exactly."""

    def __init__(self, capacity: int, n_inputs: int) -> None:
        """Start empty."""
        self._rows = np.zeros((capacity, n_inputs), dtype=np.float32)
        self.seen = 0

    def push(self, X: Array) -> None:
        """Put in rows; the oldest make room."""
        X = X[-self.capacity :]
        places = (self.seen + np.arange(len(X))) % self.capacity
        self._rows[places] = X
        self.seen += len(X)

    def restore(self, X: Array, seen: int) -> None:
        """Go on from the rows that were kept when this many had been seen."""
        self.seen = seen - len(X)
        self.push(X)

    @property
    def capacity(self) -> int:
        """How many rows are kept."""
        return len(self._rows)

    def clear(self) -> None:
        """Forget all rows."""
        self.seen = 0

    @property
    def full(self) -> bool:
        """Whether every place is taken."""
        return self.seen >= len(self._rows)

    def rows(self) -> Array:
        """Give the rows, oldest first."""
        start = self.seen % len(self._rows) if self.full else 0
        used = len(self._rows) if self.full else self.seen
        return np.roll(self._rows[:used], -start, axis=0).astype(np.float64)
