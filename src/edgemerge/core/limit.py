"""When a score is an alarm: fixed limits, promised rates of false alarms, thresholds on the loss.

Single scores flicker, so an alarm follows the *alarm level* a of a stream of scores. With z the
k-th largest and m the largest of the last n scores (`votes` = (k, n)),

    a ← max(z, min(a, m)).

An episode at any limit is a run of samples with a > limit: it begins when k of the last n scores
are above the limit, and ends when n scores in a row are not. A step from a to a larger a' begins
an episode at exactly the limits in [a, a'), so one histogram of such steps tells, for every limit
at once, how many episodes it would have raised. Its counts are whole numbers that add.

`Calibration` promises a rate for single scores instead. It counts scores that fresh normal samples
would have: of samples scored before they were learnt, or with the sample taken out of the sums
again, which needs no second solution. A row h that is in U once has there the leverage d = hPhᵀ;
without it the error is e/(1 − d) and the leverage d/(1 − d). `Threshold` is for the paper's loss.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, inf, isfinite, isnan, log2
from re import fullmatch
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgemerge.core.detector import Detector
from edgemerge.core.errors import SampleError, SettingError, must_be
from edgemerge.core.projection import as_number
from edgemerge.core.readout import Readout
from edgemerge.core.similarity import fresh_loss
from edgemerge.core.stats import Stats

BINS_PER_OCTAVE = 32
LOWEST_OCTAVE, HIGHEST_OCTAVE = -6, 26  # levels outside are counted at the ends
BINS = BINS_PER_OCTAVE * (HIGHEST_OCTAVE - LOWEST_OCTAVE)
FIXED_LIMIT = 4.0  # four times the usual squared error
FIRST_RATE = 0.02  # of the samples of commissioning, held out: so many may be above the limit
# With few inputs a score is a mean of few squared errors, which is far from 1 more often. The mean
# of so many Gaussian squares exceeds these values as rarely as a mean of eight exceeds 6.
MAX_WITH_FEW_INPUTS = {1: 28.0, 2: 16.0, 3: 12.0}
RATE_WITH_FEW_INPUTS = 0.005
MIN_LIMIT = 3.0  # a promised limit is never lower: calm data would make it nervous
SETTLED = 8.0  # promised alarms' worth of samples after which a promised limit is settled
MAX_RISE = 1.5  # a promised limit is at most so many times the first one, and the settled one
RENEW_EVERY = 64  # counted samples
GENERATION = 16  # promised alarms' worth of samples after which older counts are let go
SHORT_EPISODE = 30  # samples; longer episodes may be faults, and are not counted as false
SECONDS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0, "week": 604800.0}

SECONDS |= {"month": 2629746.0, "year": 31556952.0}
SHORT_UNITS = {"h": "hour", "d": "day", "w": "week", "y": "year"}

NUMBER = r"\d+(?:\.\d*)?|\.\d+"
Array = NDArray[np.float64]
Unit = Literal["sample", "episode"]


def seconds_of(text: str) -> float | None:
    """Return the seconds of a time such as "2 hours" or "90d"; None if it is no time.

    >>> seconds_of("2 hours"), seconds_of("1.5 minutes"), seconds_of("90d"), seconds_of("soon")
    (7200.0, 90.0, 7776000.0, None)
    """
    found = fullmatch(rf"\s*({NUMBER})\s*([a-z]+?)s?\s*", text.lower())
    unit = SHORT_UNITS.get(found[2], found[2]) if found else ""
    return float(found[1]) * SECONDS[unit] if found and unit in SECONDS else None


def must_be_rate(rate: float, asked: object = None) -> float:
    """Return a promised rate of false alarms, or raise SettingError with what was asked for."""
    if not 0.0 < as_number("false_alarms", rate, "a rate") < 1.0:
        found = rate if asked is None else asked
        raise SettingError(f"found false_alarms={found!r}, expected a rate between 0 and 1")
    return float(rate)


class AlarmLevel:
    """The alarm level of a stream of scores, and whether it is above a limit.

    >>> level = AlarmLevel((3, 5))
    >>> [level.update(score) for score in (1, 9, 1, 9, 9, 1, 1, 9, 1, 1, 1, 1, 1)]
    [0.0, 0.0, 1.0, 1.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 1.0]
    """

    def __init__(self, votes: tuple[int, int] = (3, 5)) -> None:
        """Raise the level when k of the last n scores are high; lower it after n low ones."""
        if not _is_pair(votes) or not 1 <= votes[0] <= votes[1]:
            raise SettingError(
                f"found votes={votes}, expected (k, n) with 1 ≤ k ≤ n, two whole numbers"
            )
        self.votes = votes
        self.value = 0.0
        self._recent: deque[float] = deque(maxlen=votes[1])

    def update(self, score: float) -> float:
        """Take in the next score and return the level."""
        self._recent.append(float(score))
        ordered = sorted(self._recent, reverse=True)
        k = self.votes[0]
        voted = ordered[k - 1] if len(ordered) >= k else 0.0
        self.value = max(voted, min(self.value, ordered[0]))
        return self.value

    def state(self) -> dict[str, Any]:
        """Return what is needed to continue, as plain JSON."""
        return {"recent": list(self._recent), "value": self.value}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self._recent.extend(state["recent"])
        self.value = state["value"]


@dataclass
class Counts:
    """How often each alarm level was held and passed: whole numbers, which add and are exact.

    Attributes:
        samples: The samples counted.
        held: The samples whose level lies in each bin.
        passed: The steps that began an episode at a limit at the upper end of each bin.
    """

    samples: int = 0
    held: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, np.int64))
    passed: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, np.int64))

    def add(self, before: float, level: float) -> None:
        """Count one sample at a level, after one at the level before."""
        to = bin_of(level)
        self.samples += 1
        self.held[to] += 1
        if level > before:
            self.passed[bin_of(before) : to] += 1

    def __add__(self, other: Self) -> Counts:
        """Return the counts of both."""
        return Counts(
            self.samples + other.samples, self.held + other.held, self.passed + other.passed
        )

    def limit(self, rate: float, unit: Unit = "episode") -> float | None:
        """Return the lowest limit with at most this rate of alarms; None if samples are too few.

        The next sample or episode is taken to be an alarm itself, as in conformal prediction, so
        the promise holds on average for few samples too. For the unit "sample" the limit is
        interpolated inside its bin.
        """
        allowed = rate * (self.samples + 1) - 1.0
        if allowed < -1e-9:  # a rate of 1 / (samples + 1) is allowed, and rounds
            return None
        allowed = max(allowed, 0.0)
        if unit == "episode":
            often = np.flatnonzero(self.passed > allowed)
            return edge(int(often[-1]) + 1 if len(often) else 0)
        above = (self.samples - np.cumsum(self.held)).astype(np.float64)  # beyond each bin's end
        i = int(np.argmax(above <= allowed))
        inside = float(self.held[i])
        share = 1.0 - min(1.0, (allowed - float(above[i])) / inside) if inside else 1.0
        return edge(i - 1 + share)

    def provisional_limit(self, unit: Unit = "episode", *, fixed: float = FIXED_LIMIT) -> float:
        """Return the limit while samples are too few for a promise.

        It is above everything counted, from the fixed limit (4) to 6, or the fixed one if that is
        higher.
        """
        highest = self.limit(1.0 / (self.samples + 1.0), unit) if self.samples else None
        return max(fixed, min(highest or 0.0, MAX_RISE * FIXED_LIMIT))

    def episodes(self, limit: float) -> int:
        """Return how many episodes this limit would have raised, to the width of a bin."""
        return int(self.passed[bin_of(limit)])

    def state(self) -> dict[str, Any]:
        """Return the counts as plain JSON: only bins that are not empty."""
        used = np.flatnonzero(self.held | self.passed)
        bins = [[int(i), int(self.held[i]), int(self.passed[i])] for i in used]
        return {"samples": self.samples, "bins": bins}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Counts:
        """Return the counts that `state` described."""
        counts = cls(int(state["samples"]))
        for i, held, passed in state["bins"]:
            counts.held[i], counts.passed[i] = held, passed
        return counts


def bin_of(level: float) -> int:
    """Return the bin of a level."""
    if not level > 0.0:
        return 0
    place = (log2(level) - LOWEST_OCTAVE) * BINS_PER_OCTAVE if level < inf else BINS
    return min(max(int(place), 0), BINS - 1)


def edge(i: float) -> float:
    """Return the upper end of a bin."""
    return float(2.0 ** (LOWEST_OCTAVE + (i + 1.0) / BINS_PER_OCTAVE))


@dataclass(frozen=True)
class Promise:
    """How rarely normal samples may raise an alarm: a number of episodes per samples or per time.

    >>> Promise.of("1 per week").rate(interval_s=1.0) * 604800
    1.0
    >>> Promise.of("2 per 10000 samples").rate(), Promise.of(0.001).rate()
    (0.0002, 0.001)
    """

    alarms: float
    per: float
    timed: bool  # `per` is in seconds, else in samples

    @classmethod
    def of(cls, asked: str | float) -> Self:
        """Read "1 per week", "2 per 10000 samples", "1 per 12 hours", or episodes per sample."""
        if isinstance(asked, (int, float, np.number)):
            return cls(must_be_rate(float(asked), asked), 1.0, timed=False)
        must_be(asked, str, 'give such as "1 per week", or a number of episodes per sample')
        found = fullmatch(
            rf"\s*({NUMBER})\s+(?:per|in|an?)\s+({NUMBER})?\s*([a-z]+?)s?\s*",
            asked.lower().replace("_", ""),
        )
        known = ("sample", *SECONDS)
        if found is None or found[3] not in known:
            raise SettingError(
                f'found false_alarms="{asked}", expected such as "1 per week", '
                '"2 per 10000 samples" or a number of episodes per sample'
            )
        per = float(found[2] or 1.0) * SECONDS.get(found[3], 1.0)
        timed = found[3] in SECONDS
        alarms = float(found[1])
        if not timed:
            must_be_rate(alarms / per if per else inf, asked)
        if not (isfinite(alarms) and alarms > 0.0 and isfinite(per) and per > 0.0):
            raise SettingError(f'found false_alarms="{asked}", expected numbers above 0')
        return cls(alarms, per, timed)

    def rate(self, interval_s: float | None = None) -> float:
        """Return the episodes per sample; a promise per time needs the seconds between samples."""
        if not self.timed:
            return self.alarms / self.per
        return min(0.5, self.alarms / self.per * interval_s) if interval_s else 0.0


LimitKind = Literal["fixed", "default", "commissioned", "promised", "provisional", "bounded"]


class Limit:
    """The limit that an alarm level is held against: fixed, or promised from counts.

    A promised limit counts the levels of samples that nothing speaks against: outside episodes,
    and inside those that end soon. So it neither feeds on its own rejections nor follows a fault.
    It is 3 at least, and at most half above what commissioning asked for, so 6 to 9
    with four inputs or more: short episodes may be of a fault that comes and goes. Once settled it
    rises by half at most. While there are too few counts it is above everything counted so far, up
    to 6 or what commissioning asked for.
    """

    def __init__(self, limit: float | None = None, false_alarms: str | float | None = None) -> None:
        """Give one of both; without any, commissioning sets a limit: see `start`."""
        if limit is not None and false_alarms is not None:
            raise SettingError("found limit and false_alarms, expected one of them: leave one out")
        if limit is not None:
            must_be(limit, (int, float, np.number), "give the limit as a number")
            if not 0.0 < limit < inf:
                raise SettingError(f"found limit={limit}, expected a finite number above 0")
        self.promise = None if false_alarms is None else Promise.of(false_alarms)
        self.given = None if limit is None else float(limit)
        self.started = FIXED_LIMIT  # what commissioning asked for
        self.value = self.fixed
        self.settled: float | None = None  # later promised limits may not exceed it by much
        self.wanted = 0.0  # the limit that would keep the promise, however high
        self.seen = 0  # samples counted, also those let go
        self.interval_s: float | None = None  # between two samples, as seen
        self.older, self.newer = Counts(), Counts()
        self._aside: Counts | None = None  # of the open episode
        self._doubtful = Counts()  # since drift stopped learning

    @property
    def fixed(self) -> float:
        """The limit without counts: as given, or what commissioning asked for."""
        return self.started if self.given is None else self.given

    @property
    def kind(self) -> LimitKind:
        """Which limit holds: fixed, default, commissioned, promised, provisional, or bounded.

        It is fixed if it was given; without a limit or a promise it is the default, 4, unless
        commissioning asked for more. A promised one is provisional while counts are too few, and
        bounded if the promise would need a higher limit than it may rise to: there are more
        episodes than promised, and a person should look at them.
        """
        if self.promise is None:
            if self.given is not None:
                return "fixed"
            return "commissioned" if self.started > FIXED_LIMIT else "default"
        if self.settled is None:
            return "provisional"
        return "bounded" if self.wanted > self.value else "promised"

    @property
    def missing(self) -> int | None:
        """The samples that the promise still needs; None if the rate of samples is unknown."""
        if self.promise is None:
            return 0
        rate = self.promise.rate(self.interval_s)
        return max(0, ceil(1.0 / rate) - 1 - self.counts.samples) if rate else None

    @property
    def counts(self) -> Counts:
        """The counts that the limit comes from."""
        return self.older + self.newer

    def start(self, levels: Array, *, n_inputs: int) -> None:
        """Begin above nearly all alarm levels of commissioning; a given limit stays.

        It is from 4 to 6; up to 12, 16 or 28 with three inputs, two or one, which vary more.

        Args:
            levels: Those of samples of commissioning that were held out when they were scored.
            n_inputs: Of a sample.
        """
        few = n_inputs in MAX_WITH_FEW_INPUTS
        found = float(np.quantile(levels, 1.0 - (RATE_WITH_FEW_INPUTS if few else FIRST_RATE)))
        highest = MAX_WITH_FEW_INPUTS.get(n_inputs, MAX_RISE * FIXED_LIMIT)
        self.started = min(max(found, FIXED_LIMIT), highest)
        if self.settled is None:
            self.value = self.fixed

    def count(
        self, before: float, level: float, *, inside: bool = False, doubtful: bool = False
    ) -> None:
        """Count a sample.

        Those inside an episode are set aside until it has ended, and doubtful ones, which come
        while drift has stopped learning, until `accept` is called.
        """
        if self.promise is None:
            return
        if inside:
            self._aside = self._aside or Counts()
            self._aside.add(before, level)
        elif doubtful:
            self._doubtful.add(before, level)
        else:
            self.newer.add(before, level)
            self.seen += 1
            self._renew()

    def close(self, *, doubtful: bool = False) -> None:
        """End an episode; a short one counts as a false alarm."""
        aside, self._aside = self._aside, None
        if aside is None or aside.samples > SHORT_EPISODE:
            return
        if doubtful:
            self._doubtful = self._doubtful + aside
        else:
            self.newer = self.newer + aside
            self._renew()

    def accept(self) -> None:
        """Count what was doubtful: the drift has gone by itself, or a person accepts it."""
        found, self._doubtful = self._doubtful, Counts()
        self.newer = self.newer + found
        self.seen += found.samples

    def discard(self) -> None:
        """Forget what was doubtful."""
        self._doubtful = Counts()

    def tell_interval(self, seconds: float) -> None:
        """Take in the time since the last sample; gaps hardly count."""
        if self.promise is None or not self.promise.timed or not 0.0 < seconds < inf:
            return
        old = self.interval_s
        self.interval_s = seconds if old is None else old + (min(seconds, 2.0 * old) - old) / 256.0

    def _renew(self) -> None:
        """Look at the counts now and then, since the limit changes slowly."""
        if self.newer.samples % RENEW_EVERY:
            return
        counts = self.counts
        rate = self.promise.rate(self.interval_s) if self.promise else 0.0
        found = counts.limit(rate)
        if found is None:
            self.value = counts.provisional_limit(fixed=self.fixed)
            return
        self.wanted = max(found, MIN_LIMIT)
        self.value = min(self.wanted, MAX_RISE * self.fixed)
        if self.settled is None or self.seen * rate < SETTLED:
            self.settled = self.value
        self.value = min(self.value, MAX_RISE * self.settled)
        if self.newer.samples >= GENERATION / rate:
            self.older, self.newer = self.newer, Counts()

    def state(self) -> dict[str, Any]:
        """Return what is needed to continue, as plain JSON."""
        return {
            "value": self.value,
            "started": self.started,
            "settled": self.settled,
            "wanted": self.wanted,
            "seen": self.seen,
            "interval_s": self.interval_s,
            "older": self.older.state(),
            "newer": self.newer.state(),
            "aside": None if self._aside is None else self._aside.state(),
            "doubtful": self._doubtful.state(),
        }

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned; another setting starts from the same counts."""
        self.older, self.newer = Counts.of(state["older"]), Counts.of(state["newer"])
        self._aside = None if state["aside"] is None else Counts.of(state["aside"])
        self._doubtful = Counts.of(state["doubtful"]) if "doubtful" in state else Counts()
        self.interval_s = state["interval_s"]
        self.started = state.get("started", FIXED_LIMIT)  # states of version 0.1 have none
        self.value = self.fixed
        if self.promise is not None:
            self.settled, self.seen = state["settled"], state["seen"]
            self.wanted = state.get("wanted", 0.0)  # states of version 0.1 have none
            if state["value"] is not None:  # version 0.1 did not bound it
                self.value = min(state["value"], MAX_RISE * self.fixed)


def _is_pair(votes: object) -> bool:
    return isinstance(votes, tuple) and len(votes) == 2 and all(type(n) is int for n in votes)


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
    carry: float = 0.0  # bins that `rescale` has not moved yet, less than half of one

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

    def rescale(self, factor: float) -> None:
        """Move all counts as if scores had been so many times as high, to the width of a bin."""
        self.carry += BINS_PER_OCTAVE * log2(factor)
        steps = round(self.carry)
        self.carry -= steps
        places = np.clip(np.arange(BINS) + steps, 0, BINS - 1)
        for counts in (self.older, self.newer):
            counts.held = np.bincount(places, counts.held, BINS).astype(np.int64)

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


HOLDOUT_BLOCKS = 16  # blocks of time


def scores_without_blocks(detector: Detector, rows: Array, learnt: NDArray[np.bool_]) -> Array:
    """Score rows as if their block of time, and the two beside it, were not learnt, (k,).

    Samples that follow each other are alike: leaving out single ones would tell too little. Sums
    subtract, so the rows are added up once.

    Args:
        detector: What is known besides the rows.
        rows: Samples on the grid in the order of time, (k, n).
        learnt: Which of them would be learnt, (k,).
    """
    projection = detector.projection
    blocks = np.array_split(np.arange(len(rows)), HOLDOUT_BLOCKS)
    sums = [Stats.of_rows(projection, rows[block][learnt[block]]) for block in blocks]
    total = sum(sums, detector.own)
    found = np.ones(len(rows))
    for j, block in enumerate(blocks):
        rest = total - sum(sums[max(j - 1, 0) : j + 2], Stats.empty(projection))  # M7
        without = detector.with_own(rest)
        if without.ready:
            found[block] = without.score_rows(rows[block], projection.project(rows[block]))
    return found


DEFAULT_LIMIT = 4.0  # four times the usual squared error
DEFAULT_WINDOW = 500


class Threshold:
    """Raises an alarm above a fixed limit, a quantile of recent values, or mean plus sigmas.

    For the paper's loss. For scores use a `Monitor`: its limit can keep a promised rate of false
    alarms, and a fault that lasts stays an alarm.

    A value above the limit (for a quantile: as far above the limit as that lies above the median)
    does not enter the window, so an anomaly does not raise the limit. A lasting change does not
    raise it either: after maintenance, call `relearn`. Until the window is full there is no alarm.

    >>> threshold = Threshold(limit=4.0, votes=(2, 3))
    >>> [threshold.update(score) for score in (1.0, 9.0, 1.0, 9.0, 1.0, 1.0)]
    [False, False, False, True, False, False]
    """

    def __init__(
        self,
        *,
        limit: float | None = None,
        quantile: float | None = None,
        sigmas: float | None = None,
        window: int = DEFAULT_WINDOW,
        votes: tuple[int, int] = (1, 1),
    ) -> None:
        """Give one of limit, quantile and sigmas; without any, the limit is 4.

        Args:
            limit: A fixed limit, above 0. The default is 4, four times the usual squared error.
            quantile: The limit is this quantile of the window, from 0.5 to below 1; use it where
                normal values have a long tail. None by default.
            sigmas: The limit is the mean of the window plus so many standard deviations; None by
                default.
            window: How many recent values are kept for `quantile` or `sigmas`, 500 unless given.
            votes: (k, n): raise the alarm when at least k of the last n values are above the
                limit. (1, 1) unless given; more suppresses single outliers.

        Raises:
            SettingError: A setting is out of range, or there is more than one way.
        """
        _check_settings(limit, quantile, sigmas, window, votes)
        fixed = quantile is None and sigmas is None
        self._fixed = (DEFAULT_LIMIT if limit is None else float(limit)) if fixed else None
        self._quantile, self._sigmas = quantile, sigmas
        self._recent = np.empty(0 if fixed else window)
        self._needed, self._votes = votes[0], deque[bool](maxlen=votes[1])
        self.relearn()

    @property
    def ready(self) -> bool:
        """Whether the window is full; before that there is no alarm."""
        return self._seen >= len(self._recent)

    @property
    def limit(self) -> float:
        """The value above which a value counts as unusual; infinite while not ready."""
        return self._limit

    def update(self, value: float) -> bool:
        """Take in the next value and return whether to raise the alarm.

        Args:
            value: The score or loss of the next sample.

        Raises:
            SampleError: The value is NaN.
        """
        if isnan(value):
            raise SampleError("found NaN, expected a score or loss: drop or repair such samples")
        self._votes.append(bool(value > self._limit))
        if self._fixed is None and value <= self._gate and value < inf:
            self._recent[self._seen % len(self._recent)] = value
            self._seen += 1
            self._learn()
        return sum(self._votes) >= self._needed

    def rescale(self, factor: float) -> None:
        """Multiply the limit and the window, for losses after a merge.

        Args:
            factor: What `loss_shift` returned, above 0.

        Raises:
            SettingError: The factor is not a finite number above 0.
        """
        if not 0.0 < factor < inf:
            raise SettingError(f"found factor {factor}, expected a finite number above 0")
        self._recent *= factor
        self._limit *= factor
        self._gate *= factor
        self._fixed = None if self._fixed is None else self._fixed * factor

    def relearn(self) -> None:
        """Forget the window and the votes; there is no alarm until the window is full again."""
        self._seen = 0
        self._votes.clear()
        self._recent.fill(0.0)
        self._limit = self._gate = inf if self._fixed is None else self._fixed

    def state(self) -> dict[str, Any]:
        """Return the window, how many values entered it, and the last votes, as plain JSON."""
        return {"recent": self._recent.tolist(), "seen": self._seen, "votes": list(self._votes)}

    def resume(self, state: Mapping[str, Any] | None) -> bool:
        """Continue from what `state` returned.

        Args:
            state: The state of a threshold with the same settings; None if there is none.

        Returns:
            False, and nothing changes, if that was another kind of threshold, or none.
        """
        if state is None or len(state["recent"]) != len(self._recent):
            return False
        self.relearn()
        self._recent[:] = state["recent"]
        self._seen = state["seen"]
        self._votes.extend(state["votes"])
        if len(self._recent):
            self._learn()
        return True

    def __repr__(self) -> str:
        """Show the limit as it is now."""
        return f"Threshold(limit {self._limit:.4g}, {self._needed} of {self._votes.maxlen})"

    def _learn(self) -> None:
        if not self.ready:
            return
        if self._quantile is None:
            spread = self._sigmas or 0.0
            self._limit = self._gate = float(self._recent.mean() + spread * self._recent.std())
            return
        n = len(self._recent)
        above = int(round(n - self._quantile * n, 6))
        ordered = np.partition(self._recent, (n // 2, n - 1 - above))
        self._limit = float(ordered[n - 1 - above])
        # a gate at the limit itself would cut off the tail, again and again, until all was above
        self._gate = 2.0 * self._limit - float(ordered[n // 2])


def loss_shift(stats: Stats, before: Readout, after: Readout) -> float:
    """Return the factor by which a merge multiplies the loss of fresh samples like these.

    Args:
        stats: The device's own, which both readouts were solved from; no sample is needed.
        before: The readout before the merge.
        after: The readout after it.
    """
    return fresh_loss(stats, after) / fresh_loss(stats, before)


def _check_settings(
    limit: float | None,
    quantile: float | None,
    sigmas: float | None,
    window: int,
    votes: tuple[int, int],
) -> None:
    ways = {"limit": limit, "quantile": quantile, "sigmas": sigmas}
    for name, value in {**ways, "window": window}.items():
        if value is not None:
            as_number(name, value)
    given = [f"{name}={value}" for name, value in ways.items() if value is not None]
    least = 10.0 if quantile is None or quantile >= 1.0 else max(10.0, 1.0 / (1.0 - quantile))
    for ok, found, expected in (
        (len(given) <= 1, ", ".join(given), "one way: limit, quantile or sigmas"),
        (limit is None or 0.0 < limit < inf, f"limit={limit}", "a finite number above 0"),
        (quantile is None or 0.5 <= quantile < 1.0, f"quantile={quantile}", "0.5 to below 1"),
        (sigmas is None or 0.0 < sigmas < inf, f"sigmas={sigmas}", "a finite number above 0"),
        (window > least - 0.5, f"window={window}", f"{least:.0f} at least, to learn that limit"),
        (_is_pair(votes) and 1 <= votes[0] <= votes[1], f"votes={votes}", "(k, n), 1 ≤ k ≤ n"),
    ):
        if not ok:
            raise SettingError(f"found {found}, expected {expected}")
