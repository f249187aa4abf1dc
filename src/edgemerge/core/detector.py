"""The detector: learns a stream sample by sample and says how unusual a sample is.

x (n,) or X (k, n) are readings; on the grid they become rows with hidden values h, H.
"""

from __future__ import annotations

from math import inf
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgemerge.core.block import stream
from edgemerge.core.contribution import Contribution
from edgemerge.core.errors import must_be
from edgemerge.core.known import Known
from edgemerge.core.learning import learn_one, learn_rows
from edgemerge.core.projection import Projection
from edgemerge.core.readout import Readout
from edgemerge.core.settings import refuse_bad_learning
from edgemerge.core.stats import Stats
from edgemerge.core.waiting import Waiting

Array = NDArray[np.float64]
Scores = Any  # a float for one sample, an array (k,) for rows

READY = 1.3  # samples for each hidden value, from which on a readout can be trusted


class Detector:
    """Learns what is normal; `score` is 1 for a sample that is as usual, 4 for one 4 times as odd.

    After each new sample the older ones count `forgetting`² times what they did (1: for ever).
    A sample that scores above `reject_above` is not learnt, once the detector is `ready`; leave it
    well above what normal samples reach (8 with few inputs), or it cuts their tail off.

    >>> import numpy as np
    >>> pump = Detector(Projection(n_inputs=4, n_hidden=8, seed=7))
    >>> pump.learn(np.random.default_rng(0).normal(0.0, 0.1, (500, 4)))
    >>> round(pump.score([0.1, -0.1, 0.0, 0.1]), 1), round(pump.score([0.1, -0.1, 0.9, 0.1]), 1)
    (0.5, 32.3)
    """

    def __init__(
        self,
        projection: Projection,
        *,
        ridge: float | None = None,
        forgetting: float = 1.0,
        reject_above: float | None = None,
    ) -> None:
        """Start with nothing seen and nothing told."""
        must_be(projection, Projection, "build one that all devices share")
        refuse_bad_learning(ridge, forgetting, reject_above)
        self.projection = projection
        self.ridge, self.forgetting, self.reject_above = ridge, forgetting, reject_above
        self.rejected = 0
        self.known = Known(projection, ridge, forgetting**2)
        self._waiting = Waiting(self.known)

    @classmethod
    def resume(
        cls, own: Stats, others: Stats | None = None, *, rejected: int = 0, **settings: Any
    ) -> Self:
        """Go on from what was seen and told before, with the settings of the constructor."""
        own.must_be_of(own.projection, own.projection.n_inputs)
        detector = cls(own.projection, **settings)
        detector.known.own = own.sums()
        detector.rejected = rejected
        if others is not None:
            detector.adopt(others)
        return detector

    @property
    def own(self) -> Stats:
        """What this device saw itself."""
        self._waiting.clear()
        self.known.rest()
        return Stats.snapshot(self.projection, self.known.own)

    @property
    def others(self) -> Stats:
        """What it was told."""
        return self.known.others or Stats.empty(self.projection)

    @property
    def count(self) -> float:
        """The number of samples known, own and others'; forgotten ones count less."""
        return self.known.count + len(self._waiting)

    @property
    def learnt(self) -> int:
        """The samples learnt since this object was made; forgetting does not lessen it."""
        return self.known.learnt + len(self._waiting)

    @property
    def ready(self) -> bool:
        """Whether enough is known to reject samples; False means warming up."""
        return self.count >= READY * self.projection.n_hidden

    @property
    def readout(self) -> Readout:
        """The output layer for everything known, own and others', solved afresh."""
        return (self.own + self.others).solve(self.ridge)

    def learn(self, X: ArrayLike) -> None:
        """Learn one sample (n,) or rows (k, n); without forgetting, grouping changes no bit."""
        if self.reject_above is not None:
            self.learn_and_score(X)
        elif np.ndim(X) == 1:
            self._waiting.push(self.projection.grid.one(X))
        else:
            rows = self.projection.grid.rows(X)
            self._waiting.clear()
            learn_rows(self.known, rows)

    def score(self, X: ArrayLike) -> Scores:
        """Say how unusual: a float for one sample, (k,) for rows; 1 is as usual."""
        rows = self._rows(X)
        self._waiting.clear()
        if not self.known.count:
            return 1.0 if rows.ndim == 1 else np.ones(len(rows))
        return self.known.score(self.known.look(rows))

    def loss(self, X: ArrayLike) -> Scores:
        """Give the paper's loss, the mean squared error over the inputs."""
        self._waiting.clear()
        return self.known.look(self._rows(X)).squares / self.projection.n_inputs  # M9

    def learn_and_score(self, X: ArrayLike) -> Scores:
        """Score each sample, then learn it, one after the other, at the cost of blocks."""
        rows = self._rows(X)
        self._waiting.clear()
        if rows.ndim == 1 and self.known.count:
            return self._learn_one(rows)
        self._waiting.must_fit(np.atleast_2d(rows))
        limit, ready = self.reject_above or inf, READY * self.projection.n_hidden
        scores, rejected = stream(self.known, np.atleast_2d(rows), limit, ready)
        self.rejected += rejected
        return scores if rows.ndim == 2 else float(scores[0])

    def explain(self, x: ArrayLike) -> Array:
        """Say which inputs carry the loss, (n,): 1 is what is usual for that input."""
        if not self.count:
            return np.ones_like(self.projection.grid.one(x))
        row, known, level = self.projection.grid.one(x), self.own + self.others, self.known.level()
        readout = known.solve(self.ridge)
        usual = np.maximum(known.mean_losses(readout) / level.spare**2, level.floor)  # M11
        return np.asarray((row - self.projection.project(row) @ readout.B) ** 2 / usual)

    def share(
        self, device: str, *, revision: int, pattern: str = "normal", incarnation: int = 0
    ) -> Contribution:
        """Give what this device itself has seen, for others to merge."""
        return Contribution(device, self.own, revision, pattern, incarnation)

    def adopt(self, stats: Stats) -> None:
        """Set what the others have seen; doing it twice is doing it once."""
        must_be(stats, Stats, "give the stats of a contribution, or the total of a ledger")
        self._waiting.clear()
        self.known.tell(stats)

    def __repr__(self) -> str:
        """Show what is known."""
        told = self.known.told
        return f"Detector({self.count - told:g} samples of its own, {told:g} of others)"

    def _rows(self, X: ArrayLike) -> Array:
        return self.projection.grid.one(X) if np.ndim(X) == 1 else self.projection.grid.rows(X)

    def _learn_one(self, x: Array) -> float:
        look = self.known.look(x)
        score = float(self.known.score(look))
        if self.reject_above is not None and score > self.reject_above and self.ready:
            self.rejected += 1
        else:
            learn_one(self.known, x, look)
        return score
