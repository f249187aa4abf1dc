"""The promised limit: how many false episodes a monitor raises on long streams of normal data."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgemerge import Detector, Monitor, Projection

Array = NDArray[np.float64]
INPUTS, HIDDEN, CHUNK = 8, 16, 10_000
RESULTS = Path(__file__).parents[1] / "docs" / "results" / "false_episodes.csv"
WRITTEN_FROM = 1_000_000  # samples from which results are written


def _mixed(rng: np.random.Generator) -> Array:
    return rng.normal(size=(3, INPUTS)) / np.sqrt(3.0)


def gaussian(seed: int) -> Iterator[Array]:
    """Yield chunks of samples with three causes and noise."""
    rng = np.random.default_rng(seed)
    mixing = _mixed(rng)
    while True:
        yield 0.3 * rng.normal(size=(CHUNK, 3)) @ mixing + 0.05 * rng.normal(size=(CHUNK, INPUTS))


def heavy_tails(seed: int) -> Iterator[Array]:
    """Yield the same with noise of Student's t with three degrees of freedom."""
    rng = np.random.default_rng(seed)
    mixing = _mixed(rng)
    while True:
        noise = 0.05 * rng.standard_t(3, size=(CHUNK, INPUTS))
        yield 0.3 * rng.normal(size=(CHUNK, 3)) @ mixing + noise


def changing_speed(seed: int) -> Iterator[Array]:
    """Yield samples whose spread follows a speed that wanders slowly."""
    rng = np.random.default_rng(seed)
    mixing, phase = _mixed(rng), 6.0 * rng.random()
    while True:
        phases = phase + np.cumsum(rng.normal(0.0, 0.1, CHUNK))
        phase = float(phases[-1])
        speed = (1.0 + 0.5 * np.sin(phases))[:, None]
        causes = 0.3 * rng.normal(size=(CHUNK, 3)) + 0.2 * np.sin(phases)[:, None]
        yield causes @ mixing + 0.05 * speed * rng.normal(size=(CHUNK, INPUTS))


STREAMS: dict[str, Callable[[int], Iterator[Array]]] = {
    "gaussian": gaussian,
    "heavy tails": heavy_tails,
    "changing speed": changing_speed,
}


def run(name: str, samples: int, promise: str, seed: int = 0) -> dict[str, object]:
    """Give a monitor so many normal samples, and count its episodes."""
    chunks = STREAMS[name](seed)
    first = next(chunks)
    shared = Projection.of_data(first[:300], n_hidden=HIDDEN, seed=seed, activation="tanh")
    monitor = Monitor(Detector(shared), false_alarms=promise)
    halves, alarms, at = [0, 0], 0, 0
    for chunk in (first, *(next(chunks) for _ in range(samples // CHUNK - 1))):
        for row in chunk:
            alarms += monitor.take(row, float(at)).alarm
            at += 1
        if at == samples // 2:
            halves[0] = monitor.numbers["episode"]
    total = monitor.numbers["episode"]
    return {
        "stream": name, "samples": at, "promise": promise, "episodes": total,
        "first_half": halves[0], "second_half": total - halves[0], "in_alarm": alarms,
        "limit": round(monitor.limit.value, 3), "kind": monitor.limit.kind,
        "drift": round(monitor.drift, 3), "stopped": monitor.drifted,
    }  # fmt: skip


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.false_episodes", description=__doc__
    )
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--promise", default="1 per 10000 samples")
    parser.add_argument("--stream", choices=[*STREAMS], action="append")
    given = parser.parse_args()
    rows = []
    for name in given.stream or STREAMS:
        rows.append(run(name, given.samples, given.promise))
        print(rows[-1], flush=True)
    if given.samples >= WRITTEN_FROM and not given.stream:
        with RESULTS.open("w", newline="") as file:
            writer = csv.DictWriter(file, [*rows[0]], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
