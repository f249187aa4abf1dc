"""Worker processes: results in order or as they come, and a death that is explained.

A `ProcessPoolExecutor` does the work. Added here: workers ignore Ctrl-C, end when their parent is
killed, end at once with the `with` block, and a worker that dies is reported with its job.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor
from concurrent.futures import wait as wait_for_futures
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from multiprocessing.queues import SimpleQueue
from typing import Any, Self, TypeVar

from edgemerge.core.errors import EdgemergeError, SettingError
from edgemerge.core.projection import as_int
from edgemerge.daemon import ignore_interrupts

Job = TypeVar("Job")
Answer = TypeVar("Answer")

JOBS_PER_WORKER = 2  # handed out at a time by `in_order`: no worker waits, and few answers pile up
STOP_TIMEOUT_S = 5.0  # for a worker to end after SIGTERM, before it is killed

_announcements: SimpleQueue[tuple[int, int]]  # in a worker: its process id, the number of its job


class WorkerError(EdgemergeError, RuntimeError):
    """A worker that ended in the middle of a job.

    Args:
        message: What happened, and what to do.
        job: The job it was at; None if that is not known.
        exit_code: Of the process, negative for a signal; None if it is not known which one died.
    """

    def __init__(self, message: str, job: Any = None, exit_code: int | None = None) -> None:
        """Keep what is known of the death."""
        super().__init__(message)
        self.job, self.exit_code = job, exit_code


class WorkerPool:
    """Worker processes, started when there is a job for them and ended with the `with` block.

    Args:
        count: The most processes at a time, at least 1.
    """

    def __init__(self, count: int) -> None:
        """Start nothing yet."""
        if as_int("workers", count) < 1:
            raise SettingError(f"found {count} workers, expected at least 1")
        self.count = count
        self.processes: list[BaseProcess] = []
        self._pool: ProcessPoolExecutor | None = None
        self._announced: SimpleQueue[tuple[int, int]] = get_context("spawn").SimpleQueue()
        self._busy: dict[int, int] = {}  # the number of the last job that each process began
        self._jobs: dict[int, Any] = {}  # by number, those that may be running
        self._handed_out = 0

    def __enter__(self) -> Self:
        """Start nothing yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the workers at once; the jobs they are at are lost."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            if not wait([process.sentinel], STOP_TIMEOUT_S):
                process.kill()
        self._close()

    def in_order(self, work: Callable[[Job], Answer], jobs: Iterable[Job]) -> Iterator[Answer]:
        """Yield the answers in the order of the jobs, which are taken a few at a time.

        Args:
            work: Called with each job, in a worker; in this process if the count is 1. An exception
                is raised here.
            jobs: Any number of them; at most two for each worker are taken ahead of the answers.

        Raises:
            WorkerError: A worker ended in the middle of a job.
        """
        if self.count == 1:
            yield from map(work, jobs)
            return
        waiting: deque[Future[Answer]] = deque()
        for job in jobs:
            waiting.append(self._submit(work, job))
            if len(waiting) >= JOBS_PER_WORKER * self.count:
                yield self._result(waiting.popleft())
        while waiting:
            yield self._result(waiting.popleft())

    def as_completed(
        self, work: Callable[[Job], Answer], jobs: Iterable[Job]
    ) -> Iterator[tuple[Job, Answer]]:
        """Yield each job with its answer as soon as it is done.

        Args:
            work: Called with each job, always in a worker. An exception is raised here.
            jobs: As many as there are workers are handed out at a time.

        Raises:
            WorkerError: A worker ended in the middle of a job; answers that came before are
                yielded first.
        """
        left, running = deque(jobs), dict[Future[Answer], Job]()
        while left or running:
            while left and len(running) < self.count:
                job = left.popleft()
                running[self._submit(work, job)] = job
            done = wait_for_futures(running, return_when=FIRST_COMPLETED).done
            for future in sorted(done, key=lambda f: isinstance(f.exception(), BrokenProcessPool)):
                yield running.pop(future), self._result(future)

    def _submit(self, work: Callable[[Job], Answer], job: Job) -> Future[Answer]:
        if self._pool is None:
            spawn = get_context("spawn")
            self._pool = ProcessPoolExecutor(
                self.count, spawn, initializer=_start_worker, initargs=(self._announced,)
            )
        self._handed_out += 1
        self._jobs[self._handed_out] = job
        is_full = len(self.processes) == self.count
        before = set() if is_full else set(active_children())
        try:
            with nullcontext() if is_full else ignore_interrupts():  # it may start a process
                future = self._pool.submit(_run, work, job, self._handed_out)
        except BrokenProcessPool as error:
            future = Future()
            future.set_exception(error)
        if not is_full:
            self.processes += set(active_children()) - before
        return future

    def _result(self, future: Future[Answer]) -> Answer:
        try:
            return future.result()
        except BrokenProcessPool as error:
            raise self._death() from error
        finally:
            self._read_announcements()

    def _read_announcements(self) -> None:
        while not self._announced.empty():
            process, number = self._announced.get()
            self._jobs.pop(self._busy.get(process, 0), None)
            self._busy[process] = number

    def _death(self) -> WorkerError:
        """Find the process that died first, and forget the pool: a broken one takes no more jobs.

        The executor ends all others by SIGTERM, so the first one is any that ended otherwise.
        """
        self._read_announcements()
        processes, busy, jobs = self.processes, self._busy, self._jobs
        self._close()
        died = [each for each in processes if each.exitcode not in {None, 0, -signal.SIGTERM}]
        job = jobs.get(busy.get(died[0].pid or 0, 0)) if died else None
        return WorkerError(
            "a worker ended in the middle of its work; probably memory ran out: "
            "use fewer --workers, or a smaller --fan-out",
            job,
            died[0].exitcode if died else None,
        )

    def _close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)  # waits, so that exit codes are known
        self._pool, self.processes, self._busy, self._jobs = None, [], {}, {}


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start_worker(announcements: SimpleQueue[tuple[int, int]]) -> None:
    global _announcements  # noqa: PLW0603 (the executor gives a job no other way to it)
    _announcements = announcements
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _run(work: Callable[[Job], Answer], job: Job, number: int) -> Answer:
    _announcements.put((os.getpid(), number))
    return work(job)


def _end_with_parent() -> None:
    # An idle worker holds both ends of its queue, so it sees no end of file when the parent dies.
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
