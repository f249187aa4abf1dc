"""Worker processes that run jobs; they end with the process that started them."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from time import perf_counter
from typing import Self

from edgemerge import EdgemergeError
from edgemerge.daemon import ignore_interrupts
from edgemerge.paper.plan import Job, JobFunction, Rows, Scope

STOP_TIMEOUT_S = 5.0  # for a process that was told to end


@dataclass(frozen=True)
class FinishedJob:
    """A job, its rows, and how long it took; None: nobody knows."""

    job: Job
    rows: Rows
    seconds: float | None


JobExecutor = Callable[[JobFunction, Sequence[Job], Scope], Iterator[FinishedJob]]


class JobError(EdgemergeError, RuntimeError):
    """A job that could not be done; those done before it are kept."""


class BrokenJobError(RuntimeError):
    """A job that failed by a mistake of ours; the message holds its stack trace."""


def run_here(work: JobFunction, jobs: Sequence[Job], scope: Scope) -> Iterator[FinishedJob]:
    """Do the jobs in this process."""
    for job in jobs:
        start = perf_counter()
        rows = work(job, scope)
        yield FinishedJob(job, rows, perf_counter() - start)


class Workers:
    """So many processes that do jobs; started when needed, ended with the `with` block."""

    def __init__(self, count: int) -> None:
        """Remember how many; none is started yet."""
        self.count = count
        self._all: dict[Connection, BaseProcess] = {}

    def __enter__(self) -> Self:
        """Start nothing yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """End them all, whatever they are doing."""
        self.end()

    def do(self, work: JobFunction, jobs: Sequence[Job], scope: Scope) -> Iterator[FinishedJob]:
        """Give each job with its rows as soon as it is done, whichever comes first."""
        waiting, busy = deque(jobs), dict[Connection, Job]()
        self._start(min(self.count, len(jobs)))
        for pipe in list(self._all)[: len(jobs)]:
            busy[pipe] = _send(pipe, work, waiting.popleft(), scope)
        while busy:
            for pipe in _ready(busy):
                done = self._answer(pipe, busy.pop(pipe))
                if waiting:
                    busy[pipe] = _send(pipe, work, waiting.popleft(), scope)
                yield done

    def end(self) -> None:
        """End all processes; what they were doing is lost, which harms nothing."""
        for process in self._all.values():
            process.terminate()
        for pipe, process in self._all.items():
            pipe.close()
            process.join(STOP_TIMEOUT_S)
            if process.is_alive():
                process.kill()
        self._all.clear()

    def _start(self, count: int) -> None:
        while len(self._all) < count:
            ours, theirs = get_context("spawn").Pipe()
            process = get_context("spawn").Process(target=_worker_loop, args=(theirs,), daemon=True)
            with ignore_interrupts():
                process.start()
            theirs.close()
            self._all[ours] = process

    def _answer(self, pipe: Connection, job: Job) -> FinishedJob:
        try:
            rows, seconds, fault, known = pipe.recv()
        except (EOFError, OSError) as error:
            raise JobError(self._death(pipe, job)) from error
        if known:
            raise JobError(f"{job_label(job)}: {fault}")
        if fault:
            raise BrokenJobError(f"{job_label(job)} failed:\n{fault}")
        return FinishedJob(job, rows, seconds)

    def _death(self, pipe: Connection, job: Job) -> str:
        process = self._all[pipe]
        process.join(STOP_TIMEOUT_S)
        code = process.exitcode or 0
        how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        why = "; probably memory ran out: use fewer --jobs" if code == -signal.SIGKILL else ""
        return f"the process that did {job_label(job)} {how}{why}. What is done is kept"


def job_label(job: Job) -> str:
    """Say which job it is.

    >>> job_label(Job("auc", "har", "BP-NN3", 2, "0-1"))
    'auc har BP-NN3 trial 2 0-1'
    """
    words = (job.result, job.dataset, job.method, f"trial {job.trial}", job.part)
    return " ".join(filter(None, words))


def usable_cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _ready(pipes: Iterable[Connection]) -> list[Connection]:
    found = wait(list(pipes))
    return [pipe for pipe in pipes if pipe in found]


def _send(pipe: Connection, work: JobFunction, job: Job, scope: Scope) -> Job:
    with suppress(BrokenPipeError):  # whoever waits for the answer will notice, and says more
        pipe.send((work, job, scope))
    return job


def _worker_loop(pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        pipe.send(_run_job(*task))


def _run_job(work: JobFunction, job: Job, scope: Scope) -> tuple[Rows, float, str, bool]:
    start = perf_counter()
    try:
        return work(job, scope), perf_counter() - start, "", False
    except EdgemergeError as error:
        return [], 0.0, str(error), True
    except Exception:  # noqa: BLE001 (it travels to the parent as text, and is raised there)
        return [], 0.0, traceback.format_exc(), False


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
