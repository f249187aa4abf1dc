"""The patterns of a bank: its instances, what none of them explains, and what happened to them.

X (k, n) on the grid, H (k, N).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.detector import READY, Detector
from edgemerge.core.events import Event, Kind
from edgemerge.core.instance import Instance
from edgemerge.core.projection import Projection
from edgemerge.core.ring import Ring
from edgemerge.core.room import Room
from edgemerge.core.stats import Stats

Array = NDArray[np.float64]

EVENTS = 1000  # the newest are kept


@dataclass
class Patterns:
    """Everything of a bank that changes."""

    projection: Projection
    most: int
    reject_above: float
    settings: dict[str, Any]  # of each detector
    instances: dict[str, Instance] = field(default_factory=dict)
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=EVENTS))
    clock: int = 0  # samples seen, learnt or not
    compared: int = 0  # the clock when patterns were last looked through for such as became one
    rejected: int = 0
    settled: bool = False  # whether there is enough to reject samples
    sifted: bool = False  # whether the first ring was gone through for samples that lie far out

    def __post_init__(self) -> None:
        """Make room for samples that nothing explains."""
        self.room = Room(self.projection)
        enough = ceil(READY * self.projection.n_hidden)
        self.outsiders = Ring(2 * enough, self.projection.n_inputs)
        self.odd: deque[bool] = deque(maxlen=2 * enough)  # which of the last samples were such

    def add(self, name: str, own: Stats, rows: Array) -> Instance:
        """Add an instance that has learnt these rows last."""
        instance = Instance(Detector.resume(own, **self.settings), rows)
        instance.used_at = self.clock
        self.instances[name] = instance
        return instance

    def free_name(self, stem: str) -> str:
        """Give the first of stem, stem-2, stem-3, ... that no instance has."""
        names = (stem if k == 1 else f"{stem}-{k}" for k in range(1, len(self.instances) + 2))
        return next(name for name in names if name not in self.instances)

    def tell(self, kind: Kind, pattern: str, other: str = "") -> None:
        """Put an event on record."""
        self.events.append(Event(kind, pattern, self.clock, other))

    def scores(self, X: Array, H: Array) -> Array:
        """Give each instance's score of each row, (instances, k)."""
        return np.array([instance.score(X, H) for instance in self.instances.values()])

    def nearest(self, X: Array) -> NDArray[np.intp]:
        """Give the instance with the nearest centroid for each row, (k,)."""
        C = np.array([instance.centroid for instance in self.instances.values()])
        return np.asarray(((C**2).sum(1)[:, None] - 2.0 * C @ X.T).argmin(0))

    def must_fit(self, X: Array) -> None:
        """Refuse rows that no pattern could take in all, before any of them is learnt."""
        for instance in self.instances.values():
            self.room.must_hold(instance.detector.known.own, X)

    def learn(self, X: Array) -> None:
        """Learn a block: each row goes to the nearest pattern that explains it, or to none."""
        self.clock += len(X)
        if not self.instances:
            self.add("normal", Stats.empty(self.projection), X[:0])
        home, odd = self._homes(X)
        for i, instance in enumerate(self.instances.values()):
            mine = X[(home == i) & ~odd]
            if len(mine):
                instance.learn(mine, self.clock)
        self.rejected += int(odd.sum())
        self.odd.extend(odd.tolist())
        self.outsiders.push(X[odd])

    def _homes(self, X: Array) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Say to which pattern each row goes, and which rows go to none."""
        nearest = self.nearest(X)
        if not self.settled or self.reject_above == inf:  # then there is no need to judge
            return nearest, np.zeros(len(X), np.bool_)
        scores = self.scores(X, self.projection.project(X))
        explained = scores <= self.reject_above
        home = np.where(explained[nearest, np.arange(len(X))], nearest, scores.argmin(0))
        return home, np.logical_not(explained.any(0))
