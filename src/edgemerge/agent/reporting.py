"""Reporting: tells the server how the device is doing, and hears when the operator has chosen.

Everything but the sending happens in the thread of the loop, and takes microseconds there. What is
sent and not answered is dropped, except what is held of others: that is told until it is heard.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

from edgemerge.agent.describing import (
    describe_alarm,
    describe_merge,
    describe_point,
    describe_status,
    moment,
)
from edgemerge.agent.memory import Memory
from edgemerge.agent.parts import Verdict
from edgemerge.agent.points import Points, Taken
from edgemerge.agent.reporter import Outcome, Reporter
from edgemerge.agent.rhythm import Rhythm
from edgemerge.agent.syncing import Clocks, Syncing
from edgemerge.core.errors import AwayError, DeniedError, EdgemergeError, UnknownError
from edgemerge.exchange.reports import Heard, never_left

PAUSES_S: dict[type[EdgemergeError], float] = {  # until it may be worth another try
    DeniedError: 600.0,  # the server does not let us
    UnknownError: 3600.0,  # it is an older one, that knows no reports
}
FOLLOW_S = 60.0  # until an exchange that the operator's choice asks for is tried again
LAST_S = 0.9  # for the last report

logger = logging.getLogger(__name__)

Status = Callable[[], dict[str, Any]]


class Said(Protocol):
    """The part of [report] that says how often, and whether to follow."""

    @property
    def every_s(self) -> float:
        """Seconds from one report to the next."""
        ...

    @property
    def follow(self) -> bool:
        """Whether to exchange when the operator has chosen."""
        ...


class Reporting:
    """Reports what is new, when it is due; it never waits, but for the very last report."""

    def __init__(
        self,
        memory: Memory,
        syncing: Syncing | None,
        reporter: Reporter,
        said: Said,
        *,
        clocks: Clocks,
    ) -> None:
        """Have nothing to tell yet but what is held of others."""
        self._memory, self._syncing, self._reporter = memory, syncing, reporter
        self._said, self._clocks = said, clocks
        self._points, self._rhythm = Points(), Rhythm(said.every_s, memory.device)
        self._points.space(said.every_s)
        self._held: bytes | None = None  # what was told, when we last looked
        self._merge: tuple[float, dict[str, Any]] | None = None  # not heard by the server yet
        self._under_way: tuple[Taken, object] = Taken(), None
        self._trouble: type[EdgemergeError] | None = None
        self._followed, self._follow_due = 0, 0.0

    def verdict(self, verdict: Verdict) -> None:
        """Take in a verdict, to be told later."""
        if self._points.add(verdict, self._clocks.steady()):
            self._rhythm.hasten()

    def tend(self, status: Status) -> None:
        """Hear the answer, and send the next report, if it is time."""
        self._look()
        outcome = self._reporter.outcome()
        if outcome is not None:
            self._heed(outcome)
        if not self._reporter.busy and self._rhythm.due(self._clocks.steady()):
            self._send(status)

    def leave(self, status: Status) -> None:
        """Say that the device leaves; wait for less than a second, and not if it is of no use."""
        end = self._clocks.steady() + LAST_S
        outcome = self._reporter.outcome(LAST_S)
        if outcome is not None:
            self._heed(outcome)
        if not self._reporter.busy and self._trouble not in PAUSES_S:
            self._look()
            self._send(status, leaving=True)
            self._reporter.outcome(max(0.0, end - self._clocks.steady()))

    def close(self) -> None:
        """Let the thread go."""
        self._reporter.close()

    def _look(self) -> None:
        """Take note of what is held of others, if it has changed since the last look."""
        held, first = self._memory.told, self._held is None
        if held is self._held:
            return
        self._held = held
        merge = describe_merge(self._memory, self._syncing.shift if self._syncing else None)
        if merge["samples"] or not first:
            self._merge = self._clocks.steady(), merge

    def _send(self, status: Status, *, leaving: bool = False) -> None:
        now, sent = self._clocks.steady(), self._clocks.wall()
        last = self._syncing.last if self._syncing else None
        report: dict[str, Any] = {
            "sent": moment(sent),
            "status": describe_status(self._memory, self._points, status(), last),
        }
        if not self._rhythm.failures:  # else see first whether anybody is there
            report |= self._news(sent - now)
        self._reporter.send(report | ({"leaving": True} if leaving else {}))
        self._rhythm.begun(now)

    def _news(self, shift_s: float) -> dict[str, Any]:
        """Take what has not been told yet; `shift_s` makes a time of day of a time."""
        taken = self._points.take()
        self._under_way = taken, self._merge
        found: dict[str, Any] = {
            "points": [describe_point(each, each.at + shift_s) for each in taken.points],
            "alarms": [
                describe_alarm(each, each.at + shift_s, self._memory) for each in taken.alarms
            ],
        }
        if self._merge is not None:
            found["merge"] = {"at": moment(self._merge[0] + shift_s), **self._merge[1]}
        return found

    def _heed(self, outcome: Outcome) -> None:
        (taken, merge), self._under_way = self._under_way, (Taken(), None)
        if outcome.error is None:
            self._went_well(outcome.heard)
            if merge is self._merge:
                self._merge = None
        else:
            self._failed(outcome.error, taken)
        self._points.space(self._rhythm.every_s)

    def _went_well(self, heard: Heard) -> None:
        self._rhythm.succeeded(self._clocks.steady(), heard.every_s)
        if self._trouble is not None:
            self._trouble = None
            logger.info("the server takes reports again")
        if heard.choice is not None and self._said.follow:
            self._follow(heard.choice)

    def _failed(self, error: EdgemergeError, taken: Taken) -> None:
        if never_left(error):
            self._points.give_back(taken)
        now = self._clocks.steady()
        if _kind(error) in PAUSES_S:
            self._rhythm.pause(now, PAUSES_S[_kind(error)])
        else:
            self._rhythm.failed(now, error.retry_s if isinstance(error, AwayError) else None)
        self._complain(error)

    def _complain(self, error: EdgemergeError) -> None:
        """Log trouble when it begins, or when it is of another kind than before."""
        kind = _kind(error)
        if self._trouble is kind:
            return
        self._trouble = kind
        values = {"values": {"why": error}}
        if isinstance(error, UnknownError):
            logger.info("the server knows no reports, so none are sent", extra=values)
        else:
            logger.warning("a report did not reach the server", extra=values)

    def _follow(self, choice: int) -> None:
        """Exchange, as the operator has chosen; again after a while if that did not work."""
        now = self._clocks.steady()
        if choice == self._followed or self._syncing is None or now < self._follow_due:
            return
        self._follow_due = now + FOLLOW_S
        self._syncing.begin(lambda found: self._exchanged(found, choice))

    def _exchanged(self, found: dict[str, Any], choice: int) -> None:
        if found["exchange"] == "ok":
            self._followed, self._follow_due = choice, 0.0


def _kind(error: EdgemergeError) -> type[EdgemergeError]:
    """Give the kind of trouble: those that last, and everything else."""
    return next((kind for kind in PAUSES_S if isinstance(error, kind)), EdgemergeError)
