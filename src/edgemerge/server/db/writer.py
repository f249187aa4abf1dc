"""The writer: one thread that commits queued changes in batches, then answers callers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from math import inf
from queue import Empty, Queue
from threading import Thread
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from edgemerge.core.errors import EdgemergeError, UnavailableError
from edgemerge.failpoints import failpoint
from edgemerge.server.db.base import Database, DiskFullError, Transaction, ValueDamagedError

# The writer: one thread that gathers what waits and commits it together.
#
# A commit costs the disk the same for one change as for many. Callers are answered after it.

T = TypeVar("T")
MAX_BATCH = 32  # changes in one commit
MAX_QUEUED = 4096  # changes that may wait

log = logging.getLogger(__name__)


class WriteJob(NamedTuple):
    """A change to be made, and who waits for it."""

    change: Callable[[Transaction], Any]
    done: Future[Any]


class Writer:
    """Makes changes one after the other; each is undone by itself if it fails."""

    def __init__(self, database: Database) -> None:
        """Start the thread."""
        self._database = database
        self._jobs: Queue[WriteJob | None] = Queue(MAX_QUEUED)
        self._closed = False
        self.disk_full_at = -inf  # when the disk was last full, by the monotonic clock
        self._thread = Thread(target=self._work, name="writer", daemon=True)
        self._thread.start()

    def submit(self, change: Callable[[Transaction], T]) -> Future[T]:
        """Queue a change; the future has its result once that is durable."""
        done: Future[T] = Future()
        if self._closed or self._jobs.full():
            raise UnavailableError("too many changes wait to be written: try again", retry_s=1.0)
        self._jobs.put(WriteJob(change, done))
        return done

    def write(self, change: Callable[[Transaction], T], timeout_s: float = 30.0) -> T:
        """Make a change and wait until it is durable."""
        try:
            return self.submit(change).result(timeout_s)
        except TimeoutError as error:
            raise UnavailableError(
                "writing takes long: see whether it was done", retry_s=5.0
            ) from error

    @property
    def waiting(self) -> int:
        """The number of changes that wait."""
        return self._jobs.qsize()

    def close(self) -> None:
        """Write what waits, and stop."""
        self._closed = True
        self._jobs.put(None)
        self._thread.join(timeout=30.0)

    def _work(self) -> None:
        while batch := self._gather():
            jobs = [job for job in batch if job is not None]
            self._commit([job for job in jobs if job.done.set_running_or_notify_cancel()])
            if len(jobs) < len(batch):
                return

    def _gather(self) -> list[WriteJob | None]:
        batch = [self._jobs.get()]
        while len(batch) < MAX_BATCH and batch[-1] is not None:
            try:
                batch.append(self._jobs.get_nowait())
            except Empty:
                break
        return batch

    def _commit(self, jobs: list[WriteJob]) -> None:
        """Make the changes and commit; callers get their results only then."""
        outcomes: list[Any] = []
        try:
            if jobs:
                with self._database.writing() as tx:
                    tx.lock("writer")  # else two that lock several fleets may wait for each other
                    outcomes = [_run_job(tx, job) for job in jobs]
                    failpoint("server-before-commit")
                failpoint("server-after-commit")
        except Exception as error:  # noqa: BLE001 - it is handed to everybody who waits
            outcomes = [error] * len(jobs)
            if isinstance(error, DiskFullError):
                self.disk_full_at = monotonic()
        for job, outcome in zip(jobs, outcomes, strict=True):
            if isinstance(outcome, Exception):
                job.done.set_exception(outcome)
            else:
                job.done.set_result(outcome)


def _run_job(tx: Transaction, job: WriteJob) -> Any:
    """Make one change; if it is refused, what it did is undone and the others go on."""
    tx.run("savepoint one")
    try:
        outcome = job.change(tx)
    except EdgemergeError as error:
        if isinstance(error, OSError) and not isinstance(
            error, PermissionError | ValueDamagedError
        ):
            raise  # the database itself: nothing in this transaction can be kept
        tx.run("rollback to savepoint one")
        outcome = error
    except Exception as error:  # a fault of ours must not take the others with it
        log.exception("a change failed")
        tx.run("rollback to savepoint one")
        outcome = error
    tx.run("release savepoint one")
    return outcome
