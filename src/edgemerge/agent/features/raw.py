"""Readings as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Raw:
    """Every reading is a sample."""

    def n_outputs(self, n_readings: int) -> int:
        """Give the length of a sample from readings of that length."""
        return n_readings

    def names(self, readings: Sequence[str]) -> tuple[str, ...]:
        """Name the inputs of a sample after the readings."""
        return tuple(readings)

    def push(self, values: Array) -> Array | None:
        """Give the reading (k,) as the sample."""
        return values

    def state(self) -> Any:
        """Give nothing: there is nothing to go on from."""
        return None

    def resume(self, state: Any) -> None:
        """Go on from nothing."""
