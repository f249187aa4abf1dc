"""Faults by name: how often a fault that other devices know gets its name, a wrong one, or none.

Run `python -m benchmarks.naming`; it writes docs/results/naming.csv. In each world a few devices
have each met the same faults. Each fault of each device is met again as an unreviewed pattern, and
compared with what the *other* devices know of all faults: `right`, `wrong` and `none` count the
answers. Then once more with all that the others know but this fault: any name is wrong, and
`unknown_named` counts those, of `unknown`. What is shared passes the release gate of 2N samples.
Agents take tanh unless they are told otherwise, `Projection.of_data` takes cosine: both are shown.
The cuts of decision 0035 were chosen on seeds 10 and 11; the rows are of seeds 0, 1 and 2.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import partial
from multiprocessing import Pool
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.machines import NOISE, RATE_HZ, WINDOW, Motion, motion, slow, spectra, statistics
from edgemerge import Contribution, Projection, Stats
from edgemerge.core.faults import Faults

Array = NDArray[np.float64]
Draw = Callable[[int, str, float, np.random.Generator], Array]
GATE = 2  # samples for each hidden value, that a fault needs to be shared
ACTIVATIONS = ("tanh", "cosine")
SAMPLES = (2, 4, 8)  # for each hidden value, in the pattern that is to be named
KNOWN_ROWS, NORMAL_ROWS, RANGE_ROWS = 600, 400, 300
RESULTS = Path(__file__).parents[1] / "docs" / "results" / "naming.csv"
ACTIVITIES = {1: "walking", 2: "upstairs", 3: "downstairs", 4: "sitting", 5: "standing", 6: "lying"}


@dataclass(frozen=True)
class Device:
    """Normal samples of a device, and samples of each fault that it has met."""

    name: str
    normal: Array
    faults: dict[str, Array]


@dataclass(frozen=True)
class World:
    """Devices that share a projection with so many hidden values."""

    name: str
    n_hidden: int
    devices: list[Device]


@dataclass
class Counts:
    """The answers in one world, for patterns of so many samples for each hidden value."""

    world: str
    activation: str
    seed: int
    samples: int
    right: int = 0
    wrong: int = 0
    none: int = 0
    unknown: int = 0
    unknown_named: int = 0


def process(k: int, fault: str, speed: float, rng: np.random.Generator) -> Array:
    """Return process values of a pump at an operating point, with a fault unless it is ""."""
    at, load = speed + 0.3 * slow(k, rng), 0.5 * speed + 0.3 * slow(k, rng)
    flow, pressure = 1.0 + at - 0.3 * load, 1.0 + 2.0 * at + load
    power, heat = 1.0 + 1.5 * at + load, 0.5 + 0.4 * load
    values = [at, load, flow, pressure, power, heat, flow * 0.5, at * 0.8 + load * 0.1]
    rows = np.array(values).T + 0.02 * rng.normal(size=(k, 8))
    for column, shift in PROCESS_FAULTS.get(fault, {}).items():
        rows[:, column] += shift
    return rows


# What a fault adds to the process values, by column.
PROCESS_FAULTS = {
    "worn impeller": {2: -0.4, 4: 0.3},
    "blocked filter": {2: -0.3, 3: 0.5},
    "leak": {2: -0.3, 3: -0.4},
    "hot bearing": {4: 0.1, 5: 0.3},
    "flow sensor": {6: 0.25},
}
# What a fault makes of the amplitudes of a shaft's orders; a bearing rings at each hit.
VIBRATION_FAULTS: dict[str, dict[float, float]] = {
    "imbalance": {1: 1.2},
    "misalignment": {2: 0.9},
    "looseness": {0.5: 0.4, 1.5: 0.4},
    "gear": {17: 0.3},
    "bearing": {},
}


def shaft(k: int, fault: str, speed: float, rng: np.random.Generator) -> Array:
    """Return k windows of a shaft's vibration at about so many turns a second."""
    count = k * WINDOW
    angle = np.cumsum(speed * (1.0 + 0.02 * slow(k, rng)).repeat(WINDOW)) / RATE_HZ
    load = (1.0 + 0.15 * slow(k, rng)).repeat(WINDOW)
    signal = NOISE * rng.normal(size=count)
    for order, g in ({1: 0.5, 2: 0.3, 5: 0.2} | VIBRATION_FAULTS.get(fault, {})).items():
        signal += load * g * np.sin(2.0 * np.pi * (order * angle + 0.3 * order))
    if fault == "bearing":
        hits = np.flatnonzero(np.diff(np.floor(3.58 * angle), prepend=0.0))
        ring = np.exp(-np.arange(40) / 8.0) * np.sin(2.0 * np.pi * 180.0 * np.arange(40) / RATE_HZ)
        pulses = np.zeros(count)
        pulses[hits] = 1.0 + 0.2 * rng.normal(size=len(hits))
        signal += np.convolve(pulses, ring)[:count]
    return signal.reshape(k, WINDOW)


def _spectrum(k: int, fault: str, speed: float, rng: np.random.Generator) -> Array:
    return spectra(shaft(k, fault, speed, rng))


def _statistics(k: int, fault: str, speed: float, rng: np.random.Generator) -> Array:
    return statistics(shaft(k, fault, speed, rng))


def machines(
    name: str, draw: Draw, faults: list[str], speeds: list[float], *, seed: int, n_hidden: int
) -> World:
    """Return machines at some speeds, each of which has met all faults."""
    rng = np.random.default_rng(seed)
    found = [
        Device(
            f"pump-{i}",
            draw(NORMAL_ROWS, "", speed, rng),
            {fault: draw(KNOWN_ROWS, fault, speed, rng) for fault in faults},
        )
        for i, speed in enumerate(speeds)
    ]
    return World(name, n_hidden, found)


def people(
    name: str, data: Motion, normal: tuple[int, ...], *, each: int, seed: int, n_hidden: int
) -> World:
    """Return devices that so many people each carry; what is not normal for them is a fault."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(np.arange(1, 31))
    found = []
    for start in range(0, 30, each):
        mine = np.isin(data.person, order[start : start + each])

        def rows(*activities: int, mine: NDArray[np.bool_] = mine) -> Array:
            where = np.flatnonzero(mine & np.isin(data.activity, activities))
            return np.asarray(data.rows[rng.permutation(where)])

        faults = {ACTIVITIES[a]: rows(a) for a in ACTIVITIES if a not in normal}
        found.append(Device(f"phone-{start // each}", rows(*normal), faults))
    return World(name, n_hidden, found)


def worlds(seed: int, *, quick: bool = False) -> list[Callable[[], World]]:
    """Return the worlds; HAR is left out where it is not there."""
    process_faults, shaft_faults = list(PROCESS_FAULTS), list(VIBRATION_FAULTS)
    kinds: list[tuple[str, Draw, list[str], list[float], list[float]]] = [
        ("process values", process, process_faults, [0.0] * 3, [0.0, 0.8, -0.8]),
        ("vibration, spectrum", _spectrum, shaft_faults, [24.0] * 3, [24.0, 30.0, 20.0]),
        ("vibration, statistics", _statistics, shaft_faults, [24.0] * 3, [24.0, 30.0, 20.0]),
    ]
    found: list[Callable[[], World]] = []
    for name, draw, faults, same, other in kinds[: 1 if quick else None]:
        for word, speeds in (("one speed", same), ("three speeds", other)):
            make = partial(machines, f"{name}, {word}", draw, faults, speeds)
            found.append(partial(make, seed=seed, n_hidden=64))
    data = None if quick else motion()
    if data is not None:
        for words, normal in (("walking, stairs", (1, 2, 3)), ("walking", (1,)), ("lying", (6,))):
            for each, N in ((5, 64), (1, 16)):
                group = "five people" if each == 5 else "one person"
                name = f"HAR, {group} a device, normal is {words}"
                found.append(partial(people, name, data, normal, each=each, seed=seed, n_hidden=N))
    return found


def run(world: World, seed: int, activation: str) -> list[Counts]:
    """Name every fault of every device by what the others know."""
    N = world.n_hidden
    rows = np.vstack([device.normal[:RANGE_ROWS] for device in world.devices])
    shared = Projection.of_data(rows, n_hidden=N, seed=seed, activation=activation)
    notes = [
        Contribution(device.name, Stats.of(shared, some), 1, fault, kind="fault", first=float(i))
        for i, device in enumerate(world.devices)
        for fault, some in device.faults.items()
        if len(some) >= GATE * N
    ]
    found = {samples: Counts(world.name, activation, seed, samples) for samples in SAMPLES}
    for device in world.devices:
        others = [note for note in notes if note.device != device.name]
        faults = Faults.of(others, shared)
        for fault, some in device.faults.items():
            without = Faults.of([note for note in others if note.pattern != fault], shared)
            known = any(note.pattern == fault for note in others)
            for samples, counts in found.items():
                if len(some) >= samples * N:
                    data = Stats.of(shared, some[: samples * N])
                    if known:
                        _count(counts, fault, faults.compare(data).name)
                    counts.unknown += 1
                    counts.unknown_named += without.compare(data).name is not None
    return [counts for counts in found.values() if counts.unknown]


def _count(counts: Counts, fault: str, name: str | None) -> None:
    counts.right += name == fault
    counts.wrong += name not in (None, fault)
    counts.none += name is None


def trial(job: tuple[str, int, int], *, quick: bool = False) -> list[Counts]:
    """Run one world: activation, seed, number of the world."""
    activation, seed, number = job
    return run(worlds(seed, quick=quick)[number](), seed, activation)


def totals(found: list[Counts]) -> list[Counts]:
    """Return the sums over the seeds, in the order in which the worlds come."""
    sums: dict[tuple[str, str, int], Counts] = {}
    for one in found:
        key = one.activation, one.world, one.samples
        total = sums.setdefault(key, Counts(one.world, one.activation, -1, one.samples))
        for name in ("right", "wrong", "none", "unknown", "unknown_named"):
            setattr(total, name, getattr(total, name) + getattr(one, name))
    return list(sums.values())


def markdown(found: list[Counts]) -> str:
    """Return the table of the documentation: shares at 2N, 4N and 8N samples of a pattern."""
    lines = [
        "| faults met on other devices | activation | right | wrong | no name | unknown named |",
        "|---|---|---|---|---|---|",
    ]
    rows: dict[tuple[str, str], list[Counts]] = {}
    for one in totals(found):
        rows.setdefault((one.world, one.activation), []).append(one)
    for (world, activation), some in rows.items():
        cells = [
            " / ".join(_share(one, name) for one in some) for name in ("right", "wrong", "none")
        ]
        named = " / ".join(f"{one.unknown_named / one.unknown:.2f}" for one in some)
        lines.append(f"| {world} | {activation} | {' | '.join(cells)} | {named} |")
    return "\n".join(lines) + "\n"


def _share(one: Counts, name: str) -> str:
    met = one.right + one.wrong + one.none
    return f"{getattr(one, name) / met:.2f}" if met else "–"


def read() -> list[Counts]:
    """Return the committed counts."""
    with RESULTS.open(newline="") as file:
        return [
            Counts(row["world"], row["activation"], *(int(row[f.name]) for f in fields(Counts)[2:]))
            for row in csv.DictReader(file)
        ]


def main() -> None:
    """Run, write and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.naming", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="few worlds, nothing is written")
    given = parser.parse_args()
    numbers = range(len(worlds(0, quick=given.quick)))
    seeds = range(given.seeds)
    jobs = [(activation, seed, i) for activation in ACTIVATIONS for seed in seeds for i in numbers]
    with Pool(2) as pool:
        parts = pool.map(partial(trial, quick=given.quick), jobs, chunksize=1)
    found = [counts for some in parts for counts in some]
    if not given.quick:
        with RESULTS.open("w", newline="") as file:
            writer = csv.DictWriter(file, [f.name for f in fields(Counts)], lineterminator="\n")
            writer.writeheader()
            writer.writerows(asdict(counts) for counts in found)
    print(markdown(found))


if __name__ == "__main__":
    main()
