"""What a detector knows: its own sums, what it was told, and the cache solved from both.

X (k, n) on the grid, H (k, N). With forgetting, sums live in a frame where newer samples weigh
more: `frame` is what a weight of 1 in the sums is worth now. It goes back to 1 when P is solved.
"""

from __future__ import annotations

from math import log
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.cache import Cache, Fit
from edgemerge.core.level import Level, effective
from edgemerge.core.projection import Projection
from edgemerge.core.readout import ridge_for
from edgemerge.core.stats import Stats
from edgemerge.core.sums import Sums, must_fit

Array = NDArray[np.float64]

REFRESH = 256  # samples after which P is solved afresh from the sums


class Look(NamedTuple):
    """What one sample, or each of several, looks like to a readout."""

    H: Array  # hidden values
    HP: Array
    errors: Array  # x − hB
    squares: Any  # squared error, summed over the inputs
    leverage: Any  # hPhᵀ


class Known:
    """Sums and their cache; `fade` is what an old sample is worth after each new one."""

    def __init__(self, projection: Projection, ridge: float | None, fade: float) -> None:
        """Know nothing."""
        self.projection, self.fade = projection, fade
        self.own = Sums(projection.n_hidden, projection.n_inputs, projection.quantum)
        self.floor = projection.quantum / 12.0  # the loss that rounding to the grid alone makes
        self.others: Stats | None = None
        self.frame = 1.0
        self.learnt = 0  # samples since this object was made
        self._ridge = ridge
        self._cache: Cache | None = None
        self._trace = 0.0

    @property
    def told(self) -> float:
        """The number of samples that others have seen."""
        return self.others.count if self.others else 0.0

    @property
    def count(self) -> float:
        """The number of samples known, own and others', as they weigh now."""
        return (self.own.count + self.told) * self.frame

    @property
    def patience(self) -> int:
        """The samples after which P is solved afresh."""
        least = 0.9 if self.others else 0.5  # in a frame others and the ridge fade, and should not
        return REFRESH if self.fade == 1.0 else min(REFRESH, max(1, int(log(least, self.fade))))

    @property
    def is_solved(self) -> bool:
        """Whether P is at hand, so that following it is cheaper than solving it again."""
        return self._cache is not None

    def tell(self, others: Stats) -> None:
        """Set what the others have seen, which must add to ours."""
        others.must_be_of(self.projection, self.projection.n_inputs)
        must_fit(self.own.largest() * self.frame + others.largest, self.own.quantum)
        self.rest()
        self.others = others if others.count else None
        self.stale()

    def rest(self) -> None:
        """Bring own sums into the frame in which they are shared, on the grid."""
        if self.frame != 1.0:
            self.own.settle(self.frame)
            self.frame, self._cache = 1.0, None

    def cache(self) -> Cache:
        """Give P, solved or followed up to the last sample."""
        cache = self._cache
        if cache is None or cache.steps >= self.patience:
            cache = self._cache = self._solved(cache)
        return cache

    def _solved(self, old: Cache | None) -> Cache:
        self.rest()
        U = self.own.U  # its lower triangle, which is all that a factor needs
        if self.others:
            U = U + self.others.U.T
        self._trace = float(np.trace(U))
        new = Cache(U, self.ridge(0.0))
        if old is not None and self.fade == 1.0 and old.ridge == new.ridge:
            new.fit = old.fit  # was followed without loss, and is dear to compute
        return new

    def ridge(self, more: float) -> float:
        """Give the ridge for what is known, or for U with a trace larger by `more`."""
        if self._ridge is None:
            return ridge_for(self.projection, self._trace + more)
        return self._ridge

    def fit(self) -> Fit:
        """Give how well everything known is fitted."""
        cache = self.cache()
        if cache.fit is None:
            V, S = self.own.V, self.own.S
            if self.others:
                V, S = V + self.others.V, S + self.others.S
            cache.fit = cache.fit_to(V, S)
        return cache.fit

    def level(self) -> Level:
        """Give the level of loss that is usual now."""
        fit, cache, n = self.fit(), self.cache(), self.projection.n_inputs
        weight = self.own.count + self.told
        count = effective(self.own.count * self.frame, self.told, self.fade)
        return Level(fit.loss(cache.ridge) / n, cache.freedom, weight, count, self.floor)

    def look(self, X: Array, H: Array | None = None) -> Look:
        """Look at one sample (n,) or rows (k, n) without learning them."""
        H = self.projection.project(X) if H is None else H
        HP = self.cache().gains(H)
        errors = X - self.times_V(HP)  # hB is (hP)V, since B = PV: B need not exist
        if X.ndim == 1:
            return Look(H, HP, errors, float(errors.dot(errors)), float(H.dot(HP)))
        squares = np.einsum("ij,ij->i", errors, errors)
        return Look(H, HP, errors, squares, np.einsum("ij,ij->i", H, HP))

    def times_V(self, G: Array) -> Array:
        """Give GV, with V of everything known."""
        Y: Array = G.dot(self.own.V)
        if self.others:
            Y += G.dot(self.others.V)
        return Y

    def score(self, look: Look) -> Any:
        """Score what was looked at: a float or (k,)."""
        loss = look.squares / self.projection.n_inputs  # M9
        return self.level().score(loss, look.leverage / self.frame)

    def stale(self) -> None:
        """Have P solved afresh when it is next needed."""
        self._cache = None

    def watch(self, more: float) -> None:
        """Drop the cache when U has grown so much that another ridge suits it."""
        self._trace += more
        if self.fade == 1.0 and self._cache and self.ridge(0.0) != self._cache.ridge:
            self._cache = None
