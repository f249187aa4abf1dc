"""A cache of finished jobs, one JSON file for each, so that a run that was stopped continues."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
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
    """Somebody who wants to know how far the jobs are."""

    def jobs_added(self, jobs: Sequence[Job]) -> None:
        """Hear which jobs there are."""

    def done(self, done: FinishedJob, *, before: bool) -> None:
        """Hear of a job that is done; `before`: in an earlier run."""


class NullListener:
    """Does not want to know."""

    def jobs_added(self, jobs: Sequence[Job]) -> None:
        """Ignore it."""

    def done(self, done: FinishedJob, *, before: bool) -> None:
        """Ignore it."""


class JobCache:
    """Lets jobs be done, and keeps what they found in a folder."""

    def __init__(
        self, folder: Path, do: JobExecutor = run_here, watch: JobListener | None = None
    ) -> None:
        """Remember where to keep, who does the jobs, and who watches."""
        self.folder, self.do, self.watch = folder, do, watch or NullListener()

    def spread(self, work: JobFunction, jobs: Sequence[Job], scope: Scope) -> Iterator[Rows]:
        """Give each job's rows in the order of the jobs; what is kept is not done again."""
        _check_unique([self.path(job, scope) for job in jobs])
        self.watch.jobs_added(jobs)
        found = {job: done.rows for job, done in self._kept(jobs, scope)}
        for done in self.do(work, interleave([job for job in jobs if job not in found]), scope):
            found[done.job] = self.keep(done, scope)
            self.watch.done(done, before=False)
        return (found[job] for job in jobs)

    def _kept(self, jobs: Sequence[Job], scope: Scope) -> Iterator[tuple[Job, FinishedJob]]:
        for job in jobs:
            done = self.kept(job, scope)
            if done is not None:
                self.watch.done(done, before=True)
                yield job, done

    def kept(self, job: Job, scope: Scope) -> FinishedJob | None:
        """Give a job that was done before under the same settings; a damaged file is none."""
        try:
            record = json.loads(self.path(job, scope).read_text(encoding="utf-8"))
            if record["head"] != _cache_key(job, scope):
                return None
            return FinishedJob(
                job, checked_rows(record["rows"], job_label(job)), record.get("seconds")
            )
        except (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError):
            return None

    def keep(self, done: FinishedJob, scope: Scope) -> Rows:
        """Write a job's rows, whole or not at all, and give them as they will be read."""
        path, rows = self.path(done.job, scope), checked_rows(done.rows, job_label(done.job))
        record = {"head": _cache_key(done.job, scope), "seconds": done.seconds, "rows": rows}
        write_file(json.dumps(record, allow_nan=False).encode(), path)
        return rows

    def path(self, job: Job, scope: Scope) -> Path:
        """Say where a job's rows are kept."""
        size = "quick" if scope.quick else "full"
        part = f"-{quote(job.part, safe='')}" if job.part else ""
        place = self.folder / job.result / job.dataset / job.method / f"{size}-seed-{scope.seed}"
        return place / f"trial-{job.trial:03d}{part}.json"


def interleave(jobs: Sequence[Job]) -> list[Job]:
    """Put jobs in the order to do them: one of each kind first, so that all are timed early."""
    seen: Counter[tuple[str, ...]] = Counter()
    turns = []
    for job in jobs:
        turns.append(seen[job_kind(job)])
        seen[job_kind(job)] += 1
    return [jobs[i] for i in sorted(range(len(jobs)), key=turns.__getitem__)]


def job_kind(job: Job) -> tuple[str, str, str]:
    """Give what jobs that take about equally long have in common."""
    return job.result, job.dataset, job.method


def _cache_key(job: Job, scope: Scope) -> dict[str, object]:
    return {"format": CACHE_FORMAT, **asdict(job), "seed": scope.seed, "quick": scope.quick}


def _check_unique(paths: Sequence[Path]) -> None:
    path, times = Counter(paths).most_common(1)[0] if paths else (None, 0)
    if times > 1:
        raise RowError(f"{times} jobs would be kept in {path}: give each a `part` of its own")
