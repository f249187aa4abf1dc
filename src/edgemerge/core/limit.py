"""The alarm limit: a fixed one, or a promise of how rarely normal samples raise an alarm.

Single scores flicker, so an alarm follows the *alarm level* a of a stream of scores. With z the
k-th largest and m the largest of the last n scores (`votes` = (k, n)),

    a ← max(z, min(a, m)).

An episode at any limit is a run of samples with a > limit: it begins when k of the last n scores
are above the limit, and ends when n scores in a row are not. A step from a to a larger a' begins
an episode at exactly the limits in [a, a'), so one histogram of such steps tells, for every limit
at once, how many episodes it would have raised. Its counts are whole numbers that add.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, inf, isfinite, log2
from re import fullmatch
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.errors import SettingError

BINS_PER_OCTAVE = 32
LOWEST_OCTAVE, HIGHEST_OCTAVE = -6, 26  # levels outside are counted at the ends
BINS = BINS_PER_OCTAVE * (HIGHEST_OCTAVE - LOWEST_OCTAVE)
FIXED_LIMIT = 4.0  # four times the usual squared error
FIRST_RATE = 0.02  # of the samples of commissioning, held out: so many may be above the limit
MIN_LIMIT = 3.0  # a promised limit is never lower: calm data would make it nervous
SETTLED = 8.0  # promised alarms' worth of samples after which a promised limit is settled
MAX_RISE = 1.5  # a promised limit never rises above so many times the settled one
RENEW_EVERY = 64  # counted samples
GENERATION = 16  # promised alarms' worth of samples after which older counts are let go
SHORT_EPISODE = 30  # samples; longer episodes may be faults, and are not counted as false
SECONDS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0, "week": 604800.0}
SECONDS |= {"month": 2629746.0, "year": 31556952.0}
NUMBER = r"\d+(?:\.\d*)?|\.\d+"

Array = NDArray[np.float64]
Unit = Literal["sample", "episode"]


def seconds_of(text: str) -> float | None:
    """Return the seconds of a time such as "2 hours"; None if it is no time.

    >>> seconds_of("2 hours"), seconds_of("1.5 minutes"), seconds_of("soon")
    (7200.0, 90.0, None)
    """
    found = fullmatch(rf"\s*({NUMBER})\s*([a-z]+?)s?\s*", text.lower())
    known = found is not None and found[2] in SECONDS
    return float(found[1]) * SECONDS[found[2]] if found and known else None


def must_be_rate(rate: float, asked: object = None) -> float:
    """Return a promised rate of false alarms, or raise SettingError with what was asked for."""
    if not 0.0 < rate < 1.0:
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
            raise SettingError(f"found votes={votes}, expected (k, n) with 1 ≤ k ≤ n")
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

        It is above everything counted, from the fixed limit (4) to 6.
        """
        highest = self.limit(1.0 / (self.samples + 1.0), unit) if self.samples else None
        return min(max(highest or 0.0, fixed), MAX_RISE * FIXED_LIMIT)

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
        if isinstance(asked, (int, float)):
            return cls(must_be_rate(float(asked), asked), 1.0, timed=False)
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


class Limit:
    """The limit that an alarm level is held against: fixed, or promised from counts.

    A promised limit counts the levels of samples that nothing speaks against: outside episodes,
    and inside those that end soon. So it neither feeds on its own rejections nor follows a fault.
    It is 3 at least, and once settled it rises by half at most. While there are too few counts it
    is above everything counted so far, from 4 to 6.
    """

    def __init__(self, limit: float | None = None, false_alarms: str | float | None = None) -> None:
        """Give one of both; without any, commissioning sets a limit from 4 to 6."""
        if limit is not None and false_alarms is not None:
            raise SettingError("found limit and false_alarms, expected one of them: leave one out")
        if limit is not None and not 0.0 < limit < inf:
            raise SettingError(f"found limit={limit}, expected a finite number above 0")
        self.promise = None if false_alarms is None else Promise.of(false_alarms)
        self.given = None if limit is None else float(limit)
        self.started = FIXED_LIMIT  # what commissioning asked for
        self.value = self.fixed
        self.settled: float | None = None  # later promised limits may not exceed it by much
        self.seen = 0  # samples counted, also those let go
        self.interval_s: float | None = None  # between two samples, as seen
        self.older, self.newer = Counts(), Counts()
        self._aside: Counts | None = None  # of the open episode
        self._doubtful = Counts()  # since drift stopped learning

    @property
    def fixed(self) -> float:
        """The limit without counts: as given, or what commissioning asked for, from 4 to 6."""
        return self.started if self.given is None else self.given

    @property
    def kind(self) -> Literal["fixed", "promised", "provisional"]:
        """Which limit holds: fixed, promised, or provisional (4 to 6) while counts are too few."""
        if self.promise is None:
            return "fixed"
        return "provisional" if self.settled is None else "promised"

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

    def start(self, levels: Array) -> None:
        """Begin above nearly all alarm levels of commissioning, from 4 to 6; a given limit stays.

        Args:
            levels: Those of samples of commissioning that were held out when they were scored.
        """
        found = float(np.quantile(levels, 1.0 - FIRST_RATE))
        self.started = min(max(found, FIXED_LIMIT), MAX_RISE * FIXED_LIMIT)
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
        """End an episode: a short one was a false alarm as far as anybody knows, and counts."""
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
        found = max(found, MIN_LIMIT)
        if self.settled is None or self.seen * rate < SETTLED:
            self.settled = found
        self.value = min(found, MAX_RISE * self.settled)
        if self.newer.samples >= GENERATION / rate:
            self.older, self.newer = self.newer, Counts()

    def state(self) -> dict[str, Any]:
        """Return what is needed to continue, as plain JSON."""
        return {
            "value": self.value,
            "started": self.started,
            "settled": self.settled,
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
            self.value = self.value if state["value"] is None else state["value"]


def _is_pair(votes: object) -> bool:
    return isinstance(votes, tuple) and len(votes) == 2
