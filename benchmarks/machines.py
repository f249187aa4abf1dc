"""Streams of samples from generated machines and from people's motion, for trials of alarms.

A machine gives vibration at 1 kHz, from which the agent's own features make samples, or process
values that are samples already. `fault` is a strength: 1 is plain to see, 0.1 is weak.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgemerge.agent.features import Spectrum, Statistics

Array = NDArray[np.float64]

RATE_HZ = 1000.0
WINDOW = 256  # readings in a sample
BANDS = 32
STATISTICS = ("mean", "std", "min", "max", "rms", "slope", "crossings")
NOISE = 0.1  # of the sensor, in g
WANDER = 0.3  # radians that speed and load move from one sample to the next


@dataclass(frozen=True)
class Machine:
    """A stream: `draw(k, fault, rng)` gives k samples, (k, n)."""

    name: str
    draw: Callable[[int, float, np.random.Generator], Array]


def vibration(k: int, fault: float, rng: np.random.Generator, *, wander: float = 0.02) -> Array:
    """Return k windows of a shaft's vibration with, perhaps, a bearing fault, (k, WINDOW)."""
    count = k * WINDOW
    speed = 24.0 * (1.0 + wander * slow(k, rng)).repeat(WINDOW)
    angle = np.cumsum(speed) / RATE_HZ
    load = (1.0 + 0.15 * slow(k, rng)).repeat(WINDOW)
    signal = NOISE * rng.normal(size=count)
    for order, g, phase in ((1, 0.5, 0.0), (2, 0.3, 0.3), (5, 0.2, 0.7)):
        signal += load * g * np.sin(2.0 * np.pi * (order * angle + phase))
    if fault:
        hits = np.flatnonzero(np.diff(np.floor(3.58 * angle), prepend=0.0))
        ring = np.exp(-np.arange(40) / 8.0) * np.sin(2.0 * np.pi * 180.0 * np.arange(40) / RATE_HZ)
        pulses = np.zeros(count)
        pulses[hits] = fault * (1.0 + 0.2 * rng.normal(size=len(hits)))
        signal += np.convolve(pulses, ring)[:count]
    return signal.reshape(k, WINDOW)


def slow(k: int, rng: np.random.Generator) -> Array:
    """Return a value that wanders between −1 and 1, as under a controller, (k,)."""
    return np.sin(np.cumsum(rng.normal(0.0, WANDER, k)) + 6.3 * rng.random())


def spectra(windows: Array) -> Array:
    """Return the spectrum of each window, (k, BANDS)."""
    spectrum = Spectrum(length=WINDOW, rate_hz=RATE_HZ, bands=BANDS)
    return np.array([spectrum.of(window[:, None]).ravel() for window in windows])


def statistics(windows: Array) -> Array:
    """Return the statistics of each window, (k, 7)."""
    found = Statistics(STATISTICS)
    return np.array([found.of(window[:, None]).ravel() for window in windows])


def _spectrum(k: int, fault: float, rng: np.random.Generator) -> Array:
    return spectra(vibration(k, fault, rng))


def _window(k: int, fault: float, rng: np.random.Generator) -> Array:
    return statistics(vibration(k, fault, rng))


def _process(k: int, fault: float, rng: np.random.Generator) -> Array:
    """Return process values of a pump: eight readings that depend on speed and load."""
    speed, load = 0.3 * slow(k, rng), 0.3 * slow(k, rng)
    flow, pressure = 1.0 + speed - 0.3 * load, 1.0 + 2.0 * speed + load
    power, heat = 1.0 + 1.5 * speed + load, 0.5 + 0.4 * load
    values = [speed, load, flow, pressure, power, heat, flow * 0.5, speed * 0.8 + load * 0.1]
    rows = np.array(values).T + 0.02 * rng.normal(size=(k, 8))
    if fault:  # a worn impeller: less flow for the same power
        rows[:, 2] -= 0.4 * fault
        rows[:, 4] += 0.3 * fault
    return rows


def _two_speeds(k: int, fault: float, rng: np.random.Generator) -> Array:
    """Return process values that go to and fro between two operating points."""
    rows = _process(k, fault, rng)
    fast = (np.arange(k) // 150) % 2 == 1
    rows[fast] += np.array([1.0, 0.5, 0.7, 1.8, 1.5, 0.3, 0.35, 0.8])
    return rows


MACHINES = (
    Machine("vibration, spectrum", _spectrum),
    Machine("vibration, statistics", _window),
    Machine("process values", _process),
    Machine("process values, two speeds", _two_speeds),
)


@dataclass(frozen=True)
class Motion:
    """Windows of people's motion: `rows` (k, 561), activity (k,) from 1 to 6, person (k,)."""

    rows: Array
    activity: NDArray[np.int64]
    person: NDArray[np.int64]


def motion() -> Motion | None:
    """Return HAR, or None where it is not there."""
    folder = os.environ.get("EDGEMERGE_DATA")
    file = Path(folder or ".") / "har" / "har.npz"
    if not file.exists():
        return None
    with np.load(file) as parts:
        rows, activity, person = (
            np.concatenate([parts[f"{a}_train"], parts[f"{a}_test"]]) for a in ("X", "y", "subject")
        )
    return Motion(rows.astype(np.float64), activity.astype(np.int64), person.astype(np.int64))
