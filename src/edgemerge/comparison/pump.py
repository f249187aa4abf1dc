"""Streams of a generated pump whose truth is known: which samples are faults, and of which kind.

A pump gives eight readings that follow from its speed and its valve by the affinity laws, with
sensor noise. After commissioning come normal samples and faults in turn; every stream has faults of
all kinds, in a random order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgemerge.paper.dataset import rng_for

Array = NDArray[np.float64]
Marks = NDArray[np.bool_]

READINGS = ("speed", "valve", "flow", "pressure", "power", "current", "heat", "vibration")
SPEED, VALVE, FLOW, PRESSURE, POWER, CURRENT, HEAT, VIBRATION = range(8)
NOISE = 0.02
WANDER = 0.3  # radians that speed and valve move from one sample to the next
SECOND_SPEED = 0.6  # added to the speed
KINDS = ("worn impeller", "stuck sensor", "noisy sensor", "broken relation", "overload")
NEW_SPEED = "new speed"  # a change that a person approves, and a fault until then
STREAMS = {  # what happens besides faults
    "steady": "nothing else",
    "heavy tails": "the noise is Student's t with three degrees of freedom",
    "slow drift": "two readings move by five times their noise, and that is normal",
    NEW_SPEED: "the pump gets a second speed, and 200 samples later a person approves it",
    "contaminated": "5 % of commissioning are samples of a fault, 1 % of the rest are wild",
    "late device": "a device begins with 256 samples at one speed; its five peers know both speeds",
}
DRIFT = 5.0 * NOISE
DIRT, WILD = 0.05, 0.01  # shares of contaminated samples, in commissioning and afterwards
REVIEW_AFTER = 200  # samples from a new speed to its approval
PEERS = 5


@dataclass(frozen=True)
class Shape:
    """How long a stream is, in samples: commissioning, and each normal part and each fault."""

    first: int = 1024
    calm: int = 250
    fault: int = 80
    repeats: int = 2  # of each kind


FULL, QUICK = Shape(), Shape(first=512, calm=150, fault=60, repeats=1)


@dataclass(frozen=True)
class Fault:
    """Samples from `begin` up to `end`, without it, that are not normal."""

    kind: str
    begin: int
    end: int


@dataclass(frozen=True)
class Stream:
    """Samples (k, 8) and the truth about them.

    Attributes:
        name: One of `STREAMS`.
        rows: The samples.
        faults: When they begin and end, in order of time.
        first: The samples of commissioning.
        wild: Samples that are wild by chance; neither normal nor a fault, (k,).
        review: The sample before which a person approves what is in alarm; None if nobody does.
        peers: What each other device of the fleet has learnt, rows (k, 8).
    """

    name: str
    rows: Array
    faults: tuple[Fault, ...]
    first: int
    wild: Marks
    review: int | None = None
    peers: tuple[Array, ...] = ()

    @property
    def fault(self) -> Marks:
        """Which samples belong to a fault, (k,)."""
        found = np.zeros(len(self.rows), np.bool_)
        for each in self.faults:
            found[each.begin : each.end] = True
        return found


def make_stream(name: str, seed: int, *, shape: Shape = FULL) -> Stream:
    """Return a stream; equal names, seeds and shapes give equal bits.

    Args:
        name: One of `STREAMS`.
        seed: Of everything that is drawn.
        shape: How long the stream is.
    """
    rng = rng_for(seed, "pump", name)
    first = shape.first // 4 if name == "late device" else shape.first
    faults = _faults(first, shape, rng)
    k = faults[-1].end + shape.calm
    change = first + shape.calm // 2 if name == NEW_SPEED else k
    fast = _fast(name, first, k, change, shape)
    rows = _readings(fast, rng, tails=name == "heavy tails")
    if name == "slow drift":
        rows[first:, [PRESSURE, HEAT]] += DRIFT * np.linspace(0.0, 1.0, k - first)[:, None]
    for fault in faults:
        rows[fault.begin : fault.end] = faulty(rows[fault.begin : fault.end], fault.kind, rng)
    wild, review = np.zeros(k, np.bool_), None
    if name == "contaminated":
        dirt = rng.permutation(first)[: round(DIRT * first)]
        rows[dirt] = faulty(rows[dirt], KINDS[0], rng)
        wild = _wild(first, k, faults, rng)
        rows[wild, rng.integers(len(READINGS), size=int(wild.sum()))] += 1.0
    if name == NEW_SPEED:
        review = change + REVIEW_AFTER
        faults = [Fault(NEW_SPEED, change, review), *faults]
    peers = _peers(shape.first, rng) if name == "late device" else ()
    return Stream(name, rows, tuple(faults), first, wild, review, peers)


def _faults(first: int, shape: Shape, rng: np.random.Generator) -> list[Fault]:
    kinds = rng.permutation(np.repeat(KINDS, shape.repeats))
    step = shape.calm + shape.fault
    # the first waits until a person has approved a new speed, in every stream alike
    start = first + REVIEW_AFTER + shape.calm
    return [
        Fault(str(kind), start + i * step, start + i * step + shape.fault)
        for i, kind in enumerate(kinds)
    ]


def _fast(name: str, first: int, k: int, change: int, shape: Shape) -> Marks:
    """Return when the pump runs at its second speed."""
    i = np.arange(k)
    if name == NEW_SPEED:
        return np.asarray((i >= change) & (((i - change) // shape.calm) % 2 == 0))
    if name == "late device":
        return np.asarray((i >= first) & (((i - first) // (shape.calm // 2)) % 2 == 1))
    return np.zeros(k, np.bool_)


def _wild(first: int, k: int, faults: Sequence[Fault], rng: np.random.Generator) -> Marks:
    found = rng.random(k) < WILD
    found[:first] = False
    for fault in faults:
        found[fault.begin : fault.end] = False
    return found


def _peers(first: int, rng: np.random.Generator) -> tuple[Array, ...]:
    fast = (np.arange(first) // (first // 8)) % 2 == 1
    return tuple(_readings(fast, rng) for _ in range(PEERS))


def normal_rows(k: int, rng: np.random.Generator, *, fast: bool = False) -> Array:
    """Return samples of a healthy pump, (k, 8), at its first speed or, if `fast`, its second."""
    return _readings(np.full(k, fast), rng)


def _readings(fast: Marks, rng: np.random.Generator, *, tails: bool = False) -> Array:
    k = len(fast)
    rows = _physics(1.0 + 0.3 * _wandering(k, rng) + SECOND_SPEED * fast, 0.3 * _wandering(k, rng))
    noise = rng.standard_t(3, rows.shape) / np.sqrt(3.0) if tails else rng.normal(size=rows.shape)
    return rows + NOISE * noise


def _wandering(k: int, rng: np.random.Generator) -> Array:
    """Return a value that wanders between −1 and 1, as under a controller, (k,)."""
    return np.sin(np.cumsum(rng.normal(0.0, WANDER, k)) + 2.0 * np.pi * rng.random())


def _physics(speed: Array, valve: Array) -> Array:
    """Return the readings without noise: flow, pressure and power grow as speed to 1, 2 and 3."""
    power = speed**3 * (1.0 + 0.4 * valve)
    readings = {
        SPEED: speed,
        VALVE: valve,
        FLOW: speed * (1.0 - 0.3 * valve),
        PRESSURE: speed**2 * (1.0 + 0.5 * valve),
        POWER: power,
        CURRENT: 0.2 + power / speed,
        HEAT: 0.5 + 0.3 * power,
        VIBRATION: 0.2 * speed**2,
    }
    return np.array([readings[i] for i in range(len(READINGS))]).T


def faulty(rows: Array, kind: str, rng: np.random.Generator) -> Array:
    """Return samples (k, 8) as they are under a fault of a kind, one of `KINDS`."""
    rows, k = rows.copy(), len(rows)
    if kind == "worn impeller":  # less flow for more power, each within its range
        rows[:, FLOW] -= 0.2
        rows[:, POWER] += 0.15
    elif kind == "stuck sensor":
        rows[:, HEAT] = rows[0, HEAT]
    elif kind == "noisy sensor":
        rows[:, VIBRATION] += 10.0 * NOISE * rng.normal(size=k)
    elif kind == "broken relation":  # a pressure as it may be, but of another moment
        rows[:, PRESSURE] = rng.permutation(_readings(np.zeros(max(k, 200), np.bool_), rng))[
            :k, PRESSURE
        ]
    elif kind == "overload":  # far outside its range
        rows[:, CURRENT] += 2.0
    else:
        raise ValueError(f"found kind {kind!r}, expected one of {KINDS}")
    return rows
