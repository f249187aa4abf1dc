"""The bank: one detector for each pattern of normal, their number tuned at run time.

x (n,), X (k, n) are readings. Samples are learnt in blocks, counted from the first one, so that
it does not matter how they were grouped when they were handed in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgemerge.core import patterns
from edgemerge.core.detector import Detector
from edgemerge.core.errors import SettingError, UnknownError, must_be
from edgemerge.core.ledger import Contribution, must_be_name
from edgemerge.core.patterns import Event, Patterns, maintain
from edgemerge.core.projection import Projection, Samples, as_int, check_learning_settings

Array = NDArray[np.float64]
Scores = Any  # a float for one sample, an array (k,) for rows

BANK_BLOCK_ROWS = 32  # samples that are judged, assigned and learnt together


class Bank:
    """Detects with several patterns of normal; a sample's score is the least that any gives it.

    The bank starts with one pattern, "normal". It parts a pattern that two explain better, adds
    one when samples that none explains (they score above `reject_above` and are not learnt) turn
    out to belong together, and joins patterns that have become one; `events` tells. Of its very
    first samples it leaves out the few that lie furthest out; with `reject_above=None`, none.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> idle, fast = rng.normal(-0.5, 0.05, (400, 4)), rng.normal(0.5, 0.05, (400, 4))
    >>> pump = Bank(Projection(n_inputs=4, n_hidden=16, seed=7))
    >>> pump.learn(idle)
    >>> pump.learn(fast)
    >>> [(event.kind, event.pattern) for event in pump.events]
    [('split', 'normal'), ('new', 'normal-3')]
    >>> pump.closest(idle[0]) in ("normal", "normal-2"), pump.closest(fast[0])
    (True, 'normal-3')
    """

    def __init__(
        self,
        projection: Projection,
        *,
        max_patterns: int = 8,
        reject_above: float | None = 8.0,
        ridge: float | None = None,
        forgetting: float = 1.0,
    ) -> None:
        """Start with nothing seen and nothing told."""
        must_be(projection, Projection, "build one that all devices share")
        max_patterns = as_int("max_patterns", max_patterns)
        if max_patterns < 1:
            raise SettingError(f"found max_patterns={max_patterns}, expected 1 or more")
        check_learning_settings(ridge, forgetting, reject_above)
        self.projection = projection
        self.max_patterns = max_patterns
        self.reject_above = None if reject_above is None else float(reject_above)
        self.ridge, self.forgetting = ridge, forgetting
        limit = inf if reject_above is None else reject_above
        settings = {"ridge": ridge, "forgetting": forgetting}
        self.patterns = Patterns(projection, max_patterns, limit, settings)
        self.waiting = np.empty((0, projection.n_inputs))

    def learn(self, X: Samples) -> None:
        """Learn one sample (n,) or rows (k, n); up to 31 samples wait for their block."""
        self._learn_rows(self.projection.to_rows(X))

    def _learn_rows(self, fresh: Array) -> None:
        rows = np.vstack([self.waiting, fresh]) if len(self.waiting) else fresh
        self.patterns.must_fit(rows)
        done = len(rows) - len(rows) % BANK_BLOCK_ROWS
        for i in range(0, done, BANK_BLOCK_ROWS):
            self.patterns.learn(rows[i : i + BANK_BLOCK_ROWS])
            maintain(self.patterns)
        self.waiting = rows[done:].copy()  # a view would keep all rows alive

    def catch_up(self) -> None:
        """Learn the samples that wait, before their block is full."""
        if len(self.waiting):
            self.patterns.learn(self.waiting)
            maintain(self.patterns)
            self.waiting = self.waiting[:0]

    def score(self, X: Samples) -> Scores:
        """Say how unusual: a float for one sample, (k,) for rows; 1 is as usual."""
        rows = self.projection.to_grid(X)
        least = self._scores(np.atleast_2d(rows))
        return float(least[0]) if rows.ndim == 1 else least

    def learn_and_score(self, X: Samples) -> Scores:
        """Score each block of samples, then learn it."""
        found = self.projection.to_grid(X)  # refuses all before any is learnt
        rows = np.atleast_2d(found)
        scores, done = [np.empty(0)], 0
        while done < len(rows):
            part = rows[done : done + BANK_BLOCK_ROWS - len(self.waiting)]
            scores.append(self._scores(part))
            self._learn_rows(part)
            done += len(part)
        joined = np.concatenate(scores)
        return float(joined[0]) if found.ndim == 1 else joined

    def _scores(self, rows: Array) -> Array:
        if not self.patterns.instances:
            return np.ones(len(rows))
        return np.asarray(self.patterns.scores(rows, self.projection.project(rows)).min(0))

    def closest(self, x: Samples) -> str:
        """Name the pattern that the sample belongs to."""
        row = self.projection.to_one(x)[None]
        if not self.patterns.instances:
            raise UnknownError("this bank knows no pattern yet: let it learn first")
        return list(self.patterns.instances)[int(self.patterns.nearest(row)[0])]

    def explain(self, x: Samples) -> Array:
        """Say which inputs carry the loss, (n,), for the pattern that it belongs to."""
        return self[self.closest(x)].explain(x)

    def drift(self, pattern: str) -> float:
        """Say how far a pattern's recent samples lie from what was learnt, in its spreads."""
        self[pattern]
        return self.patterns.instances[pattern].drift

    def share(self, device: str, *, revision: int, incarnation: int = 0) -> list[Contribution]:
        """Give what this device itself has seen, a contribution for each pattern."""
        self.catch_up()
        return [
            self[name].share(device, revision=revision, pattern=name, incarnation=incarnation)
            for name in self
            if self[name].known.own.count
        ]

    def adopt(self, contributions: Contribution | Iterable[Contribution]) -> None:
        """Set what peers have told: added to the pattern that it is, or kept as one of its own."""
        told = [contributions] if isinstance(contributions, Contribution) else list(contributions)
        for contribution in told:
            must_be(contribution, Contribution, "give those of a ledger, or what peers share()")
            contribution.stats.must_be_compatible(self.projection, self.projection.n_inputs)
        self.catch_up()
        patterns.adopt_contributions(self.patterns, told)

    def rename(self, pattern: str, name: str) -> None:
        """Give a pattern a name that says something; it is shared under that name from now on."""
        self[pattern]
        must_be_name("pattern", name)
        if name in self.patterns.instances:
            raise SettingError(f"found {name!r}, expected a name that no pattern has: {list(self)}")
        names = (name if old == pattern else old for old in self)
        self.patterns.instances = dict(zip(names, self.patterns.instances.values(), strict=True))

    @property
    def events(self) -> list[Event]:
        """What happened to the patterns, oldest first; the last thousand are kept."""
        return list(self.patterns.events)

    @property
    def rejected(self) -> int:
        """The number of samples that no pattern explained, and that were not learnt."""
        return self.patterns.rejected

    def __getitem__(self, pattern: str) -> Detector:
        """Give the detector of a pattern."""
        if pattern not in self.patterns.instances:
            raise UnknownError(f"no pattern {pattern!r}; known: {list(self)}")
        return self.patterns.instances[pattern].detector

    def __iter__(self) -> Iterator[str]:
        """Go through the names of the patterns."""
        return iter(self.patterns.instances)

    def __len__(self) -> int:
        """Count the patterns."""
        return len(self.patterns.instances)

    def __repr__(self) -> str:
        """Show how many patterns and samples there are."""
        samples = sum(self[name].count for name in self)
        return f"Bank({len(self)} patterns, {samples:g} samples)"
