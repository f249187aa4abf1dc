"""The spectrum of a window of readings, as levels of bands in dB."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.errors import SettingError

Array = NDArray[np.float64]

SILENCE = 1e-20  # the power that stands for none at all: −200 dB
EDGE = 1e-9  # of a band: what lies this little above its upper edge still belongs to it


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
        """Refuse bands that no bin falls into."""
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
        """Give what decides, as plain JSON."""
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
        return np.asarray(10.0 * np.log10(np.maximum(power, SILENCE)))

    @cached_property
    def _band_of_bin(self) -> NDArray[np.intp]:
        hz = np.arange(self._length // 2 + 1) * (self._rate_hz / self._length)
        place = (hz - self._low_hz) / (self._high_hz - self._low_hz) * self._bands
        return np.asarray(np.ceil(place - EDGE) - 1, dtype=np.intp)

    @cached_property
    def _inside(self) -> NDArray[np.bool_]:
        return np.asarray((self._band_of_bin >= 0) & (self._band_of_bin < self._bands))

    @cached_property
    def _counts(self) -> NDArray[np.intp]:
        return np.bincount(self._band_of_bin[self._inside], minlength=self._bands)

    @cached_property
    def _starts(self) -> NDArray[np.intp]:
        return np.cumsum(self._counts) - self._counts
