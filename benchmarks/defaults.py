"""How good are detectors whose user sets nothing? Trained on clean rows of every set at hand.

Run `python -m benchmarks.defaults`; it writes docs/results/defaults.csv and prints a table.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.data import splits, tasks
from benchmarks.methods import METHODS, Row, auc, mean, save


def run(seeds: Sequence[int] = (0, 1, 2), *, quick: bool = False) -> list[Row]:
    """Measure every method on every task, once for each seed."""
    return [
        {"source": task.source, "task": task.name, "seed": split.seed, "method": method}
        | {"auc": round(auc(method, split), 4)}
        for task in tasks(quick=quick)
        for split in splits(task, seeds)
        for method in METHODS
    ]


def table(rows: Sequence[Row]) -> str:
    """Show mean ROC-AUC, one line a source and one column a method."""
    methods = list(dict.fromkeys(row["method"] for row in rows))
    sources = list(dict.fromkeys(row["source"] for row in rows))
    lines = ["| data | " + " | ".join(methods) + " |", "|---" * (len(methods) + 1) + "|"]
    for source in sources:
        means = (mean(rows, source=source, method=method) for method in methods)
        lines.append(f"| {source} | " + " | ".join(f"{value:.3f}" for value in means) + " |")
    means = (mean(rows, method=method) for method in methods)
    lines.append("| mean of tasks | " + " | ".join(f"{value:.4f}" for value in means) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    measured = run(quick="--quick" in sys.argv)
    print(save(measured, "defaults.csv"))
    print(table(measured))
