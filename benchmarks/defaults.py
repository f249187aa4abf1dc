"""How good are detectors whose user sets nothing? Trained on clean rows of every set at hand.

Run `python -m benchmarks.defaults`; it writes docs/results/defaults.csv and prints a table.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.data import splits, tasks
from benchmarks.methods import METHODS, auc, mean, table
from benchmarks.results import Row, save


def run(seeds: Sequence[int] = (0, 1, 2), *, quick: bool = False) -> list[Row]:
    """Measure every method on every task, once for each seed."""
    return [
        {"source": task.source, "task": task.name, "seed": split.seed, "method": method}
        | {"auc": round(auc(method, split), 4)}
        for task in tasks(quick=quick)
        for split in splits(task, seeds)
        for method in METHODS
    ]


def _cell(rows: Sequence[Row], **wanted: str) -> str:
    return f"{mean(rows, **wanted):.4f}"


if __name__ == "__main__":
    measured = run(quick="--quick" in sys.argv)
    print(save(measured, "defaults.csv"))
    print(table(measured, _cell))
