"""A data set, its splits into training and held-out samples, and evaluation sets.

X (k, n) are readings, y (k,) the pattern of each, origin (k,) the person or trip it came from.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

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
        """Give the places of a pattern's samples."""
        return np.flatnonzero(self.y == self.patterns.index(pattern))

    def subsample(self, most: int, seed: int) -> Dataset:
        """Keep at most so many samples of each pattern, chosen by the seed, in their order."""
        rng = np.random.default_rng(seed)
        kept = [rng.permutation(self.rows(pattern))[:most] for pattern in self.patterns]
        return self.only(np.sort(np.concatenate(kept)))

    def only(self, rows: Ints) -> Dataset:
        """Keep these samples."""
        return replace(self, X=self.X[rows], y=self.y[rows], origin=self.origin[rows])

    def between_0_and_1(self, rows: Ints) -> Array:
        """Give readings as a network with a sigmoid at its end wants them."""
        return (self.X[rows] - self.low) / (self.high - self.low)

    def __repr__(self) -> str:
        """Show the sizes."""
        k, n = self.X.shape
        origins = len(np.unique(self.origin))
        patterns = f"{len(self.patterns)} patterns, {origins} origins"
        return f"Dataset({self.name}, {k} samples of {n} inputs, {patterns})"


TRAIN_SHARE = 0.8  # of each pattern's samples
ANOMALY_RATIO = 0.1  # odd samples in an exam, relative to normal ones
SPLIT_SETTINGS = f"{TRAIN_SHARE} learnt, {ANOMALY_RATIO} odd"


def rng_for(seed: int, *words: object) -> np.random.Generator:
    """Give the random numbers of one purpose, which no other purpose shares.

    >>> rng_for(7, "har", 3).random() == rng_for(7, "har", 3).random()
    True
    """
    return np.random.default_rng([seed, *(crc32(str(word).encode()) for word in words)])


@dataclass(frozen=True, eq=False)
class Split:
    """For each pattern the places of the samples to learn, and of those kept for exams."""

    learn: tuple[Ints, ...]
    keep: tuple[Ints, ...]


@dataclass(frozen=True, eq=False)
class EvalSet:
    """Samples to be told apart: their places, normal ones first, and which are odd."""

    rows: Ints
    odd: NDArray[np.bool_]


Splitter = Callable[[Dataset, np.random.Generator], Split]


def split_by_sample(dataset: Dataset, rng: np.random.Generator) -> Split:
    """Cut each pattern's samples at random, as the paper does; neighbours may be on both sides."""
    shuffled = [rng.permutation(dataset.rows(pattern)) for pattern in dataset.patterns]
    cuts = [round(TRAIN_SHARE * len(rows)) for rows in shuffled]
    return Split(
        tuple(rows[:cut] for rows, cut in zip(shuffled, cuts, strict=True)),
        tuple(rows[cut:] for rows, cut in zip(shuffled, cuts, strict=True)),
    )


def split_by_origin(dataset: Dataset, rng: np.random.Generator) -> Split:
    """Split each pattern between whole trips, a fifth of its own; no window leaks into another."""
    learn, keep = [], []
    for pattern in dataset.patterns:
        rows = rng.permutation(dataset.rows(pattern))
        kept = np.isin(dataset.origin[rows], _held_out_origins(dataset.origin[rows], rng))
        learn.append(rows[~kept])
        keep.append(rows[kept])
    return Split(tuple(learn), tuple(keep))


def split_by_person(dataset: Dataset, rng: np.random.Generator) -> Split:
    """Hold out the same fifth of the people in every pattern."""
    people = _held_out_origins(dataset.origin, rng)
    shuffled = [rng.permutation(dataset.rows(pattern)) for pattern in dataset.patterns]
    kept = [np.isin(dataset.origin[rows], people) for rows in shuffled]
    return Split(
        tuple(rows[~held] for rows, held in zip(shuffled, kept, strict=True)),
        tuple(rows[held] for rows, held in zip(shuffled, kept, strict=True)),
    )


def _held_out_origins(origin: Ints, rng: np.random.Generator) -> Ints:
    origins = rng.permutation(np.unique(origin))
    return origins[: max(1, round((1.0 - TRAIN_SHARE) * len(origins)))]


def eval_set(split: Split, normal: Collection[int], rng: np.random.Generator) -> EvalSet:
    """Ask for all kept samples of the `normal` patterns, and a tenth as many of the others."""
    rows = np.concatenate([split.keep[i] for i in sorted(set(normal))])
    others = [kept for i, kept in enumerate(split.keep) if i not in normal]
    odd = rng.permutation(np.concatenate(others))[: max(1, round(ANOMALY_RATIO * len(rows)))]
    return EvalSet(np.concatenate([rows, odd]), np.arange(len(rows) + len(odd)) >= len(rows))
