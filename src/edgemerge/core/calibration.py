"""A promised limit for single scores: counts of scores that fresh normal samples would have.

The scores are those of samples that the model does not know: scored before they were learnt, or
with the sample taken out of the sums again, which needs no second solution. A row h that is in U
once has there the leverage d = hPhᵀ; without it the error is e/(1 − d) and the leverage d/(1 − d).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgemerge.core.detector import Detector
from edgemerge.core.limit import BINS, Counts, bin_of

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
