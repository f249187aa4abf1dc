"""Faults that last: how much of a fault is in alarm, and how much of normal is.

Run `python -m benchmarks.lasting`; it writes docs/results/lasting.csv. Each trial is one stream
with default settings: commissioning, normal, a fault, normal again. `in_alarm` is the share of
the fault's samples in alarm, `before` and `after` that of normal ones around it. An alarm needs
three odd samples of five to begin and five calm ones to end, so two samples of each fault are not
in alarm yet, and four after it still are: `after` does not count these four. `--only TEXT` runs
the trials whose activation and stream contain the text, and keeps the other rows of the file.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from multiprocessing import Pool
from pathlib import Path
from statistics import fmean
from typing import cast

import numpy as np
from numpy.typing import NDArray

from benchmarks.machines import MACHINES, Machine, Motion, motion
from edgemerge import Bank, Detector, Monitor, Projection
from edgemerge.wire.state import from_bytes, to_bytes

Array = NDArray[np.float64]
Marks = NDArray[np.bool_]
LEARNERS: dict[str, Callable[[Projection], Detector | Bank]] = {"detector": Detector, "bank": Bank}
ACTIVATIONS = ("tanh", "cosine")
N_HIDDEN = 64
FIRST = 16 * N_HIDDEN  # samples of commissioning
RANGE_ROWS = 300  # first rows that the range of inputs is taken from
BEFORE, FAULT, AFTER = 2000, 1000, 1000  # samples
ENDING = 4  # samples in alarm after a fault, by the rule
WALKING, SITTING, LYING = (1, 2, 3), 4, 6
RESULTS = Path(__file__).parents[1] / "docs" / "results" / "lasting.csv"


@dataclass(frozen=True)
class Stream:
    """Samples (k, n) and which of them are faults, (k,); the `first` ones are commissioning."""

    name: str
    rows: Array
    fault: Marks
    first: int
    restart: bool = False  # save and load the monitor amid the fault
    range_rows: int = RANGE_ROWS


@dataclass(frozen=True)
class Trial:
    """What one stream did to one monitor."""

    activation: str
    stream: str
    learner: str
    seed: int
    in_alarm: float
    before: float
    after: float
    episodes: int
    patterns: int
    drift_before: float
    drift_event: bool


def run(stream: Stream, learner: str, activation: str, seed: int) -> Trial:
    """Give a stream to a monitor with default settings."""
    shared = Projection.of_data(
        stream.rows[: stream.range_rows], n_hidden=N_HIDDEN, seed=seed, activation=activation
    )
    monitor = Monitor(LEARNERS[learner](shared), commissioning=stream.first)
    watched = np.arange(len(stream.rows)) >= stream.first
    fault = stream.fault & watched
    begins, middle = int(np.argmax(fault)), int(np.median(np.flatnonzero(fault)))
    alarms, drift = np.zeros(len(fault), np.bool_), 0.0
    for i, row in enumerate(stream.rows):
        if stream.restart and i == middle:
            monitor = cast("Monitor", from_bytes(to_bytes(monitor)))
        alarms[i] = monitor.take(row, float(i)).alarm
        drift = max(drift, monitor.drift) if i < begins else drift
    recent = np.convolve(fault, np.ones(ENDING + 1), "full")[: len(fault)] > 0
    normal = watched & ~fault & ~recent
    before = normal & (np.arange(len(fault)) < begins)
    drifted = [event.at >= begins for event in monitor.events if event.kind == "drift"]
    return Trial(
        activation=activation,
        stream=stream.name,
        learner=learner,
        seed=seed,
        in_alarm=float(alarms[fault].mean()),
        before=float(alarms[before].mean()),
        after=float(alarms[normal & ~before].mean()),
        episodes=len(monitor.episodes),
        patterns=len(monitor.odd_patterns),
        drift_before=drift,
        drift_event=any(drifted),
    )


def lasting(
    machine: Machine, seed: int, *, fault: float = 1.0, times: int = 1, restart: bool = False
) -> Stream:
    """Return a stream of a machine whose fault comes so many times, and lasts each time."""
    rng = np.random.default_rng(seed)
    normal = machine.draw(FIRST + BEFORE + times * AFTER, 0.0, rng)
    rows, marks = [normal[: FIRST + BEFORE]], [np.zeros(FIRST + BEFORE, np.bool_)]
    for calm in np.array_split(normal[FIRST + BEFORE :], times):
        rows += [machine.draw(FAULT, fault, rng), calm]
        marks += [np.ones(FAULT, np.bool_), np.zeros(len(calm), np.bool_)]
    words = [machine.name, "weak fault" if fault < 1.0 else "fault"]
    words += [f"{times} times"] if times > 1 else []
    words += ["restart"] if restart else []
    return Stream(", ".join(words), np.vstack(rows), np.concatenate(marks), FIRST, restart)


def dirty(machine: Machine, seed: int, *, chunks: int = 1, share: float = 0.05) -> Stream:
    """Return a lasting fault of which some samples were in commissioning already."""
    rng = np.random.default_rng(seed + 1000)
    first, clean = chunks * FIRST, lasting(machine, seed)
    rows = np.vstack([machine.draw(first, 0.0, rng), clean.rows[FIRST:]])
    places = rng.permutation(first)[: int(share * first)]
    rows[places] = machine.draw(len(places), 1.0, rng)
    fault = np.concatenate([np.zeros(first - FIRST, np.bool_), clean.fault])
    return Stream(f"{machine.name}, 5 % faults in {16 * chunks}N", rows, fault, first)


def block(machine: Machine, seed: int, *, share: float) -> Stream:
    """Return a lasting fault that was there before, for one block of commissioning."""
    rng = np.random.default_rng(seed + 2000)
    clean, k = lasting(machine, seed), int(share * FIRST)
    begins = int(rng.integers(FIRST // 10, FIRST - FIRST // 10 - k))
    clean.rows[begins : begins + k] = machine.draw(k, 1.0, rng)
    return replace(clean, name=f"{machine.name}, fault in one block of {100 * share:.0f} % of 16N")


def people(
    data: Motion, seed: int, odd: int, *, one_by_one: bool = False, wide: bool = False
) -> Stream:
    """Return people who walk, then sit or lie for long, then walk.

    One by one, commissioning meets the first three or four of them. The range of the inputs is
    that of about two people, or with `wide` that of all samples of commissioning.
    """
    rng = np.random.default_rng(seed)
    group = rng.permutation(np.arange(1, 31))[:12]
    where = rng.permutation(
        np.flatnonzero(np.isin(data.activity, WALKING) & np.isin(data.person, group))
    )
    if one_by_one:
        rank = {int(person): i for i, person in enumerate(group)}
        where = np.array(sorted(where, key=lambda i: rank[int(data.person[i])]))
    faults = np.flatnonzero((data.activity == odd) & np.isin(data.person, group))
    end = len(where) - 200
    rows = np.vstack([data.rows[where[:end]], data.rows[faults], data.rows[where[end:]]])
    fault = np.zeros(len(rows), np.bool_)
    fault[end : end + len(faults)] = True
    name = f"HAR, {'sitting' if odd == SITTING else 'lying'}"
    name += ", people one after the other" if one_by_one else ""
    name += ", range of commissioning" if wide else ""
    first = FIRST // 2 if one_by_one else FIRST
    return Stream(name, rows, fault, first, range_rows=first if wide else RANGE_ROWS)


def streams(*, quick: bool = False) -> list[Callable[[int], Stream]]:
    """Return the streams, each made from a seed."""
    found: list[Callable[[int], Stream]] = []
    for machine in MACHINES[1:3] if quick else MACHINES:
        found += [partial(lasting, machine), partial(lasting, machine, restart=True)]
        if not quick:
            found += [partial(lasting, machine, times=10), partial(lasting, machine, fault=0.2)]
            found += [partial(dirty, machine), partial(dirty, machine, chunks=4)]
            found += [partial(block, machine, share=share) for share in (0.05, 0.1)]
    data = None if quick else motion()
    if data is not None:
        found += [partial(people, data, odd=LYING), partial(people, data, odd=SITTING)]
        found += [partial(people, data, odd=LYING, one_by_one=True)]
        found += [partial(people, data, odd=LYING, one_by_one=True, wide=True)]
    return found


def trial(job: tuple[int, int, str, str], *, quick: bool = False) -> Trial:
    """Run one trial: seed, number of the stream, learner, activation."""
    seed, number, learner, activation = job
    return run(streams(quick=quick)[number](seed), learner, activation, seed)


@dataclass(frozen=True)
class Means:
    """The means of several trials of one activation, stream and learner, and the worst of them."""

    activation: str
    stream: str
    learner: str
    in_alarm: float
    worst: float
    before: float
    after: float
    patterns: float
    drift_before: float
    drift_events: str


def means(found: list[Trial]) -> list[Means]:
    """Return the means over the seeds, in the order in which the streams come."""
    groups: dict[tuple[str, str, str], list[Trial]] = {}
    for trial in found:
        groups.setdefault((trial.activation, trial.stream, trial.learner), []).append(trial)
    return [
        Means(
            activation,
            stream,
            learner,
            fmean(t.in_alarm for t in mine),
            min(t.in_alarm for t in mine),
            fmean(t.before for t in mine),
            fmean(t.after for t in mine),
            fmean(t.patterns for t in mine),
            max(t.drift_before for t in mine),
            f"{sum(t.drift_event for t in mine)} of {len(mine)}",
        )
        for (activation, stream, learner), mine in groups.items()
    ]


def markdown(found: list[Trial], activation: str) -> str:
    """Return the table of the documentation for one activation."""
    lines = [
        "| stream | learner | in alarm | worst | before | after | drift noted |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for m in means([trial for trial in found if trial.activation == activation]):
        shares = f"{m.in_alarm:.3f} | {m.worst:.3f} | {m.before:.4f} | {m.after:.4f}"
        lines.append(f"| {m.stream} | {m.learner} | {shares} | {m.drift_events} |")
    return "\n".join(lines) + "\n"


def read() -> list[Trial]:
    """Return the committed trials."""
    with RESULTS.open(newline="") as file:
        return [
            Trial(
                activation=row["activation"],
                stream=row["stream"],
                learner=row["learner"],
                seed=int(row["seed"]),
                in_alarm=float(row["in_alarm"]),
                before=float(row["before"]),
                after=float(row["after"]),
                episodes=int(row["episodes"]),
                patterns=int(row["patterns"]),
                drift_before=float(row["drift_before"]),
                drift_event=row["drift_event"] == "True",
            )
            for row in csv.DictReader(file)
        ]


def _write(found: list[Trial]) -> None:
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, [f.name for f in fields(Trial)], lineterminator="\n")
        writer.writeheader()
        for t in found:
            rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(t).items()}
            writer.writerow(rounded)


def main() -> None:
    """Run, write and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lasting", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="few streams, nothing is written")
    parser.add_argument("--only", default="", help='such as "cosine, HAR"; the rest stays')
    given = parser.parse_args()
    names = [make(0).name for make in streams(quick=given.quick)]
    order = [
        (activation, name, learner, seed)
        for activation in ACTIVATIONS
        for seed in range(given.seeds)
        for name in names
        for learner in LEARNERS
    ]
    jobs = [
        (seed, names.index(name), learner, activation)
        for activation, name, learner, seed in order
        if given.only in f"{activation}, {name}"
    ]
    with Pool(2) as pool:
        found = pool.map(partial(trial, quick=given.quick), jobs, chunksize=1)
    kept = [] if given.quick or not given.only else read()
    rows = {(t.activation, t.stream, t.learner, t.seed): t for t in kept + found}
    found = [rows[key] for key in order if key in rows]
    if not given.quick:
        _write(found)
    for activation in ACTIVATIONS:
        print(f"{activation}\n\n{markdown(found, activation)}")


if __name__ == "__main__":
    main()
