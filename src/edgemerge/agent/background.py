"""Background threads: read the source ahead, talk to the exchange, send reports.

Detection never waits for them. Only values go in and come out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import Any, NamedTuple, Protocol

from edgemerge.agent.interfaces import Reading, Source
from edgemerge.core.errors import (
    DeniedError,
    EdgemergeError,
    RejectedError,
    StaleError,
    UnavailableError,
)
from edgemerge.core.ledger import Contribution, Merged
from edgemerge.exchange.client import ReportAnswer
from edgemerge.exchange.protocol import Exchange, Wish
from edgemerge.failpoints import failpoint

MAX_READ_AHEAD = 256  # readings
POLL_S = 0.2


class ReadAhead:
    """Readings from a source, to be taken with a time limit; a full inbox makes the source wait."""

    def __init__(self, source: Source, position: Any) -> None:
        """Start to read from a position on."""
        self._source, self._position = source, position
        self._queue: Queue[Reading | None] = Queue(MAX_READ_AHEAD)
        self._stop = Event()
        self.ended = False
        self.error: Exception | None = None
        self._thread = Thread(target=self._read, name="reader", daemon=True)
        self._thread.start()

    def take(self, timeout_s: float) -> Reading | None:
        """Give the next reading; None if there is none yet, or `ended` says that none will come."""
        try:
            reading = self._queue.get(timeout=timeout_s)
        except Empty:
            return None
        self.ended = reading is None
        return reading

    @property
    def skipped(self) -> int:
        """The readings that the source itself could not make sense of."""
        return int(getattr(self._source, "skipped", 0))

    def close(self) -> None:
        """Stop to read; a source that does not let go is left behind."""
        self._stop.set()
        self._thread.join(5 * POLL_S)

    def _read(self) -> None:
        try:
            for reading in self._source.read(self._stop, self._position):
                self._put(reading)
                if self._stop.is_set():
                    return
        except Exception as error:  # noqa: BLE001 - told by the loop, in its thread
            self.error = error
        self._put(None)

    def _put(self, reading: Reading | None) -> None:
        while not self._stop.is_set():
            try:
                self._queue.put(reading, timeout=POLL_S)
            except Full:
                continue
            return


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExchangeJob:
    """What to push, in this order, and then to pull; and the rule of the gate, if not known yet."""

    push: tuple[Contribution, ...] = ()
    wish: Wish | None = None
    rule: Callable[[], float] | None = None


@dataclass(frozen=True)
class ExchangeOutcome:
    """How many contributions are there now, what was told, and what stood in the way."""

    pushed: int = 0
    told: Merged | None = None
    error: EdgemergeError | None = None
    gate: float | None = None


class ExchangeWorker:
    """Runs one errand at a time; `outcome` gives its end, once."""

    def __init__(self, exchange: Exchange) -> None:
        """Have an exchange to talk to."""
        self._exchange = exchange
        self._jobs: Queue[ExchangeJob | None] = Queue(1)
        self._outcomes: Queue[ExchangeOutcome] = Queue(1)
        self._thread = Thread(target=self._work, name="courier", daemon=True)
        self.busy = False

    def start(self) -> None:
        """Be ready for errands."""
        self._thread.start()

    def send(self, errand: ExchangeJob) -> None:
        """Start an errand; the one before must have ended."""
        if self.busy:
            raise RuntimeError("an errand is under way: wait for its outcome")
        self.busy = True
        self._jobs.put(errand)

    def outcome(self) -> ExchangeOutcome | None:
        """Give the end of the errand, if it has come."""
        try:
            found = self._outcomes.get_nowait()
        except Empty:
            return None
        self.busy = False
        return found

    def close(self, timeout_s: float) -> None:
        """Let the exchange go; an errand that hangs is left behind, to end with the process."""
        if self.busy and not self._ends_within(timeout_s):
            return
        self._jobs.put(None)
        self._thread.join(timeout_s)
        getattr(self._exchange, "close", bool)()

    def _ends_within(self, timeout_s: float) -> bool:
        try:
            self._outcomes.get(timeout=timeout_s)
        except Empty:
            return False
        return True

    def _work(self) -> None:
        while (errand := self._jobs.get()) is not None:
            self._outcomes.put(self._run(errand))

    def _run(self, errand: ExchangeJob) -> ExchangeOutcome:
        try:
            return run_exchange(self._exchange, errand)
        except Exception as error:  # a mistake there must not stop detection
            logger.exception("the exchange failed in a way that it should not")
            return ExchangeOutcome(error=UnavailableError(f"the exchange failed: {error!r}"))


def run_exchange(exchange: Exchange, errand: ExchangeJob) -> ExchangeOutcome:
    """Push, then pull; what stands in the way is part of the outcome."""
    pushed, refused = 0, None
    try:
        for i, note in enumerate(errand.push):
            _push(exchange, note, errand.push[i + 1 :])
            pushed += 1
    except StaleError as error:
        return ExchangeOutcome(pushed, error=error)
    except RejectedError as error:
        refused = error  # for good, and what would have come behind it must not come without it
    except EdgemergeError as error:
        return ExchangeOutcome(pushed, error=error)
    try:
        gate = errand.rule() if errand.rule else None
        told = exchange.pull(errand.wish) if errand.wish else None
    except EdgemergeError as error:
        return ExchangeOutcome(pushed, error=refused or error)
    return ExchangeOutcome(pushed, told, refused, gate)


def _push(exchange: Exchange, note: Contribution, later: Sequence[Contribution]) -> None:
    """Push one; one that was followed by another of ours before we were killed is there."""
    failpoint("agent-before-push")
    try:
        exchange.push(note)
    except StaleError as error:
        followed = any(each.key == note.key for each in later)
        if not (followed and error.newest > note.revision):  # if it is not ours, the next one tells
            raise
    failpoint("agent-after-push")


def is_permanent(error: EdgemergeError) -> bool:
    """Say whether trying again soon would be of no use."""
    return isinstance(error, DeniedError) or not isinstance(error, UnavailableError)


class ReportTransport(Protocol):
    """Where reports go."""

    def send(self, report: dict[str, Any]) -> ReportAnswer:
        """Send a report and give the answer; an `EdgemergeError` if there is none."""
        ...

    def close(self) -> None:
        """Let go of the connection."""
        ...


class ReportOutcome(NamedTuple):
    """The answer, or why there is none."""

    heard: ReportAnswer = ReportAnswer()
    error: EdgemergeError | None = None


class ReportWorker:
    """Sends one report at a time; `outcome` gives its end, once."""

    def __init__(self, reports: ReportTransport) -> None:
        """Start the thread, which waits for a report."""
        self._reports = reports
        self._waiting: Queue[dict[str, Any] | None] = Queue(1)
        self._outcomes: Queue[ReportOutcome] = Queue(1)
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

    def outcome(self, timeout_s: float = 0.0) -> ReportOutcome | None:
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

    def _sent(self, report: dict[str, Any]) -> ReportOutcome:
        try:
            return ReportOutcome(self._reports.send(report))
        except EdgemergeError as error:
            return ReportOutcome(error=error)
        except Exception as error:  # a mistake there must not stop the thread
            logger.exception("a report failed in a way that it should not")
            return ReportOutcome(error=UnavailableError(f"the report failed: {error!r}"))
