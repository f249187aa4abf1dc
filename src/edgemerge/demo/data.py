"""Data of the demo: simulated pumps, or recorded motion of people (HAR).

The shaft's angle and time signals are (k, WINDOW), one row per window. Samples are (k, BANDS): the
level of each band in dB relative to 1 g.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.errors import SettingError
from edgemerge.core.projection import Projection

Array = NDArray[np.float64]
Complex = NDArray[np.complex128]

RATE_HZ = 1024
WINDOW = 512  # readings in one sample: half a second, so bins of 2 Hz
BANDS = 64
BAND_HZ = RATE_HZ / 2 / BANDS
LOW_DB, HIGH_DB = -80.0, -20.0  # usual range of levels, agreed before learning

REFERENCE_HZ = 25.0  # the shaft speed that amplitudes below are given for
MAINS_HUM_HZ = 100.0  # twice the mains frequency: magnetostriction of the motor
VANES = 5  # of the impeller; each passes the outlet once a turn
OUTER_RACE = 3.58  # balls that pass one spot of the bearing's outer ring in a turn
HARMONICS = 6  # of the ball pass
RESONANCES = {118.0: 6.0, 330.0: 9.0}  # of the casing: Hz and quality
SPEED_CORRELATION = 0.9  # of the wandering speed, from one window to the next
SPEED_DEVIATION = 0.008  # how far the speed strays, relative
AMPLITUDE_DEVIATION = 0.12  # how far the amplitudes of a window stray, relative
SENSOR_NOISE = 2e-4  # in g, in each bin


@dataclass(frozen=True)
class Pattern:
    """An operating point: shaft speed, and load from 0 to 1."""

    name: str
    speed_hz: float
    load: float


@dataclass(frozen=True)
class Fault:
    """What a defect adds, in g: lines at multiples of the shaft's speed, and impacts of balls."""

    name: str
    lines: Mapping[float, float]
    impact: float = 0.0


NO_FAULT = Fault("normal", {})
BEARING = Fault("bearing", {}, impact=0.012)
LOOSENESS = Fault("looseness", {0.5: 0.020, 1: 0.080, 1.5: 0.012, 2: 0.060, 3: 0.020, 4: 0.012})


def spectra(
    pattern: Pattern, count: int, rng: np.random.Generator, fault: Fault = NO_FAULT
) -> Array:
    """Return the spectra of `count` windows of such a pump, (count, BANDS) in dB.

    >>> spectra(Pattern("idle", speed_hz=12.5, load=0.0), 3, np.random.default_rng(7)).shape
    (3, 64)
    """
    speed = pattern.speed_hz / REFERENCE_HZ
    angle = _angle(pattern.speed_hz, count, rng)
    signal = speed**2 * _shaft_signal(_lines(pattern.load), angle, rng)  # centrifugal
    signal += speed * _fault_signal(fault, angle, rng)
    signal *= np.exp(rng.normal(0.0, AMPLITUDE_DEVIATION, (count, 1)))
    return _levels(signal + _background(pattern, count, rng), rng)


def _angle(speed_hz: float, count: int, rng: np.random.Generator) -> Array:
    """Return the shaft's angle; its speed varies between windows and drifts within each."""
    stray, innovation = rng.normal(size=count + 1), np.sqrt(1.0 - SPEED_CORRELATION**2)
    for i in range(count):
        stray[i + 1] = SPEED_CORRELATION * stray[i] + innovation * stray[i + 1]
    speed = speed_hz * (1.0 + SPEED_DEVIATION * stray[:, None])
    t = np.arange(WINDOW) / RATE_HZ
    turns = speed[:-1] * t + 0.5 * np.diff(speed, axis=0) * (RATE_HZ / WINDOW) * t**2
    return np.asarray(2.0 * np.pi * turns + _phase(count, rng))


def _lines(load: float) -> dict[float, float]:
    """Return the lines of a healthy pump: some imbalance, and vane passes under load."""
    push = 0.2 + load
    shaft: dict[float, float] = {1: 0.012, 2: 0.005, 3: 0.002}
    return shaft | {VANES: 0.010 * push, 2 * VANES: 0.005 * push, 3 * VANES: 0.003 * push}


def _shaft_signal(lines: Mapping[float, float], angle: Array, rng: np.random.Generator) -> Array:
    total = np.zeros(angle.shape)
    for order, amplitude in lines.items():
        total += amplitude * np.cos(order * angle + _phase(len(angle), rng))
    return total


def _fault_signal(fault: Fault, angle: Array, rng: np.random.Generator) -> Array:
    lines = _shaft_signal(fault.lines, angle, rng)
    return lines + fault.impact * _ball_pass(angle, rng) if fault.impact else lines


def _ball_pass(angle: Array, rng: np.random.Generator) -> Array:
    """Return impacts of balls on a pit, modulated by the load, with some slip."""
    slip = 1.0 + rng.normal(0.0, 0.004, (len(angle), 1))
    ball = OUTER_RACE * slip * angle + _phase(len(angle), rng)
    hits = np.zeros(angle.shape)
    for harmonic in range(1, HARMONICS + 1):
        hits += np.cos(harmonic * ball)
    return np.asarray(hits * (1.0 + 0.6 * np.cos(angle)))


def _background(pattern: Pattern, count: int, rng: np.random.Generator) -> Array:
    """Return the hum of the motor and the noise of the water."""
    t = np.arange(WINDOW) / RATE_HZ
    hum = np.cos(2.0 * np.pi * MAINS_HUM_HZ * t + _phase(count, rng))
    rush = rng.normal(size=(count, WINDOW)) * (pattern.speed_hz / REFERENCE_HZ) ** 1.5
    return np.asarray(0.004 * (0.5 + pattern.load) * (hum + rush))


def _phase(count: int, rng: np.random.Generator) -> Array:
    return rng.uniform(0.0, 2.0 * np.pi, (count, 1))


def _levels(signal: Array, rng: np.random.Generator) -> Array:
    """Return the level of each band of the windows' spectra, as the casing passes them on."""
    bins = np.fft.rfft(signal * np.hanning(WINDOW))[:, 1:] * (4.0 / WINDOW)
    bins *= _casing_response(np.arange(1, WINDOW // 2 + 1, dtype=np.float64) * (RATE_HZ / WINDOW))
    bins += SENSOR_NOISE * (rng.normal(size=bins.shape) + 1j * rng.normal(size=bins.shape))
    power = (np.abs(bins) ** 2).reshape(len(bins), BANDS, -1).mean(axis=2)
    return np.asarray(10.0 * np.log10(power))


def _casing_response(frequency: Array) -> Complex:
    """Return the transfer function of the casing: low-pass, with resonances."""
    passed = 1.0 / (1.0 + 1j * frequency / 200.0)
    for at_hz, quality in RESONANCES.items():
        ratio = frequency / at_hz
        passed += 0.2 * ratio**2 / (1.0 - ratio**2 + 1j * ratio / quality)
    return np.asarray(passed)


READING_NAMES = ("speed", "flow", "pressure", "current", "bearing", "vibration")
READINGS_START = datetime(2026, 11, 17, 6, 0, 0)  # of the first row in the file of readings
HEAT_S = 120.0  # time constant of the bearing's temperature


def readings(count: int, fault_from: int, rng: np.random.Generator) -> Array:
    """Return what a control system records of a pump once a second, (count, 6).

    Speed in 1/min, flow in m³/h, pressure in bar, current in A, temperature of the bearing in °C,
    vibration in mm/s. Speed and valve follow the demand; from `fault_from` on, the bearing fails:
    it shakes, runs hot and takes some power.

    >>> readings(100, 90, np.random.default_rng(7)).shape
    (100, 6)
    """
    t = np.arange(count)
    worn = np.clip((t - fault_from) / 60.0, 0.0, 1.0) * (t >= fault_from)  # within a minute
    demand = 0.7 + 0.2 * np.sin(t / 60.0) + 0.08 * np.sin(t / 13.0)
    wander = np.cumsum(rng.normal(0.0, 0.02, count))
    speed = 1450.0 * (0.75 + 0.25 * demand + 0.002 * np.sin(wander))
    ratio = speed / 1450.0
    flow = 42.0 * ratio * demand**0.5
    pressure = 5.2 * ratio**2 - 0.9 * (flow / 42.0) ** 2
    current = 3.1 + 9.5 * ratio**3 * (0.55 + 0.45 * demand) + 1.2 * worn
    heat = 18.0 * ratio**2 + 4.0 * demand + 25.0 * worn
    bearing = 24.0 + _lagged(heat, HEAT_S)
    vibration = 1.1 * ratio**2 + 0.25 * demand + 1.6 * worn
    exact = np.stack([speed, flow, pressure, current, bearing, vibration], axis=1)
    return np.asarray(exact + rng.normal(0.0, [2.0, 0.3, 0.02, 0.12, 0.15, 0.05], exact.shape))


def _lagged(values: Array, time_constant: float) -> Array:
    """Return what follows values with a first-order lag, one a second."""
    found, share = np.empty_like(values), 1.0 / time_constant
    level = values[0]
    for i, value in enumerate(values):
        level += share * (value - level)
        found[i] = level
    return found


def write_readings(path: Path, seed: int) -> None:
    """Write two hours of a pump's readings as CSV, the last ten minutes with a fault.

    There is also what such files have besides: text and a constant.
    """
    rows = readings(7200, 6600, np.random.default_rng(seed))
    with path.open("w", encoding="utf-8") as file:
        print("time", *READING_NAMES, "setpoint", "state", sep=",", file=file)
        for i, row in enumerate(rows):
            at = READINGS_START + timedelta(seconds=i)
            print(at.isoformat(), *(f"{x:.2f}" for x in row), "4.0", "run", sep=",", file=file)


PUMPS = {
    "pump-1": Pattern("idle", speed_hz=12.5, load=0.0),
    "pump-2": Pattern("idle", speed_hz=12.5, load=0.05),
    "pump-3": Pattern("running", speed_hz=25.0, load=0.4),
    "pump-4": Pattern("running", speed_hz=25.0, load=0.9),
    "pump-5": Pattern("fast", speed_hz=41.7, load=0.6),
}
PLOTTED = ("pump-1", "pump-3", "pump-5")  # one pump of each pattern, for the curves
FAULTS = (BEARING, LOOSENESS)
N_HIDDEN = 32
TRAINING_SAMPLES = 1000  # samples on each pump: eight minutes of half-second windows
TEST_SAMPLES = 60  # fresh samples of each device's normal, and of each fault on it

# What the people who carry each phone do, by the numbers of the data set; none lies down.
PHONES = {
    "phone-1": ("walking", 1),
    "phone-2": ("upstairs", 2),
    "phone-3": ("downstairs", 3),
    "phone-4": ("sitting", 4),
    "phone-5": ("standing", 5),
}
LYING = 6
PEOPLE = 30


@dataclass(frozen=True)
class DemoData:
    """Five devices, each with one normal pattern; `odd` are samples that none learns.

    `inputs` are the names of what a sample consists of, if it has any.
    """

    name: str
    projection: Projection
    patterns: Mapping[str, str]
    learn: Mapping[str, Array]
    normal: Mapping[str, Array]
    odd: Mapping[str, Array]
    curves: Mapping[str, Array] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()


def pumps(seed: int) -> DemoData:
    """Simulate five pumps and two faults; samples are spectra of vibration."""
    rng = np.random.default_rng(seed)
    shared = Projection(n_inputs=BANDS, n_hidden=N_HIDDEN, seed=seed, low=LOW_DB, high=HIGH_DB)
    learn = {name: spectra(like, TRAINING_SAMPLES, rng) for name, like in PUMPS.items()}
    normal = {name: spectra(like, TEST_SAMPLES, rng) for name, like in PUMPS.items()}
    odd = {
        fault.name: np.vstack([spectra(like, TEST_SAMPLES, rng, fault) for like in PUMPS.values()])
        for fault in FAULTS
    }
    names = {name: like.name for name, like in PUMPS.items()}
    bands = tuple(f"{BAND_HZ * i:.0f}-{BAND_HZ * (i + 1):.0f} Hz" for i in range(BANDS))
    return DemoData("pumps", shared, names, learn, normal, odd, _curves(normal, odd), bands)


def har(file: Path, seed: int) -> DemoData:
    """Load motion of real people: six people carry each phone, all with one activity."""
    if not file.exists():
        raise SettingError(
            f"found no {file}: put the data set there, or name its folder in EDGEMERGE_DATA"
        )
    with np.load(file, allow_pickle=False) as held:
        X = np.vstack([held["X_train"], held["X_test"]]).astype(np.float64)
        activity = np.concatenate([held["y_train"], held["y_test"]])
        person = np.concatenate([held["subject_train"], held["subject_test"]])
    rng = np.random.default_rng(seed)
    carriers = np.array_split(rng.permutation(np.arange(1, PEOPLE + 1)), len(PHONES))
    learn, normal = {}, {}
    for (name, (_, does)), people in zip(PHONES.items(), carriers, strict=True):
        rows = rng.permutation(X[(activity == does) & np.isin(person, people)])
        learn[name], normal[name] = rows[TEST_SAMPLES:], rows[:TEST_SAMPLES]
    odd = {"lying": rng.permutation(X[activity == LYING])[: 5 * TEST_SAMPLES]}
    shared = Projection(n_inputs=X.shape[1], n_hidden=64, seed=seed)
    return DemoData("har", shared, {k: v[0] for k, v in PHONES.items()}, learn, normal, odd)


def _curves(normal: Mapping[str, Array], odd: Mapping[str, Array]) -> dict[str, Array]:
    """Return the mean spectrum of each pattern, and of each fault at running speed."""
    at = list(PUMPS).index("pump-3") * TEST_SAMPLES
    kinds = {PUMPS[name].name: normal[name] for name in PLOTTED}
    kinds |= {fault: samples[at : at + TEST_SAMPLES] for fault, samples in odd.items()}
    return {
        kind: np.stack([np.quantile(rows, 0.05, 0), rows.mean(0), np.quantile(rows, 0.95, 0)])
        for kind, rows in kinds.items()
    }
