"""What do odd rows among those to learn cost? Clean training against 5 and 10 % of dirt.

Run `python -m benchmarks.dirty`; it writes docs/results/dirty.csv and prints a table.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.data import splits, tasks
from benchmarks.methods import METHODS, auc, mean, table
from benchmarks.results import Row, save

SHARES = (0.0, 0.05, 0.1)


def run(seeds: Sequence[int] = (0, 1, 2), *, quick: bool = False) -> list[Row]:
    """Measure every method on every task and share of dirt; the test part is always the same."""
    return [
        {"source": task.source, "task": task.name, "share": share, "seed": split.seed}
        | {"method": method, "auc": round(auc(method, split), 4)}
        for task in tasks(quick=quick)
        for share in SHARES
        for split in splits(task, seeds, share)
        for method in METHODS
    ]


def _cell(rows: Sequence[Row], **wanted: str) -> str:
    return " ".join(f"{mean(rows, share=share, **wanted):.3f}" for share in SHARES)


if __name__ == "__main__":
    measured = run(quick="--quick" in sys.argv)
    print(save(measured, "dirty.csv"))
    print(table(measured, _cell))
