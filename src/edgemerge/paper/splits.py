"""Splits: which samples are learnt and which are kept for the exam, and what the exam asks."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from edgemerge.paper.dataset import Dataset, Ints

LEARNT = 0.8  # of each pattern's samples
ODD = 0.1  # odd samples in an exam, relative to normal ones
SHARES = f"{LEARNT} learnt, {ODD} odd"


def chance(seed: int, *words: object) -> np.random.Generator:
    """Give the random numbers of one purpose, which no other purpose shares.

    >>> chance(7, "har", 3).random() == chance(7, "har", 3).random()
    True
    """
    return np.random.default_rng([seed, *(crc32(str(word).encode()) for word in words)])


@dataclass(frozen=True, eq=False)
class Split:
    """For each pattern the places of the samples to learn, and of those kept for exams."""

    learn: tuple[Ints, ...]
    keep: tuple[Ints, ...]


@dataclass(frozen=True, eq=False)
class Exam:
    """Samples to be told apart: their places, normal ones first, and which are odd."""

    rows: Ints
    odd: NDArray[np.bool_]


Cut = Callable[[Dataset, np.random.Generator], Split]


def by_sample(dataset: Dataset, rng: np.random.Generator) -> Split:
    """Cut each pattern's samples at random, as the paper does; neighbours may be on both sides."""
    shuffled = [rng.permutation(dataset.rows(pattern)) for pattern in dataset.patterns]
    cuts = [round(LEARNT * len(rows)) for rows in shuffled]
    return Split(
        tuple(rows[:cut] for rows, cut in zip(shuffled, cuts, strict=True)),
        tuple(rows[cut:] for rows, cut in zip(shuffled, cuts, strict=True)),
    )


def by_origin(dataset: Dataset, rng: np.random.Generator) -> Split:
    """Cut each pattern between whole persons or trips, so that nothing leaks between windows."""
    learn, keep = [], []
    for pattern in dataset.patterns:
        rows = rng.permutation(dataset.rows(pattern))
        kept = np.isin(dataset.origin[rows], _kept_origins(dataset, rows, rng))
        learn.append(rows[~kept])
        keep.append(rows[kept])
    return Split(tuple(learn), tuple(keep))


def _kept_origins(dataset: Dataset, rows: Ints, rng: np.random.Generator) -> Ints:
    origins = rng.permutation(np.unique(dataset.origin[rows]))
    return origins[: max(1, round((1.0 - LEARNT) * len(origins)))]


def exam(split: Split, normal: Collection[int], rng: np.random.Generator) -> Exam:
    """Ask for all kept samples of the `normal` patterns, and a tenth as many of the others."""
    rows = np.concatenate([split.keep[i] for i in sorted(set(normal))])
    others = [kept for i, kept in enumerate(split.keep) if i not in normal]
    odd = rng.permutation(np.concatenate(others))[: max(1, round(ODD * len(rows)))]
    return Exam(np.concatenate([rows, odd]), np.arange(len(rows) + len(odd)) >= len(rows))
