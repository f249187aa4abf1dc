"""The patterns of a bank from first to last: found, split, joined, retired, adopted from peers.

X (k, n) on the grid, H (k, N), weights (k,). A pattern is split when two readouts explain its last
samples better. Outliers among the first samples are found by their distance from most of the
others, before anything is learnt: a score cannot find them, since samples that were learnt look
normal, the more so the more alike they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil, inf, sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.detector import (
    NORMAL,
    READY_SAMPLES_PER_HIDDEN,
    AdoptionPlan,
    Detector,
    learn_rows,
)
from edgemerge.core.ledger import Contribution
from edgemerge.core.projection import TAIL_SHARE, Projection
from edgemerge.core.readout import NO_CEILING, Ceiling
from edgemerge.core.similarity import (
    SAME_FACTOR,
    Compared,
    Profile,
    distance,
    explains,
    group_to_limit,
    nearest_pair,
    smallest,
)
from edgemerge.core.stats import CHUNK_ROWS, Capacity, Stats, must_fit

EventKind = Literal["new", "split", "moved", "gone", "joined", "retired"]


@dataclass(frozen=True)
class Event:
    """A change of a pattern.

    Args:
        kind: "new": samples that no pattern explained form one. "split": in two, `other` is the
            new part. "moved": recent samples lie elsewhere than what was learnt. "gone": not seen
            for long. "joined": `other` was added to it. "retired": removed to make room.
        pattern: The name of the pattern.
        at: When, counted in samples that the bank has seen.
        other: The second pattern of a split or a join; otherwise "".
    """

    kind: EventKind
    pattern: str
    at: int
    other: str = ""


Array = NDArray[np.float64]


class RingBuffer:
    """Keeps the newest `capacity` rows (k, n); float32 holds every grid value exactly."""

    def __init__(self, capacity: int, n_inputs: int) -> None:
        """Start empty."""
        self._rows = np.zeros((capacity, n_inputs), dtype=np.float32)
        self.seen = 0

    def push(self, X: Array) -> None:
        """Add rows; they replace the oldest."""
        X = X[-self.capacity :]
        places = (self.seen + np.arange(len(X))) % self.capacity
        self._rows[places] = X
        self.seen += len(X)

    def restore(self, X: Array, seen: int) -> None:
        """Continue from the rows that were kept when this many had been seen."""
        self.seen = seen - len(X)
        self.push(X)

    @property
    def capacity(self) -> int:
        """How many rows are kept."""
        return len(self._rows)

    def clear(self) -> None:
        """Forget all rows."""
        self.seen = 0

    @property
    def full(self) -> bool:
        """Whether every place is taken."""
        return self.seen >= len(self._rows)

    def rows(self) -> Array:
        """Return the rows, oldest first."""
        start = self.seen % len(self._rows) if self.full else 0
        used = len(self._rows) if self.full else self.seen
        return np.roll(self._rows[:used], -start, axis=0).astype(np.float64)


Mask = NDArray[np.bool_]

MAX_ITERATIONS = 20


def two_means(X: Array) -> Mask:
    """Split samples by 2-means, started along their principal direction: deterministic."""
    centred = X - X.mean(0)
    along = centred @ _principal_direction(centred)
    second = along > np.median(along)
    for _ in range(MAX_ITERATIONS):
        if second.all() or not second.any():
            break
        near, far = X[~second].mean(0), X[second].mean(0)
        moved = ((X - far) ** 2).sum(1) < ((X - near) ** 2).sum(1)
        if np.array_equal(moved, second):
            break
        second = moved
    return np.asarray(second)


def _principal_direction(centred: Array) -> Array:
    k, n = centred.shape
    if n <= k:
        vector: Array = np.linalg.eigh(centred.T @ centred)[1][:, -1]
    else:
        vector = np.linalg.eigh(centred @ centred.T)[1][:, -1] @ centred
    # of the two signs always the same
    return np.asarray(vector * np.sign(vector[np.argmax(np.abs(vector))]))


OUTLIER_SHARE = 0.08  # of the samples that are left out: costs little where all are good
LOOK_ROWS = 128  # samples between two looks for outliers, from so many on
MIN_RANKED = 16  # samples whose ranks tell which are outliers
NEAR_SHARE = 0.2  # of the samples: those near a sample, more than outliers can be
GLITCH_WIDTHS = 1000.0  # so many beyond the tails of an input there are only glitches
NEAR_POINTS = 1024  # samples to which distances are measured
AXIS_ROUNDS = 3  # times that axes are taken from what is left
MIN_AXIS = 1e-3  # of the spread of all axes: the least unit of one
MAX_AXES = 1024  # inputs, beyond which finding axes takes too long


def rarity(X: Array, weights: Array) -> Array:
    """Sum up over the inputs −log of the share of samples that lie as far out or further, (k,)."""
    rare = np.zeros(len(X))
    for column in X.T:
        _, place = np.unique(column, return_inverse=True)
        mass = np.bincount(place, weights)
        below = np.cumsum(mass)
        beyond = np.minimum(below, below[-1] - below + mass) / below[-1]
        rare -= np.log(np.maximum(beyond, 1e-300))[place]
    return rare


def ranks(X: Array, weights: Array) -> Array:
    """Return the share of samples below each value, with half of those equal to it, (k, n).

    A glitch lies far beyond the outermost hundredths of its input, and at least the outermost
    sample on either side: its distance from them is added, in widths between them.
    """
    found = np.empty(X.shape)
    for i, column in enumerate(X.T):
        levels, place = np.unique(column, return_inverse=True)
        mass = np.bincount(place, weights)
        upto = np.cumsum(mass)
        tail = max(TAIL_SHARE * upto[-1], 1.0) * (1.0 + 1e-9)
        ends = np.searchsorted(upto, [tail, max(upto[-1] - tail, 0.0)])
        low, high = levels[np.minimum(ends, len(levels) - 1)]
        beyond = (levels - np.clip(levels, low, high)) / ((high - low) or np.inf)
        glitch = np.where(np.abs(beyond) > GLITCH_WIDTHS, beyond, 0.0)
        found[:, i] = ((upto - mass / 2.0) / upto[-1] + glitch)[place]
    return found


def remoteness(X: Array, weights: Array) -> Array:
    """Return the squared distance at which each sample has a fifth of all around it, (k,).

    Distances are those of ranks, whatever the units. A fifth is more than the outliers are, so
    that they cannot vouch for each other, however alike they are.
    """
    unlike, place = np.unique(ranks(X, weights), axis=0, return_inverse=True)
    upto = np.cumsum(np.bincount(place.ravel(), weights))
    middles = (np.arange(NEAR_POINTS) + 0.5) * (upto[-1] / NEAR_POINTS)
    points = unlike[np.searchsorted(upto, middles)]  # each stands for as many samples
    last, found = int(NEAR_SHARE * NEAR_POINTS), np.empty(len(unlike))
    for i in range(0, len(unlike), CHUNK_ROWS):
        part = unlike[i : i + CHUNK_ROWS]
        apart = (points**2).sum(1) - 2.0 * part @ points.T
        found[i : i + len(part)] = np.partition(apart, last, axis=1)[:, last] + (part**2).sum(1)
    return found[place.ravel()]


def inliers(
    X: Array, weights: Array | None = None, *, share: float = OUTLIER_SHARE
) -> NDArray[np.bool_]:
    """Mark the samples that are left when this share, the remotest, is left out, (k,)."""
    weights = np.ones(len(X)) if weights is None else weights
    far = remoteness(X, weights)
    return far <= upper_quantile(far, weights, share)


def common(X: Array) -> NDArray[np.bool_]:
    """Mark the samples that are left without those whose single inputs have the rarest values."""
    weights = np.ones(len(X))
    rare = rarity(X, weights)
    return rare <= upper_quantile(rare, weights, OUTLIER_SHARE)


def outlyingness(X: Array) -> Array:
    """Return squared distances from the middle, in units that `OUTLIER_SHARE` exceeds, (k,).

    The axes are those of the principal components, each in units of the median distance from its
    median: a fault that moves several inputs together is far out there, although each input alone
    has usual values. Axes and middle are taken from the samples that are left, three times. With
    more than 1024 inputs single ones have to do.
    """
    if X.shape[1] > MAX_AXES:
        return np.where(inliers(X, share=OUTLIER_SHARE), 0.0, 2.0)
    far, kept = np.zeros(len(X)), np.ones(len(X), np.bool_)
    for _ in range(AXIS_ROUNDS if len(X) > 1 else 0):
        variances, axes = np.linalg.eigh(np.cov(X[kept], rowvar=False).reshape(X.shape[1], -1))
        along = X @ axes
        along -= np.median(along[kept], axis=0)
        unit = np.median(np.abs(along[kept]), axis=0)
        far = ((along / np.maximum(unit, MIN_AXIS * sqrt(variances.sum() or 1.0))) ** 2).sum(1)
        far = far / upper_quantile(far, np.ones(len(X)), OUTLIER_SHARE)
        kept = far <= 1.0
    return far


def upper_quantile(values: Array, weights: Array, share: float) -> float:
    """Find a number above which lies this share of the weight, midway between two values."""
    seen = weights > 0.0  # float32: equal rows then have equal values, wherever they stand
    levels, place = np.unique(np.float32(values[seen]), return_inverse=True)
    mass = np.bincount(place, weights[seen])
    above = np.cumsum(mass[::-1])[::-1] - mass
    i = int(np.argmax(above <= share * mass.sum() * (1.0 + 1e-9)))
    return float(np.append(levels, levels[-1] + 1.0)[i : i + 2].mean(dtype=np.float64))


RECENT_SAMPLES = 64.0  # samples in the mean of the recent ones
ROWS_PER_HIDDEN = 6  # rows kept for each hidden value: enough to split them in two


class Pattern:
    """One pattern of normal; rows (k, n) are on the grid."""

    pinned = False  # approved by a person: neither split nor joined
    held = 0  # approved additions that may be taken back: not joined
    _run: tuple[Any, Any] | None = None  # a kernel that only scores, and what it was started from

    def __init__(self, detector: Detector, rows: Array) -> None:
        """Wrap a detector that has learnt these rows last."""
        p = detector.projection
        self.detector = detector
        self.ring = RingBuffer(ROWS_PER_HIDDEN * p.n_hidden, p.n_inputs)
        self.ring.push(rows)
        self.considered = 0  # ring.seen when a split was last considered
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
        return C / max(known.own.count + known.others_count, known.projection.quantum)  # M10

    def score(self, X: Array, H: Array) -> Array:
        """Score rows whose hidden values are at hand, (k,)."""
        known = self.detector.known
        if not known.count:
            return np.ones(len(X))
        if len(X) == 1 and (run := self._started()) is not None:
            found = run.score_row(X, H)
            if found is not None:
                return np.array([found])
        return np.asarray(known.judge(X, H)[1])

    def _started(self) -> Any:
        """Return a kernel's run for scores of what is known now; None if there is no kernel."""
        known = self.detector.known
        if self._run is None or self._run[1] != (known.version(), known.ceiling):
            run = known.start()
            self._run = run, (known.version(), known.ceiling)
        return self._run[0]

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled and copied: everything but the kernel's run."""
        return {name: each for name, each in self.__dict__.items() if name != "_run"}

    def loss(self, X: Array, H: Array) -> Array:
        """Return the loss of such rows, (k,)."""
        return np.asarray(self.detector.known.look(X, H).squares / X.shape[1])  # M9

    def learn(self, X: Array, H: Array, now: int) -> None:
        """Learn rows, and remember the last ones."""
        learn_rows(self.detector.known, X, H)
        self.ring.push(X)
        self.used_at, self.gone = now, False
        weight = 1.0 - (1.0 - 1.0 / RECENT_SAMPLES) ** len(X)
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


def free_name(stem: str, taken: Collection[str]) -> str:
    """Return the first of stem, stem-2, stem-3, ... that is not taken."""
    names = (stem if k == 1 else f"{stem}-{k}" for k in range(1, len(taken) + 2))
    return next(name for name in names if name not in taken)


MAX_EVENTS = 1000  # the newest are kept


@dataclass
class Patterns:
    """Everything of a bank that changes."""

    projection: Projection
    most: int
    reject_above: float
    settings: dict[str, Any]  # of each detector
    instances: dict[str, Pattern] = field(default_factory=dict)
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))
    clock: int = 0  # samples seen, learnt or not
    compared: int = 0  # the clock when patterns were last compared
    rejected: int = 0
    settled: bool = False  # whether there is enough to reject samples
    sifted: bool = False  # whether the outliers among the first rows were removed

    def __post_init__(self) -> None:
        """Make room for samples that nothing explains."""
        self.room = Capacity(self.projection)
        enough = ceil(READY_SAMPLES_PER_HIDDEN * self.projection.n_hidden)
        self.outsiders = RingBuffer(2 * enough, self.projection.n_inputs)
        self.odd: deque[bool] = deque(maxlen=2 * enough)  # which of the last samples were unusual
        self._outliers: tuple[int, Stats] | None = None  # among so many rows
        self._cleaned: tuple[int, Pattern] | None = None  # for so many rows

    def add(self, name: str, own: Stats, rows: Array) -> Pattern:
        """Add an instance that has learnt these rows last."""
        instance = Pattern(Detector.resume(own, **self.settings), rows)
        instance.used_at = self.clock
        if name in self.instances:
            old = self.instances[name]
            instance.pinned, instance.held = old.pinned, old.held
        self.instances[name] = instance
        return instance

    def free_name(self, stem: str) -> str:
        """Return the first of stem, stem-2, stem-3, ... that no instance has."""
        return free_name(stem, self.instances)

    def record(self, kind: EventKind, pattern: str, other: str = "") -> None:
        """Record an event."""
        self.events.append(Event(kind, pattern, self.clock, other))

    def scores(self, X: Array, H: Array) -> Array:
        """Return each instance's score of each row, (instances, k)."""
        first, *rest = self.instances.values()
        scored = (self._without_outliers(first), *rest)
        return np.array([instance.score(X, H) for instance in scored])

    def _without_outliers(self, first: Pattern) -> Pattern:
        """Return the first pattern without its outliers, while all its rows are at hand.

        This is for scores only: the sums keep the samples until there are enough to tell which
        ones to remove for good. Banks of other activations score as they always did.
        """
        seen = first.ring.seen
        if (
            self.sifted
            or self.reject_above == inf
            or self.projection.activation != "cosine"
            or seen < MIN_RANKED
            or first.detector.forgetting < 1.0
        ):
            return first
        if self._cleaned is None or self._cleaned[0] != seen:
            looked = seen - seen % LOOK_ROWS if seen > LOOK_ROWS else seen
            if self._outliers is None or self._outliers[0] != looked:
                rows = first.ring.rows()[:looked]
                out = Stats.of_rows(self.projection, rows[~self.inliers(rows)])
                self._outliers = looked, out
            own = first.detector.own - self._outliers[1]
            self._cleaned = seen, Pattern(first.detector.with_own(own), np.empty((0, own.C.size)))
        return self._cleaned[1]

    def inliers(self, rows: Array) -> NDArray[np.bool_]:
        """Mark the rows to keep, so that with those rejected before a fixed share is left out.

        Banks of other activations leave out the same rows as they always did.
        """
        if self.projection.activation != "cosine":
            return common(rows)
        missing = OUTLIER_SHARE * (self.rejected + len(rows)) - self.rejected
        return inliers(rows, share=max(missing, 0.0) / len(rows))

    def nearest(self, X: Array) -> NDArray[np.intp]:
        """Return the instance with the nearest centroid for each row, (k,)."""
        C = np.array([instance.centroid for instance in self.instances.values()])
        return np.asarray(((C**2).sum(1)[:, None] - 2.0 * C @ X.T).argmin(0))

    def must_fit(self, X: Array) -> None:
        """Raise CapacityError unless each pattern can hold all rows, before any is learnt."""
        for instance in self.instances.values():
            self.room.must_hold(instance.detector.known.own, X)

    def learn(self, X: Array, H: Array) -> None:
        """Learn a block: each row goes to the nearest pattern that explains it, or to none."""
        self.clock += len(X)
        if not self.instances:
            self.add(NORMAL, Stats.empty(self.projection), X[:0])
        home, odd = self._homes(X, H)
        for i, instance in enumerate(self.instances.values()):
            mine = (home == i) & ~odd
            if mine.any():
                instance.learn(X[mine], H[mine], self.clock)
        self.rejected += int(odd.sum())
        self.odd.extend(odd.tolist())
        self.outsiders.push(X[odd])

    def _homes(self, X: Array, H: Array) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Return the pattern of each row, and which rows belong to none."""
        nearest = self.nearest(X)
        if not self.settled or self.reject_above == inf:  # then no score is needed
            return nearest, np.zeros(len(X), np.bool_)
        scores = self.scores(X, H)
        explained = scores <= self.reject_above
        home = np.where(explained[nearest, np.arange(len(X))], nearest, scores.argmin(0))
        return home, np.logical_not(explained.any(0))


MIN_SPLIT_GAIN = 0.02  # two readouts must lower the noise by this share at least
MIN_SPLIT_SIGMAS = 3.0  # and by this many standard errors of the noise itself
MIN_ROWS_PER_HIDDEN = 1.0  # rows for each hidden value, in each part


def split_pattern(patterns: Patterns, name: str, instance: Pattern) -> None:
    """Split a pattern whose last rows two readouts explain better, and its parts likewise.

    Half of the places are left to new patterns.
    """
    if len(patterns.instances) >= (patterns.most + 1) // 2:
        return
    parts = _better_split(patterns.projection, instance.ring.rows())
    if parts is None:
        return
    child = patterns.free_name(name)
    _replace_by_two(patterns, name, child, *parts)
    patterns.record("split", name, child)
    for each in (name, child):
        split_pattern(patterns, each, patterns.instances[each])


def unexplained_loss(projection: Projection, rows: Array) -> tuple[float, float]:
    """Return the loss that no readout of this size explains, and how many residuals estimate it."""
    level = Profile.of(Stats.of_rows(projection, rows)).level
    share = level.residual_share
    return float(level.loss / share), float(level.count * share) * rows.shape[1]


def _better_split(projection: Projection, rows: Array) -> tuple[Array, Array] | None:
    least = MIN_ROWS_PER_HIDDEN * projection.n_hidden
    if len(rows) < 2 * least:
        return None
    second = two_means(rows)
    first, other = rows[~second], rows[second]
    if min(len(first), len(other)) < least:
        return None
    whole, residuals = unexplained_loss(projection, rows)
    sure = MIN_SPLIT_SIGMAS * sqrt(2.0 / residuals)  # the standard error of a variance
    apart = unexplained_loss(projection, first)[0] + unexplained_loss(projection, other)[0]
    gain = 1.0 - apart / whole
    return (first, other) if gain > max(MIN_SPLIT_GAIN, sure) else None


def _replace_by_two(patterns: Patterns, name: str, child: str, stays: Array, goes: Array) -> None:
    old = patterns.instances[name]
    moved = Stats.of_rows(patterns.projection, goes)
    exact = old.detector.forgetting == 1.0  # then the rows can be taken back to the last bit
    rest = old.detector.own - moved if exact else Stats.of_rows(patterns.projection, stays)
    patterns.add(name, rest, stays).detector.adopt(old.detector.others)
    patterns.add(child, moved, goes)


MAX_LOSS_SHARE = 0.5  # a new pattern must halve the loss of the samples that nothing explained
JOIN_INTERVAL = 2048  # samples between two looks for patterns that have become one
DRIFT_MOVED, DRIFT_BACK = 0.5, 0.25  # drift at which a pattern has moved, and at which it is back
# Samples for each hidden value, after which an unused pattern is gone.
IDLE_SAMPLES_PER_HIDDEN = 100


def maintain(patterns: Patterns) -> None:
    """Clean, split, add, join and retire patterns; called after each block."""
    _remove_first_outliers(patterns)
    for name, instance in list(patterns.instances.items()):
        due = instance.ring.seen - instance.considered >= instance.ring.capacity
        if due and not instance.pinned:
            instance.considered = instance.ring.seen
            split_pattern(patterns, name, instance)
    _find_new_pattern(patterns)
    if patterns.clock - patterns.compared >= JOIN_INTERVAL:
        patterns.compared = patterns.clock
        _join_most_similar(patterns)
    for name, instance in patterns.instances.items():
        _report_drift_and_absence(patterns, name, instance)


def _remove_first_outliers(patterns: Patterns) -> None:
    """Remove outliers among the first samples, as soon as there are enough.

    It is done twice, since ranks among more samples are better; nothing is split before.
    """
    if patterns.sifted:
        return
    name, first = next(iter(patterns.instances.items()))
    enough = first.ring.seen >= READY_SAMPLES_PER_HIDDEN * patterns.projection.n_hidden
    if first.ring.full or (enough and not patterns.settled):
        patterns.settled, patterns.sifted = True, first.ring.full
        rows = first.ring.rows()
        judged = patterns.reject_above < np.inf
        kept = patterns.inliers(rows) if judged else np.ones(len(rows), np.bool_)
        out = Stats.of_rows(patterns.projection, rows[~kept])
        own = first.detector.own - out if first.detector.forgetting == 1.0 else first.detector.own
        cleaned = patterns.add(name, own, rows[kept])
        cleaned.detector.adopt(first.detector.others)
        cleaned.considered = first.considered
        patterns.rejected += int((~kept).sum())


def _find_new_pattern(patterns: Patterns) -> None:
    """Add a pattern when most of the last samples are odd, but consistent with each other."""
    odd = sum(patterns.odd)
    if odd < READY_SAMPLES_PER_HIDDEN * patterns.projection.n_hidden or 2 * odd < len(patterns.odd):
        return
    rows = patterns.outsiders.rows()[-odd:]
    H = patterns.projection.project(rows)
    losses = np.min([i.loss(rows, H) for i in patterns.instances.values()], axis=0)
    usual = Profile.of(Stats.of_rows(patterns.projection, rows)).usual_loss
    if usual >= MAX_LOSS_SHARE * losses.mean() or not _make_room(patterns):
        return
    name = patterns.free_name(NORMAL)
    patterns.add(name, Stats.of_rows(patterns.projection, rows), rows)
    patterns.record("new", name)
    patterns.odd.clear()
    patterns.outsiders.clear()


def _make_room(patterns: Patterns) -> bool:
    """Make room: join patterns that became alike, retire one that is gone, or join the closest."""
    if _is_full(patterns):
        _join_most_similar(patterns)
    if _is_full(patterns):
        _retire(patterns)
    if _is_full(patterns):
        _join_most_similar(patterns, np.inf)
    return not _is_full(patterns)


def _is_full(patterns: Patterns) -> bool:
    return len(patterns.instances) >= patterns.most


def _join_most_similar(patterns: Patterns, limit: float = SAME_FACTOR) -> None:
    """Add the two patterns most alike into one, if each explains the other's data well enough."""
    free = {name: i for name, i in patterns.instances.items() if not i.pinned and not i.held}
    profiles = {name: Profile.of(i.total) for name, i in free.items()}
    pair = nearest_pair(profiles, limit)
    if pair:
        a, b = pair
        kept, gone = patterns.instances[a], patterns.instances.pop(b)
        rows = np.vstack([gone.ring.rows(), kept.ring.rows()])
        both = patterns.add(a, kept.detector.own + gone.detector.own, rows)
        both.detector.adopt(kept.detector.others + gone.detector.others)
        both.detector.known.ceiling = kept.detector.known.ceiling.below(gone.detector.known.ceiling)
        both.considered = both.ring.seen
        patterns.record("joined", a, b)


def _retire(patterns: Patterns) -> None:
    """Drop the pattern that was not seen for longest, if it is gone."""
    name, oldest = min(patterns.instances.items(), key=lambda item: item[1].used_at)
    if oldest.gone:
        del patterns.instances[name]
        patterns.record("retired", name)


def _report_drift_and_absence(patterns: Patterns, name: str, instance: Pattern) -> None:
    if not instance.moved and instance.drift > DRIFT_MOVED:
        instance.moved = True
        patterns.record("moved", name)
    elif instance.drift < DRIFT_BACK:
        instance.moved = False
    idle = patterns.clock - instance.used_at
    if not instance.gone and idle > IDLE_SAMPLES_PER_HIDDEN * patterns.projection.n_hidden:
        instance.gone = True
        patterns.record("gone", name)


MAX_NAME_LENGTH = 190  # characters of a name, which leaves room for a number behind it
MAX_ADOPTED_PER_OWN = 4  # foreign patterns kept for each that we may have ourselves


def plan_adoption(
    patterns: Patterns,
    contributions: Iterable[Contribution],
    checkpoint: Callable[[], object] = bool,
) -> AdoptionPlan:
    """Decide which sums of peers belong to which pattern; nothing is adopted.

    Args:
        patterns: The bank's, or a copy of those that have own samples; it is not changed.
        contributions: What peers have seen.
        checkpoint: Called between comparisons; it may pause the work, or raise to end it.
    """
    groups = group_to_limit(contributions, max_adopted(patterns.most), checkpoint=checkpoint)
    own = {name: Profile.of(each.detector.own) for name, each in _own(patterns).items()}
    nothing, plan = Stats.empty(patterns.projection), AdoptionPlan({}, own=own)
    for found in groups:
        checkpoint()
        one = Profile.of(found.stats)
        plan.compared.append(Compared(one, _distances(own, one)))
        match = plan.compared[-1].match
        if match is not None:
            plan.others[match] = plan.others.get(match, nothing) + found.stats
            continue
        first = found.members[0]
        stem = f"{first.device}/{first.pattern}"[:MAX_NAME_LENGTH]
        detector = Detector.resume(nothing, found.stats, **patterns.settings)
        detector.known.ceiling = level_ceiling(one, own.values())
        plan.foreign[free_name(stem, {*own, *plan.foreign})] = detector
    return plan


def level_ceiling(foreign: Profile, own: Iterable[Profile]) -> Ceiling:
    """Return what others may claim to be usual for a pattern, at most.

    Of samples such as this device sees itself it knows what is usual: what explains them may claim
    no more than they have, on average. Noise in a peer's sums raises the usual loss and makes all
    directions usual, and would explain everything.

    Args:
        foreign: What others saw of the pattern.
        own: The patterns of this device.
    """
    known = [mine for mine in own if mine.known and explains(foreign, mine)]
    count = sum(mine.stats.count for mine in known)
    if not count:
        return NO_CEILING
    losses = sum(mine.stats.count * mine.usual_loss for mine in known)
    leverages = sum(float(np.vdot(mine.stats.U, foreign.readout.P)) for mine in known)
    return Ceiling(losses / count, leverages / count)


def plan_holds(patterns: Patterns, plan: AdoptionPlan) -> bool:
    """Return whether planning anew would change the same: patterns may have learnt meanwhile.

    Only patterns whose sums have changed are compared again.
    """
    own = _own(patterns)
    if own.keys() != plan.own.keys():
        return False
    now = {name: each.detector.own for name, each in own.items()}
    new = {name: Profile.of(mine) for name, mine in now.items() if mine != plan.own[name].stats}
    return all(
        each.match == smallest(each.distances | _distances(new, each.profile), SAME_FACTOR)
        for each in plan.compared
    )


def _distances(own: Mapping[str, Profile], one: Profile) -> dict[str, float]:
    return {name: distance(mine, one) for name, mine in own.items()}


def apply_plan(patterns: Patterns, plan: AdoptionPlan) -> None:
    """Replace what peers have seen; the plan must hold, and can be applied once.

    Raises:
        CapacityError: Own sums and those of peers do not fit together; nothing has changed.
    """
    own = _own(patterns)
    for name, others in plan.others.items():
        known = own[name].detector.known
        must_fit(known.own.largest() * known.frame + others.largest, known.own.quantum)
    nothing = Stats.empty(patterns.projection)
    for name, each in own.items():
        each.detector.adopt(plan.others.get(name, nothing))
    no_rows = np.empty((0, patterns.projection.n_inputs))
    foreign = {name: Pattern(detector, no_rows) for name, detector in plan.foreign.items()}
    for each in foreign.values():
        each.used_at = patterns.clock
    patterns.instances = {**own, **foreign}
    patterns.settled = patterns.settled or bool(plan.others or plan.foreign)


def max_adopted(most: int) -> int:
    """Return how many patterns of peers are kept by a bank that may find `most` itself."""
    return MAX_ADOPTED_PER_OWN * most


def _own(patterns: Patterns) -> dict[str, Pattern]:
    return {n: each for n, each in patterns.instances.items() if each.detector.known.own.count}
