"""What of the verdicts is worth a report: few of them, however many there are.

Times are those of a clock that does not jump; a report tells them by the time of day.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import NamedTuple

from edgemerge.agent.parts import Verdict

POINTS = 240  # scores that wait
ALARMS = 20
RECENT = 1000  # verdicts among which patterns are counted
SLOTS = 10  # points between two reports
SHORTEST_S, LONGEST_S = 0.1, 15.0  # of a slot
ALARM_S = 1.0  # of a slot of alarms: an alarm that lasts is told of once a second


class Judged(NamedTuple):
    """A verdict, and when it was given."""

    at: float
    verdict: Verdict

    @property
    def weight(self) -> tuple[bool, float]:
        """What counts when only one can be kept: an alarm first, then the score."""
        return self.verdict.alarm, self.verdict.score


class Taken(NamedTuple):
    """What goes into a report, oldest first."""

    points: tuple[Judged, ...] = ()
    alarms: tuple[Judged, ...] = ()


class Points:
    """Keeps what weighs most in each slot of time; when there is no room, the oldest makes way."""

    def __init__(self) -> None:
        """Have nothing to tell."""
        self._points: deque[Judged] = deque(maxlen=POINTS)
        self._alarms: deque[Judged] = deque(maxlen=ALARMS)
        self._slot_s = SHORTEST_S
        self._slots = (-1.0, -1.0)  # the newest of points and of alarms
        self._recent: deque[str | None] = deque(maxlen=RECENT)
        self._used: Counter[str | None] = Counter()
        self._newest: Verdict | None = None

    def add(self, verdict: Verdict, now: float) -> bool:
        """Take in a verdict, in microseconds; say whether an alarm begins with it."""
        begins = verdict.alarm and not (self._newest is not None and self._newest.alarm)
        self._newest = verdict
        self._count(verdict.pattern)
        judged, slots = Judged(now, verdict), (now // self._slot_s, now // ALARM_S)
        _put(self._points, judged, same=slots[0] == self._slots[0])
        if verdict.alarm:
            _put(self._alarms, judged, same=slots[1] == self._slots[1])
            self._slots = slots
        else:
            self._slots = slots[0], self._slots[1]
        return begins

    def space(self, every_s: float) -> None:
        """Keep so few that ten fit between two reports, and those of an hour into one."""
        self._slot_s = min(max(every_s / SLOTS, SHORTEST_S), LONGEST_S)

    def take(self) -> Taken:
        """Give what waits, and forget it."""
        taken = Taken(tuple(self._points), tuple(self._alarms))
        self._points.clear()
        self._alarms.clear()
        return taken

    def give_back(self, taken: Taken) -> None:
        """Put back what could not be told, before what has come since, as far as there is room."""
        self._points = deque([*taken.points, *self._points], maxlen=POINTS)
        self._alarms = deque([*taken.alarms, *self._alarms], maxlen=ALARMS)

    def used(self, pattern: str | None) -> int:
        """Count the recent verdicts by a pattern."""
        return self._used[pattern]

    @property
    def newest(self) -> Verdict | None:
        """The last verdict."""
        return self._newest

    def __len__(self) -> int:
        """Count the points that wait."""
        return len(self._points)

    def _count(self, pattern: str | None) -> None:
        if len(self._recent) == RECENT:
            old = self._recent[0]
            self._used[old] -= 1
            if not self._used[old]:
                del self._used[old]
        self._recent.append(pattern)
        self._used[pattern] += 1


def _put(kept: deque[Judged], judged: Judged, *, same: bool) -> None:
    """Add to those kept; in the same slot as the newest of them, the weightier one stays."""
    if not (same and kept):
        kept.append(judged)
    elif judged.weight > kept[-1].weight:
        kept[-1] = judged
