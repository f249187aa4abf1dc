"""Where our defaults are ahead of other detectors, where behind, and how sure that is.

Run `python -m benchmarks.ahead` after `benchmarks.dirty`: it measures nothing, but reads
docs/results/dirty.csv and writes ahead.csv and behind.csv beside it.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.results import RESULTS, Row, save

Array = NDArray[np.float64]

OURS = ("OSELMDetector", "Bank")
SHARES = {"0.0": "clean", "0.1": "10 %"}  # anomalies among the rows to learn
DRAWS = 10_000  # of the bootstrap


def read() -> list[Row]:
    """Return the rows of `benchmarks.dirty`."""
    with (RESULTS / "dirty.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def by_source(rows: Sequence[Row], share: str, method: str) -> dict[str, Array]:
    """Return the mean ROC-AUC of each task over its seeds, for each data set."""
    tasks: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if (row["share"], row["method"]) == (share, method):
            tasks.setdefault((row["source"], row["task"]), []).append(float(row["auc"]))
    found: dict[str, list[float]] = {}
    for (source, _), values in tasks.items():
        found.setdefault(source, []).append(float(np.mean(values)))
    return {source: np.array(values) for source, values in found.items()}


def interval(differences: Mapping[str, Array]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the mean over tasks, drawing whole data sets.

    Tasks of one data set are not independent of each other, so data sets are what is drawn.
    """
    sums = np.array([each.sum() for each in differences.values()])
    sizes = np.array([len(each) for each in differences.values()])
    drawn = np.random.default_rng(0).integers(len(sums), size=(DRAWS, len(sums)))
    low, high = np.quantile(sums[drawn].sum(1) / sizes[drawn].sum(1), [0.025, 0.975])
    return float(low), float(high)


def ahead(rows: Sequence[Row]) -> list[Row]:
    """Return a line for each other detector: by how much ours are ahead, and in how many tasks."""
    others = [name for name in dict.fromkeys(row["method"] for row in rows) if _other(name)]
    return [
        {"ours against": other}
        | {
            f"{method}, {name}": _compared(rows, share, method, other)
            for share, name in SHARES.items()
            for method in OURS
        }
        for other in others
    ]


def _other(method: str) -> bool:
    return not method.startswith(OURS)


def _compared(rows: Sequence[Row], share: str, ours: str, other: str) -> str:
    mine, its = (by_source(rows, share, method) for method in (ours, other))
    differences = {source: mine[source] - its[source] for source in mine}
    every = np.concatenate(list(differences.values()))
    low, high = interval(differences)
    return (
        f"{every.mean():+.3f} ({low:+.3f} to {high:+.3f}); "
        f"ahead in {(every > 0).sum()}, behind in {(every < 0).sum()} of {len(every)}"
    )


def behind(rows: Sequence[Row]) -> list[Row]:
    """Return a line for each data set on which another detector has a higher mean than ours."""
    others = [name for name in dict.fromkeys(row["method"] for row in rows) if _other(name)]
    found = []
    for share, name in SHARES.items():
        means = {
            method: {source: each.mean() for source, each in by_source(rows, share, method).items()}
            for method in (*OURS, *others)
        }
        for source in means[OURS[0]]:
            best = max(others, key=lambda method: means[method][source])
            ours = [means[method][source] for method in OURS]
            if means[best][source] > min(ours):
                line = {"data": source, "anomalies": name}
                line |= {method: f"{mean:.3f}" for method, mean in zip(OURS, ours, strict=True)}
                found.append(line | {"best other": best, "its": f"{means[best][source]:.3f}"})
    return found


if __name__ == "__main__":
    measured = read()
    print(save(ahead(measured), "ahead.csv"))
    print(save(behind(measured), "behind.csv"))
