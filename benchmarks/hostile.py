"""Hostile patterns: how long results wait while 256 small patterns of one device are compared.

Run `python -m benchmarks.hostile`; it writes docs/results/hostile.csv. A sample comes every 10 ms
and is judged by a monitor over a bank; its delay is the time from then to its result. Meanwhile
nothing is exchanged, or the patterns are adopted in the loop by `Bank.adopt`, or a synchronizer
exchanges, adopts and saves them in its background threads, as an agent does. Other
work on the machine adds delays, to "no exchange" too: each case is run five times, and the longest
delay of the best, the median and the worst run are shown, with the rest of the median run.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, sleep, time

for threads in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[threads] = "1"  # read when numpy is first imported

import numpy as np  # noqa: E402  # after the threads are set, like all below
from numpy.typing import NDArray  # noqa: E402

from benchmarks.results import Row, save  # noqa: E402
from edgemerge import Bank, Contribution, Monitor, Projection, Stats  # noqa: E402
from edgemerge.agent.background import (  # noqa: E402
    SyncSchedule,
    exchange_worker,
    save_worker,
)
from edgemerge.agent.config import SaveConfig, SyncConfig  # noqa: E402
from edgemerge.agent.features import Raw  # noqa: E402
from edgemerge.agent.state import AgentState, StateFolder, StateSaver  # noqa: E402
from edgemerge.agent.sync import Clocks, SharingPolicy, Synchronizer  # noqa: E402
from edgemerge.core.ledger import Selection  # noqa: E402
from edgemerge.exchange.protocol import MemoryExchange  # noqa: E402

Array = NDArray[np.float64]
N_INPUTS, N_HIDDEN = 32, 64
PATTERNS, SMALL = 256, 40  # hostile patterns, and the samples of each
FIRST = 17 * N_HIDDEN  # samples before the measurement: commissioning has ended
RUNS = 5  # of each case
INTERVAL_S = 0.01  # between two samples
REST = 200  # samples measured after the exchange, or without one
SAVE_TIMEOUT_S = 10.0
NAME = "hostile.csv"


def machine(seed: int, rows: int) -> Array:
    """Return samples of one machine: two causes behind all inputs, (rows, n)."""
    rng = np.random.default_rng(seed)
    place, mixing = rng.uniform(-0.8, 0.8, N_INPUTS), rng.normal(0.0, 0.1, (2, N_INPUTS))
    noise = rng.normal(0.0, 0.01, (rows, N_INPUTS))
    return np.asarray(place + rng.normal(size=(rows, 2)) @ mixing + noise)


class Device:
    """A monitor over a bank that has learnt its machine, and an exchange with hostile patterns."""

    def __init__(self, patterns: int, folder: Path) -> None:
        """Learn, and let one device fill the exchange."""
        projection = Projection(n_inputs=N_INPUTS, n_hidden=N_HIDDEN, seed=7)
        self.exchange = MemoryExchange(projection)
        for i in range(patterns):
            stats = Stats.of(projection, machine(1000 + i, SMALL))
            self.exchange.push(Contribution("hostile", stats, 1, f"pattern-{i}"))
        self.memory = AgentState("pump-1", 1, Monitor(Bank(projection)))
        self._rows = machine(0, 100_000)
        self._state = StateFolder(folder)
        self._worker = save_worker(self._state)
        self.keeper = StateSaver(
            self._state, self.memory, Raw(), SaveConfig(), worker=self._worker, steady=perf_counter
        )
        for _ in range(FIRST):
            self.judge()

    def judge(self) -> None:
        """Judge the next sample."""
        index = self.memory.index
        self.memory.monitor.take(self._rows[index % len(self._rows)], at=float(index))
        self.memory.index += 1

    def close(self) -> None:
        """End the thread that saves."""
        self._worker.close(SAVE_TIMEOUT_S)
        self._state.close()

    def synchronizer(self) -> Synchronizer:
        """Return one that exchanges on command."""
        return Synchronizer(
            SharingPolicy(self.memory, gate=2.0, max_shift=2.0),
            exchange_worker(self.exchange),
            SyncSchedule(0.0, 0.0, "pump-1"),
            SyncConfig(every_s=0.0, push=False),
            save=self.keeper.begin,
            clocks=Clocks(time, perf_counter),
        )


Tend = Callable[[], bool]  # does what is due after a sample; returns whether it is all done


def idle(_device: Device) -> tuple[Tend, Callable[[], str]]:
    """Exchange nothing."""
    return lambda: True, lambda: ""


def in_the_loop(device: Device) -> tuple[Tend, Callable[[], str]]:
    """Adopt between two samples, without a preview."""
    merged, answers = device.exchange.pull(Selection(receiver="pump-1"), grouped=True), list[str]()

    def tend() -> bool:
        if not answers:
            device.memory.learner.adopt(merged)
            answers.append(f"adopted {sum(part.stats.count for part in merged.parts):g} samples")
        return True

    return tend, lambda: answers[0]


def in_the_background(device: Device) -> tuple[Tend, Callable[[], str]]:
    """Exchange and adopt as an agent does."""
    syncing, answers = device.synchronizer(), list[str]()
    syncing.begin(lambda found: answers.append(str(found["told"])))

    def tend() -> bool:
        syncing.tend()
        device.keeper.tend()
        return bool(answers)

    return tend, lambda: answers[0]


CASES = {
    "no exchange": idle,
    "adopted in the loop": in_the_loop,
    "adopted in the background": in_the_background,
    "few, adopted in the background": in_the_background,
}
FEW = 3  # patterns of an ordinary exchange, whose delays are those of saving


def delays(device: Device, tend: Tend) -> Iterator[float]:
    """Yield how long after its sample each result came, in seconds."""
    due, left = perf_counter(), REST
    while left:
        due += INTERVAL_S
        sleep(max(0.0, due - perf_counter()))
        device.judge()
        yield perf_counter() - due
        left -= tend()


def run(patterns: int = PATTERNS) -> list[Row]:
    """Measure every case."""
    return [summary([measure(case, patterns) for _ in range(RUNS)]) for case in CASES]


def summary(runs: list[Row]) -> Row:
    """Return the run with the median of the longest delays, beside the best and the worst."""
    best, *_, worst = ordered = sorted(runs, key=lambda row: float(row["longest_ms"]))
    middle = ordered[len(ordered) // 2]
    spread = {"best_longest_ms": best["longest_ms"], "worst_longest_ms": worst["longest_ms"]}
    return {**middle, **spread, "outcome": middle["outcome"]}


def measure(case: str, patterns: int) -> Row:
    """Measure one case once."""
    with TemporaryDirectory() as folder:
        patterns = FEW if case.startswith("few") else patterns
        device = Device(patterns, Path(folder))
        tend, told = CASES[case](device)
        began = perf_counter()
        found = np.array(list(delays(device, tend)))
        device.close()
    return {
        "case": case,
        "patterns": patterns,
        "results": len(found),
        "seconds": round(perf_counter() - began, 1),
        "median_ms": round(1e3 * float(np.median(found)), 2),
        "longest_ms": round(1e3 * float(found.max()), 1),
        "outcome": told(),
    }


def main() -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hostile", description=__doc__)
    parser.add_argument("--patterns", type=int, default=PATTERNS, help="hostile patterns; 256")
    given = parser.parse_args()
    rows = run(given.patterns)
    for row in rows:
        print(*(f"{name}={value}" for name, value in row.items()), sep="  ")
    print(f"wrote {save(rows, NAME)}")


if __name__ == "__main__":
    main()
