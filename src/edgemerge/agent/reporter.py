"""The reporter: a thread that sends reports, so that detection never waits for them.

Only values go in and come out: a report, and the answer or what stood in its way.
"""

from __future__ import annotations

import logging
from queue import Empty, Queue
from threading import Event, Thread
from typing import Any, NamedTuple, Protocol

from edgemerge.core.errors import AwayError, EdgemergeError
from edgemerge.exchange.reports import Heard

logger = logging.getLogger(__name__)


class Reports(Protocol):
    """Where reports go."""

    def send(self, report: dict[str, Any]) -> Heard:
        """Send a report and give the answer; an `EdgemergeError` if there is none."""
        ...

    def close(self) -> None:
        """Let go of the connection."""
        ...


class Outcome(NamedTuple):
    """The answer, or why there is none."""

    heard: Heard = Heard()
    error: EdgemergeError | None = None


class Reporter:
    """Sends one report at a time; `outcome` gives its end, once."""

    def __init__(self, reports: Reports) -> None:
        """Start the thread, which waits for a report."""
        self._reports = reports
        self._waiting: Queue[dict[str, Any] | None] = Queue(1)
        self._outcomes: Queue[Outcome] = Queue(1)
        self._closed = Event()
        self._thread = Thread(target=self._work, name="reporter", daemon=True)
        self.busy = False
        self._thread.start()

    def send(self, report: dict[str, Any]) -> None:
        """Send a report; the one before must have ended."""
        if self.busy:
            raise RuntimeError("a report is under way: wait for its outcome")
        self.busy = True
        self._waiting.put(report)

    def outcome(self, timeout_s: float = 0.0) -> Outcome | None:
        """Give the end of the report, if it comes within that time."""
        if not self.busy:
            return None
        try:
            found = (
                self._outcomes.get(timeout=timeout_s) if timeout_s else self._outcomes.get(False)
            )
        except Empty:
            return None
        self.busy = False
        return found

    def close(self) -> None:
        """Let go without waiting; a thread that hangs on the network ends when that lets it go."""
        self._closed.set()
        if not self.busy:
            self._waiting.put(None)

    def _work(self) -> None:
        while not self._closed.is_set() and (report := self._waiting.get()) is not None:
            self._outcomes.put(self._sent(report))
        self._reports.close()

    def _sent(self, report: dict[str, Any]) -> Outcome:
        try:
            return Outcome(self._reports.send(report))
        except EdgemergeError as error:
            return Outcome(error=error)
        except Exception as error:  # a mistake there must not stop the thread
            logger.exception("a report failed in a way that it should not")
            return Outcome(error=AwayError(f"the report failed: {error!r}"))
