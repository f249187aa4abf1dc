"""An instance: the detector of one pattern, with what its bank needs to look after it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.detector import Detector
from edgemerge.core.learning import learn_rows
from edgemerge.core.ring import Ring
from edgemerge.core.stats import Stats

Array = NDArray[np.float64]

RECENT = 64.0  # samples that the recent centroid looks back on
RING = 6  # rows kept for each hidden value: enough to part them in two


class Instance:
    """One pattern of normal; rows (k, n) are on the grid."""

    def __init__(self, detector: Detector, rows: Array) -> None:
        """Look after a detector that has learnt these rows last."""
        p = detector.projection
        self.detector = detector
        self.ring = Ring(RING * p.n_hidden, p.n_inputs)
        self.ring.push(rows)
        self.considered = 0  # what ring.seen was when parting it was last considered
        self.used_at = 0  # by the bank's clock, which counts samples
        self.moved = self.gone = False
        self.recent: Array | None = None

    @property
    def total(self) -> Stats:
        """Everything known of this pattern, own and others'."""
        return self.detector.own + self.detector.others

    @property
    def centroid(self) -> Array:
        """The mean of all samples known, (n,)."""
        known = self.detector.known
        C = known.own.C if known.others is None else known.own.C + known.others.C
        return C / max(known.own.count + known.told, known.projection.quantum)  # M10

    def score(self, X: Array, H: Array) -> Array:
        """Score rows whose hidden values are at hand, (k,)."""
        known = self.detector.known
        return np.asarray(known.score(known.look(X, H))) if known.count else np.ones(len(X))

    def loss(self, X: Array, H: Array) -> Array:
        """Give the loss of such rows, (k,)."""
        return np.asarray(self.detector.known.look(X, H).squares / X.shape[1])  # M9

    def learn(self, X: Array, now: int) -> None:
        """Learn rows, and remember the last ones."""
        learn_rows(self.detector.known, X)
        self.ring.push(X)
        self.used_at, self.gone = now, False
        weight = 1.0 - (1.0 - 1.0 / RECENT) ** len(X)
        recent = self.centroid if self.recent is None else self.recent
        self.recent = recent + weight * (X.mean(0) - recent)

    @property
    def drift(self) -> float:
        """How far recent samples lie from what was learnt, in units of its spread."""
        own = self.detector.known.own
        if self.recent is None or not own.count:
            return 0.0
        spread = float((own.S / own.count - (own.C / own.count) ** 2).sum())
        shift = float(((self.recent - self.centroid) ** 2).sum())
        return float(np.sqrt(shift / max(spread, own.quantum)))
