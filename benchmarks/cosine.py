"""What cosine costs beside other activations: bytes, time, and what sharing reveals.

Run `python -m benchmarks.cosine`; it writes docs/results/cosine.csv and prints its tables. With
`--quick` nothing is written. The membership attack reads the sums of one release, solves them, and
asks of a sample how well it is rebuilt: those that were learnt are rebuilt better than fresh ones
of the same kind. HAR is read from the folder that EDGEMERGE_DATA names.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Sequence
from time import process_time

import numpy as np
from numpy.typing import NDArray

from benchmarks.machines import motion
from benchmarks.results import RESULTS, Row, save
from edgemerge import Detector, Projection, Stats, encode
from edgemerge.comparison.streams import auc, bootstrap_interval

Array = NDArray[np.float64]

FILE = "cosine.csv"
ACTIVATIONS = ("identity", "tanh", "cosine")
SIZES = (16, 561)  # inputs
HIDDEN = (64, 128, 256)
LEARN, SCORE, BOTH = "learn a row of 64", "score one", "score one, then learn it"
TIMED = (LEARN, SCORE, BOTH)
TURNS, QUICK_TURNS, CALLS = 60, 2, 64
SAMPLES_PER_HIDDEN = (1.25, 2.0, 4.0, 8.0, 16.0, 32.0)
ATTACKED = (64, 128)  # hidden values
SEEDS, QUICK_SEEDS = 10, 1
MOST_FRESH = 1000
ATTACK_RIDGE = 1e-9  # times the mean of diag(U): all that a reader needs to solve


def run(*, quick: bool = False) -> list[Row]:
    """Return all rows."""
    rows = [row for n in SIZES for hidden in HIDDEN for row in costs(n, hidden, quick=quick)]
    data = motion()
    if data is None:
        return rows
    for seed in range(QUICK_SEEDS if quick else SEEDS):
        mixed = np.random.default_rng(seed).permutation(data.rows)
        for hidden in ATTACKED:
            for activation in ACTIVATIONS:
                rows += attacks(mixed, hidden, activation, seed)
    return rows


def costs(n: int, hidden: int, *, quick: bool = False) -> list[Row]:
    """Return bytes, exact, and the processor time in µs of each job, turn by turn in one run."""
    X = np.random.default_rng(0).normal(0.0, 0.3, (4 * hidden + CALLS, n))
    made = {
        activation: Projection.of_data(X, n_hidden=hidden, activation=activation)
        for activation in ACTIVATIONS
    }
    detectors = {}
    for activation, shared in made.items():
        detectors[activation] = Detector(shared)
        detectors[activation].learn(X[: 4 * hidden])
        detectors[activation].score(X[0])
    rows = [
        _row("bytes", activation, n, hidden, len(encode(each.share("pump", revision=1)[0])))
        for activation, each in detectors.items()
    ]
    last = X[-CALLS:]
    jobs: dict[str, Callable[[Detector], object]] = {
        LEARN: lambda detector: detector.learn(last),
        SCORE: lambda detector: [detector.score(x) for x in last],
        BOTH: lambda detector: [detector.learn_and_score(x) for x in last],
    }
    for job, call in jobs.items():
        best = dict.fromkeys(ACTIVATIONS, np.inf)
        for _ in range(QUICK_TURNS if quick else TURNS):
            for activation, detector in detectors.items():
                begin = process_time()
                call(detector)
                best[activation] = min(best[activation], (process_time() - begin) / CALLS)
        rows += [_row(job, a, n, hidden, round(1e6 * best[a], 2)) for a in ACTIVATIONS]
    return rows


def attacks(X: Array, hidden: int, activation: str, seed: int) -> list[Row]:
    """Return the ROC-AUC of the membership attack on releases of different sizes."""
    shared = Projection.of_data(X, n_hidden=hidden, activation=activation, seed=seed)
    rows = []
    for ratio in SAMPLES_PER_HIDDEN:
        count = int(ratio * hidden)
        learnt, fresh = X[:count], X[count : count + min(count, MOST_FRESH)]
        found = membership(Stats.of(shared, learnt), learnt, fresh)
        rows.append(
            _row("membership", activation, X.shape[1], hidden, round(found, 4), ratio, seed)
        )
    return rows


def membership(released: Stats, learnt: Array, fresh: Array) -> float:
    """Return the ROC-AUC with which the sums tell samples that were learnt from fresh ones.

    Args:
        released: The sums of the samples that were learnt.
        learnt: These samples, (k, n).
        fresh: Samples of the same kind that were not, (k, n).
    """
    shared = released.projection
    ridge = ATTACK_RIDGE * float(np.trace(released.U)) / shared.n_hidden
    B = np.linalg.solve(released.U + ridge * np.eye(shared.n_hidden), released.V)

    def loss(X: Array) -> Array:
        return np.asarray(((shared.to_rows(X) - shared.hidden(X) @ B) ** 2).mean(1))

    return auc(loss(learnt), loss(fresh))


def _row(
    what: str, activation: str, n: int, hidden: int, value: float, ratio: float = 0.0, seed: int = 0
) -> Row:
    return {
        "measure": what,
        "activation": activation,
        "inputs": n,
        "hidden": hidden,
        "samples_per_hidden": ratio,
        "seed": seed,
        "value": value,
    }


def read() -> list[Row]:
    """Return the committed rows."""
    with (RESULTS / FILE).open(encoding="utf-8", newline="") as file:
        numbers = ("inputs", "hidden", "samples_per_hidden", "seed", "value")
        return [
            {key: float(cell) if key in numbers else cell for key, cell in row.items()}
            for row in csv.DictReader(file)
        ]


def cost_table(rows: Sequence[Row]) -> str:
    """Return kB and, for each job, the time in µs of tanh and of cosine, in Markdown."""
    lines = [
        "| inputs, N | kB, either | " + " | ".join(f"{job}, tanh; cosine" for job in TIMED) + " |",
        "|---|" + "---:|" * (1 + len(TIMED)),
    ]
    for n in SIZES:
        for hidden in HIDDEN:
            mine = [row for row in rows if (row["inputs"], row["hidden"]) == (n, hidden)]
            found = {(row["measure"], row["activation"]): row["value"] for row in mine}
            cells = [f"{found[job, 'tanh']:.0f}; {found[job, 'cosine']:.0f}" for job in TIMED]
            size = f"{found['bytes', 'cosine'] / 1000.0:.0f}"
            lines.append(f"| {n}, {hidden} | {size} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def time_ratios(rows: Sequence[Row]) -> dict[str, tuple[float, float]]:
    """Return for each job the least and the largest time of cosine in units of that of tanh."""
    found = {}
    for job in TIMED:
        times = {
            (row["inputs"], row["hidden"], row["activation"]): row["value"]
            for row in rows
            if row["measure"] == job
        }
        ratios = [times[n, h, "cosine"] / times[n, h, "tanh"] for n in SIZES for h in HIDDEN]
        found[job] = min(ratios), max(ratios)
    return found


def membership_table(rows: Sequence[Row]) -> str:
    """Return the attack's mean ROC-AUC over seeds with its 95 % interval, in Markdown."""
    columns = [(activation, hidden) for activation in ACTIVATIONS for hidden in ATTACKED]
    lines = [
        "| release of | " + " | ".join(f"{a}, N = {hidden}" for a, hidden in columns) + " |",
        "|---|" + "---:|" * len(columns),
    ]
    for ratio in SAMPLES_PER_HIDDEN:
        cells = []
        for activation, hidden in columns:
            aucs = [
                row["value"]
                for row in rows
                if row["measure"] == "membership"
                and (row["activation"], row["hidden"]) == (activation, hidden)
                and row["samples_per_hidden"] == ratio
            ]
            mean, low, high = bootstrap_interval(aucs)
            cells.append(f"{mean:.2f} ({low:.2f}–{high:.2f})")
        lines.append(f"| {ratio:g}N samples | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run, write and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cosine", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few turns, nothing is written")
    given = parser.parse_args()
    rows = run(quick=given.quick)
    if not given.quick:
        print(save(rows, FILE))
    print(cost_table(rows))
    print(time_ratios(rows))
    print(membership_table(rows))


if __name__ == "__main__":
    main()
