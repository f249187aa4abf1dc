"""Judge readings: give each sample to the monitor, log what it found, and return a verdict."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgemerge.agent.features import Features
from edgemerge.agent.quality import DataQuality
from edgemerge.agent.sources import Reading
from edgemerge.agent.state import AgentState
from edgemerge.agent.sync import iso_time
from edgemerge.core.errors import EdgemergeError, SampleError
from edgemerge.core.monitor import FAR_OUTSIDE, MonitorEvent, Result
from edgemerge.delivery import unusual

NAMED_INPUTS = 3  # inputs that an alarm names
# After so many samples most must have been inside the range. A machine that stands still or
# starts slowly is outside at first, and the range of `init` leaves out what is rare.
RANGE_CHECK_SAMPLES = 1000
MIN_RANGE_SAMPLES = 100  # of a file that ends before
FORGET_SAMPLES = 100  # inside the range, after which it is no longer said what was outside
RECENT_EVENTS = 16  # that the status has

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Verdict:
    """What the agent makes of one sample; `why` names the inputs that carry an alarm.

    `score` is None while too little is known. `alarm` says that an episode is open, `episode` is
    its number, and `level` the recent score that is held against the limit. `carried` has some
    more inputs, each with how many times its loss is what is usual for it. In an alarm `fault`
    is the name of the known fault that it is most like, and `like` says so in words, or that it is
    like none of them.
    """

    device: str
    index: int
    at: float
    score: float | None
    limit: float
    alarm: bool
    pattern: str | None = None
    why: tuple[str, ...] = ()
    carried: tuple[tuple[str, float], ...] = ()
    ready: bool = True
    level: float = 0.0
    episode: int | None = None
    fault: str | None = None
    like: str | None = None


class OutsideError(EdgemergeError, ValueError):
    """Most of the first samples lie far outside the projection's range."""


def is_mostly_outside(outside: int, samples: int) -> bool:
    """Return whether most of the first samples lie far outside the range: the agent stops then."""
    return 2 * outside > samples


class Judge:
    """Gives samples to the monitor, and adds the names of inputs to its results."""

    def __init__(
        self,
        memory: AgentState,
        features: Features,
        names: Callable[[tuple[str, ...] | None], Sequence[str]],
        clock: Callable[[], float],
        quality: DataQuality | None = None,
    ) -> None:
        """Judge samples; `names` returns the names of inputs for the names that a source read."""
        self._quality = quality
        self._counted = 0  # rows skipped by the source, up to the last reading
        self._memory, self._features = memory, features
        self._names, self._clock = names, clock
        self._read: tuple[str, ...] | None = None
        self._reading: Reading | None = None  # the last one
        # Ranges of the inputs that were far outside lately, and the last sample that was.
        self._found: dict[int, tuple[float, float]] = {}
        self._last_outside = 0
        self._ahead_s = 0.0  # of the time of day: the time of samples
        self._grouped = memory.learner.grouped
        self._last: MonitorEvent | None = _newest(memory)

    def judge(self, reading: Reading) -> Verdict | None:
        """Return the verdict on the sample that a reading completes; None if it completes none.

        Raises:
            OutsideError: Of the first 1000 samples, most were far outside the projection's range.
        """
        memory = self._memory
        memory.position, self._read, self._reading = reading.position, reading.names, reading
        memory.skipped += reading.skipped - self._counted
        self._counted = reading.skipped
        if self._quality is not None:
            self._quality.row(reading)
        now = self._clock()
        at = now if reading.at is None else reading.at
        outside = memory.monitor.outside
        try:
            sample = self._features.push(reading.values)
            if sample is None:
                return None
            result = memory.monitor.take(sample, at)
        except SampleError as error:
            self._skip(error)
            return None
        self._ahead_s = at - now
        verdict = self._verdict(result)
        memory.index += 1
        is_outside = memory.monitor.outside != outside
        if self._quality is not None:
            self._quality.sample(outside=is_outside)
        if is_outside:
            self._count_outside(sample)
        if memory.index == RANGE_CHECK_SAMPLES:
            self._check_range()
        return verdict

    def end(self) -> None:
        """Judge no more, since the source has ended.

        Raises:
            OutsideError: Of all samples, 100 to 1000, most were far outside the projection's range.
        """
        if MIN_RANGE_SAMPLES <= self._memory.index < RANGE_CHECK_SAMPLES:
            self._check_range()

    def _check_range(self) -> None:
        if is_mostly_outside(self._memory.monitor.outside, self._memory.index):
            raise OutsideError(self._outside_words())

    def count_skipped(self, skipped: int) -> None:
        """Count the rows that the source skipped since the last reading; `skipped` are all."""
        self._memory.skipped_ahead = skipped - self._counted

    def range_words(self) -> tuple[str, tuple[str, ...]]:
        """Return what lies far outside the range, in words, and the names of these inputs."""
        names = self._names(self._read)
        return self._range_words(), tuple(names[i] for i in sorted(self._found))

    def scores(self, rows: Sequence[Sequence[float]]) -> list[float | None]:
        """Score samples without learning them; None while too little is known."""
        found = [self._memory.learner.look(row).score for row in rows]
        return list(found) if self._memory.monitor.ready else [None] * len(found)

    @property
    def limit(self) -> float:
        """The limit of the alarm level now."""
        return self._memory.monitor.limit.value

    def sample_time(self, at: float) -> float:
        """Return a time of day by the clock of the samples, which a source may bring along."""
        return at + self._ahead_s

    def news(self) -> list[MonitorEvent]:
        """Log what has happened in the monitor since the last call, and return it."""
        found: list[MonitorEvent] = []
        for each in reversed(self._memory.monitor.events):
            if each is self._last:
                break
            found.insert(0, each)
        for each in found:
            self._log(each)
        self._last = found[-1] if found else self._last
        return found

    @property
    def reading(self) -> Reading | None:
        """The last reading, also if it did not complete a sample."""
        return self._reading

    def status(self) -> dict[str, Any]:
        """Return the monitor's status as plain JSON, with inputs by name, and recent events."""
        status = self._memory.monitor.status()
        for each in (*status["episodes"], *status["patterns"]):
            each["inputs"] = self._named(each["inputs"])
        recent = list(self._memory.monitor.events)[-RECENT_EVENTS:]
        status["events"] = [
            {"kind": each.kind, "at": each.at, "what": each.what} for each in recent
        ]
        return status

    def _verdict(self, result: Result) -> Verdict:
        memory = self._memory
        memory.alarms += result.alarm
        episode = memory.monitor.episode
        carried = () if episode is None else tuple(self._named(episode.inputs))
        named = unusual(carried)[:NAMED_INPUTS] if carried else ()
        return Verdict(
            device=memory.device,
            index=memory.index,
            at=result.at,
            score=result.score,
            limit=result.limit,
            alarm=result.alarm,
            pattern=result.pattern if self._grouped or result.alarm else None,
            why=tuple(name for name, _factor in named),
            carried=carried,
            ready=result.ready,
            level=result.level,
            episode=result.episode,
            fault=result.fault,
            like=None if episode is None else memory.monitor.fault_words(episode),
        )

    def _named(self, inputs: Sequence[tuple[int, float]]) -> list[tuple[str, float]]:
        names = self._names(self._read)
        return [(names[i], float(f"{share:.6g}")) for i, share in inputs]

    def _skip(self, error: SampleError) -> None:
        self._memory.skipped += 1
        if _is_power_of_2(self._memory.skipped):
            values = {"skipped": self._memory.skipped, "why": error}
            logger.warning("a sample was skipped", extra={"values": values})

    def _count_outside(self, sample: NDArray[np.float64]) -> None:
        if self._memory.index - self._last_outside > FORGET_SAMPLES:
            self._found.clear()
        self._last_outside = self._memory.index
        low, high = self._range()
        far = np.abs(sample - (low + high) / 2.0) > FAR_OUTSIDE * (high - low) / 2.0
        for i in np.flatnonzero(far).tolist():
            lowest, highest = self._found.get(i, (np.inf, -np.inf))
            x = float(sample[i])
            self._found[i] = min(lowest, x), max(highest, x)
        if _is_power_of_2(self._memory.monitor.outside):
            values = {
                "outside": self._memory.monitor.outside,
                "of": self._memory.index,
                "inputs": self._range_words(),
            }
            logger.warning(
                "a sample lies far outside the projection's range", extra={"values": values}
            )

    def _range(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        projection = self._memory.projection
        n = projection.n_inputs
        return (
            np.broadcast_to(np.asarray(projection.low, float), (n,)),
            np.broadcast_to(np.asarray(projection.high, float), (n,)),
        )

    def _range_words(self) -> str:
        """Return some inputs that were outside, with the range found and the one expected."""
        names, (low, high) = self._names(self._read), self._range()
        some = [
            f"{names[i]} from {a:.6g} to {b:.6g}, expected {low[i]:.6g} to {high[i]:.6g}"
            for i, (a, b) in sorted(self._found.items())[:NAMED_INPUTS]
        ]
        rest = len(self._found) - len(some)
        return "; ".join(some) + (f"; and {rest} more" if rest else "")

    def _outside_words(self) -> str:
        return (
            f"of the first {self._memory.index} samples {self._memory.monitor.outside} lie far "
            f"outside the projection's range: found {self._range_words()}. Check [source] columns "
            "and units, or set low and high in [projection] to the range of the readings; then "
            "start again"
        )

    def _log(self, each: MonitorEvent) -> None:
        """Log what happened in words; `sample_at` is the time of the sample."""
        values: dict[str, Any] = {"sample_at": iso_time(each.at)}
        if each.what:
            values[KIND_WORDS.get(each.kind, ("", "what"))[1]] = each.what
        waiting = self._waiting() if each.kind == "watching" else []
        if waiting:  # until then what is like them raises alarms
            values["not_learnt_until_reviewed"] = waiting
        if each.kind.startswith("episode"):
            values |= self._episode_values(int(each.what))
        level = logging.WARNING if each.kind in WARNINGS else logging.INFO
        words = KIND_WORDS.get(each.kind, (each.kind, ""))[0]
        logger.log(level, words, extra={"values": values})

    def _waiting(self) -> list[str]:
        patterns = self._memory.monitor.odd_patterns.values()
        waiting = [each for each in patterns if each.status == "unreviewed"]
        return [f"{each.name}: {each.stats.count:g} samples" for each in waiting]

    def _episode_values(self, number: int) -> dict[str, Any]:
        for episode in self._memory.monitor.episodes:
            if episode.number == number:
                carried = unusual(self._named(episode.inputs))
                inputs = [name for name, _ in carried[:NAMED_INPUTS]]
                ended = {"samples": episode.samples, "peak": float(f"{episode.peak:.4g}")}
                found = {"inputs": inputs, "pattern": episode.pattern}
                like = self._memory.monitor.fault_words(episode)
                found |= {"like": like} if like else {}
                return found | (ended if episode.ended is not None else {})
        return {}


WARNINGS = ("episode began", "pattern dropped", "drift", "learning stopped", "learning ended")
# What is logged for each kind of event, and what to call its detail.
KIND_WORDS = {
    "episode began": ("an alarm began", "episode"),
    "episode ended": ("the alarm has ended", "episode"),
    "new pattern": ("new pattern, which waits for a review", "pattern"),
    "pattern met again": ("an odd pattern came again", "pattern"),
    "pattern dropped": ("the oldest pattern was dropped to make room", "pattern"),
    "drift": ("the samples drift away from what commissioning saw", "drift"),
    "learning stopped": (
        "learning has stopped, since the drift is large: accept-drift or relearn",
        "drift",
    ),
    "learning resumed": ("learning goes on, since the samples are as before again", "drift"),
    "learning ended": ("learning has ended", "why"),
    "drift accepted": ("the drift was accepted: what was learnt up to now is normal", ""),
    "watching": ("commissioning has ended: alarms are raised from now on", ""),
    "commissioning": ("commissioning begins again: what was adopted is gone", ""),
    "relearn": ("commissioning begins again: own samples are forgotten", ""),
    "approve": ("a pattern was approved: it is normal now", "pattern"),
    "fault": ("a pattern was named as a fault", "pattern"),
    "dismiss": ("a pattern was dismissed", "pattern"),
    "undo": ("the review of a pattern was undone", "pattern"),
}


def _newest(memory: AgentState) -> MonitorEvent | None:
    events = memory.monitor.events
    return events[-1] if events else None


def _is_power_of_2(count: int) -> bool:
    return count & (count - 1) == 0  # the 1st, 2nd, 4th, 8th, …
