"""The detector: learns a stream sample by sample and says how unusual a sample is.

x (n,) or X (k, n) are readings; on the grid they become rows with hidden values h (N,), H (k, N).
`Model` holds the own and others' sums and the cached solution. With forgetting, sums live in a
frame where newer samples weigh more: `frame` is what a weight of 1 in the sums is worth now; it
goes back to 1 when P is solved. Single samples are buffered until a result is needed. Rows that
come together are scored and learnt in blocks, each with the readout of the rows before it.
"""

from __future__ import annotations

from math import inf, log
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.errors import must_be
from edgemerge.core.ledger import Contribution
from edgemerge.core.projection import Projection, Samples, check_learning_settings
from edgemerge.core.readout import Cache, Fit, Level, Preview, Readout, effective_count, ridge_for
from edgemerge.core.stats import CHUNK_ROWS, Capacity, Stats, Sums, must_fit, sum_up

Array = NDArray[np.float64]

MAX_STEPS = 256  # samples after which P is solved afresh from the sums


class Look(NamedTuple):
    """What one sample, or each of several, looks like to a readout."""

    H: Array  # hidden values
    HP: Array
    errors: Array  # x − hB
    squares: Any  # squared error, summed over the inputs
    leverage: Any  # hPhᵀ


class Model:
    """Sums and their cache; `fade` is what an old sample is worth after each new one."""

    def __init__(self, projection: Projection, ridge: float | None, fade: float) -> None:
        """Know nothing."""
        self.projection, self.fade = projection, fade
        self.own = Sums(projection.n_hidden, projection.n_inputs, projection.quantum)
        self.floor = projection.rounding_loss
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
    def refresh_interval(self) -> int:
        """The samples after which P is solved afresh."""
        least = 0.9 if self.others else 0.5  # in a frame others and the ridge fade, and should not
        return MAX_STEPS if self.fade == 1.0 else min(MAX_STEPS, max(1, int(log(least, self.fade))))

    @property
    def is_solved(self) -> bool:
        """Whether P is at hand, so that following it is cheaper than solving it again."""
        return self._cache is not None

    def tell(self, others: Stats) -> None:
        """Set what the others have seen, which must add to ours."""
        others.must_be_compatible(self.projection, self.projection.n_inputs)
        must_fit(self.own.largest() * self.frame + others.largest, self.own.quantum)
        self.rest()
        self.others = others if others.count else None
        self.invalidate()

    def rest(self) -> None:
        """Bring own sums into the frame in which they are shared, on the grid."""
        if self.frame != 1.0:
            self.own.settle(self.frame)
            self.frame, self._cache = 1.0, None

    def cache(self) -> Cache:
        """Give P, solved or followed up to the last sample."""
        cache = self._cache
        if cache is None or cache.steps >= self.refresh_interval:
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
        count = effective_count(self.own.count * self.frame, self.told, self.fade)
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

    def invalidate(self) -> None:
        """Have P solved afresh when it is next needed."""
        self._cache = None

    def watch(self, more: float) -> None:
        """Drop the cache when U has grown so much that another ridge suits it."""
        self._trace += more
        if self.fade == 1.0 and self._cache and self.ridge(0.0) != self._cache.ridge:
            self._cache = None


def learn_one(known: Model, x: Array, look: Look) -> None:
    """Learn one sample, and follow P instead of solving it again."""
    cache, Ph = known.cache(), look.HP
    fit, squares, more = cache.fit, float(Ph.dot(Ph)), float(look.H.dot(look.H))
    across = 0.0 if fit is None else float(known.times_V(cache.gains(Ph)).dot(look.errors))
    weight = 1.0 / (known.frame * known.fade)  # M8: U ← a²U + hᵀh, in the frame of the sums
    known.own.add(look.H, x, weight, more)
    known.frame *= known.fade
    known.learnt += 1
    d = weight / (1.0 + weight * look.leverage)  # M4
    cache.take(Ph, d, squares)
    if fit is not None:  # M5, B + d(Ph)(t − hB), as seen by J and ‖B‖²
        fit.J += d * look.squares
        fit.norm += d * (2.0 * across + d * squares * look.squares)
    known.watch(more)


def learn_rows(known: Model, X: Array) -> None:
    """Add rows to the sums alone: the fastest way, when nobody asks in between."""
    if known.fade != 1.0 or len(X) > CHUNK_ROWS or not _add_in_place(known, X):
        _add_checked(known, X)
    known.learnt += len(X)
    known.invalidate()


def _add_in_place(known: Model, X: Array) -> bool:
    """Add a few rows in place; not if it might be too much, which needs a closer look."""
    H = known.projection.project(X)
    fits = known.own.fits(max(float(np.vdot(H, H)), float(np.vdot(X, X)), float(len(X))))
    if fits:
        known.own.add_rows(H, X)
    return fits


def _add_checked(known: Model, X: Array) -> None:
    """Sum rows up by themselves, see that they fit, and add that."""
    age = np.arange(len(X) - 1.0, -1.0, -1.0)
    fresh = sum_up(known.projection, X, X, None if known.fade == 1.0 else known.fade**age)
    known.own.must_hold(fresh)
    if known.fade != 1.0:
        known.own.settle(known.frame * known.fade ** len(X))  # M8
        known.frame = 1.0
    known.own.add_sums(fresh)


MAX_BUFFERED = 64  # samples that may wait
MAX_SINGLE_STEPS = 8  # samples up to which following P is cheaper than solving it


class SampleBuffer:
    """Samples on the grid that are as good as learnt: they are sure to fit into the sums."""

    def __init__(self, known: Model) -> None:
        """Put samples aside for what will know them."""
        self._known = known
        self._room = Capacity(known.projection)
        self._rows: list[Array] = []
        self._load = 0.0  # at least what they add to the largest sum

    def __len__(self) -> int:
        """Count the samples that wait."""
        return len(self._rows)

    def push(self, x: Array) -> None:
        """Put one sample (n,) aside, or learn it now if it might not fit later."""
        load = self._room.load(x)
        if len(self._rows) >= MAX_BUFFERED or not self._known.own.fits(self._load + load):
            self.clear()
        if self._known.own.fits(load):
            self._rows.append(x)
            self._load += load
        else:
            learn_rows(self._known, x[None])

    def must_fit(self, X: Array) -> None:
        """Refuse rows (k, n) that would not all fit, before the first of them is learnt."""
        self._room.must_hold(self._known.own, X)
        if self._known.ridge(0.0) == 0.0:
            self._known.cache()  # which is refused where samples are too few to solve for

    def clear(self) -> None:
        """Learn all that wait."""
        if not self._rows:
            return
        rows, self._rows, self._load = self._rows, [], 0.0
        if len(rows) > MAX_SINGLE_STEPS or not self._known.is_solved:
            learn_rows(self._known, np.array(rows))
        else:
            for x in rows:
                learn_one(self._known, x, self._known.look(x))


BLOCK_ROWS = 32  # where k × k work is still small against N × n


def learn_and_score_rows(
    known: Model, X: Array, reject_above: float, ready: float
) -> tuple[Array, int]:
    """Score and learn rows, each before the next; give the scores and how many were rejected."""
    scores, rejected, done = np.ones(len(X)), 0, 0
    if len(X) and not known.count:  # nothing is unusual to one who knows nothing
        learn_rows(known, X[:1])
        done = 1
    while done < len(X):
        found, odd = learn_and_score_block(known, X[done:], reject_above, ready)
        scores[done : done + len(found)] = found
        rejected, done = rejected + odd, done + len(found)
    return scores, rejected


def learn_and_score_block(
    known: Model, X: Array, reject_above: float, ready: float
) -> tuple[Array, int]:
    """Score and learn the first rows of X; give their scores, and how many of them were rejected.

    Takes rows up to the first that is rejected, or to where P has to be solved afresh.
    """
    X = X[: max(1, min(BLOCK_ROWS, known.refresh_interval - known.cache().steps))]
    H = known.projection.project(X)
    HP = known.cache().gains(H)
    weights = known.fade ** -np.arange(1.0, len(X) + 1) / known.frame  # M8
    seen = known.cache().preview(H, weights, X - known.times_V(HP), HP)
    fits = _fits(known, seen)
    levels = _levels(known, seen, fits)
    losses = np.einsum("ij,ij->i", seen.errors, seen.errors) / X.shape[1]
    scores = levels.score(losses, seen.leverage * weights * known.fade)
    odd = (scores > reject_above) & (levels.weight / weights >= ready * known.fade)
    end = _rows_until_new_ridge(known, H)
    k = _first_true(odd[:end])
    if k:
        _learn_block(known, seen, X[:k], H[:k], Fit(float(fits.J[k]), float(fits.norm[k])))
    return scores[: min(k + 1, end)], int(k < end)


def _fits(known: Model, seen: Preview) -> Fit:
    """Give the fit before each row, and after the last, (k + 1,)."""
    W, E, start = seen.W, seen.E, known.fit()
    WB = known.times_V(known.cache().gains(W.T))  # (k, m), with B as it is before the block
    WW, EE = W.T @ W, E @ E.T
    across = np.einsum("ij,ij->i", WB, E) + (np.tril(WW, -1) * np.tril(EE, -1)).sum(1)
    norm = 2.0 * across + np.diag(WW) * np.diag(EE)
    return Fit(_cumulative(start.J, np.diag(EE)), _cumulative(start.norm, norm))


def _levels(known: Model, seen: Preview, fits: Fit) -> Level:
    cache = known.cache()
    trace = _cumulative(cache.trace, -np.einsum("ij,ij->j", seen.W, seen.W))[:-1]
    own = _cumulative(known.own.count, seen.weights)[:-1]
    frames = 1.0 / (seen.weights * known.fade)
    return Level(
        fits.loss(cache.ridge)[:-1] / known.projection.n_inputs,
        len(seen.W) - cache.ridge * trace,
        own + known.told,
        effective_count(own * frames, known.told, known.fade),
        known.floor,
        np.maximum,
    )


def _cumulative(start: float, parts: Array) -> Array:
    return start + np.concatenate([[0.0], np.cumsum(parts)])


def _first_true(marks: Array) -> int:
    return int(np.argmax(marks)) if marks.any() else len(marks)


def _rows_until_new_ridge(known: Model, H: Array) -> int:
    if known.fade != 1.0:
        return len(H)
    ridges = [known.ridge(more) for more in np.cumsum(np.einsum("ij,ij->i", H, H))]
    changed = np.array(ridges) != known.cache().ridge
    return min(_first_true(changed) + 1, len(H))


def _learn_block(known: Model, seen: Preview, X: Array, H: Array, fit: Fit) -> None:
    k, cache = len(X), known.cache()
    known.own.add_rows(H, X, None if known.fade == 1.0 else seen.weights[:k])
    known.frame *= known.fade**k
    known.learnt += k
    cache.accept(seen.W[:, :k])
    cache.fit = fit
    known.watch(float(np.vdot(H, H)))


Scores = Any  # a float for one sample, an array (k,) for rows

READY_SAMPLES_PER_HIDDEN = (
    1.3  # samples for each hidden value, from which on a readout can be trusted
)


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
        check_learning_settings(ridge, forgetting, reject_above)
        self.projection = projection
        self.ridge, self.forgetting, self.reject_above = ridge, forgetting, reject_above
        self.rejected = 0
        self.known = Model(projection, ridge, forgetting**2)
        self._waiting = SampleBuffer(self.known)

    @classmethod
    def resume(
        cls, own: Stats, others: Stats | None = None, *, rejected: int = 0, **settings: Any
    ) -> Self:
        """Go on from what was seen and told before, with the settings of the constructor."""
        own.must_be_compatible(own.projection, own.projection.n_inputs)
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
        return self.count >= READY_SAMPLES_PER_HIDDEN * self.projection.n_hidden

    @property
    def readout(self) -> Readout:
        """The output layer for everything known, own and others', solved afresh."""
        return (self.own + self.others).solve(self.ridge)

    def learn(self, X: Samples) -> None:
        """Learn one sample (n,) or rows (k, n); without forgetting, grouping changes no bit."""
        if self.reject_above is not None:
            self.learn_and_score(X)
            return
        rows = self.projection.to_grid(X)
        if rows.ndim == 1:
            self._waiting.push(rows)
        else:
            self._waiting.clear()
            learn_rows(self.known, rows)

    def score(self, X: Samples) -> Scores:
        """Say how unusual: a float for one sample, (k,) for rows; 1 is as usual."""
        rows = self.projection.to_grid(X)
        self._waiting.clear()
        if not self.known.count:
            return 1.0 if rows.ndim == 1 else np.ones(len(rows))
        return self.known.score(self.known.look(rows))

    def loss(self, X: Samples) -> Scores:
        """Give the paper's loss, the mean squared error over the inputs."""
        self._waiting.clear()
        return self.known.look(self.projection.to_grid(X)).squares / self.projection.n_inputs  # M9

    def learn_and_score(self, X: Samples) -> Scores:
        """Score each sample, then learn it, one after the other, at the cost of blocks."""
        rows = self.projection.to_grid(X)
        self._waiting.clear()
        if rows.ndim == 1 and self.known.count:
            return self._learn_one(rows)
        self._waiting.must_fit(np.atleast_2d(rows))
        limit, ready = self.reject_above or inf, READY_SAMPLES_PER_HIDDEN * self.projection.n_hidden
        scores, rejected = learn_and_score_rows(self.known, np.atleast_2d(rows), limit, ready)
        self.rejected += rejected
        return scores if rows.ndim == 2 else float(scores[0])

    def explain(self, x: Samples) -> Array:
        """Say which inputs carry the loss, (n,): 1 is what is usual for that input."""
        row = self.projection.to_one(x)
        if not self.count:
            return np.ones_like(row)
        known, level = self.own + self.others, self.known.level()
        readout = known.solve(self.ridge)
        usual = np.maximum(known.mean_losses(readout) / level.residual_share**2, level.floor)  # M11
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

    def _learn_one(self, x: Array) -> float:
        look = self.known.look(x)
        score = float(self.known.score(look))
        if self.reject_above is not None and score > self.reject_above and self.ready:
            self.rejected += 1
        else:
            learn_one(self.known, x, look)
        return score
