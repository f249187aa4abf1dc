"""A data set, its splits into training and held-out samples, evaluation sets, and trials.

X (k, n) are readings, y (k,) the pattern of each, origin (k,) the person or trip it came from.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from edgemerge.paper.plan import Job, Row, Scope

Array = NDArray[np.float64]
Ints = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled readings; `y` counts patterns from 0, `origin` says which person or trip.

    >>> import numpy as np
    >>> two = Dataset("toy", np.eye(3), np.array([0, 1, 1]), ("idle", "fast"), np.array([5, 5, 6]))
    >>> two.rows("fast")
    array([1, 2])
    >>> two
    Dataset(toy, 3 samples of 3 inputs, 2 patterns, 2 origins)
    """

    name: str
    X: Array
    y: Ints
    patterns: tuple[str, ...]
    origin: Ints
    low: float = 0.0
    high: float = 1.0

    @property
    def n_inputs(self) -> int:
        """The number of inputs of one sample."""
        return int(self.X.shape[1])

    def rows(self, pattern: str) -> Ints:
        """Return the indices of a pattern's samples."""
        return np.flatnonzero(self.y == self.patterns.index(pattern))

    def subsample(self, most: int, seed: int) -> Dataset:
        """Keep at most `most` samples of each pattern, drawn with the seed, in their order."""
        rng = np.random.default_rng(seed)
        kept = [rng.permutation(self.rows(pattern))[:most] for pattern in self.patterns]
        rows = np.sort(np.concatenate(kept))
        return replace(self, X=self.X[rows], y=self.y[rows], origin=self.origin[rows])

    def between_0_and_1(self, rows: Ints) -> Array:
        """Return samples scaled to [0, 1], as a network with a sigmoid output needs them."""
        return (self.X[rows] - self.low) / (self.high - self.low)

    def __repr__(self) -> str:
        """Show the sizes."""
        k, n = self.X.shape
        groups = f"{len(self.patterns)} patterns, {len(np.unique(self.origin))} origins"
        return f"Dataset({self.name}, {k} samples of {n} inputs, {groups})"


TRAIN_SHARE = 0.8  # of each pattern's samples
ANOMALY_RATIO = 0.1  # anomalies in an evaluation set, relative to normal samples
SPLIT_SETTINGS = f"{TRAIN_SHARE} learnt, {ANOMALY_RATIO} odd"


def rng_for(seed: int, *words: object) -> np.random.Generator:
    """Return a random generator for one purpose, independent of those for other purposes.

    >>> rng_for(7, "har", 3).random() == rng_for(7, "har", 3).random()
    True
    """
    return np.random.default_rng([seed, *(crc32(str(word).encode()) for word in words)])


@dataclass(frozen=True, eq=False)
class Split:
    """For each pattern, the indices of its training samples and of its held-out samples."""

    learn: tuple[Ints, ...]
    keep: tuple[Ints, ...]


@dataclass(frozen=True, eq=False)
class EvalSet:
    """Indices of the samples of an evaluation set, normal ones first, and which are anomalies."""

    rows: Ints
    odd: NDArray[np.bool_]


Splitter = Callable[[Dataset, np.random.Generator], Split]


def split_by_sample(dataset: Dataset, rng: np.random.Generator) -> Split:
    """Split each pattern's samples at random, as the paper does; overlapping windows may leak."""
    shuffled = [rng.permutation(dataset.rows(pattern)) for pattern in dataset.patterns]
    return _split(shuffled, [np.arange(len(r)) >= round(TRAIN_SHARE * len(r)) for r in shuffled])


def split_by_origin(dataset: Dataset, rng: np.random.Generator) -> Split:
    """Hold out a fifth of each pattern's trips; no window leaks into another."""
    shuffled, held_out = [], []
    for pattern in dataset.patterns:
        shuffled.append(rows := rng.permutation(dataset.rows(pattern)))
        origin = dataset.origin[rows]
        held_out.append(np.isin(origin, _held_out_origins(origin, rng)))
    return _split(shuffled, held_out)


def split_by_person(dataset: Dataset, rng: np.random.Generator) -> Split:
    """Hold out the same fifth of the people in every pattern."""
    people = _held_out_origins(dataset.origin, rng)
    shuffled = [rng.permutation(dataset.rows(pattern)) for pattern in dataset.patterns]
    return _split(shuffled, [np.isin(dataset.origin[rows], people) for rows in shuffled])


def _split(shuffled: Sequence[Ints], held_out: Sequence[NDArray[np.bool_]]) -> Split:
    pairs = list(zip(shuffled, held_out, strict=True))
    return Split(tuple(rows[~held] for rows, held in pairs), tuple(r[held] for r, held in pairs))


def _held_out_origins(origin: Ints, rng: np.random.Generator) -> Ints:
    origins = rng.permutation(np.unique(origin))
    return origins[: max(1, round((1.0 - TRAIN_SHARE) * len(origins)))]


def eval_set(split: Split, normal: Collection[int], rng: np.random.Generator) -> EvalSet:
    """Take all held-out samples of the `normal` patterns, and a tenth as many of the others."""
    rows = np.concatenate([split.keep[i] for i in sorted(set(normal))])
    others = [kept for i, kept in enumerate(split.keep) if i not in normal]
    return with_anomalies(rows, np.concatenate(others), rng)


def with_anomalies(rows: Ints, others: Ints, rng: np.random.Generator) -> EvalSet:
    """Add to the normal samples `rows` a tenth as many anomalies, drawn from `others`."""
    odd = rng.permutation(others)[: max(1, round(ANOMALY_RATIO * len(rows)))]
    return EvalSet(np.concatenate([rows, odd]), np.arange(len(rows) + len(odd)) >= len(rows))


class Trial:
    """One trial of the paper's ROC-AUC protocol, determined by the seed and the trial's number.

    Device-A learns one pattern, Device-B another, 80 % of each. The held-out samples of both are
    normal in the evaluation set; a tenth as many samples of all other patterns are anomalies. All
    methods get the same splits.
    """

    def __init__(self, job: Job, scope: Scope, cut: Splitter = split_by_sample) -> None:
        """Split the data set of a job; the scope has the seed."""
        self.job, self.seed = job, scope.seed
        self.data = scope.dataset(job.dataset)
        self.split = cut(self.data, self.rng_for("cut"))
        self._eval_sets: dict[tuple[int, int], EvalSet] = {}

    def rng_for(self, *words: object) -> np.random.Generator:
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
        from sklearn.metrics import roc_auc_score  # noqa: PLC0415 (slow; not all jobs need it)

        a, b = (self.data.patterns[i] for i in pair)
        auc = float(roc_auc_score(self.eval_set(*pair).odd, scores))
        names: Row = {"dataset": self.job.dataset, "method": method, "trial": self.job.trial}
        return {**names, "device_a": a, "device_b": b, "auc": auc}
