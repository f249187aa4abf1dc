"""Worker processes: the pool, its cores, the memory they take and how fast it is."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path
from time import perf_counter, process_time
from typing import Self, TypeVar

import numpy as np

from edgemerge.core.errors import EdgemergeError, SettingError
from edgemerge.core.projection import as_int
from edgemerge.core.stats import Stats
from edgemerge.daemon import ignore_interrupts
from edgemerge.scale.devices import SimulatedFleet

Job = TypeVar("Job")
Answer = TypeVar("Answer")

JOBS_PER_WORKER = 2  # jobs handed out for each worker: no worker waits, and few answers lie about


class WorkerError(EdgemergeError, RuntimeError):
    """A process that ended before its work was done."""


class WorkerPool:
    """So many processes, or this one for one; they start and end with the `with` block."""

    def __init__(self, number: int) -> None:
        """Remember how many; none is started yet."""
        if as_int("workers", number) < 1:
            raise SettingError(f"found {number} workers, expected at least 1")
        self.number = number
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        """Start them."""
        if self.number > 1:
            spawn = get_context("spawn")
            self._pool = ProcessPoolExecutor(self.number, spawn, initializer=_start_worker)
            with ignore_interrupts():
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
                if len(waiting) >= JOBS_PER_WORKER * self.number:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise WorkerError(
                "a worker ended in the middle of its work; probably memory ran out: "
                "use fewer --workers, or a smaller --fan-out"
            ) from error


def available_cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # for one that was started later after all
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


ARRAY_LENGTH = 2**22  # numbers in an array that no cache holds: 32 MB
SUM_BYTES, MAX_SUMS = 2**26, 4096  # bytes of sums to add up, and how many at most
MIN_REPEATS = 3  # repetitions, however long they take
PROC_STATUS = Path("/proc/self/status")


def peak_bytes() -> tuple[int, int]:
    """Give this process's id and the most memory that it has had; 0 where nobody tells."""
    if (
        PROC_STATUS.exists()
    ):  # getrusage would count what the process had before it was this program
        line = next(
            line for line in PROC_STATUS.read_text().splitlines() if line.startswith("VmHWM")
        )
        return os.getpid(), 1024 * int(line.split()[1])
    if sys.platform == "win32":
        return os.getpid(), 0
    import resource  # noqa: PLC0415 (not on every platform)

    unit = 1 if sys.platform == "darwin" else 1024
    return os.getpid(), unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def memory_bandwidth(seconds: float) -> float:
    """Measure the bytes that memory moves in a second: two reads and a write, the best of several.

    It is one thread's CPU time, so that neighbours do not count.
    """
    a, b, c = np.ones(ARRAY_LENGTH), np.ones(ARRAY_LENGTH), np.ones(ARRAY_LENGTH)
    return 3 * 8 * ARRAY_LENGTH / best_time(lambda: np.add(a, b, out=c), seconds)


def sums_per_second(fleet: SimulatedFleet, seconds: float) -> float:
    """Measure how many stats are added up in a second, from memory: the best of several."""
    count = max(2, min(MAX_SUMS, SUM_BYTES // fleet.plan.stats_bytes))
    parts = [fleet.contribution(i % fleet.plan.devices, 2).stats for i in range(count)]
    return count / best_time(lambda: Stats.total(fleet.projection, parts), seconds)


def best_time(call: Callable[[], object], seconds: float) -> float:
    """Call again and again; give the shortest CPU time of one call."""
    call()  # warms up
    found, times, end = float("inf"), 0, perf_counter() + seconds
    while times < MIN_REPEATS or perf_counter() < end:
        start = process_time()
        call()
        found, times = min(found, process_time() - start), times + 1
    return max(found, 1e-9)
