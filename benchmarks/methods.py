"""The detectors that the accuracy benchmarks compare, each with no argument but a seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import numpy as np
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors
from sklearn.svm import OneClassSVM

from benchmarks.data import Array, Split
from benchmarks.results import Row
from benchmarks.streams import ScoredLODA, StreamedBank, StreamedTrees
from edgemerge.sklearn import OSELMDetector


class NeighbourDistance:
    """The distance to the k-th nearest of the rows that were learnt; it keeps all of them."""

    def __init__(self, k: int) -> None:
        """Count so many neighbours."""
        self.k = k

    def fit(self, X: Array) -> Self:
        """Keep rows."""
        self.neighbours = NearestNeighbors(n_neighbors=self.k).fit(X)
        return self

    def score_samples(self, X: Array) -> Array:
        """Return −distance, as in scikit-learn."""
        return np.asarray(-self.neighbours.kneighbors(X)[0][:, -1])


METHODS: dict[str, Callable[[int], Any]] = {
    "OSELMDetector": lambda _: OSELMDetector(),
    "OSELMDetector, robust=False": lambda _: OSELMDetector(robust=False),
    "Bank": lambda _: StreamedBank(),
    "HalfSpaceTrees (River)": StreamedTrees,
    "LODA (PyOD)": lambda _: ScoredLODA(),
    "IsolationForest": lambda seed: IsolationForest(random_state=seed),
    "OneClassSVM": lambda _: OneClassSVM(),
    "LocalOutlierFactor": lambda _: LocalOutlierFactor(novelty=True),
    "5-NN": lambda _: NeighbourDistance(5),
}


def auc(method: str, split: Split) -> float:
    """Learn one part of a split and tell the other apart: ROC-AUC."""
    learnt = METHODS[method](split.seed).fit(split.train)
    return float(roc_auc_score(split.label, -learnt.score_samples(split.test)))


def table(rows: Sequence[Row], cell: Callable[..., str]) -> str:
    """Show a cell for each source and method, and one for all tasks of a method."""
    methods = list(dict.fromkeys(row["method"] for row in rows))
    sources = list(dict.fromkeys(row["source"] for row in rows))
    lines = ["| data | " + " | ".join(methods) + " |", "|---" * (len(methods) + 1) + "|"]
    for source in sources:
        cells = (cell(rows, source=source, method=method) for method in methods)
        lines.append(f"| {source} | " + " | ".join(cells) + " |")
    lines.append("| mean of tasks | " + " | ".join(cell(rows, method=m) for m in methods) + " |")
    return "\n".join(lines)


def mean(rows: Iterable[Row], **wanted: Any) -> float:
    """Average ROC-AUC over the tasks of those rows that have all that is wanted."""
    tasks: dict[str, list[float]] = {}
    for row in rows:
        if all(row[key] == value for key, value in wanted.items()):
            tasks.setdefault(row["task"], []).append(row["auc"])
    return float(np.mean([np.mean(found) for found in tasks.values()]))
