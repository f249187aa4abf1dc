"""The table of state transitions of a window of readings: how often one level follows another.

The paper makes 225 inputs of a car's speed this way: 15 levels of 10 km/h, one reading a second.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.errors import SettingError

Array = NDArray[np.float64]


class Transitions:
    """For each pair of levels (a, b): of the readings at a, the share that was followed by b.

    Levels cut [low, high) into `states` equal parts; what lies outside counts as the nearest. A
    level that was not met, or only by the last reading, has a row of zeros.
    """

    def __init__(self, *, states: int = 15, low: float = 0.0, high: float = 150.0) -> None:
        """Refuse what leaves no levels."""
        if states < 2 or not low < high:
            raise SettingError(
                f"found {states} states from {low:g} to {high:g}, "
                "expected 2 or more, and low below high"
            )
        self._states, self._low, self._high = states, low, high

    @property
    def settings(self) -> dict[str, Any]:
        """Give what decides, as plain JSON."""
        return {
            "kind": "transitions",
            "states": self._states,
            "low": self._low,
            "high": self._high,
        }

    def labels(self) -> tuple[str, ...]:
        """Name each entry by the level before and the level after, row by row."""
        levels = range(self._states)
        return tuple(f"{a}>{b}" for a in levels for b in levels)

    def of(self, window: Array) -> Array:
        """Count, and divide by the times that each level was left, (k, states²)."""
        return np.stack([self._table(channel) for channel in self._levels(window).T])

    def _levels(self, window: Array) -> NDArray[np.intp]:
        place = (window - self._low) / (self._high - self._low) * self._states
        return np.asarray(np.clip(np.floor(place), 0, self._states - 1), dtype=np.intp)

    def _table(self, levels: NDArray[np.intp]) -> Array:
        pairs = levels[:-1] * self._states + levels[1:]
        counts = np.bincount(pairs, minlength=self._states**2).reshape(self._states, -1)
        left = np.maximum(counts.sum(axis=1, keepdims=True), 1)
        return np.asarray((counts / left).reshape(-1))
