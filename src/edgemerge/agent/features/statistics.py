"""Statistics of a window of readings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.errors import SettingError

Array = NDArray[np.float64]


def _slope(window: Array) -> Array:
    """The slope of the straight line through each channel, by least squares, per reading."""
    t = np.arange(len(window)) - (len(window) - 1) / 2.0
    return np.asarray(t @ window / (t @ t))


def _crossings(window: Array) -> Array:
    """How often neighbouring readings lie on different sides of the mean, from 0 to 1."""
    above = window > window.mean(axis=0)
    return np.asarray((above[1:] != above[:-1]).mean(axis=0))


STATISTICS: dict[str, Callable[[Array], Array]] = {
    "mean": lambda window: window.mean(axis=0),
    "std": lambda window: window.std(axis=0),
    "min": lambda window: window.min(axis=0),
    "max": lambda window: window.max(axis=0),
    "median": lambda window: np.median(window, axis=0),
    "range": lambda window: np.ptp(window, axis=0),
    "rms": lambda window: np.sqrt((window**2).mean(axis=0)),
    "slope": _slope,
    "crossings": _crossings,
    "last": lambda window: window[-1],
}


class Statistics:
    """The chosen statistics of each channel, in the order in which they were chosen."""

    def __init__(self, statistics: Sequence[str] = ("mean", "std", "min", "max")) -> None:
        """Refuse those that nobody knows."""
        unknown = [name for name in statistics if name not in STATISTICS]
        if unknown or not statistics:
            raise SettingError(
                f"found features.statistics = {list(statistics)}, "
                f"expected some of {', '.join(STATISTICS)}"
            )
        self._names = tuple(statistics)

    @property
    def settings(self) -> dict[str, Any]:
        """Give what decides, as plain JSON."""
        return {"kind": "window", "statistics": self._names}

    def labels(self) -> tuple[str, ...]:
        """Name what comes out of each channel."""
        return self._names

    def of(self, window: Array) -> Array:
        """Compute them, (k, statistics)."""
        return np.stack([STATISTICS[name](window) for name in self._names], axis=1)
