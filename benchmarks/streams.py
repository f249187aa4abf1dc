"""Detectors that take one sample after the other, dressed so that the benchmarks can fit them."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pyod.models.loda import LODA
from river.anomaly import HalfSpaceTrees

from edgemerge import Bank, Projection

Array = NDArray[np.float64]


class StreamedBank:
    """A Bank with no argument but the range of its inputs; one pass, in the order given."""

    def fit(self, X: Array) -> Self:
        """Learn rows as they stream by."""
        self.bank = Bank(Projection.of_data(X))
        self.bank.learn(X)
        self.bank.catch_up()
        return self

    def score_samples(self, X: Array) -> Array:
        """Return −score, as in scikit-learn."""
        return np.asarray(-self.bank.score(X))


class StreamedTrees:
    """River's HalfSpaceTrees, one pass, given the two things that it needs.

    These are the range of the inputs, and a window that the rows fill twice: it says nothing
    before the first window of 250 is full, and most of these sets are shorter.
    """

    def __init__(self, seed: int) -> None:
        """Draw the trees from a seed."""
        self.seed = seed

    def fit(self, X: Array) -> Self:
        """Learn rows as they stream by."""
        limits = {i: (float(c.min()), float(c.max()) or 1.0) for i, c in enumerate(X.T)}
        limits = {i: (low, high if high > low else low + 1.0) for i, (low, high) in limits.items()}
        self.trees: Any = HalfSpaceTrees(
            limits=limits, window_size=min(250, len(X) // 2), seed=self.seed
        )
        for x in X:
            self.trees.learn_one(dict(enumerate(x.tolist())))
        return self

    def score_samples(self, X: Array) -> Array:
        """Return −score, as in scikit-learn."""
        return np.array([-self.trees.score_one(dict(enumerate(x.tolist()))) for x in X])


class ScoredLODA:
    """LODA, the method that PySAD streams, as PyOD fits it to all rows at once."""

    def fit(self, X: Array) -> Self:
        """Learn rows."""
        np.random.seed(0)  # noqa: NPY002  # the only source that PyOD's LODA draws from
        self.loda: Any = LODA().fit(X)
        return self

    def score_samples(self, X: Array) -> Array:
        """Return −score, as in scikit-learn."""
        return np.asarray(-self.loda.decision_function(X))
