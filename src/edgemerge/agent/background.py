"""Background threads: read the source ahead, exchange, plan adoptions, send reports.

Detection never waits for them. Only values go in and come out. The schedules say when an exchange
or a report is due: intervals, jitter, and a growing delay after failures.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from queue import Empty, Full, Queue
from random import Random
from threading import Event, Thread
from time import monotonic, sleep, time
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from edgemerge.agent.faults import FaultJob, FaultOutcome, exchange_faults
from edgemerge.agent.sources import Reading, Source
from edgemerge.agent.state import StateFolder, merged_digest
from edgemerge.core.errors import (
    DeniedError,
    EdgemergeError,
    RejectedError,
    StaleError,
    UnavailableError,
    UnknownError,
)
from edgemerge.core.ledger import Contribution, Merged, Selection
from edgemerge.daemon import Backoff, in_context
from edgemerge.exchange.client import DesiredState, ReportAnswer
from edgemerge.exchange.protocol import Exchange, is_masked, may_be_restored
from edgemerge.failpoints import failpoint
from edgemerge.privacy.noise import NoiseSettings
from edgemerge.wire.codec import Tensors, encode

SYNC_FIRST_RETRY_S, SYNC_MAX_RETRY_S = 2.0, 900.0  # after a failed exchange
REPORT_FIRST_DELAY_S, REPORT_MAX_DELAY_S = 2.0, 60.0  # after a failed report
REPORT_MIN_GAP_S = 1.0  # between two reports, however urgent
LASTING_ERROR_DELAYS_S: dict[type[EdgemergeError], float] = {  # a retry soon is useless
    DeniedError: 600.0,
    UnknownError: 3600.0,  # an older server without this route
}


def error_kind(error: EdgemergeError) -> type[EdgemergeError]:
    """Return the class of an error that lasts; `EdgemergeError` for all others."""
    kinds = (kind for kind in LASTING_ERROR_DELAYS_S if isinstance(error, kind))
    return next(kinds, EdgemergeError)


class SyncSchedule:
    """When the next exchange is due, by a monotonic clock; the device's name seeds the jitter.

    >>> schedule = SyncSchedule(3600.0, 0.1, "pump-3")
    >>> schedule.start(now=0.0)
    >>> 0.0 <= schedule.next < 3600.0
    True
    """

    def __init__(self, every_s: float, jitter: float, device: str) -> None:
        """Exchange every `every_s` seconds, give or take `jitter` of that; never with 0."""
        self._every_s, self._jitter = every_s, jitter
        self._random = Random(device)
        longest_s = min(every_s, SYNC_MAX_RETRY_S)
        self._backoff = Backoff(SYNC_FIRST_RETRY_S, longest_s, self._random, SYNC_MAX_RETRY_S)
        self.next = inf

    def change(self, every_s: float, jitter: float, now: float) -> None:
        """Exchange at another interval, from the next exchange on, which comes no later."""
        self._every_s, self._jitter = every_s, jitter
        self._backoff.max_s = min(every_s, SYNC_MAX_RETRY_S)
        spread = 1.0 + jitter * (2.0 * self._random.random() - 1.0)
        self.next = min(self.next, now + every_s * spread) if every_s else inf

    def start(self, now: float) -> None:
        """Be due at a random time within the first interval."""
        self._wait(now, self._random.random() * self._every_s)

    def due(self, now: float) -> bool:
        """Return whether it is time."""
        return now >= self.next

    def succeeded(self, now: float) -> None:
        """Be due after the next interval."""
        self._backoff.reset()
        spread = 1.0 + self._jitter * (2.0 * self._random.random() - 1.0)
        self._wait(now, self._every_s * spread)

    def failed(self, now: float, retry_s: float | None = None, *, hopeless: bool = False) -> None:
        """Be due after a growing delay, not before `retry_s`; after the longest if hopeless."""
        at_least_s = self._backoff.max_s if hopeless else 0.0
        self._wait(now, self._backoff.next(at_least_s=at_least_s, retry_after_s=retry_s))

    def _wait(self, now: float, wait_s: float) -> None:
        self.next = now + wait_s if self._every_s else inf


class ReportSchedule:
    """When the next report is due, by a monotonic clock; the device's name seeds the jitter.

    >>> schedule = ReportSchedule(1.0, "pump-3")
    >>> schedule.begun(now=100.0)
    >>> schedule.succeeded(now=100.1, every_s=5.0)
    >>> schedule.due(104.9), schedule.due(105.0)
    (False, True)
    """

    def __init__(self, every_s: float, device: str) -> None:
        """Be due at once, then every `every_s` seconds, or less often if the server asks."""
        self._own_s = self._every_s = every_s
        self._backoff = Backoff(REPORT_FIRST_DELAY_S, REPORT_MAX_DELAY_S, Random(device))
        self._begun, self._next = -inf, -inf
        self._urgent = False

    def change(self, every_s: float) -> None:
        """Report at another interval, from the next answer on."""
        self._own_s = every_s

    @property
    def failures(self) -> int:
        """The failures since the last success."""
        return self._backoff.failures

    @property
    def every_s(self) -> float:
        """The current time from one report to the next; longer after failures."""
        return max(self._every_s, self._backoff.delay_s)

    def due(self, now: float) -> bool:
        """Return whether it is time."""
        hurry = self._urgent and not self.failures and now >= self._begun + REPORT_MIN_GAP_S
        return hurry or now >= self._next

    def mark_urgent(self) -> None:
        """Be due as soon as allowed; after a failure this changes nothing."""
        self._urgent = True

    def begun(self, now: float) -> None:
        """Record that a report is being sent."""
        self._begun, self._urgent = now, False

    def succeeded(self, now: float, every_s: float | None) -> None:
        """Be due after the next interval: our own, or the server's if that is longer."""
        self._backoff.reset()
        self._every_s = max(self._own_s, every_s or 0.0)
        self._next = max(self._begun + self._every_s, now)

    def failed(self, now: float, retry_s: float | None = None) -> None:
        """Be due after a growing delay, not before `retry_s`."""
        self._next = now + self._backoff.next(at_least_s=self._every_s, retry_after_s=retry_s)

    def pause(self, now: float, wait_s: float) -> None:
        """Be due after `wait_s`: the error will last."""
        self._backoff.failures += 1
        self._next = now + wait_s


MAX_READ_AHEAD = 256  # readings
POLL_S = 0.2
FAULTS_TIMEOUT_S = 30.0  # to push, pull and compare faults
UNREADABLE_RETRY_S = 3600.0  # until a desired state that was not valid is fetched again


class ReadAhead:
    """Reads a source ahead in a thread; a full queue makes the source wait.

    Args:
        source: Where readings come from.
        position: Where to begin.
        may_pass: Returns whether a reading of this time may be taken yet; None: all may.
        clock: The time of day in seconds, for readings without time.
    """

    def __init__(
        self,
        source: Source,
        position: Any,
        *,
        may_pass: Callable[[float], bool] | None = None,
        clock: Callable[[], float] = time,
    ) -> None:
        """Start reading."""
        self._source, self._position = source, position
        self._may_pass, self._clock = may_pass, clock
        self._queue: Queue[Reading | None] = Queue(MAX_READ_AHEAD)
        self._first: Reading | None = None  # until it may pass
        self._skipped_before = 0
        self._stop = Event()
        self.ended = False
        self.taken = 0  # readings
        self.error: Exception | None = None
        self._thread = Thread(target=in_context(self._read), name="reader", daemon=True)
        self._thread.start()

    def take(self, timeout_s: float) -> Reading | None:
        """Return the next reading; None if there is none yet, or no more (`ended` is then set)."""
        if self._first is None:
            try:
                self._first = self._queue.get(timeout=timeout_s)
            except Empty:
                return None
            if self._first is None:
                self.ended = True
                return None
        reading = self._first
        if self._may_pass is not None and not self._may_pass(reading.at or 0.0):
            self._stop.wait(timeout_s)
            return None
        self._first = None
        self.taken += 1
        self._skipped_before = reading.skipped
        return reading

    @property
    def skipped(self) -> int:
        """The number of readings that the source could not parse."""
        return int(getattr(self._source, "skipped", 0))

    @property
    def skipped_before(self) -> int:
        """Those before the last reading that was taken; all of them if none waits.

        The source is ahead, so that all of them beside the readings taken would be too large a
        share.
        """
        skipped = self.skipped
        if self._first is None and self._queue.empty():
            self._skipped_before = skipped
        return self._skipped_before

    @property
    def why_skipped(self) -> str:
        """Why the last of them could not be parsed."""
        return str(getattr(self._source, "why_skipped", ""))

    @property
    def waiting(self) -> str:
        """What the source waits for, in words."""
        return str(getattr(self._source, "waiting", ""))

    def close(self) -> None:
        """Stop reading; a source that hangs is left behind."""
        self._stop.set()
        self._thread.join(5 * POLL_S)

    def _read(self) -> None:
        try:
            for reading in self._source.read(self._stop, self._position):
                if reading.at is None:
                    reading = replace(reading, at=self._clock(), dated=False)
                self._put(reading)
                if self._stop.is_set():
                    return
        except Exception as error:  # noqa: BLE001 - logged by the runner
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

Job = TypeVar("Job")
Result = TypeVar("Result")
SLICE_S = 0.002  # worked at a time before others may run
MAX_PAUSE_S = 0.01


class OverBudgetError(EdgemergeError, TimeoutError):
    """Background work took longer than it may."""


class TimeBudget:
    """Ends work that takes too long, and leaves half of the time to other threads.

    Python runs one thread at a time: without pauses the loop's thread would wait several
    milliseconds for each matrix product of a sample.
    """

    def __init__(
        self,
        timeout_s: float,
        clock: Callable[[], float] = monotonic,
        pause: Callable[[float], object] = sleep,
    ) -> None:
        """Begin now."""
        self.timeout_s, self._clock, self._pause = timeout_s, clock, pause
        self._resumed = clock()
        self._end = self._resumed + timeout_s

    def check(self) -> None:
        """Pause if it is time to; raise OverBudgetError after the timeout."""
        now = self._clock()
        if now >= self._end:
            raise OverBudgetError(f"it took longer than {self.timeout_s:g} s")
        if now - self._resumed >= SLICE_S:
            self._pause(min(now - self._resumed, MAX_PAUSE_S))
            self._resumed = self._clock()


class Worker(Generic[Job, Result]):
    """Runs one job at a time in a thread of its own; `outcome` returns each result once.

    Args:
        name: Name of the thread.
        run: Runs a job. It must not touch what the loop's thread uses.
        failed: Makes a result of an exception that `run` should not raise.
        close: Called in the thread after the last job, such as to close a connection.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[Job], Result],
        failed: Callable[[Exception], Result],
        close: Callable[[], object],
    ) -> None:
        """Start the thread."""
        self._run, self._failed, self._close = run, failed, close
        self._jobs: Queue[Job | None] = Queue(2)  # one job, and None to end the thread
        self._results: Queue[Result] = Queue(1)
        self.busy = False
        self._thread = Thread(target=in_context(self._work), name=name, daemon=True)
        self._thread.start()

    def send(self, job: Job) -> None:
        """Start a job; the result of the one before must have been taken."""
        if self.busy:
            raise RuntimeError("a job is under way: wait for its outcome")
        self.busy = True
        self._jobs.put(job)

    def outcome(self, timeout_s: float = 0.0) -> Result | None:
        """Return the result of the job, or None if there is none within `timeout_s`."""
        if not self.busy or (not timeout_s and self._results.empty()):
            return None
        try:
            result = self._results.get(timeout=timeout_s) if timeout_s else self._results.get(False)
        except Empty:
            return None
        self.busy = False
        return result

    def close(self, timeout_s: float = 0.0) -> None:
        """End the thread after its job; a job that takes longer than `timeout_s` is left behind."""
        with suppress(Full):  # closed before
            self._jobs.put_nowait(None)
        self._thread.join(timeout_s)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                result = self._run(job)
            except Exception as error:  # a bug in a job must not end the thread
                logger.exception("a background job failed unexpectedly")
                result = self._failed(error)
            self._results.put(result)
        self._close()


def save_worker(folder: StateFolder) -> Worker[Tensors, str]:
    """Return a worker that writes states; its result is why one was not written, or empty."""
    return Worker("saver", partial(_write_state, folder), repr, bool)


def _write_state(folder: StateFolder, tensors: Tensors) -> str:
    try:
        folder.write(tensors)
    except OSError as error:
        return error.strerror or str(error)
    return ""


@dataclass(frozen=True)
class ExchangeJob:
    """What to push, in this order, then what to pull.

    With `most`, one sum for each pattern is pulled, and at most that many are kept. Faults come
    last, and what goes wrong with them does not matter to the rest.
    """

    push: tuple[Contribution, ...] = ()
    pull: Selection | None = None
    most: int | None = None
    faults: FaultJob | None = None
    knows: KnownExchange | None = None


@dataclass(frozen=True)
class KnownExchange:
    """What a device knows of its exchange's history, to notice that it was restored.

    Args:
        timeline: The timeline that the device met last, "" if none.
        device: The device.
        incarnation: Its incarnation.
    """

    timeline: str
    device: str
    incarnation: int


@dataclass(frozen=True)
class ExchangeOutcome:
    """How many contributions were pushed, what was pulled, and the error if any.

    What was pulled keeps its bytes, since to encode many patterns takes long, and so does `digest`.
    `left_out` says how many patterns were not kept. `timeline` is that of the exchange if it is
    another than before; `held` then says which revisions of this device the exchange has.
    `agreed` says that the fleet's noise is known; `lost` counts uploads that are in no total.
    """

    pushed: int = 0
    merged: Merged | None = None
    error: EdgemergeError | None = None
    digest: str = ""
    left_out: str = ""
    faults: FaultOutcome | None = None
    timeline: str = ""
    held: Mapping[str, int] = field(default_factory=dict)
    agreed: bool = False
    noise: NoiseSettings | None = None
    lost: int = 0


def exchange_worker(exchange: Exchange) -> Worker[ExchangeJob, ExchangeOutcome]:
    """Return a worker that pushes to and pulls from an exchange."""
    return Worker(
        "exchange",
        partial(run_exchange, exchange),
        lambda error: ExchangeOutcome(error=UnavailableError(f"the exchange failed: {error!r}")),
        getattr(exchange, "close", bool),
    )


def run_exchange(exchange: Exchange, job: ExchangeJob) -> ExchangeOutcome:
    """Push, then pull, and then the same with faults; an error is part of the outcome."""
    outcome = _look_for_restore(exchange, job.knows, _push_and_pull(exchange, job))
    outcome = _look_for_noise(exchange, outcome)
    if job.faults is None or isinstance(outcome.error, StaleError | UnavailableError | DeniedError):
        return outcome
    budget = TimeBudget(FAULTS_TIMEOUT_S)
    return replace(outcome, faults=exchange_faults(exchange, job.faults, budget.check))


def _look_for_restore(
    exchange: Exchange, knows: KnownExchange | None, outcome: ExchangeOutcome
) -> ExchangeOutcome:
    """Add to the outcome that the exchange has another timeline, and what it has of this device."""
    if knows is None or not may_be_restored(exchange):
        return outcome
    timeline = exchange.timeline
    if timeline in ("", knows.timeline):
        return outcome
    held: Mapping[str, int] = {}
    if knows.timeline:
        try:
            held = exchange.own_revisions(knows.device, knows.incarnation)
        except EdgemergeError:  # the next exchange looks again
            return outcome
    return replace(outcome, timeline=timeline, held=held)


def _look_for_noise(exchange: Exchange, outcome: ExchangeOutcome) -> ExchangeOutcome:
    """Add to the outcome what a masked fleet has agreed on, which it is asked for once."""
    if not is_masked(exchange):
        return outcome
    try:
        return replace(outcome, agreed=True, noise=exchange.noise, lost=exchange.lost)
    except EdgemergeError as error:
        return replace(outcome, error=outcome.error or error)


def _push_and_pull(exchange: Exchange, job: ExchangeJob) -> ExchangeOutcome:
    pushed, refused = 0, None
    try:
        for i, contribution in enumerate(job.push):
            _push(exchange, contribution, job.push[i + 1 :])
            pushed += 1
    except RejectedError as error:
        if isinstance(error, StaleError):
            return ExchangeOutcome(pushed, error=error)
        refused = error  # for good: later contributions must not arrive without this one
    except EdgemergeError as error:
        return ExchangeOutcome(pushed, error=error)
    try:
        if job.pull is None:
            if is_masked(exchange):
                exchange.take_part()
            return ExchangeOutcome(pushed, error=refused)
        pulled = exchange.pull(job.pull, grouped=job.most is not None)
    except EdgemergeError as error:
        return ExchangeOutcome(pushed, error=refused or error)
    merged = pulled if job.most is None else fair_share(pulled, job.most)
    data = encode(merged)
    return ExchangeOutcome(
        pushed,
        merged.keep_encoded(data),
        refused,
        merged_digest(data),
        _left_out(pulled, merged),
    )


def fair_share(merged: Merged, most: int) -> Merged:
    """Keep at most this many patterns: the largest of each device, then the second of each, ...

    So a device that sends hundreds of patterns pushes out its own, not those of others.
    """
    if len(merged.parts) <= most:
        return merged
    sent: Counter[str] = Counter()
    places: dict[int, int] = {}  # of each part among those of its device
    parts = merged.parts
    largest = sorted(range(len(parts)), key=lambda i: (-parts[i].stats.count, parts[i].origins))
    for i in largest:
        device = parts[i].origins[0].device if parts[i].origins else ""
        places[i], sent[device] = sent[device], sent[device] + 1
    kept = sorted(sorted(largest, key=places.__getitem__)[:most])
    return Merged(merged.projection, tuple(parts[i] for i in kept))


def _left_out(pulled: Merged, kept: Merged) -> str:
    missing = Counter(each.device for each in pulled.origins)
    missing -= Counter(each.device for each in kept.origins)
    if not missing:
        return ""
    device, patterns = missing.most_common(1)[0]
    return (
        f"{missing.total()} patterns were left out, since at most {len(kept.parts)} are compared; "
        f"{patterns} of them are of {device}"
    )


def _push(exchange: Exchange, contribution: Contribution, later: Sequence[Contribution]) -> None:
    """Push one contribution; a stale one is fine if a later one of ours arrived before."""
    failpoint("agent-before-push")
    try:
        exchange.push(contribution)
    except StaleError as error:
        replaced = any(each.key == contribution.key for each in later)
        if not (replaced and error.newest > contribution.revision):
            raise
    failpoint("agent-after-push")


def is_permanent(error: EdgemergeError) -> bool:
    """Return whether retrying soon is useless."""
    return isinstance(error, DeniedError) or not isinstance(error, UnavailableError)


class ReportTransport(Protocol):
    """Where reports go."""

    def send(self, report: dict[str, Any]) -> ReportAnswer:
        """Send a report and return the answer; raise an `EdgemergeError` if there is none."""
        ...

    def desired(self, known: int | None = None) -> DesiredState | None:
        """Fetch the device's desired state; None if its revision is still `known`."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class ReportOutcome(NamedTuple):
    """The answer to a report, or the error; and a desired state that is new, if it was fetched."""

    answer: ReportAnswer = ReportAnswer()
    error: EdgemergeError | None = None
    desired: DesiredState | None = None


def report_worker(
    transport: ReportTransport, known: int | None = None
) -> Worker[dict[str, Any], ReportOutcome]:
    """Return a worker that sends reports; `known` is the revision of the desired state held."""
    return Worker(
        "reporter",
        ReportSender(transport, known).send,
        lambda error: ReportOutcome(error=UnavailableError(f"the report failed: {error!r}")),
        transport.close,
    )


class ReportSender:
    """Sends reports, and fetches the desired state when an answer names another revision of it.

    A revision that is denied, missing or cannot be read is fetched again after a while (10 minutes
    if denied, else an hour): permissions, proxies and agents get repaired without a new revision.
    """

    def __init__(
        self,
        transport: ReportTransport,
        known: int | None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Send through `transport`; `known` is the revision of the desired state held."""
        self._transport, self._known, self._clock = transport, known, clock
        self._failed: int | None = None  # the revision that could not be read
        self._retry_at = 0.0  # when to fetch that one again

    def send(self, report: dict[str, Any]) -> ReportOutcome:
        """Send a report; an error is part of the outcome."""
        try:
            answer = self._transport.send(report)
        except EdgemergeError as error:
            return ReportOutcome(error=error)
        try:
            return ReportOutcome(answer, desired=self._fetch(answer.desired))
        except UnavailableError as error:  # the next report fetches it, and then it is followed
            logger.info("the desired state was not fetched", extra={"values": {"why": error}})
            return ReportOutcome(ReportAnswer(answer.every_s))

    def _fetch(self, revision: int | None) -> DesiredState | None:
        if revision is None or revision == self._known:
            return None
        if revision == self._failed and self._clock() < self._retry_at:
            return None
        try:
            found = self._transport.desired(self._known)
        except UnavailableError:
            raise
        except EdgemergeError as error:
            retry_s = LASTING_ERROR_DELAYS_S.get(error_kind(error), UNREADABLE_RETRY_S)
            self._failed, self._retry_at = revision, self._clock() + retry_s
            values = {"why": error, "retry_s": retry_s}
            logger.warning("the desired state was not read", extra={"values": values})
            return None
        self._known = revision if found is None else found.revision
        return found
