"""The detector: learns a stream sample by sample and scores how unusual a sample is.

x (n,) or X (k, n) are readings; on the grid they become rows with hidden values h (N,), H (k, N).
`Model` holds the own and others' sums and the cached solution. B is solved from all sums; what loss
is usual, and the ridge, follow from own samples alone as soon as there are enough, so that nobody
else can shift a device's scores by what they claim to have seen. With forgetting, sums live in a
frame where newer samples weigh more: `frame` is what a weight of 1 in the sums is worth now; it
goes back to 1 when P is solved. Single samples are buffered until a result is needed. Rows that
come together are scored and learnt in blocks, each with the readout of the rows before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, isnan, log, nan
from typing import Any, NamedTuple, Protocol, Self, cast, overload

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

from edgemerge import kernel
from edgemerge.core.errors import FormatError, KindError, SettingError, must_be
from edgemerge.core.ledger import (
    Contribution,
    Ledger,
    Merged,
    contributions_in,
    must_count,
)
from edgemerge.core.projection import (
    Projection,
    Samples,
    aligned_empty,
    is_plain,
    learning_settings,
)
from edgemerge.core.readout import (
    NO_CEILING,
    Cache,
    Fit,
    Level,
    OwnFit,
    Preview,
    Readout,
    effective_count,
    largest_trace,
    ridge_for,
)
from edgemerge.core.similarity import Compared, Profile
from edgemerge.core.stats import (
    CHUNK_ROWS,
    Capacity,
    Covariance,
    Stats,
    Sums,
    largest_by_name,
    largest_of,
    must_fit,
    sum_up,
)

Array = NDArray[np.float64]

OWN_SCALE = np.ones(1)  # ends the vector of `progress` if own samples set the scale
MAX_STEPS = 256  # samples after which P is solved afresh from the sums
LEAST_FRAME = 0.5  # in a frame the ridge fades too
MAX_DRIFT = 0.15  # how far the weight of others may be from 1 in a frame
READY_SAMPLES_PER_HIDDEN = 1.3  # samples per hidden value from which a readout can be trusted


class Look(NamedTuple):
    """What one sample, or each of several, looks like to a readout."""

    H: Array  # hidden values
    HP: Array
    errors: Array  # x − hB
    squares: Any  # squared error, summed over the inputs
    leverage: Any  # hPhᵀ


class Model:
    """Sums and their cached solution; `fade` is an old sample's weight after each new one."""

    ceiling = NO_CEILING  # of what is usual, while the sums of others tell it
    small_ridge = False  # the default one would hide fine structure
    _last_others: Stats | None = None
    _is_padded = False  # whether each row of their V starts at a cache line

    def __init__(self, projection: Projection, ridge: float | None, fade: float) -> None:
        """Start with empty sums."""
        self.projection, self.fade = projection, fade
        sizes = projection.n_hidden, projection.n_inputs
        self.own = Sums(*sizes, projection.quantum, for_kernel=True)
        self.floor = projection.quantum / 12.0  # the loss that rounding to the grid alone makes
        self.others: Stats | None = None
        self.frame = 1.0
        self.learnt = 0  # samples since this object was made
        self._ridge = ridge
        self._cache: Cache | None = None
        self._trace = 0.0

    @cached_property
    def room(self) -> Capacity:
        """What samples add to the largest sum at most."""
        return Capacity(self.projection)

    @property
    def others_count(self) -> float:
        """The number of samples that others have seen."""
        return self.others.count if self.others else 0.0

    @property
    def count(self) -> float:
        """The number of samples known, own and others', as they weigh now."""
        return self.own.count * self.frame + self.others_count

    @property
    def on_own_scale(self) -> bool:
        """Whether own samples alone determine what is usual: others count for B only."""
        return self.others is not None and bool(self.sets_scale(self.own.count * self.frame))

    @property
    def enough(self) -> float:
        """The number of samples from which a readout can be trusted."""
        return READY_SAMPLES_PER_HIDDEN * self.projection.n_hidden

    def sets_scale(self, count: Any) -> Any:
        """Return whether so many own samples are enough for that, for each entry."""
        return count >= self.enough

    @property
    def steps_left(self) -> int:
        """The samples that can be learnt until P is solved afresh; at least one after it was."""
        taken = 0 if self._cache is None else self._cache.steps
        if self.fade == 1.0:
            return MAX_STEPS - taken
        least = 1.0 - MAX_DRIFT if self.others else LEAST_FRAME
        # what is a whole number may be a little less after many products
        left = int(log(least / self.frame, self.fade) + 1e-9)
        return min(MAX_STEPS - taken, max(left, 1 - taken))

    @property
    def is_due(self) -> bool:
        """Whether P is solved afresh before the next score."""
        return self._cache is not None and self.steps_left < 1

    @property
    def is_solved(self) -> bool:
        """Whether P is at hand, so that following it is cheaper than solving it again."""
        return self._cache is not None

    def adopt(self, others: Stats) -> None:
        """Replace the sums of others, which must fit together with our own."""
        others.must_be_compatible(self.projection, self.projection.n_inputs)
        must_fit(self.own.largest() * self.frame + others.largest, self.own.quantum)
        self.rest()
        self.others = others if others.count else None
        self.ceiling = NO_CEILING
        self.invalidate()

    def rest(self) -> None:
        """Bring own sums into the frame in which they are shared, on the grid."""
        if self.frame != 1.0:
            self._begin_frame(1.0)

    def _begin_frame(self, frame: float) -> None:
        """Bring own sums into a frame, on the grid."""
        self.own.settle(self.frame / frame)
        self.frame, self._cache = frame, None

    def snapshot(self, rows: Sequence[Array]) -> Stats:
        """Return own sums as `rest` would leave them, with rows to be learnt; change nothing."""
        if self.frame == 1.0 and not rows:
            return Stats.snapshot(self.projection, self.own)
        copy, own = Model(self.projection, self._ridge, self.fade), self.own
        copy.own = Sums.from_arrays(own.U, own.V, own.C, own.S, own.count, own.quantum)
        copy.frame = self.frame
        if rows:
            learn_rows(copy, np.array(rows))
        copy.rest()
        return Stats.snapshot(self.projection, copy.own)

    def progress(self) -> Array:
        """Return what was updated since P was last solved, as one vector; empty if it is not."""
        cache, own, lower = self._cache, self.own, np.tri(self.projection.n_hidden, dtype=np.bool_)
        if cache is None:
            return np.empty(0)
        fit = (nan, nan) if cache.fit is None else cache.fit.numbers
        numbers = cache.steps, cache.ridge, cache.trace, *fit, self._trace
        vector = [np.array(numbers), cache.P[lower]]
        if self.frame != 1.0:  # then the sums are not on the grid, as Stats are
            vector += [np.array([self.frame, own.count]), own.U[lower], own.V.ravel(), own.C, own.S]
        vector += [OWN_SCALE] if self.on_own_scale else []
        return np.concatenate(vector)

    def resume(self, progress: Array) -> None:
        """Continue from what `progress` returned, with own and others as they were then."""
        N, n = self.projection.n_hidden, self.projection.n_inputs
        lower, at = np.tri(N, dtype=np.bool_), np.cumsum([6, N * (N + 1) // 2])
        more = np.cumsum([at[1], 2, N * (N + 1) // 2, N * n, n, n])
        own_scale = len(progress) - len(OWN_SCALE) in (at[1], more[-1])
        progress = progress[: len(progress) - len(OWN_SCALE)] if own_scale else progress
        if len(progress) not in (at[1], more[-1]):
            raise FormatError(
                f"found {len(progress)} numbers for P, expected {at[1]} or {more[-1]}: "
                "they belong to another projection"
            )
        steps, ridge, trace, first, second, self._trace = progress[: at[0]].tolist()
        P = np.zeros((N, N), order="F")
        P[lower] = progress[at[0] : at[1]]
        kind = OwnFit if own_scale else Fit
        fit = None if isnan(first) else kind(first, second)
        if len(progress) > at[1]:
            (frame, count), packed, V, C, S = np.split(progress[: more[-1]], more[:-1])[1:]
            U = np.zeros((N, N))
            U[lower] = packed
            sums = U, V.reshape(N, n), C, S, float(count), self.own.quantum
            self.own = Sums.from_arrays(*sums, for_kernel=True)
            self.frame = float(frame)
        self._cache = Cache.resume(P, ridge, trace, fit, int(steps))
        if own_scale != self.on_own_scale:  # written before there was an own scale
            self.rest()
            self.invalidate()

    def cache(self) -> Cache:
        """Return P, solved or followed up to the last sample."""
        if self._cache is None or self.is_due:
            self._cache = self._solved(self._cache)
        return self._cache

    def _solved(self, old: Cache | None) -> Cache:
        if old is not None and self.fade != 1.0 and self.others:
            # others weigh more first and less later, so that on the whole they do not fade
            self._begin_frame(1.0 + MAX_DRIFT)
        else:
            self.rest()
        U = self.own.U  # its lower triangle, which is all that a factor needs
        more = self.others.U.T if self.others else np.zeros((1, 1))
        trace = U.trace() if self.on_own_scale else U.trace() + more.trace()
        self._trace = float(trace) * self.frame
        new = Cache(U, self.ridge(0.0), more)
        if old is not None and self.fade == 1.0 and old.ridge == new.ridge:
            new.fit = old.fit  # still exact, and expensive to compute
        return new

    def ridge(self, more: float) -> float:
        """Return the ridge for what sets the scale, or for a U with a trace larger by `more`."""
        if self._ridge is None:
            return ridge_for(self.projection, self._trace + more, small=self.small_ridge)
        return self._ridge

    def take_small_ridge(self, *, on: bool) -> None:
        """Take the small ridge from now on, or the default one of the activation."""
        before, self.small_ridge = self.ridge(0.0), on
        if self.ridge(0.0) != before:
            self.invalidate()

    def fit(self) -> Fit | OwnFit:
        """Return how well everything known is fitted, or own samples if they set the scale."""
        cache, own, others = self.cache(), self.own, self.others
        if cache.fit is None and others and self.on_own_scale:
            cache.fit = cache.own_fit_to(own.V, own.U, own.S, others.V)
        elif cache.fit is None:
            V = own.V + others.V if others else own.V
            cache.fit = cache.fit_to(V, own.S + others.S if others else own.S)
        return cache.fit

    def level(self) -> Level:
        """Return the level of loss that is usual now."""
        cache = self.cache()
        return self.level_of(self.fit(), cache.trace, self.own.count, self.frame)

    def level_of(
        self, fit: Fit | OwnFit, trace: Any, own: Any, frame: Any, **options: Any
    ) -> Level:
        """Return the level for a fit, with tr(P), own samples and frame as they are with it."""
        n, ridge = self.projection.n_inputs, self.cache().ridge
        constants = self.floor, self.projection.rule.loss_share
        if isinstance(fit, OwnFit):
            count = effective_count(own * frame, 0.0, self.fade)
            return Level(fit.squares / n, fit.freedom, own, count, *constants, **options)
        freedom = self.projection.n_hidden - ridge * trace  # M11
        count = effective_count(own * frame, self.others_count, self.fade)
        weight = own + self.others_count
        loss, ceiling = fit.loss(ridge) / n, self.ceiling
        return Level(loss, freedom, weight, count, *constants, ceiling=ceiling, **options)

    def look(self, X: Array, H: Array) -> Look:
        """Look at one sample (n,) or rows (k, n) without learning them."""
        HP = self.cache().gains(H)
        errors = X - self.times_V(HP)  # hB is (hP)V, since B = PV: B need not exist
        if X.ndim == 1:
            return Look(H, HP, errors, float(errors.dot(errors)), float(H.dot(HP)))
        squares = np.einsum("ij,ij->i", errors, errors)
        return Look(H, HP, errors, squares, np.einsum("ij,ij->i", H, HP))

    def times_V(self, G: Array) -> Array:
        """Return GV, with V of everything known."""
        Y: Array = G @ self.own.V  # `dot` would copy a V whose rows are apart
        if self.others:
            # without gaps, also after `_padded`: BLAS rounds by the distance of rows
            Y += G @ np.ascontiguousarray(self.others.V)
        return Y

    def judge(self, X: Array, H: Array) -> tuple[Look, Any]:
        """Look at one sample (n,) or rows (k, n), and score them: a float or (k,)."""
        level = self.level()  # solves P: products with its factor instead have other last bits
        look = self.look(X, H)
        loss = look.squares / self.projection.n_inputs  # M9
        return look, level.score(loss, look.leverage / self.frame)

    def start(self) -> Any:
        """Solve if it is due, and return a kernel's run that continues from here, if there is one.

        The run changes the sums and P in place; `follow` takes the numbers that it counted.
        """
        if kernel.Run is None:
            return None
        fit, cache, own, layer = self.fit(), self.cache(), self.own, self.projection.compiled
        P, left = cache.P, self.steps_left
        numbers = (
            *layer[-1],
            *(self.fade, self.frame, own.count, *own.room, self.others_count),
            *(self._trace, self._largest_trace(cache.ridge), cache.ridge, cache.trace),
            *(*fit.numbers, float(isinstance(fit, OwnFit)), self.enough, float(left)),
            *(self.floor, self.projection.rule.loss_share, *self.ceiling, *self.room.bounds),
        )
        others_V = None if self.others is None else self._padded(self.others).V
        return kernel.Run(*layer[:-1], own.U, own.V, own.C, own.S, P, others_V, numbers)

    def _padded(self, others: Stats) -> Stats:
        """Return the sums of others; from the second call on, each row of V at a cache line."""
        if self._last_others is not others:
            self._last_others, self._is_padded = others, False
            if is_plain(others.V):
                return others  # worth a copy only if they stay for a while
        if not self._is_padded:
            V = aligned_empty(*others.V.shape, pad=True)
            V[:] = others.V
            others = self.others = self._last_others = replace(others, V=V)
            self._is_padded = True
        return others

    def follow(self, numbers: Sequence[float], learnt: int) -> None:
        """Take what a run returned: count, largest, frame, tr(U), tr(P) and the fit."""
        count, largest, self.frame, self._trace, trace, first, second = numbers
        self.own.follow(count, largest)
        self.learnt += learnt
        if self._cache is not None:
            self._cache.follow(trace, first, second, learnt)

    def _largest_trace(self, ridge: float) -> float:
        """Return the trace of U up to which `watch` surely keeps the cache."""
        if self.fade != 1.0:
            return inf
        if self.ridge(0.0) != ridge:
            return 0.0
        return inf if self._ridge is not None else largest_trace(self.projection, self._trace)

    def version(self) -> tuple[object, int]:
        """Return something that is different after anything was learnt or adopted."""
        return self._cache, self.learnt

    def invalidate(self) -> None:
        """Solve P afresh when it is next needed."""
        self._cache = None

    def watch(self, more: float) -> None:
        """Drop the cache when another ridge suits U, or when own samples now set the scale."""
        self._trace += more
        if self._cache is None:
            return
        ridge_changed = self.fade == 1.0 and self.ridge(0.0) != self._cache.ridge
        fit = self._cache.fit
        if ridge_changed or (fit and isinstance(fit, OwnFit) != self.on_own_scale):
            self._cache = None


def learn_one(known: Model, x: Array, look: Look) -> None:
    """Learn one sample, and follow P instead of solving it again."""
    cache, Ph = known.cache(), look.HP
    squares, more = float(Ph.dot(Ph)), float(look.H.dot(look.H))
    weight = 1.0 / (known.frame * known.fade)  # M8: U ← a²U + hᵀh, in the frame of the sums
    d = weight / (1.0 + weight * look.leverage)  # M4
    if isinstance(cache.fit, OwnFit):
        _follow_own_fit(known, cache.fit, look, d, weight)
    elif cache.fit is not None:  # M5, B + d(Ph)(t − hB), as seen by J and ‖B‖²
        across = float(known.times_V(cache.gains(Ph)).dot(look.errors))
        cache.fit.J += d * look.squares
        cache.fit.norm += d * (2.0 * across + d * squares * look.squares)
    known.own.add(look.H, x, weight, more)
    known.frame *= known.fade
    known.learnt += 1
    cache.take(Ph, d, squares)
    known.watch(more)


def _follow_own_fit(known: Model, fit: OwnFit, look: Look, d: float, weight: float) -> None:
    """Follow the fit to own samples when B becomes B + d(Ph)(t − hB), M5, and one is added."""
    Ph, own = look.HP, known.own
    UPh = np.asarray(blas.dsymv(1.0, own.U, Ph, lower=1))
    gap = Ph.dot(own.V) - known.times_V(known.cache().gains(UPh))  # hP(V − UB) of own samples
    bend, left = float(Ph.dot(UPh)), 1.0 - d * look.leverage
    fit.squares += d * (d * bend * look.squares - 2.0 * float(gap.dot(look.errors)))
    fit.squares += weight * left * left * look.squares
    fit.freedom += weight * left * look.leverage - d * bend


def learn_rows(known: Model, X: Array, H: Array | None = None) -> None:
    """Add rows to the sums alone: the fastest way if no score is needed in between."""
    if known.fade != 1.0 or len(X) > CHUNK_ROWS or not _add_in_place(known, X, H):
        _add_checked(known, X, H)
    known.learnt += len(X)
    known.invalidate()


def _add_in_place(known: Model, X: Array, H: Array | None) -> bool:
    """Add a few rows in place; return False if they might not fit."""
    H = known.projection.project(X) if H is None else H
    fits = known.own.fits(largest_of(float(np.vdot(H, H)), float(np.vdot(X, X)), float(len(X))))
    if fits:
        known.own.add_rows(H, X)
    return fits


def _add_checked(known: Model, X: Array, H: Array | None) -> None:
    """Sum rows up separately, check that they fit, and add the sum."""
    age = np.arange(len(X) - 1.0, -1.0, -1.0)
    fresh = sum_up(known.projection, X, X, None if known.fade == 1.0 else known.fade**age, H)
    known.own.must_hold(fresh)
    if known.fade != 1.0:
        known.own.settle(known.frame * known.fade ** len(X))  # M8
        known.frame = 1.0
    known.own.add_sums(fresh)


MAX_BUFFERED = 64  # samples
MAX_SINGLE_STEPS = 8  # samples up to which following P is cheaper than solving it


class SampleBuffer:
    """Buffers samples on the grid that are sure to fit into the sums."""

    def __init__(self, known: Model) -> None:
        """Buffer samples for a model."""
        self._known = known
        self._room = known.room
        self._rows: list[Array] = []
        self._load = 0.0  # at least what they add to the largest sum

    def __len__(self) -> int:
        """Count the buffered samples."""
        return len(self._rows)

    @property
    def rows(self) -> Sequence[Array]:
        """The buffered samples, oldest first."""
        return self._rows

    def push(self, x: Array) -> None:
        """Buffer one sample (n,), or learn it now if it might not fit later."""
        own, load = self._known.own, self._room.load(x)
        if len(self._rows) >= MAX_BUFFERED or not own.fits(self._load + load * self._next_weight):
            self.clear()
        if own.fits(load * self._next_weight):
            self._load += load * self._next_weight
            self._rows.append(x)
        else:
            learn_rows(self._known, x[None])

    @property
    def _next_weight(self) -> float:
        """What one more sample will weigh, in the frame of the sums."""
        faded = self._known.frame * self._known.fade ** (len(self._rows) + 1)  # M8
        return 1.0 / faded

    def must_fit(self, X: Array) -> None:
        """Raise CapacityError unless all rows (k, n) fit, before the first is learnt."""
        self._room.must_hold(self._known.own, X)
        if self._known.ridge(0.0) == 0.0:
            self._known.cache()  # raises SolveError if samples are too few

    def take(self) -> list[Array]:
        """Return the buffered samples, and forget them."""
        rows, self._rows, self._load = self._rows, [], 0.0
        return rows

    def clear(self) -> None:
        """Learn all buffered samples."""
        if not self._rows:
            return
        rows = self.take()
        if len(rows) > MAX_SINGLE_STEPS or not self._known.is_solved:
            learn_rows(self._known, np.array(rows))
        else:
            for x in rows:
                learn_one(self._known, x, self._known.look(x, self._known.projection.project(x)))


BLOCK_ROWS = 32  # where k × k work is still small against N × n
KERNEL_ROWS = 64  # given to the kernel at a time: other threads wait meanwhile


def learn_and_score_block(
    known: Model, X: Array, reject_above: float, ready: float
) -> tuple[Array, int]:
    """Score and learn the first rows of X; give their scores, and how many of them were rejected.

    Takes rows up to the first that is rejected, or to where P has to be solved afresh.
    """
    known.cache()  # solves if it is due
    X = X[: min(BLOCK_ROWS, known.steps_left)]
    H = known.projection.project(X)
    HP = known.cache().gains(H)
    weights = known.fade ** -np.arange(1.0, len(X) + 1) / known.frame  # M8
    errors = X - known.times_V(HP)
    seen = known.cache().preview(H, weights, errors, HP)
    fit = known.fit()
    if isinstance(fit, OwnFit):
        fits: Fit | OwnFit = _own_fits(known, fit, seen, Look(H, HP, errors, None, None))
    else:
        fits = _fits(known, fit, seen)
    levels = _levels(known, seen, fits)
    losses = np.einsum("ij,ij->i", seen.errors, seen.errors) / X.shape[1]
    scores = levels.score(losses, seen.leverage * weights * known.fade)
    frames = 1.0 / (weights * known.fade)  # before each row
    counts = _cumulative(known.own.count, weights)[:-1] * frames + known.others_count
    odd = (scores > reject_above) & (counts >= ready)
    end = _rows_until_new_scale(known, H, weights)
    k = _first_true(odd[:end])
    if k:
        _learn_block(known, seen, X[:k], H[:k], fits.at(k))
    return scores[: min(k + 1, end)], int(k < end)


def _fits(known: Model, start: Fit, seen: Preview) -> Fit:
    """Return the fit before each row, and after the last, (k + 1,)."""
    W, E = seen.W, seen.E
    WB = known.times_V(known.cache().gains(W.T))  # (k, m), with B as it is before the block
    WW, EE = W.T @ W, E @ E.T
    across = np.einsum("ij,ij->i", WB, E) + (np.tril(WW, -1) * np.tril(EE, -1)).sum(1)
    norm = 2.0 * across + np.diag(WW) * np.diag(EE)
    return Fit(_cumulative(start.J, np.diag(EE)), _cumulative(start.norm, norm))


def _own_fits(known: Model, start: OwnFit, seen: Preview, look: Look) -> OwnFit:
    """Return the fit to own samples before each row, and after the last, (k + 1,).

    Before row j, B has grown by WE of the rows before it, and these rows are own samples too.
    """
    W, E, own = seen.W, seen.E, known.own
    UW = np.asarray(blas.dsymm(1.0, own.U, W, lower=1))
    HW, WUW, EE, across = look.H @ W, W.T @ UW, E @ E.T, look.errors @ E.T
    gaps = W.T @ own.V - known.times_V(known.cache().gains(UW.T))  # Wᵀ(V − UB) of own samples
    lean = np.einsum("ij,ij->i", gaps, E)
    first = np.einsum("ij,ij->i", look.errors, look.errors)
    leverage = np.einsum("ij,ij->i", look.H, look.HP)
    squares, freedom = np.empty(len(E) + 1), np.empty(len(E) + 1)
    for j in range(len(E) + 1):
        A, grown, weights = HW[:j, :j], EE[:j, :j], seen.weights[:j]
        rows = first[:j] - 2.0 * (A * across[:j, :j]).sum(1) + (A @ grown * A).sum(1)
        squares[j] = (WUW[:j, :j] * grown).sum() - 2.0 * lean[:j].sum() + weights @ rows
        freedom[j] = weights @ (leverage[:j] - (A * A).sum(1)) - WUW.diagonal()[:j].sum()
    return OwnFit(start.squares + squares, start.freedom + freedom)


def _levels(known: Model, seen: Preview, fits: Fit | OwnFit) -> Level:
    trace = _cumulative(known.cache().trace, -np.einsum("ij,ij->j", seen.W, seen.W))[:-1]
    own = _cumulative(known.own.count, seen.weights)[:-1]
    frames = 1.0 / (seen.weights * known.fade)
    return known.level_of(fits.at(slice(-1)), trace, own, frames, largest=np.maximum)


def _cumulative(start: float, parts: Array) -> Array:
    return start + np.concatenate([[0.0], np.cumsum(parts)])


def _first_true(marks: Array) -> int:
    return int(np.argmax(marks)) if marks.any() else len(marks)


def _rows_until_new_scale(known: Model, H: Array, weights: Array) -> int:
    """Count the rows up to the first after which another ridge suits, or own samples suffice."""
    ends = len(H)
    if known.others and not known.on_own_scale:
        # after a row the frame is 1 / its weight
        enough = known.sets_scale((known.own.count + np.cumsum(weights)) / weights)
        ends = min(ends, _first_true(enough) + 1)
    if known.fade == 1.0:
        ridges = [known.ridge(more) for more in np.cumsum(np.einsum("ij,ij->i", H, H))]
        ends = min(ends, _first_true(np.array(ridges) != known.cache().ridge) + 1)
    return ends


def _learn_block(known: Model, seen: Preview, X: Array, H: Array, fit: Fit | OwnFit) -> None:
    k, cache = len(X), known.cache()
    known.own.add_rows(H, X, None if known.fade == 1.0 else seen.weights[:k])
    known.frame *= known.fade**k
    known.learnt += k
    cache.accept(seen.W[:, :k])
    cache.fit = fit
    known.watch(float(np.vdot(H, H)))


NORMAL = "normal"  # the pattern of a detector, and the first one of a bank


@dataclass(frozen=True, eq=False)
class Seen:
    """One sample as a learner saw it: what `look` returns, and `learn` and `explain` take.

    Args:
        projection: The projection that made the hidden values.
        row: The sample on the grid, (n,).
        hidden: Its hidden values, (N,).
        score: How unusual the sample is; 1 is typical, 4 means four times the usual squared error.
        pattern: The pattern that it belongs to; None if the bank has no pattern yet.
        errors: What a detector computed on the way, for `learn`; None if it must look again.
        version: What the detector had learnt then; `errors` are valid while that is the same. None
            (the default): never.

    >>> Detector(Projection(n_inputs=2, n_hidden=3)).look([0.1, 0.2]).score  # nothing learnt yet
    1.0
    """

    projection: Projection
    row: Array
    hidden: Array
    score: float
    pattern: str | None = None
    errors: Look | None = None
    version: tuple[object, int] | None = None

    def row_of(self, projection: Projection) -> Array:
        """Return the sample on the grid of a projection, (n,).

        Args:
            projection: That of the learner that uses it.

        Raises:
            MismatchError: Another projection made it.
        """
        projection.must_equal(self.projection)
        return self.row


@dataclass(frozen=True, eq=False)
class AdoptionPlan:
    """What adopting changes: all that takes long is done, applying it replaces sums.

    Args:
        others: The sums that peers add to a pattern of our own, by its name.
        foreign: The patterns that only peers have seen, by name.
        own: Our own patterns for which it was made, by name.
        compared: What was compared with these.
    """

    others: dict[str, Stats]
    foreign: dict[str, Detector] = field(default_factory=dict)
    own: dict[str, Profile] = field(default_factory=dict)
    compared: list[Compared] = field(default_factory=list)


class OneOrRows(Protocol):
    """The type of methods that return a float for one sample and (k,) for rows."""

    @overload
    def __call__(self, X: Sequence[float]) -> float: ...
    @overload
    def __call__(self, X: Sequence[Sequence[float]] | Sequence[Array]) -> Array: ...
    @overload
    def __call__(self, X: Samples) -> float | Array: ...


def one_or_rows(method: Callable[[Any, Samples], float | Array]) -> OneOrRows:
    """Give a method the type `OneOrRows`; it is returned as it is."""
    return cast(OneOrRows, method)


class Learner(Protocol):
    """What `Detector` and `Bank` have in common: look, learn, explain, share, adopt.

    >>> import numpy as np
    >>> def watch(learner: Learner, x: list[float]) -> float:
    ...     seen = learner.look(x)
    ...     learner.learn(seen)
    ...     return round(seen.score, 1)
    >>> pump = Detector(Projection(n_inputs=4, n_hidden=8, seed=7))
    >>> pump.learn(np.random.default_rng(0).normal(0.0, 0.1, (500, 4)))
    >>> watch(pump, [0.1, -0.1, 0.9, 0.1])
    32.3
    """

    projection: Projection
    grouped: bool  # whether patterns of others are compared and kept apart; else summed up

    @property
    def max_compared(self) -> int | None:
        """How many patterns of others are compared; None if they are summed up."""
        ...

    @property
    def options(self) -> dict[str, Any]:
        """The settings of the constructor."""
        ...

    @property
    def detectors(self) -> Mapping[str, Detector]:
        """The detector of each pattern, by name."""
        ...

    @property
    def buffered(self) -> int:
        """The samples that were given to `learn` and are not in any sum yet."""
        ...

    def look(self, x: Samples) -> Seen:
        """Project and score one sample without learning it.

        Args:
            x: The sample, (n,).
        """
        ...

    def learn(self, X: Samples | Seen) -> None:
        """Learn samples.

        Args:
            X: What `look` returned, one sample (n,) or rows (k, n).
        """
        ...

    @one_or_rows
    def score(self, X: Samples) -> float | Array:
        """Return how unusual samples are: a float for one sample, (k,) for rows.

        Args:
            X: One sample (n,) or rows (k, n).
        """
        ...

    @one_or_rows
    def learn_and_score(self, X: Samples) -> float | Array:
        """Score samples, then learn them: a float for one sample, (k,) for rows.

        Args:
            X: One sample (n,) or rows (k, n).
        """
        ...

    def explain(self, X: Samples | Seen) -> Array:
        """Return how far each input is from what the other inputs say; 1 or less is usual.

        Args:
            X: What `look` returned, one sample (n,) or rows (k, n).
        """
        ...

    def explain_by_name(self, x: Samples | Seen, *, most: int = 3) -> dict[str, float]:
        """Return the inputs that explain a sample best, by name, the largest first.

        Args:
            x: What `look` returned, or one sample (n,).
            most: The number of inputs, 3 unless given.
        """
        ...

    def share(self, device: str, *, revision: int, incarnation: int = 0) -> list[Contribution]:
        """Return what this device saw itself, one contribution per pattern.

        Args:
            device: The name of this device, the same each time.
            revision: A number that grows from one contribution to the next; the newest wins.
            incarnation: Which life of the device this is, 0 unless given.
        """
        ...

    def adopt(self, merged: Merged | Stats) -> None:
        """Replace what the others have seen; adopting twice is the same as once.

        Args:
            merged: What an exchange returned, or the stats of one pattern.
        """
        ...

    def plan(self, merged: Merged, checkpoint: Callable[[], object] = bool) -> AdoptionPlan:
        """Do what takes long of `adopt`, and change nothing: for another thread, with a copy.

        Args:
            merged: What an exchange returned.
            checkpoint: Called between comparisons; it may pause the work, or raise to end it. By
                default nothing is called.
        """
        ...

    def holds(self, plan: AdoptionPlan) -> bool:
        """Return whether planning anew would change the same; else plan again.

        Args:
            plan: What `plan` returned, of this learner or of a copy.
        """
        ...

    def apply(self, plan: AdoptionPlan) -> None:
        """Replace what the others have seen by what was planned; a plan can be applied once.

        Args:
            plan: What `plan` returned, of this learner or of a copy. It must hold.
        """
        ...

    def copy_own(self) -> Learner:
        """Return a copy of what this device saw and adopted, to plan and to check with."""
        ...


class Detector:
    """Learns what is normal, and scores how unusual a sample is: 1 is typical.

    A score of 4 means four times the usual squared error. A detector satisfies `Learner`, as
    `Bank` does.

    >>> import numpy as np
    >>> pump = Detector(Projection(n_inputs=4, n_hidden=8, seed=7))
    >>> pump.learn(np.random.default_rng(0).normal(0.0, 0.1, (500, 4)))
    >>> round(pump.score([0.1, -0.1, 0.0, 0.1]), 1), round(pump.score([0.1, -0.1, 0.9, 0.1]), 1)
    (0.5, 32.3)
    """

    grouped, max_compared = False, None  # what others saw is summed up, and nothing compared
    supervised = False  # a monitor decides what is learnt: nothing is rejected here
    _run: Any = None  # the kernel at work; then `known` and `_waiting` lag behind it

    def __init__(
        self,
        projection: Projection,
        *,
        ridge: float | None = None,
        forgetting: float = 1.0,
        reject_above: float | None = None,
    ) -> None:
        """Start with nothing learnt and nothing adopted.

        Args:
            projection: The hidden layer. Devices that merge must build the same one.
            ridge: ρ, added to the diagonal of U where P is solved. None (the default) chooses it
                from the data; give a number to reproduce the paper, 0 for no ridge at all.
            forgetting: After each new sample the older ones weigh `forgetting`² times what they
                did, from 0.5 to 1. 1 (the default) keeps all; 0.999 follows slow drift.
            reject_above: Do not learn samples that score above this, once the detector is
                `ready`. None (the default) or math.inf learns every sample. Stay well above the
                scores of normal samples (8 with few inputs), or their tail is cut off.

        Raises:
            SettingError: A setting is out of range.
        """
        must_be(projection, Projection, "build one that all devices share")
        ridge, forgetting, reject_above = learning_settings(ridge, forgetting, reject_above)
        self.projection = projection
        settings = {"ridge": ridge, "forgetting": forgetting, "reject_above": reject_above}
        self.__dict__ |= settings
        self.rejected = 0
        known = Model(projection, ridge, forgetting**2)
        self.__dict__ |= {"known": known, "_waiting": SampleBuffer(known)}

    @classmethod
    def resume(
        cls, own: Stats, others: Stats | None = None, *, rejected: int = 0, **settings: Any
    ) -> Self:
        """Return a detector that continues from sums.

        Args:
            own: What this device saw itself.
            others: What it adopted; None (the default) means nothing.
            rejected: The samples rejected so far, 0 unless given.
            settings: The settings of the constructor: ridge, forgetting, reject_above.
        """
        must_be(own, Stats, "give the sums of the samples that this device saw itself")
        own.must_be_compatible(own.projection, own.projection.n_inputs)
        must_count(own)
        detector = cls(own.projection, **settings)
        detector.known.own = own.sums(for_kernel=True)
        detector.rejected = rejected
        if others is not None:
            detector.adopt(others)
        return detector

    @property
    def ridge(self) -> float | None:
        """The ridge that was given; build another detector, or `resume` one, to change it."""
        return cast("float | None", self.__dict__["ridge"])

    @property
    def forgetting(self) -> float:
        """How much old samples weigh after a new one; `resume` another detector to change it."""
        return cast(float, self.__dict__["forgetting"])

    @property
    def reject_above(self) -> float | None:
        """The score above which samples are not learnt; it may be set at any time."""
        return cast("float | None", self.__dict__["reject_above"])

    @reject_above.setter
    def reject_above(self, limit: float | None) -> None:
        self.__dict__["reject_above"] = learning_settings(None, 1.0, limit)[2]

    @property
    def known(self) -> Model:
        """The sums and their solution; what the kernel has learnt is in them."""
        return cast(Model, self._settled()["known"])

    @property
    def _waiting(self) -> SampleBuffer:
        return cast(SampleBuffer, self._settled()["_waiting"])

    @property
    def rejected(self) -> int:
        """The samples that were not learnt because they scored above `reject_above`."""
        return cast(int, self._settled()["rejected"])

    @rejected.setter
    def rejected(self, count: int) -> None:
        self._settled()["rejected"] = count

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled and copied: everything but the kernel's run."""
        return dict(self._settled())

    def __copy__(self) -> Self:
        """Copy the sums too: two detectors that learn into the same ones would spoil them."""
        return deepcopy(self)

    def _settled(self) -> dict[str, Any]:
        """Return the attributes; if the kernel is at work, end its run and take its numbers."""
        found = self.__dict__
        if (run := found.pop("_run", None)) is not None:
            row = np.empty(self.projection.n_inputs)
            *numbers, learnt, rejected, waits = run.settle(row)
            found["known"].follow(numbers, learnt)
            found["rejected"] += rejected
            if waits:
                found["_waiting"].push(row)
        return found

    def _start(self) -> Any:
        """Let the kernel go on from here, buffered samples first; None if NumPy must do it."""
        if kernel.Run is None or self._run is not None:
            return self._run
        known, waiting = self.known, self._waiting
        if len(waiting) > MAX_SINGLE_STEPS or not known.is_solved:
            waiting.clear()
        if not known.count:
            return None
        run = known.start()  # raises before anything has changed
        rows, self._run = waiting.take(), run
        for i, row in enumerate(rows):
            taken = self._run.learn_row(row, None)
            if taken is None and self._again("learn_row", row, None) is None:
                for later in rows[i:]:
                    self._waiting.push(later)
                self._waiting.clear()
                return None
        return self._run

    def _again(self, method: str, *args: Any) -> Any:
        """Let the kernel try again while it declines only because P is due; else return None."""
        found = None
        while found is None and self._run is not None and self.known.is_due:
            run = self._start()
            found = None if run is None else getattr(run, method)(*args)
        return found

    def _ask(self, method: str, X: Samples, *args: Any) -> Any:
        """Let the kernel do what its run declined, or what came without one; None if it cannot.

        Whether there is a run, which a read ends, changes nothing but the time that it takes.
        """
        x = self.projection.to_array(X)
        if x.ndim != 1:  # rows
            return None
        at_work = self._run is not None
        run = self._start()
        if run is None:
            return None
        found = None if at_work and x is X else getattr(run, method)(x, *args)
        return self._again(method, x, *args) if found is None else found

    def _limit(self) -> float | None:
        """Return the score above which samples are not learnt; None means that all are."""
        return None if self.supervised else self.__dict__["reject_above"]

    @property
    def small_ridge(self) -> bool:
        """Whether the ridge is small, as a monitor may choose; it has no effect on a given one."""
        return self.known.small_ridge

    @small_ridge.setter
    def small_ridge(self, on: bool) -> None:
        self.known.take_small_ridge(on=on)

    @property
    def own(self) -> Stats:
        """What this device saw itself. Reading it changes no later score."""
        return self.known.snapshot(self._waiting.rows)

    @property
    def others(self) -> Stats:
        """What it adopted."""
        return self.known.others or Stats.empty(self.projection)

    @property
    def has_adopted(self) -> bool:
        """Whether it knows samples of others."""
        return cast(Model, self.__dict__["known"]).others is not None

    @property
    def count(self) -> float:
        """The number of samples known, own and others'; forgotten ones count less."""
        if self._run is not None:
            return cast(float, self._run.counts()[0])
        return self.known.count + len(self._waiting)

    @property
    def own_count(self) -> float:
        """The number of samples that this device saw itself; forgotten ones count less."""
        if self._run is not None:
            return cast(float, self._run.counts()[1])
        return self.known.own.count * self.known.frame + len(self._waiting)

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
        own = self.own
        return (own + self.others).solve(self._ridge_for(own))

    @property
    def options(self) -> dict[str, Any]:
        """The settings of the constructor."""
        return {name: getattr(self, name) for name in ("ridge", "forgetting", "reject_above")}

    @property
    def detectors(self) -> dict[str, Detector]:
        """This detector under the name of its one pattern, "normal"."""
        return {NORMAL: self}

    @property
    def buffered(self) -> int:
        """The samples that were given to `learn` and are not in the sums yet."""
        return len(self._waiting)

    def look(self, x: Samples) -> Seen:
        """Project and score one sample (n,) without learning it.

        Args:
            x: The sample, (n,).

        Returns:
            What `learn` and `explain` need, with the score. `learn(seen)` uses what was computed,
            unless something was learnt or adopted in between; then it looks again.

        Raises:
            SampleError: The sample has another size, or is not finite.
        """
        run, shared = self._run, self.projection
        row, h = np.empty(shared.n_inputs), np.empty(shared.n_hidden)
        score = None if run is None else run.look(x, row, h)
        score = self._ask("look", x, row, h) if score is None else score
        if score is not None:
            return Seen(shared, row, h, score, NORMAL)
        row = self.projection.to_one(x)
        self._waiting.clear()
        return self._look(row, self.projection.project(row))

    def learn(self, X: Samples | Seen) -> None:
        """Learn samples; without forgetting, how they are grouped changes no bit of the sums.

        Args:
            X: What `look` returned, one sample (n,) or rows (k, n).

        Raises:
            SampleError: A sample has another size, or is not finite; nothing is learnt.
            CapacityError: The sums could not hold the samples exactly; nothing is learnt.
        """
        if isinstance(X, Seen):
            self._learn_seen(X)
            return
        run, limit = self._run, self._limit()
        if limit is not None:
            if run is None or run.learn_and_score(X, limit) is None:
                self._learn_and_score(X)
        elif run is not None and (run.learn(X) or run.learn(self.projection.to_array(X))):
            return
        elif (rows := self.projection.to_grid(X)).ndim == 1:
            self._waiting.push(rows)
        else:
            self._waiting.clear()
            learn_rows(self.known, rows)

    def learn_rows(self, rows: Array) -> None:
        """Learn samples that are on the grid already; nothing is rejected.

        Args:
            rows: The samples on the grid, (k, n).
        """
        self._waiting.clear()
        learn_rows(self.known, rows)

    @one_or_rows
    def score(self, X: Samples) -> float | Array:
        """Return how unusual samples are; 1 is typical.

        Args:
            X: One sample (n,) or rows (k, n).

        Returns:
            A float for one sample, (k,) for rows.
        """
        run = self._run
        found: float | None = None if run is None else run.score(X)
        found = self._ask("score", X) if found is None else found
        if found is not None:
            return found
        rows = self.projection.to_grid(X)
        if rows.ndim == 1:
            self._waiting.clear()
            return self._look(rows, self.projection.project(rows)).score
        return self.score_rows(rows, self.projection.project(rows))

    def score_rows(self, rows: Array, H: Array) -> Array:
        """Score samples that are on the grid already, (k,).

        Args:
            rows: The samples on the grid, (k, n).
            H: Their hidden values, (k, N).
        """
        self._waiting.clear()
        return np.asarray(self.known.judge(rows, H)[1]) if self.known.count else np.ones(len(rows))

    @one_or_rows
    def loss(self, X: Samples) -> float | Array:
        """Return the paper's loss, the mean squared error over the inputs.

        Args:
            X: One sample (n,) or rows (k, n).

        Returns:
            A float for one sample, (k,) for rows.
        """
        found: float | None = self._kernel_loss(X) if self.forgetting == 1.0 else None
        if found is not None:
            return found
        rows = self.projection.to_grid(X)
        self._waiting.clear()
        squares = self.known.look(rows, self.projection.project(rows)).squares
        losses: float | Array = squares / self.projection.n_inputs  # M9
        return losses

    def _kernel_loss(self, X: Samples) -> float | None:
        """Return the loss of one sample by the kernel; None if NumPy must compute it.

        With forgetting NumPy does: it solves P at other times than a run, which rounds sums.
        A new run needs a level, too, which pays only where P stays.
        """
        run = self._run
        found: float | None = None if run is None else run.loss(X)
        if found is None and (run is not None or self.known.is_solved):
            found = self._ask("loss", X)
        return found

    @one_or_rows
    def learn_and_score(self, X: Samples) -> float | Array:
        """Score each sample, then learn it, before the next one is scored.

        Args:
            X: One sample (n,) or rows (k, n). Rows cost less than as many single samples.

        Returns:
            A float for one sample, (k,) for rows.
        """
        run, limit = self._run, self._limit()
        found: float | None = None if run is None else run.learn_and_score(X, limit)
        return self._learn_and_score(X) if found is None else found

    def _learn_and_score(self, X: Samples) -> float | Array:
        """Do what the kernel declined at first."""
        found: float | None = self._ask("learn_and_score", X, self._limit())
        if found is not None:
            return found
        rows = self.projection.to_grid(X)
        self._waiting.clear()
        if rows.ndim == 1 and self.known.count:
            seen = self._look(rows, self.projection.project(rows))
            self._learn_with_numpy(seen)
            return seen.score
        self._waiting.must_fit(np.atleast_2d(rows))
        scores = self._learn_and_score_rows(np.atleast_2d(rows), self._limit() or inf)
        return scores if rows.ndim == 2 else float(scores[0])

    def _learn_and_score_rows(self, rows: Array, limit: float) -> Array:
        """Score and learn rows, with the kernel up to where NumPy must decide something."""
        scores, done = np.ones(len(rows)), 0
        H, first = np.empty((0, self.projection.n_hidden)), 0  # of rows from `first` on
        if len(rows) and not self.known.count:  # without data nothing is unusual
            learn_rows(self.known, rows[:1])
            done = 1
        while done < len(rows):
            run, most = self._start(), len(rows)
            if run is not None:
                part = slice(done, min(done + KERNEL_ROWS, len(rows)))
                if part.stop > first + len(H):
                    H, first = self.projection.project(rows[done : done + CHUNK_ROWS]), done
                hidden = H[part.start - first : part.stop - first]
                learnt, leaves_U = run.learn_rows(rows[part], hidden, scores[part], limit)
                if leaves_U:
                    self._add_to_U(hidden[:learnt])
                done += learnt
                if done == part.stop:
                    continue
                if self.known.is_due:
                    continue
                most = done + 1
            block = rows[done:most]
            found, odd = learn_and_score_block(self.known, block, limit, self.known.enough)
            scores[done : done + len(found)] = found
            self.rejected, done = self.rejected + odd, done + len(found)
        return scores

    def _add_to_U(self, H: Array) -> None:
        """Add rows (k, N) to U alone, while the kernel is at work."""
        U = cast(Model, self.__dict__["known"]).own.U
        blas.dsyrk(1.0, H.T, 1.0, U, lower=1, overwrite_c=1)  # M2

    def explain(self, X: Samples | Seen) -> Array:
        """Return how far each input is from what the other inputs say; 1 or less is usual.

        This is the squared distance from the best estimate that the other inputs give, divided by
        its usual value (M12). An input that has moved is left out of the estimates of the others,
        so that they do not look odd because of it.

        Args:
            X: What `look` returned, one sample (n,) or rows (k, n), each explained by itself.

        Returns:
            (n,) for one sample, (k, n) for rows, in the order of the projection's inputs, also
            where samples with names come in another; ones while nothing is known.

        >>> pump = Detector(Projection(n_inputs=3, n_hidden=16, seed=7))
        >>> load = np.random.default_rng(0).uniform(-0.8, 0.8, (300, 1))
        >>> pump.learn(load * [1.0, 0.5, -1.0] + np.random.default_rng(1).normal(0, 0.02, (300, 3)))
        >>> pump.explain([0.4, 0.2, -0.1]).round()  # the third should be -0.4
        array([  0.,   0., 123.])
        """
        rows = X.row_of(self.projection) if isinstance(X, Seen) else self.projection.to_grid(X)
        return self.explain_each(np.atleast_2d(rows)).reshape(rows.shape)

    def explain_by_name(self, x: Samples | Seen, *, most: int = 3) -> dict[str, float]:
        """Return the inputs that explain a sample best, by name, the largest first.

        Args:
            x: What `look` returned, or one sample (n,).
            most: The number of inputs, 3 unless given.

        Returns:
            What `explain` returns for them. An input without a name has its number, "0" first.

        >>> shared = Projection(n_inputs=2, n_hidden=3, names=["heat", "noise"])
        >>> Detector(shared).explain_by_name({"noise": 0.1, "heat": 0.2})  # nothing learnt yet
        {'heat': 1.0, 'noise': 1.0}
        """
        row = x.row_of(self.projection) if isinstance(x, Seen) else self.projection.to_one(x)
        return largest_by_name(self.explain_together(row[None]), self.projection.names, most)

    def explain_each(self, rows: Array) -> Array:
        """Explain samples that are on the grid already, each by itself, (k, n).

        Args:
            rows: The samples on the grid, (k, n).
        """
        if not (self.count and len(rows)):
            return np.ones_like(rows)
        known = Covariance.of(self.own + self.others)
        return np.array([known.shares(row[None]) for row in rows])

    def explain_together(self, rows: Array) -> Array:
        """Return one explanation of samples that belong together, as in an alarm, (n,).

        Args:
            rows: The samples on the grid, (k, n).
        """
        return (
            Covariance.of(self.own + self.others).shares(rows)
            if self.count
            else np.ones(rows.shape[1])
        )

    def residuals(self, rows: Array, H: Array) -> Array:
        """Return x − hB in units of what is usual for each input, (k, n).

        Args:
            rows: The samples on the grid, (k, n).
            H: Their hidden values, (k, N).
        """
        if not self.count:
            return np.ones_like(rows)
        own = self.own
        known, level = own + self.others, self._level(own)
        readout = known.solve(self._ridge_for(own))
        scale = own if self._sets_scale(own) else known
        usual = np.maximum(scale.mean_losses(readout) / level.residual_share**2, level.floor)  # M11
        return np.asarray((rows - H @ readout.B) / np.sqrt(usual))

    def share(
        self, device: str, *, revision: int, incarnation: int = 0, pattern: str = NORMAL
    ) -> list[Contribution]:
        """Return what this device saw itself, for others to merge; nothing it adopted is in it.

        Args:
            device: The name of this device, the same each time.
            revision: A number that grows from one contribution to the next; the newest wins.
            incarnation: Which life of the device this is, 0 unless given. Use a new one when the
                device starts from nothing and what it shared earlier should stay.
            pattern: The name of the pattern, "normal" unless given.

        Returns:
            A list of one contribution, as a bank returns one per pattern.
        """
        return [Contribution(device, self.own, revision, pattern, incarnation)]

    def adopt(self, merged: Merged | Stats | Contribution | Iterable[Contribution]) -> None:
        """Replace what the others have seen; adopting twice is the same as once.

        Args:
            merged: What an exchange returned, the total of a ledger, stats, or contributions, as
                peers `share` them, which are added up.

        Raises:
            MismatchError: They were made with another projection.
            RejectedError: A contribution is of a fault.
            SettingError: A count is below 0.
        """
        if isinstance(merged, Stats):
            stats = merged
        elif isinstance(merged, Merged):
            stats = merged.total
        else:
            stats = self._total(merged)
        must_count(stats)
        self._waiting.clear()
        self.known.adopt(stats)

    def _total(self, given: Contribution | Iterable[Contribution]) -> Stats:
        """Return the sum of the newest contributions; a ledger may hold our own ones, too."""
        if isinstance(given, Ledger):
            raise KindError(
                "found Ledger, expected what others saw: give the total of a ledger, "
                "`ledger.total(without=...)` with the name of this device"
            )
        ledger = Ledger(self.projection)
        for each in contributions_in(given):
            ledger.put(each)
        return ledger.total()

    def plan(self, merged: Merged, checkpoint: Callable[[], object] = bool) -> AdoptionPlan:
        """Do what takes long of `adopt`, and change nothing: for another thread.

        Args:
            merged: What an exchange returned.
            checkpoint: Called before they are summed up; it may raise to end the work. By
                default nothing is called.

        Returns:
            What `apply` needs.

        Raises:
            MismatchError: It was made with another projection.
        """
        checkpoint()
        total = merged.total
        total.must_be_compatible(self.projection, self.projection.n_inputs)
        return AdoptionPlan({NORMAL: total})

    def holds(self, plan: AdoptionPlan) -> bool:
        """Return whether planning anew would change the same: always, as nothing is compared.

        Args:
            plan: What `plan` returned, of this detector or of a copy.
        """
        return plan.others.keys() == {NORMAL}

    def apply(self, plan: AdoptionPlan) -> None:
        """Replace what the others have seen by what was planned.

        Args:
            plan: What `plan` returned, of this detector or of a copy.

        Raises:
            CapacityError: The sums do not fit together; nothing has changed.
        """
        self.adopt(plan.others[NORMAL])

    def copy_own(self) -> Detector:
        """Return a detector with the same sums: it serves to plan and to check, not to go on."""
        return Detector.resume(self.own, self.others, **self.options)

    def with_own(self, own: Stats) -> Detector:
        """Return a detector like this one that saw other samples itself.

        Args:
            own: The sums of these samples.
        """
        settings = {"rejected": self.rejected, **self.options}
        found = Detector.resume(own, self.others, **settings)
        found.supervised, found.known.ceiling = self.supervised, self.known.ceiling
        found.small_ridge = self.small_ridge
        return found

    def without(self, stats: Stats) -> Detector:
        """Return a detector like this one that never saw these samples, to the last bit.

        Args:
            stats: The sums of samples that this device saw itself.

        Raises:
            SettingError: With forgetting they have faded since, and cannot be taken back exactly.
        """
        must_be(stats, Stats, "give the sums of these samples")
        if self.forgetting < 1.0:
            raise SettingError(
                f"found forgetting={self.forgetting}, expected 1 to take samples back: "
                "these fade by themselves; or relearn"
            )
        return self.with_own(self.own - stats)

    def restarted(self) -> Detector:
        """Return a detector that has seen nothing itself; what it adopted stays."""
        return Detector.resume(Stats.empty(self.projection), self.others, **self.options)

    def progress(self) -> Array:
        """Return P as updated since it was last solved, for `restore`; empty if it is not solved.

        Sums alone make a detector that scores the same to about nine digits. With this, scores
        are equal in their last bit.
        """
        return np.empty(0) if len(self._waiting) else self.known.progress()

    def restore(self, progress: Array) -> None:
        """Continue bit for bit from sums that were saved together with their `progress`.

        Args:
            progress: What `progress` returned; an empty array changes nothing.

        Raises:
            FormatError: It belongs to another projection.
        """
        if len(progress):
            self.known.resume(progress)

    def __repr__(self) -> str:
        """Show what is known."""
        others = self.known.others_count
        return f"Detector({self.count - others:g} samples of its own, {others:g} of others)"

    def _look(self, row: Array, h: Array) -> Seen:
        if not self.known.count:
            return Seen(self.projection, row, h, 1.0, NORMAL)
        look, score = self.known.judge(row, h)
        return Seen(self.projection, row, h, float(score), NORMAL, look, self.known.version())

    def _learn_seen(self, seen: Seen) -> None:
        if seen.projection is not self.projection:
            self.projection.must_equal(seen.projection)
        run = self._run or self._start()
        found = None if run is None else run.learn_row(seen.row, self._limit())
        found = self._again("learn_row", seen.row, self._limit()) if found is None else found
        if found is None:
            self._learn_with_numpy(seen)

    def _learn_with_numpy(self, seen: Seen) -> None:
        self._waiting.clear()
        if not self.known.count:
            self._waiting.must_fit(seen.row[None])
            learn_rows(self.known, seen.row[None], seen.hidden[None])
            return
        if seen.errors is None or seen.version != self.known.version():
            seen = self._look(seen.row, seen.hidden)
        if self._rejects(seen.score):
            self.rejected += 1
        elif seen.errors is not None:
            learn_one(self.known, seen.row, seen.errors)

    def _rejects(self, score: float) -> bool:
        limit = self._limit()
        return limit is not None and score > limit and self.ready

    def _sets_scale(self, own: Stats) -> bool:
        """Return whether own samples alone determine what is usual."""
        return self.known.others is None or bool(self.known.sets_scale(own.count))

    def _ridge_for(self, own: Stats) -> float:
        """Return the ridge that scores are computed with."""
        if self.ridge is not None:
            return self.ridge
        scale = own if self._sets_scale(own) else own + self.others
        return ridge_for(self.projection, float(np.trace(scale.U)), small=self.small_ridge)

    def _level(self, own: Stats) -> Level:
        """Return the usual loss; of a copy where learning `own` so far would change something."""
        if self.known.frame == 1.0 and not self._waiting:
            return self.known.level()
        return self.with_own(own).known.level()
