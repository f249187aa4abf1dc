"""A cache of finished jobs, one JSON file for each, so that a run that was stopped continues."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from edgemerge.paper.plan import (
    FinishedJob,
    Job,
    JobExecutor,
    JobFunction,
    Rows,
    Scope,
    job_label,
    run_here,
)
from edgemerge.paper.running.result_files import RowError, checked_rows, write_file

CACHE_FORMAT = 1  # of the files; raised when what a job computes changes though its settings do not


class JobListener(Protocol):
    """Is notified of the progress of jobs."""

    def jobs_added(self, jobs: Sequence[Job]) -> None:
        """Take note of jobs that will run."""

    def done(self, done: FinishedJob, *, before: bool) -> None:
        """Take note of a finished job; `before`: in an earlier run."""


class NullListener:
    """Ignores all notifications."""

    def jobs_added(self, jobs: Sequence[Job]) -> None:
        """Ignore it."""

    def done(self, done: FinishedJob, *, before: bool) -> None:
        """Ignore it."""


class JobCache:
    """Runs jobs, and stores their rows in a folder."""

    def __init__(
        self, folder: Path, do: JobExecutor = run_here, watch: JobListener | None = None
    ) -> None:
        """Set the folder, what runs the jobs, and what is notified."""
        self.folder, self.do, self.watch = folder, do, watch or NullListener()

    def spread(self, work: JobFunction, jobs: Sequence[Job], scope: Scope) -> Iterator[Rows]:
        """Return each job's rows in the order of the jobs; stored ones are not run again."""
        paths = Counter(self.path(job, scope) for job in jobs)
        for path, times in paths.most_common(1):
            if times > 1:
                raise RowError(
                    f"{times} jobs would be kept in {path}: give each a `part` of its own"
                )
        self.watch.jobs_added(jobs)
        found = {}
        for done in filter(None, (self.kept(job, scope) for job in jobs)):
            found[done.job] = done.rows
            self.watch.done(done, before=True)
        for done in self.do(work, interleave([job for job in jobs if job not in found]), scope):
            found[done.job] = self.keep(done, scope)
            self.watch.done(done, before=False)
        return (found[job] for job in jobs)

    def kept(self, job: Job, scope: Scope) -> FinishedJob | None:
        """Return a job stored under the same settings; None if there is none, or it is damaged."""
        try:
            record = json.loads(self.path(job, scope).read_text(encoding="utf-8"))
            if record["head"] != _cache_key(job, scope):
                return None
            rows = checked_rows(record["rows"], job_label(job))
            return FinishedJob(job, rows, record.get("seconds"))
        except (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError):
            return None

    def keep(self, done: FinishedJob, scope: Scope) -> Rows:
        """Write a job's rows atomically, and return them as they will be read."""
        path, rows = self.path(done.job, scope), checked_rows(done.rows, job_label(done.job))
        record = {"head": _cache_key(done.job, scope), "seconds": done.seconds, "rows": rows}
        write_file(json.dumps(record, allow_nan=False).encode(), path)
        return rows

    def path(self, job: Job, scope: Scope) -> Path:
        """Return the path of a job's rows."""
        size = "quick" if scope.quick else "full"
        part = f"-{quote(job.part, safe='')}" if job.part else ""
        place = self.folder / job.result / job.dataset / job.method / f"{size}-seed-{scope.seed}"
        return place / f"trial-{job.trial:03d}{part}.json"


def interleave(jobs: Sequence[Job]) -> list[Job]:
    """Put jobs in the order to run them: one of each kind first, so that all are timed early."""
    kinds: dict[tuple[str, ...], list[Job]] = {}
    for job in jobs:
        kinds.setdefault(job_kind(job), []).append(job)
    return [job for turn in zip_longest(*kinds.values()) for job in turn if job]


def job_kind(job: Job) -> tuple[str, str, str]:
    """Return the kind of a job; jobs of a kind take about equally long."""
    return job.result, job.dataset, job.method


def _cache_key(job: Job, scope: Scope) -> dict[str, object]:
    return {"format": CACHE_FORMAT, **asdict(job), "seed": scope.seed, "quick": scope.quick}
