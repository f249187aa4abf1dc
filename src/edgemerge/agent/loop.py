"""The loop of an agent: score, tell, learn; and between two samples whatever else there is."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event

from edgemerge.agent.control import Control
from edgemerge.agent.desk import Desk
from edgemerge.agent.parts import Reading

LOOK_S = 0.1  # how long the loop waits for a reading before it looks after other things
REPORT_S = 10.0  # between two reports to the sinks
LAST_S = 60.0  # for the last exchange, after the source has ended

logger = logging.getLogger(__name__)


class Loop:
    """Everything that touches the learner happens here, in one thread."""

    def __init__(self, desk: Desk, control: Control, *, steady: Callable[[], float]) -> None:
        """Work with what is on the desk."""
        self._desk, self._control, self._steady = desk, control, steady
        self._report_due = steady()

    def run(self, stop: Event, *, sync_at_end: bool) -> None:
        """Judge readings until there are no more, or `stop` is set."""
        inbox = self._desk.inbox
        while not (stop.is_set() or inbox.ended):
            reading = inbox.take(LOOK_S)
            if reading is not None:
                self.deal_with(reading)
            self.tend()
        if sync_at_end and not stop.is_set():
            self.sync(stop)
        self._desk.keeper.save()
        self.report()
        if self._desk.reporting is not None:
            self._desk.reporting.leave(self._desk.status)

    def deal_with(self, reading: Reading) -> None:
        """Judge a reading, tell the verdict, and learn from it."""
        verdict = self._desk.judge.judge(reading)
        if verdict is not None:
            for sink in self._desk.sinks:
                sink.verdict(verdict)
            if self._desk.reporting is not None:
                self._desk.reporting.verdict(verdict)
            self._desk.judge.learn()
        self._desk.keeper.count()

    def tend(self) -> None:
        """Answer, exchange, save and report, if it is time."""
        self._desk.tend(self._control.requests())
        if self._desk.syncing is not None:
            self._desk.syncing.tend()
        self._desk.keeper.tend()
        if self._desk.reporting is not None:
            self._desk.reporting.tend(self._desk.status)
        if self._steady() >= self._report_due:
            self.report()

    def sync(self, stop: Event) -> None:
        """Exchange once more, and wait for it, but not for ever."""
        syncing = self._desk.syncing
        if syncing is None:
            return
        ended = Event()
        syncing.begin(lambda _found: ended.set())
        end = self._steady() + LAST_S
        while not (stop.is_set() or ended.is_set()) and self._steady() < end:
            self.tend()
            ended.wait(LOOK_S)

    def report(self) -> None:
        """Tell the sinks how the agent is doing."""
        self._report_due = self._steady() + REPORT_S
        for sink in self._desk.sinks:
            sink.status(self._desk.status())
