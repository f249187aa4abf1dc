"""One trial of the paper's ROC-AUC protocol: a split, and the evaluation set of each pair.

Device-A learns one pattern, Device-B another, 80 % of each. The held-out samples of both are normal
in the evaluation set; a tenth as many samples of all other patterns are anomalies. All methods get
the same splits.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from numpy.random import Generator
from sklearn.metrics import roc_auc_score

from edgemerge.paper.dataset import Array, EvalSet, Splitter, eval_set, rng_for, split_by_sample
from edgemerge.paper.plan import Job, Row, Scope


class Trial:
    """Samples to learn and evaluation sets, determined by the seed and the trial's number."""

    def __init__(self, job: Job, scope: Scope, cut: Splitter = split_by_sample) -> None:
        """Split the data set."""
        self.job, self.seed = job, scope.seed
        self.data = scope.dataset(job.dataset)
        self.split = cut(self.data, self.rng_for("cut"))
        self._eval_sets: dict[tuple[int, int], EvalSet] = {}

    def rng_for(self, *words: object) -> Generator:
        """Return a random generator of this trial for one purpose."""
        return rng_for(self.seed, self.job.dataset, self.job.trial, *words)

    def number(self, *words: object) -> int:
        """Return a seed of this trial for one purpose."""
        return int(self.rng_for(*words).integers(2**31))

    def learnt(self, pattern: int) -> Array:
        """Return a pattern's training samples."""
        return self.data.X[self.split.learn[pattern]]

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Iterate over all ordered pairs of patterns, including a pattern with itself."""
        patterns = range(len(self.data.patterns))
        return product(patterns, patterns)

    def eval_set(self, a: int, b: int) -> EvalSet:
        """Return the evaluation set of a pair; the order of the two does not matter."""
        pair = min(a, b), max(a, b)
        if pair not in self._eval_sets:
            self._eval_sets[pair] = eval_set(self.split, pair, self.rng_for("exam", *pair))
        return self._eval_sets[pair]

    def row(self, method: str, pair: tuple[int, int], scores: Array) -> Row:
        """Return the row of a method's ROC-AUC on a pair's evaluation set."""
        a, b = (self.data.patterns[i] for i in pair)
        auc = float(roc_auc_score(self.eval_set(*pair).odd, scores))
        names: Row = {"dataset": self.job.dataset, "method": method, "trial": self.job.trial}
        return {**names, "device_a": a, "device_b": b, "auc": auc}
