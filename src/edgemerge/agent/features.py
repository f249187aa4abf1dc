"""Features: how readings become samples (raw, window statistics, spectrum, state transitions).

A window is (length, k): `length` readings of k channels, the oldest first.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.errors import SampleError, SettingError

Array = NDArray[np.float64]


class Features(Protocol):
    """Turns readings into samples."""

    def push(self, values: Array) -> Array | None:
        """Add a reading (k,); return a sample (n,) when one is complete."""
        ...

    def state(self) -> Any:
        """Return what `resume` needs, as plain JSON."""
        ...

    def resume(self, state: Any) -> None:
        """Restore a saved state."""
        ...


class NamedFeatures(Features, Protocol):
    """Features that also know the length and the names of their samples."""

    def n_outputs(self, n_readings: int) -> int:
        """Return the length of a sample from readings of that length."""
        ...

    def names(self, readings: Sequence[str]) -> tuple[str, ...]:
        """Name the inputs of a sample."""
        ...


class Raw:
    """Every reading is a sample."""

    def n_outputs(self, n_readings: int) -> int:
        """Return the length of a sample from readings of that length."""
        return n_readings

    def names(self, readings: Sequence[str]) -> tuple[str, ...]:
        """Name the inputs of a sample after the readings."""
        return tuple(readings)

    def push(self, values: Array) -> Array | None:
        """Return the reading (k,) as the sample."""
        return values

    def state(self) -> Any:
        """Return None: there is no state."""
        return None

    def resume(self, state: Any) -> None:
        """Do nothing: there is no state."""


logger = logging.getLogger(__name__)


class WindowTransform(Protocol):
    """What a full window becomes; equal `settings` mean equal samples."""

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings that determine the samples, as plain JSON."""
        ...

    def labels(self) -> tuple[str, ...]:
        """Name the values of each channel."""
        ...

    def of(self, window: Array) -> Array:
        """Turn a window (length, k) into one row for each channel, (k, labels)."""
        ...


class SlidingWindow:
    """Makes a sample of the first `length` readings, then again after every `step` of them."""

    def __init__(self, kind: WindowTransform, length: int, step: int | None = None) -> None:
        """Start with an empty window; without a step, windows lie side by side."""
        step = length if step is None else step
        if length < 2 or not 1 <= step <= length:
            raise SettingError(
                f"found a window of {length} readings every {step}, "
                "expected 2 or more, and a step from 1 to the length"
            )
        self._kind, self._length, self._step = kind, length, step
        self._recent: deque[Array] = deque(maxlen=length)
        self._missing = length

    def n_outputs(self, n_readings: int) -> int:
        """Return the length of a sample from readings of that length."""
        return n_readings * len(self._kind.labels())

    def names(self, readings: Sequence[str]) -> tuple[str, ...]:
        """Name the inputs of a sample, all of one channel together."""
        return tuple(f"{channel} {label}" for channel in readings for label in self._kind.labels())

    def push(self, values: Array) -> Array | None:
        """Add a reading (k,); return a sample when a window is complete."""
        values = np.array(values, dtype=np.float64)
        if values.ndim != 1 or (self._recent and values.shape != self._recent[-1].shape):
            raise SampleError(
                f"found a reading of shape {values.shape}, expected as many values as before"
            )
        self._recent.append(values)
        self._missing -= 1
        if self._missing:
            return None
        self._missing = self._step
        return np.asarray(self._kind.of(np.array(self._recent)).reshape(-1))

    def samples(self, readings: Array) -> Array:
        """Return the samples of a table of readings (k, channels), as `push` would, one a row."""
        starts = range(0, len(readings) - self._length + 1, self._step)
        windows = (readings[start : start + self._length] for start in starts)
        found = [self._kind.of(window).reshape(-1) for window in windows]
        return np.array(found).reshape(-1, self.n_outputs(readings.shape[1]))

    def state(self) -> Any:
        """Return the readings in the window and how many are missing, as plain JSON."""
        rows = [row.tolist() for row in self._recent]
        return {"settings": self._settings(), "missing": self._missing, "readings": rows}

    def resume(self, state: Any) -> None:
        """Restore a saved state; if the settings have changed, start a new window."""
        if state is None or state["settings"] != self._settings():
            logger.warning("a new window is started: the settings of the features have changed")
            return
        self._missing = state["missing"]
        self._recent.clear()
        self._recent.extend(np.array(row, dtype=np.float64) for row in state["readings"])

    def _settings(self) -> Any:
        settings = {"length": self._length, "step": self._step} | self._kind.settings
        return json.loads(json.dumps(settings))  # a tuple becomes a list, as it does in a file


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
        """Check the names."""
        unknown = [name for name in statistics if name not in STATISTICS]
        if unknown or not statistics:
            raise SettingError(
                f"found features.statistics = {list(statistics)}, "
                f"expected some of {', '.join(STATISTICS)}"
            )
        self._names = tuple(statistics)

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings that determine the samples, as plain JSON."""
        return {"kind": "window", "statistics": self._names}

    def labels(self) -> tuple[str, ...]:
        """Name the values of each channel."""
        return self._names

    def of(self, window: Array) -> Array:
        """Compute them, (k, statistics)."""
        return np.stack([STATISTICS[name](window) for name in self._names], axis=1)


MIN_POWER = 1e-20  # the power that stands for none at all: −200 dB
EDGE_TOLERANCE = 1e-9  # of a band: what lies this little above its upper edge still belongs to it


class Spectrum:
    """The mean power of each band, in dB relative to a sine of amplitude 1 in a bin of its own.

    Bands have equal widths from `low_hz` to `high_hz` (half the rate, if not given); each holds
    the bins above its lower edge up to its upper edge, so never the constant part.
    """

    def __init__(
        self,
        *,
        length: int,
        rate_hz: float,
        bands: int = 32,
        low_hz: float = 0.0,
        high_hz: float | None = None,
    ) -> None:
        """Raise SettingError if a band has no bin."""
        if length < 2 or bands < 1:
            raise SettingError(
                f"found {bands} bands of windows of {length} readings, "
                "expected 1 or more of 2 or more"
            )
        high_hz = rate_hz / 2.0 if high_hz is None else high_hz
        if not 0.0 <= low_hz < high_hz <= rate_hz / 2.0:
            raise SettingError(
                f"found a spectrum from {low_hz:g} to {high_hz:g} Hz, "
                f"expected a range within 0 to {rate_hz / 2.0:g} Hz, half of rate_hz"
            )
        self._length, self._rate_hz, self._bands = length, rate_hz, bands
        self._low_hz, self._high_hz = low_hz, high_hz
        if not np.all(np.bincount(self._band_of_bin[self._inside], minlength=bands)):
            raise SettingError(
                f"found {bands} bands for bins of {rate_hz / length:g} Hz between {low_hz:g} and "
                f"{high_hz:g} Hz, some of them empty: take fewer bands or longer windows"
            )

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings that determine the samples, as plain JSON."""
        ends = {"low_hz": self._low_hz, "high_hz": self._high_hz}
        return {"kind": "spectrum", "bands": self._bands, "rate_hz": self._rate_hz} | ends

    def labels(self) -> tuple[str, ...]:
        """Name each band after its edges."""
        edges = np.linspace(self._low_hz, self._high_hz, self._bands + 1)
        return tuple(f"{a:g}-{b:g} Hz" for a, b in pairwise(edges))

    def of(self, window: Array) -> Array:
        """Compute the levels, (k, bands)."""
        tapered = window.T * np.hanning(self._length)
        bins = np.fft.rfft(tapered)[:, self._inside] * (4.0 / self._length)
        power = np.add.reduceat(np.abs(bins) ** 2, self._starts, axis=1) / self._counts
        return np.asarray(10.0 * np.log10(np.maximum(power, MIN_POWER)))

    @cached_property
    def _band_of_bin(self) -> NDArray[np.intp]:
        hz = np.arange(self._length // 2 + 1) * (self._rate_hz / self._length)
        place = (hz - self._low_hz) / (self._high_hz - self._low_hz) * self._bands
        return np.asarray(np.ceil(place - EDGE_TOLERANCE) - 1, dtype=np.intp)

    @cached_property
    def _inside(self) -> NDArray[np.bool_]:
        return np.asarray((self._band_of_bin >= 0) & (self._band_of_bin < self._bands))

    @cached_property
    def _counts(self) -> NDArray[np.intp]:
        return np.bincount(self._band_of_bin[self._inside], minlength=self._bands)

    @cached_property
    def _starts(self) -> NDArray[np.intp]:
        return np.cumsum(self._counts) - self._counts


class Transitions:
    """For each pair of levels (a, b): of the readings at a, the share that was followed by b.

    Levels cut [low, high) into `states` equal parts; what lies outside counts as the nearest. A
    level that was not met, or only by the last reading, has a row of zeros.
    """

    def __init__(self, *, states: int = 15, low: float = 0.0, high: float = 150.0) -> None:
        """Raise SettingError if there are no levels."""
        if states < 2 or not low < high:
            raise SettingError(
                f"found {states} states from {low:g} to {high:g}, "
                "expected 2 or more, and low below high"
            )
        self._states, self._low, self._high = states, low, high

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings that determine the samples, as plain JSON."""
        ends = {"low": self._low, "high": self._high}
        return {"kind": "transitions", "states": self._states} | ends

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
