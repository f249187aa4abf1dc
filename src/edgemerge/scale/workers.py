"""Workers: processes that do one job after the other and give their answers in order."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from typing import Self, TypeVar

from edgemerge.core.errors import EdgemergeError, SettingError
from edgemerge.core.settings import whole
from edgemerge.daemon import deaf_to_interrupts

Job = TypeVar("Job")
Answer = TypeVar("Answer")

AHEAD = 2  # jobs handed out for each worker: no worker waits, and few answers lie about


class WorkerError(EdgemergeError, RuntimeError):
    """A process that ended before its work was done."""


class Workers:
    """So many processes, or this one for one; they start and end with the `with` block."""

    def __init__(self, number: int) -> None:
        """Remember how many; none is started yet."""
        if whole("workers", number) < 1:
            raise SettingError(f"found {number} workers, expected at least 1")
        self.number = number
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        """Start them."""
        if self.number > 1:
            spawn = get_context("spawn")
            self._pool = ProcessPoolExecutor(self.number, spawn, initializer=_begin)
            with deaf_to_interrupts():
                for _ in range(self.number):  # each finds nobody idle, and starts one
                    self._pool.submit(os.getpid)
        return self

    def __exit__(self, *_: object) -> None:
        """End them, once each has done the job that it is at."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def do(self, work: Callable[[Job], Answer], jobs: Iterable[Job]) -> Iterator[Answer]:
        """Give the answer to each job, in the order of the jobs; few answers lie about."""
        if self._pool is None:
            yield from map(work, jobs)
            return
        waiting: deque[Future[Answer]] = deque()
        try:
            for job in jobs:
                waiting.append(self._pool.submit(work, job))
                if len(waiting) >= AHEAD * self.number:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise WorkerError(
                "a worker ended in the middle of its work; probably memory ran out: "
                "use fewer --workers, or a smaller --fan-out"
            ) from error


def cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # for one that was started later after all
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
