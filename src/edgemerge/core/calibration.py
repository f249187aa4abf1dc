"""A promised limit for single scores: counts of scores that fresh normal samples would have.

The scores are those of samples that the model does not know: scored before they were learnt, or
with the sample taken out of the sums again, which needs no second solution. A row h that is in U
once has there the leverage d = hPhᵀ; without it the error is e/(1 − d) and the leverage d/(1 − d).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log2

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgemerge.core.detector import Detector
from edgemerge.core.limit import BINS, BINS_PER_OCTAVE, Counts, bin_of
from edgemerge.core.stats import Stats

Array = NDArray[np.float64]

FIRST_GENERATION = 64  # scores; later ones have twice as many as the one before
MAX_GENERATION = 64  # promised alarms' worth of scores
MIN_SPARE = 1e-9  # keeps 1 − d above 0 where a row alone pins down a direction


@dataclass
class Calibration:
    """Counts of fresh scores, of which at least the newest half gives the limit.

    >>> scores = Calibration()
    >>> scores.count(np.linspace(0.0, 2.0, 1000), rate=0.05)
    >>> round(scores.limit(0.05), 2)
    1.9
    """

    older: Counts = field(default_factory=Counts)
    newer: Counts = field(default_factory=Counts)
    carry: float = 0.0  # bins that `rescale` has not moved yet, less than half of one

    def count(self, scores: ArrayLike, rate: float, weights: Array | None = None) -> None:
        """Count scores; older ones are let go, since they come from a model that knew less.

        Args:
            scores: Of samples that the model does not know, (k,).
            rate: The promised rate: the rarer the alarms, the more scores are kept.
            weights: How often each sample counts, (k,); once unless given.
        """
        full = min(max(FIRST_GENERATION, 2 * self.older.samples), MAX_GENERATION / rate)
        if self.newer.samples >= full:
            self.older, self.newer = self.newer, Counts()
        bins = [bin_of(score) for score in np.atleast_1d(np.asarray(scores, np.float64))]
        upto = np.rint(np.cumsum(np.bincount(bins, weights, minlength=BINS)))
        held = np.diff(upto, prepend=0.0).astype(np.int64)
        self.newer = self.newer + Counts(int(held.sum()), held)

    def rescale(self, factor: float) -> None:
        """Move all counts as if scores had been so many times as high, to the width of a bin."""
        self.carry += BINS_PER_OCTAVE * log2(factor)
        steps = round(self.carry)
        self.carry -= steps
        places = np.clip(np.arange(BINS) + steps, 0, BINS - 1)
        for counts in (self.older, self.newer):
            counts.held = np.bincount(places, counts.held, BINS).astype(np.int64)

    def __add__(self, other: Calibration) -> Calibration:
        """Return the counts of both."""
        return Calibration(self.older + other.older, self.newer + other.newer)

    def limit(self, rate: float) -> float:
        """Return the limit that this rate of fresh samples exceeds.

        While there are too few scores it is above all of them, from 4 to 6.
        """
        counts = self.older + self.newer
        found = counts.limit(rate, "sample")
        return counts.provisional_limit("sample") if found is None else found


def scores_without_each(detector: Detector, X: Array, weights: Array) -> Array:
    """Score rows as if each were not learnt, (k,).

    Args:
        detector: A detector without forgetting.
        X: Rows (k, n).
        weights: How often the detector has learnt each of them, (k,); one of these is taken out.
    """
    rows = detector.projection.to_grid(X)
    look = detector.known.look(rows, detector.projection.project(rows))
    level = detector.known.level()
    left = np.maximum(1.0 - np.minimum(weights, 1.0) * look.leverage, MIN_SPARE)
    loss = look.squares / rows.shape[1] / left**2  # M9
    return np.asarray(level.score(loss, look.leverage / left))  # M11


HOLDOUT_BLOCKS = 16  # blocks of time


def scores_without_blocks(detector: Detector, rows: Array, learnt: NDArray[np.bool_]) -> Array:
    """Score rows as if their block of time, and the two beside it, were not learnt, (k,).

    Samples that follow each other are alike: leaving out single ones would tell too little. Sums
    subtract, so the rows are added up once.

    Args:
        detector: What is known besides the rows.
        rows: Samples on the grid in the order of time, (k, n).
        learnt: Which of them would be learnt, (k,).
    """
    projection = detector.projection
    blocks = np.array_split(np.arange(len(rows)), HOLDOUT_BLOCKS)
    sums = [Stats.of_rows(projection, rows[block][learnt[block]]) for block in blocks]
    total = sum(sums, detector.own)
    found = np.ones(len(rows))
    for j, block in enumerate(blocks):
        rest = total - sum(sums[max(j - 1, 0) : j + 2], Stats.empty(projection))  # M7
        without = detector.with_own(rest)
        if without.ready:
            found[block] = without.score_rows(rows[block], projection.project(rows[block]))
    return found
