"""Faults that last: how much of a fault is in alarm, and how much of normal is.

Each trial is one stream: commissioning, normal, a fault, normal again, with default settings.
`in alarm` is the share of the fault's samples in alarm, `before` and `after` that of normal ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.machines import MACHINES, Machine, Motion, motion
from edgemerge import Bank, Detector, Monitor, Projection
from edgemerge.wire.state import from_bytes, to_bytes

Array = NDArray[np.float64]
LEARNERS: dict[str, Callable[[Projection], Detector | Bank]] = {"detector": Detector, "bank": Bank}
N_HIDDEN = 64
RANGE_ROWS = 300  # first rows that the range of inputs is taken from
BEFORE, FAULT, AFTER = 1000, 500, 500  # samples
WALKING, SITTING, LYING = (1, 2, 3), 4, 6


@dataclass(frozen=True)
class Stream:
    """Samples (k, n) and which of them are faults, (k,); `first` are commissioning."""

    name: str
    rows: Array
    fault: NDArray[np.bool_]
    first: int


@dataclass(frozen=True)
class Trial:
    """One stream through one monitor."""

    stream: str
    learner: str
    seed: int
    in_alarm: float
    before: float
    after: float
    episodes: int
    patterns: int
    drift: float

    @classmethod
    def run(
        cls, stream: Stream, learner: str, seed: int, *, restart: bool = False, **settings: object
    ) -> Trial:
        """Give a stream to a monitor; with `restart`, save and load it amid the fault."""
        shared = Projection.of_data(stream.rows[:RANGE_ROWS], n_hidden=N_HIDDEN, seed=seed)
        monitor = Monitor(LEARNERS[learner](shared), commissioning=stream.first, **settings)
        alarms = np.zeros(len(stream.rows), bool)
        middle = int(np.median(np.flatnonzero(stream.fault))) if restart else -1
        drift = 0.0
        for at, row in enumerate(stream.rows):
            if at == middle:
                monitor = from_bytes(to_bytes(monitor))
            alarms[at] = monitor.take(row, float(at)).alarm
            drift = max(drift, monitor.drift)
        watched = np.arange(len(stream.rows)) >= stream.first
        fault = stream.fault & watched
        begins = int(np.argmax(fault)) if fault.any() else len(fault)
        before, after = watched & ~fault, watched & ~fault
        before[begins:], after[:begins] = False, False
        share = lambda mask: float(alarms[mask].mean()) if mask.any() else float("nan")  # noqa: E731
        return cls(
            stream.name, learner, seed, share(fault), share(before), share(after),
            len(monitor.episodes), len(monitor.odd_patterns), drift,
        )  # fmt: skip


def lasting(machine: Machine, seed: int, fault: float = 1.0, times: int = 1) -> Stream:
    """Return a stream of a machine whose fault comes so many times, and lasts."""
    rng = np.random.default_rng(seed)
    first = 16 * N_HIDDEN
    normal = machine.draw(first + BEFORE + AFTER, 0.0, rng)
    odd = machine.draw(FAULT, fault, rng)
    rows, marks = [normal[: first + BEFORE]], [np.zeros(first + BEFORE, bool)]
    for part, calm in zip(
        np.array_split(odd, times), np.array_split(normal[first + BEFORE :], times)
    ):
        rows += [part, calm]
        marks += [np.ones(len(part), bool), np.zeros(len(calm), bool)]
    name = f"{machine.name}, fault {fault:g}" + (f", {times} times" if times > 1 else "")
    return Stream(name, np.vstack(rows), np.concatenate(marks), first)


def dirty(machine: Machine, seed: int, chunks: int = 1, share: float = 0.05) -> Stream:
    """Return a lasting fault, of which some samples were in commissioning already."""
    clean = lasting(machine, seed)
    rng = np.random.default_rng(seed + 1000)
    more = machine.draw((chunks - 1) * clean.first, 0.0, rng)
    rows = np.vstack([more, clean.rows]) if len(more) else clean.rows.copy()
    first = chunks * clean.first
    places = rng.permutation(first)[: int(share * first)]
    rows[places] = machine.draw(len(places), 1.0, rng)
    fault = np.concatenate([np.zeros(len(more), bool), clean.fault])
    return Stream(f"{machine.name}, 5 % faults in {16 * chunks}N", rows, fault, first)


def people(data: Motion, seed: int, odd: int = LYING, *, one_by_one: bool = False) -> Stream:
    """Return people who walk, then sit or lie for long, then walk."""
    rng = np.random.default_rng(seed)
    group = rng.permutation(np.arange(1, 31))[:12]
    walks = np.isin(data.activity, WALKING) & np.isin(data.person, group)
    where = np.flatnonzero(walks)
    if one_by_one:
        rank = {person: i for i, person in enumerate(group)}
        where = np.array(sorted(where, key=lambda i: rank[int(data.person[i])]))
    else:
        where = rng.permutation(where)
    first = 16 * N_HIDDEN if not one_by_one else 8 * N_HIDDEN
    faults = np.flatnonzero((data.activity == odd) & np.isin(data.person, group))[:500]
    end = len(where) - 200
    rows = np.vstack([data.rows[where[:end]], data.rows[faults], data.rows[where[end:]]])
    fault = np.zeros(len(rows), bool)
    fault[end : end + len(faults)] = True
    name = {SITTING: "sitting", LYING: "lying"}[odd]
    return Stream(
        f"HAR, {name}" + (", people one after the other" if one_by_one else ""), rows, fault, first
    )


def streams(seed: int) -> Iterator[Stream]:
    """Return all streams of a trial."""
    for machine in MACHINES:
        yield lasting(machine, seed)
        yield lasting(machine, seed, times=10)
        yield lasting(machine, seed, fault=0.2)
        yield dirty(machine, seed)
        yield dirty(machine, seed, chunks=4)
    data = motion()
    if data is not None:
        yield people(data, seed)
        yield people(data, seed, SITTING)
        yield people(data, seed, one_by_one=True)


def main() -> None:
    """Run some trials and print them."""
    import sys

    only = sys.argv[1] if len(sys.argv) > 1 else ""
    seeds = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    for seed in range(seeds):
        for stream in streams(seed):
            if only not in stream.name:
                continue
            for learner in LEARNERS:
                t = Trial.run(stream, learner, seed)
                print(
                    f"{t.stream:48} {t.learner:9} in alarm {t.in_alarm:.3f} before {t.before:.4f} "
                    f"after {t.after:.4f} episodes {t.episodes:3} patterns {t.patterns:2} drift {t.drift:.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
