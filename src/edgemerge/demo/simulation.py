"""A simulated pump: what an accelerometer on its bearing hears, as spectra in bands.

The shaft's angle and time signals are (k, WINDOW), one row for each window. Samples are (k, BANDS):
the level of each band in dB relative to 1 g.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Complex = NDArray[np.complex128]

RATE_HZ = 1024
WINDOW = 512  # readings in one sample: half a second, so bins of 2 Hz
BANDS = 64
BAND_HZ = RATE_HZ / 2 / BANDS
LOW_DB, HIGH_DB = -80.0, -20.0  # where levels usually lie: pumps agree on it before they learn

FULL_HZ = 25.0  # the shaft speed that amplitudes below are given for
MAINS_HUM_HZ = 100.0  # twice the frequency of the mains: the motor's iron breathes with it
VANES = 5  # of the impeller; each passes the outlet once a turn
OUTER_RACE = 3.58  # balls that pass one spot of the bearing's outer ring in a turn
HARMONICS = 6  # of the ball pass
RESONANCES = {118.0: 6.0, 330.0: 9.0}  # of the casing: Hz and quality
MEMORY = 0.9  # of the wandering speed, from one window to the next
WANDER = 0.008  # how far the speed strays, relative
BREATH = 0.12  # how far the amplitudes of a window stray, relative
SENSOR_NOISE = 2e-4  # in g, in each bin


@dataclass(frozen=True)
class Pattern:
    """One way of running: the shaft's speed, and the load from 0 to 1."""

    name: str
    speed_hz: float
    load: float


@dataclass(frozen=True)
class Fault:
    """What a defect adds, in g: lines at multiples of the shaft's speed, and impacts of balls."""

    name: str
    lines: Mapping[float, float]
    impact: float = 0.0


SOUND = Fault("normal", {})
BEARING = Fault("bearing", {}, impact=0.012)
LOOSE = Fault("looseness", {0.5: 0.020, 1: 0.080, 1.5: 0.012, 2: 0.060, 3: 0.020, 4: 0.012})


def spectra(pattern: Pattern, count: int, rng: np.random.Generator, fault: Fault = SOUND) -> Array:
    """Give the spectra of `count` windows of a pump that runs like this, (count, BANDS) in dB.

    >>> spectra(Pattern("idle", speed_hz=12.5, load=0.0), 3, np.random.default_rng(7)).shape
    (3, 64)
    """
    speed = pattern.speed_hz / FULL_HZ
    angle = _angle(pattern.speed_hz, count, rng)
    signal = speed**2 * _turning(_lines(pattern.load), angle, rng)  # centrifugal
    signal += speed * _defect(fault, angle, rng)
    signal *= np.exp(rng.normal(0.0, BREATH, (count, 1)))
    return _levels(signal + _surroundings(pattern, count, rng), rng)


def _angle(speed_hz: float, count: int, rng: np.random.Generator) -> Array:
    """The shaft's angle; its speed wanders from window to window and drifts within each."""
    stray = rng.normal(size=count + 1)
    for i in range(count):
        stray[i + 1] = MEMORY * stray[i] + np.sqrt(1.0 - MEMORY**2) * stray[i + 1]
    speed = speed_hz * (1.0 + WANDER * stray[:, None])
    t = np.arange(WINDOW) / RATE_HZ
    turns = speed[:-1] * t + 0.5 * np.diff(speed, axis=0) * (RATE_HZ / WINDOW) * t**2
    return np.asarray(2.0 * np.pi * turns + _phase(count, rng))


def _lines(load: float) -> dict[float, float]:
    """What a sound pump sounds like: a little imbalance, and vanes that push under load."""
    push = 0.2 + load
    shaft: dict[float, float] = {1: 0.012, 2: 0.005, 3: 0.002}
    return shaft | {VANES: 0.010 * push, 2 * VANES: 0.005 * push, 3 * VANES: 0.003 * push}


def _turning(lines: Mapping[float, float], angle: Array, rng: np.random.Generator) -> Array:
    total = np.zeros(angle.shape)
    for order, amplitude in lines.items():
        total += amplitude * np.cos(order * angle + _phase(len(angle), rng))
    return total


def _defect(fault: Fault, angle: Array, rng: np.random.Generator) -> Array:
    lines = _turning(fault.lines, angle, rng)
    return lines + fault.impact * _ball_pass(angle, rng) if fault.impact else lines


def _ball_pass(angle: Array, rng: np.random.Generator) -> Array:
    """Balls that slip a little and hit a pit, louder while the load rests on it: sidebands."""
    slip = 1.0 + rng.normal(0.0, 0.004, (len(angle), 1))
    ball = OUTER_RACE * slip * angle + _phase(len(angle), rng)
    hits = np.zeros(angle.shape)
    for harmonic in range(1, HARMONICS + 1):
        hits += np.cos(harmonic * ball)
    return np.asarray(hits * (1.0 + 0.6 * np.cos(angle)))


def _surroundings(pattern: Pattern, count: int, rng: np.random.Generator) -> Array:
    """The hum of the motor and the rush of the water."""
    t = np.arange(WINDOW) / RATE_HZ
    hum = np.cos(2.0 * np.pi * MAINS_HUM_HZ * t + _phase(count, rng))
    rush = rng.normal(size=(count, WINDOW)) * (pattern.speed_hz / FULL_HZ) ** 1.5
    return np.asarray(0.004 * (0.5 + pattern.load) * (hum + rush))


def _phase(count: int, rng: np.random.Generator) -> Array:
    return rng.uniform(0.0, 2.0 * np.pi, (count, 1))


def _levels(signal: Array, rng: np.random.Generator) -> Array:
    """Transform the windows, let the casing ring, and take the level of each band."""
    bins = np.fft.rfft(signal * np.hanning(WINDOW))[:, 1:] * (4.0 / WINDOW)
    bins *= _casing(np.arange(1, WINDOW // 2 + 1, dtype=np.float64) * (RATE_HZ / WINDOW))
    bins += SENSOR_NOISE * (rng.normal(size=bins.shape) + 1j * rng.normal(size=bins.shape))
    power = (np.abs(bins) ** 2).reshape(len(bins), BANDS, -1).mean(axis=2)
    return np.asarray(10.0 * np.log10(power))


def _casing(frequency: Array) -> Complex:
    """How the casing passes a force on: duller with frequency, ringing at its resonances."""
    passed = 1.0 / (1.0 + 1j * frequency / 200.0)
    for at_hz, quality in RESONANCES.items():
        ratio = frequency / at_hz
        passed += 0.2 * ratio**2 / (1.0 - ratio**2 + 1j * ratio / quality)
    return np.asarray(passed)
