"""A window that slides over the readings: each full one becomes a sample.

A window is (length, k): `length` readings of k channels, the oldest first.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.errors import SampleError, SettingError

Array = NDArray[np.float64]

logger = logging.getLogger(__name__)


class Kind(Protocol):
    """What a full window becomes; equal `settings` mean equal samples."""

    @property
    def settings(self) -> dict[str, Any]:
        """Give what decides, as plain JSON."""
        ...

    def labels(self) -> tuple[str, ...]:
        """Name what comes out of each channel."""
        ...

    def of(self, window: Array) -> Array:
        """Turn a window (length, k) into one row for each channel, (k, labels)."""
        ...


class Sliding:
    """Gives a sample for the first `length` readings, then again after every `step` of them."""

    def __init__(self, kind: Kind, length: int, step: int | None = None) -> None:
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
        """Give the length of a sample from readings of that length."""
        return n_readings * len(self._kind.labels())

    def names(self, readings: Sequence[str]) -> tuple[str, ...]:
        """Name the inputs of a sample, all of one channel together."""
        return tuple(f"{channel} {label}" for channel in readings for label in self._kind.labels())

    def push(self, values: Array) -> Array | None:
        """Take in a reading (k,); give a sample when a window is complete."""
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

    def state(self) -> Any:
        """Give the readings in the window and how many are missing, as plain JSON."""
        rows = [row.tolist() for row in self._recent]
        return {"settings": self._settings(), "missing": self._missing, "readings": rows}

    def resume(self, state: Any) -> None:
        """Go on from there; with other settings than then, begin a new window."""
        if state is None or state["settings"] != self._settings():
            logger.warning("a window is begun anew: the features have other settings than before")
            return
        self._missing = state["missing"]
        self._recent.clear()
        self._recent.extend(np.array(row, dtype=np.float64) for row in state["readings"])

    def _settings(self) -> Any:
        settings = {"length": self._length, "step": self._step} | self._kind.settings
        return json.loads(json.dumps(settings))  # a tuple becomes a list, as it does in a file
