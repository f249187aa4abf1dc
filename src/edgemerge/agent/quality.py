"""The quality of a device's data as a state: problems by name, since when, and what to do.

Nothing here stops detection, and nothing is saved: after a restart the state follows from the rows
that come. What comes and goes by itself is learnt as usual, and a problem that keeps coming back
lasts longer each time, so that data in bursts cause few messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgemerge.agent.config import QualityConfig
from edgemerge.agent.sources import Reading
from edgemerge.agent.sync import Clocks, iso_time

NO_DATA, UNREADABLE, STUCK = "no data", "unreadable rows", "stuck sensor"
GAP, WRONG_RATE, OUTSIDE = "gap", "wrong rate", "outside range"
NAMES = (NO_DATA, UNREADABLE, STUCK, GAP, WRONG_RATE, OUTSIDE)

MIN_SILENCE_S = 30.0  # without a usable row; or as long as 20 rows usually take
RECENT_STEPS = 20  # between two rows
USUAL_PAUSE = 1.5  # times the shorter of the last two pauses is usual, while they keep coming
FORGET_PAUSES = 3.0  # times the time between two pauses, until they are no longer usual
SHARE_ROWS = 100.0  # rows that a share is about
MIN_BAD_ROWS = 4.9  # five in a row, as they weigh then
BEGIN_SHARE, END_SHARE = 0.05, 0.01
MIN_CHANGES = 20  # of an input, before it can be stuck
RUN_FACTOR = 20  # times as long as an input has stood still before
MOVED = 5  # changes after which an input is no longer stuck
MIN_JUMP_S, JUMP_STEPS = 1.0, 10.0  # of the time of rows, at least, and in usual steps
ROWS_AFTER_GAP = 50  # without another one, until a gap is over
RATE_ROWS, RATE_STEPS = 50, 20.0  # over which the rate is measured
STANDSTILL_ROWS = 20_000  # with one and the same time
ARRIVALS_S = 60.0  # likewise, of rows without a time
WRONG_RATES, RIGHT_RATES = (0.8, 1.25), (0.9, 1.1)  # shares of the expected one
AGAIN_S = 3600.0  # within which a problem that begins again has come back
FIRST_HOLD_S = 60.0  # for which it must then be over; twice as long each time, up to AGAIN_S
NAMED_INPUTS = 3

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """What is wrong with the data of a device.

    Args:
        name: One of `NAMES`.
        since: When it was noticed, in Unix seconds.
        words: What was found, and what to do, in a sentence or two.
        inputs: The inputs that it is about; none if it is about all of them.
    """

    name: str
    since: float
    words: str
    inputs: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        return {
            "name": self.name,
            "since": self.since,
            "words": self.words,
            "inputs": list(self.inputs),
        }


class ProblemEvent(NamedTuple):
    """A problem began, or ended at that time."""

    problem: Problem
    ended: float | None = None


class Pauses:
    """Pauses that are usual: two alike, as long as they keep coming."""

    def __init__(self) -> None:
        """Know none."""
        self._last: deque[tuple[float, float]] = deque(maxlen=2)

    def add(self, ended: float, length: float) -> None:
        """Remember a pause."""
        self._last.append((ended, length))

    def usual(self, now: float) -> float:
        """Return how long a pause may be; 0 if none is usual.

        >>> pauses = Pauses()
        >>> pauses.add(86400.0, 3000.0), pauses.usual(86500.0)
        (None, 0.0)
        >>> pauses.add(2 * 86400.0, 3600.0), pauses.usual(2.5 * 86400.0), pauses.usual(6 * 86400.0)
        (None, 4500.0, 0.0)
        """
        if len(self._last) < 2:
            return 0.0
        (before, first), (ended, second) = self._last
        if now - ended > FORGET_PAUSES * (ended - before):
            return 0.0
        return USUAL_PAUSE * min(first, second)


class Silence:
    """Notices that no usable row comes; times are those of a monotonic clock."""

    def __init__(self, limit_s: float | None, step_s: float, now: float) -> None:
        """Begin now; `limit_s` is a fixed limit (0: none), `step_s` the expected step, if known."""
        self._limit_s, self._step_s = limit_s, step_s
        self._last, self._rows = now, 0
        self._steps: deque[float] = deque(maxlen=RECENT_STEPS)
        self._pauses = Pauses()

    def row(self, now: float) -> None:
        """Count a usable row."""
        step = now - self._last
        if self._rows:
            if step > self._usual():
                self._pauses.add(now, step)
            self._steps.append(step)
        self._last, self._rows = now, self._rows + 1

    def expect(self, step_s: float) -> None:
        """Take the step between two rows from their times, where they have any."""
        self._step_s = step_s

    def found(self, now: float) -> str | None:
        """Return for how long there was no row, in words; None if that is usual."""
        length, limit_s = now - self._last, self._limit_s
        if limit_s is None and length <= MIN_SILENCE_S:  # nearly always
            return None
        if limit_s is None:
            limit_s = max(self._usual(), self._pauses.usual(now))
        elif not limit_s:
            return None
        if length <= limit_s:
            return None
        return f"no usable row {'since the start, ' if not self._rows else ''}for {span(length)}"

    def _usual(self) -> float:
        mean = sum(self._steps) / len(self._steps) if self._steps else 0.0
        return max(MIN_SILENCE_S, RECENT_STEPS * max(mean, self._step_s))


class Share:
    """The share of bad ones among the last hundred or so; it is high until it is quite low."""

    def __init__(self) -> None:
        """Start without any."""
        self.bad = self.total = 0.0
        self.high = False

    def add(self, bad: int, good: int) -> None:
        """Count some."""
        kept = (1.0 - 1.0 / SHARE_ROWS) ** (bad + good)
        weight = (1.0 - kept) * SHARE_ROWS  # nearly 1 for each
        self.bad = self.bad * kept + weight * bad / (bad + good)
        self.total = self.total * kept + weight
        if self.high:
            self.high = self.bad >= END_SHARE * self.total
        else:
            self.high = self.bad >= max(MIN_BAD_ROWS, BEGIN_SHARE * self.total)

    @property
    def words(self) -> str:
        """The share in words."""
        return f"{100.0 * self.bad / max(self.total, 1.0):.0f} %"


class Stillness:
    """Notices inputs that used to change and stand still now; one entry for each input, (k,)."""

    def __init__(self, rows: int) -> None:
        """Call an input stuck after so many equal rows, at least; 0: never."""
        self._rows = rows
        self.values: Array = np.empty(0)
        self._begin(self.values)

    def _begin(self, values: Array) -> None:
        k = len(values)
        self.values = values
        self.run = np.zeros(k, np.int64)  # rows with the same value, behind the first
        self._longest = np.zeros(k, np.int64)  # such run that was not called stuck
        self._changes = np.zeros(k, np.int64)
        self._rows_changed = 0  # rows in which all of them changed, and nothing stood still
        self._some_still = self.any_stuck = False
        self._stuck_runs = np.zeros((2, k), np.int64)  # the two longest, longest first
        self._moved = np.zeros(k, np.int64)  # changes since it was stuck
        self.stuck = np.zeros(k, bool)

    def row(self, values: Array) -> None:
        """Look at a row (k,)."""
        if not self._rows:
            return
        if len(values) != len(self.values):
            self._begin(values)
            return
        same = values == self.values
        self.values = values
        if not same.any() and not self._some_still:  # nearly always
            self._rows_changed += 1
            return
        changed = ~same
        self._changes += changed
        self._end_runs(changed)
        self.run += same
        self._some_still = bool(same.any() or self.stuck.any())
        limit = np.maximum(RUN_FACTOR * self._longest, USUAL_PAUSE * self._stuck_runs[1])
        limit = np.maximum(limit, self._rows)
        known = self._changes + self._rows_changed >= MIN_CHANGES
        self.stuck |= known & (self.run >= limit)
        self._moved[self.stuck & (self.run >= self._rows)] = 0
        self.any_stuck = bool(self.stuck.any())

    def _end_runs(self, changed: NDArray[np.bool_]) -> None:
        free = changed & ~self.stuck
        self._longest[free] = np.maximum(self._longest, self.run)[free]
        if self.stuck.any():
            held = changed & self.stuck
            runs = np.vstack([self._stuck_runs, np.where(held, self.run, 0)])
            self._stuck_runs = np.sort(runs, axis=0)[:0:-1]
            self._moved += held
            self.stuck &= self._moved < MOVED
        self.run[changed] = 0


class RowTimes:
    """Notices jumps in the times of rows, and measures their step."""

    def __init__(self, step_s: float) -> None:
        """Begin with the expected step, 0 if it is not known."""
        self._expected = step_s
        self._last: float | None = None
        self._steps: deque[float] = deque(maxlen=RECENT_STEPS)
        self._pauses = Pauses()
        self.jump: tuple[float, float] | None = None  # its size, and the time behind it
        self._since_jump = 0
        self._rows, self._span, self._longest = 0, 0.0, 0.0  # of the rate

    @property
    def step(self) -> float:
        """The usual step between two rows; 0 while too little is known."""
        if len(self._steps) < RECENT_STEPS:
            return self._expected
        return sum(self._steps) / len(self._steps)

    def row(self, at: float) -> None:
        """Take the time of a row."""
        before, self._last = self._last, at
        if before is None:
            return
        step, usual = at - before, self.step
        limit = max(MIN_JUMP_S, JUMP_STEPS * usual)
        if usual and abs(step) > limit:
            is_usual = 0.0 < step <= self._pauses.usual(at)
            if step > 0.0:
                self._pauses.add(at, step)
            if not is_usual:
                self.jump, self._since_jump = (step, at), 0
            return
        self._since_jump += 1
        if self._since_jump >= ROWS_AFTER_GAP:
            self.jump = None
        self._steps.append(max(0.0, step))
        self._rows, self._span = self._rows + 1, self._span + step
        self._longest = max(self._longest, step)

    def forget_last(self) -> None:
        """Do not compare the next time with the last one."""
        self._last = None

    def rate(self) -> float | None:
        """Return the rate once enough rows were measured, then measure anew."""
        if self._rows < RATE_ROWS:
            return None
        enough = self._span >= RATE_STEPS * self._longest > 0.0
        if not enough and not (self._rows >= STANDSTILL_ROWS and self._span <= 0.0):
            return None
        rate = self._rows / self._span if self._span > 0.0 else inf
        self.restart()
        return rate

    def restart(self) -> None:
        """Measure the rate anew."""
        self._rows, self._span, self._longest = 0, 0.0, 0.0


class Arrivals:
    """The rate of rows without a time; they may come in bursts, and what waits comes faster."""

    def __init__(self, expected_hz: float, now: float) -> None:
        """Begin now."""
        self._length_s = max(ARRIVALS_S, RATE_ROWS / expected_hz)
        self._began, self._rows = now, 0

    def row(self) -> None:
        """Count a row."""
        self._rows += 1

    def rate(self, now: float) -> float | None:
        """Return the rate once enough time has passed, then measure anew."""
        if now - self._began < self._length_s:
            return None
        rate = self._rows / (now - self._began)
        self.restart(now)
        return rate

    def restart(self, now: float) -> None:
        """Measure anew."""
        self._began, self._rows = now, 0


@dataclass
class _History:
    """When a problem last began, and how long it must be over before it ends."""

    began: float = -inf
    hold_s: float = 0.0
    over_since: float | None = None


class DataQuality:
    """The problems of one device's data.

    Args:
        settings: When data are faulty.
        clocks: The time of day, and one that does not jump.
        live: Whether rows come as they are measured, so that their arrival says something about
            their rate; false for a file that is read at once, or at a given speed.
        columns: Names of the values of a reading, for readings without names.
    """

    def __init__(
        self,
        settings: QualityConfig,
        *,
        clocks: Clocks,
        live: bool = False,
        columns: Sequence[str] = (),
    ) -> None:
        """Begin without any problem."""
        self._wall, self._steady, self._live = clocks.wall, clocks.steady, live
        self.change(settings)
        self._unreadable, self._outside = Share(), Share()
        self._columns, self._names = tuple(columns), tuple(columns)
        self._rows = self._counted = 0  # usable rows since the last look; rows skipped so far
        self._skipped_before = 0  # the last reading
        self._why = ""
        self._waiting: Callable[[], str] = str
        # What lies outside the range, and the names of these inputs; the judge knows.
        self.range_words: Callable[[], tuple[str, tuple[str, ...]]] = lambda: ("", ())
        self._problems: dict[str, Problem] = {}
        self._histories = {name: _History() for name in NAMES}

    def change(self, settings: QualityConfig) -> None:
        """Look at rows by other settings from now on; problems that there are end by them."""
        now = self._steady()
        self._rate_hz = settings.rate_hz
        step_s = 1.0 / settings.rate_hz if settings.rate_hz else 0.0
        self._silence = Silence(settings.no_data_s, step_s, now)
        self._still = Stillness(settings.stuck_rows)
        self._times = RowTimes(step_s)
        counts = settings.rate_hz if self._live else None
        self._arrivals = Arrivals(counts, now) if counts else None
        self._rate: float | None = None  # the wrong one
        self._slow = 0  # times in a row that too few rows arrived

    @property
    def problems(self) -> list[Problem]:
        """The problems that there are now, the first one first."""
        return sorted(self._problems.values(), key=lambda each: each.since)

    def row(self, reading: Reading) -> None:
        """Take a reading that could be read."""
        now = self._steady()
        self._rows += 1
        self._silence.row(now)
        self._still.row(reading.values)
        self._names = reading.names or self._columns
        if reading.skipped != self._skipped_before:  # no gap, but rows that could not be read
            self._skipped_before = reading.skipped
            self._times.forget_last()
        if reading.dated and reading.at is not None:
            self._times.row(reading.at)
            self._silence.expect(self._times.step)
        elif self._arrivals is not None:
            self._arrivals.row()

    def sample(self, *, outside: bool) -> None:
        """Take a sample that was judged, which may lie far outside the projection's range."""
        self._outside.add(int(outside), int(not outside))

    def tend(self, *, skipped: int, why: str, waiting: Callable[[], str]) -> list[ProblemEvent]:
        """Return what began or ended since the last call.

        Args:
            skipped: Rows that could not be read, since the start.
            why: Why the last of them could not.
            waiting: Returns what the source waits for, in words.
        """
        if skipped != self._counted or self._rows:
            self._unreadable.add(skipped - self._counted, self._rows)
            self._counted, self._rows = skipped, 0
        self._why, self._waiting = why, waiting
        now, events = self._steady(), []
        self._measure_rate(now)
        for name, look in self._looks(now).items():
            event = self._follow(name, look, now)
            if event is not None:
                events.append(event)
        return events

    def _follow(
        self, name: str, found: tuple[str, tuple[str, ...]] | None, now: float
    ) -> ProblemEvent | None:
        """Begin, go on with or end a problem."""
        known, history = self._problems.get(name), self._histories[name]
        if found is not None:
            history.over_since = None
            since = self._wall() if known is None else known.since
            self._problems[name] = problem = Problem(name, since, *found)
            if known is not None:
                return None
            again = now - history.began < AGAIN_S
            hold_s = max(FIRST_HOLD_S, 2.0 * history.hold_s) if again else 0.0
            history.began, history.hold_s = now, min(hold_s, AGAIN_S)
            return ProblemEvent(problem)
        if known is None:
            return None
        if history.over_since is None:
            history.over_since = now
        if now - history.over_since < history.hold_s:
            return None
        history.over_since = None
        return ProblemEvent(self._problems.pop(name), self._wall())

    def _looks(self, now: float) -> dict[str, tuple[str, tuple[str, ...]] | None]:
        """Return what is found of each problem: words and inputs, or None."""
        return {
            NO_DATA: self._no_data(now),
            UNREADABLE: self._unreadable_rows(),
            STUCK: self._stuck(),
            GAP: self._gap(),
            WRONG_RATE: self._wrong_rate(),
            OUTSIDE: self._outside_range(),
        }

    def _no_data(self, now: float) -> tuple[str, tuple[str, ...]] | None:
        found = self._silence.found(now)
        if found is None:
            return None
        if self._arrivals is not None:
            self._arrivals.restart(now)
        cause = f"the rows that come cannot be read ({self._why})"
        cause = cause if self._unreadable.high else self._waiting() or "nothing comes"
        return f"{found}: {cause}. Check what writes the data, and [source].", ()

    def _unreadable_rows(self) -> tuple[str, tuple[str, ...]] | None:
        if not self._unreadable.high:
            return None
        return (
            f"{self._unreadable.words} of the last rows cannot be read and are skipped, the last: "
            f"{self._why}. Correct the rows or [source]; `edgemerge doctor` says what to set.",
            (),
        )

    def _stuck(self) -> tuple[str, tuple[str, ...]] | None:
        if not self._still.any_stuck:
            return None
        numbers = np.flatnonzero(self._still.stuck).tolist()
        names = self._names
        fits = len(names) == len(self._still.values)
        inputs = tuple(names[i] if fits else f"column {i + 1}" for i in numbers)
        value, have = f"{self._still.values[numbers[0]]:.6g}", "has" if len(inputs) == 1 else "have"
        rows = int(self._still.run[numbers].max())
        at = f" at {value}" if len(inputs) == 1 else ""
        return (
            f"{listed(inputs)} {have} not changed for a long time ({rows:,} rows{at}), and did "
            "before. Check sensor and cable; if the machine stands still, all is well.",
            inputs,
        )

    def _gap(self) -> tuple[str, tuple[str, ...]] | None:
        if self._times.jump is None:
            return None
        size, at = self._times.jump
        if size < 0.0:
            words = (
                f"the times of the rows go back by {span(-size)}, to {iso_time(at)}. Check the "
                "clock of what writes them; for local times, set source.time_zone."
            )
        else:
            words = (
                f"the times of the rows jump ahead by {span(size)}, to {iso_time(at)}: rows are "
                "missing, or the clock was set. Check what writes them."
            )
        return words, ()

    def _wrong_rate(self) -> tuple[str, tuple[str, ...]] | None:
        if self._rate is None or self._rate_hz is None:
            return None
        found = "the times of the rows stand still"
        if self._rate < inf:
            found = f"there are {self._rate:.3g} rows a second"
        return (
            f"{found}, expected {self._rate_hz:.3g} (rate_hz). Set the sampling rate of the "
            "sensor right, or rate_hz; spectra and windows mean something else meanwhile.",
            (),
        )

    def _outside_range(self) -> tuple[str, tuple[str, ...]] | None:
        if not self._outside.high:
            return None
        found, inputs = self.range_words()
        return (
            f"{self._outside.words} of the last samples lie far outside the projection's range: "
            f"{found}. Check sensor and units; if the machine is like this, set low and high in "
            "[projection] on all devices.",
            inputs,
        )

    def _measure_rate(self, now: float) -> None:
        if self._rate_hz is None:
            return
        if self._unreadable.high:  # rows are missing for another reason
            self._times.restart()
            return
        rate = self._times.rate()
        if rate is not None:
            self._set_rate(rate)
        arrived = None if self._arrivals is None else self._arrivals.rate(now)
        if arrived is not None:
            self._slow = self._slow + 1 if arrived < WRONG_RATES[0] * self._rate_hz else 0
            if self._slow > 1:
                self._rate = arrived
            elif arrived >= RIGHT_RATES[0] * self._rate_hz:
                self._rate = None

    def _set_rate(self, rate: float) -> None:
        low, high = WRONG_RATES if self._rate is None else RIGHT_RATES
        ratio = rate / (self._rate_hz or 1.0)
        self._rate = None if low <= ratio <= high else rate


def listed(names: Sequence[str]) -> str:
    """Return some names in words.

    >>> listed(["flow", "heat"]), listed(["a", "b", "c", "d"])
    ('flow and heat', 'a, b, c and 1 more')
    """
    some = list(names[:NAMED_INPUTS])
    if len(names) > NAMED_INPUTS:
        some.append(f"{len(names) - NAMED_INPUTS} more")
    return " and ".join([", ".join(some[:-1]), some[-1]] if len(some) > 1 else some)


def span(seconds: float) -> str:
    """Return a length of time in words.

    >>> [span(s) for s in (0.25, 45.0, 90.0, 3600.0, 200_000.0)]
    ['0.25 s', '45 s', '1.5 min', '1 h', '2.3 days']
    """
    for unit, length in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= (2.0 if unit == "days" else 0.99) * length:
            return f"{seconds / length:.2g} {unit}"
    return f"{seconds:.2g} s"
