"""The rows of each job, kept in a folder, so that a run that was stopped goes on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from edgemerge.paper.plan import Job, Rows, Scope, Work
from edgemerge.paper.running.rows import RowError, plain
from edgemerge.paper.running.whole import write
from edgemerge.paper.running.workers import Do, Done, here, named

FORMAT = 1  # of the files; raised when what a job computes changes though its settings do not


class Watch(Protocol):
    """Somebody who wants to know how far the jobs are."""

    def coming(self, jobs: Sequence[Job]) -> None:
        """Hear which jobs there are."""

    def done(self, done: Done, *, before: bool) -> None:
        """Hear of a job that is done; `before`: in an earlier run."""


class Nobody:
    """Does not want to know."""

    def coming(self, jobs: Sequence[Job]) -> None:
        """Ignore it."""

    def done(self, done: Done, *, before: bool) -> None:
        """Ignore it."""


class Keeper:
    """Lets jobs be done, and keeps what they found in a folder."""

    def __init__(self, folder: Path, do: Do = here, watch: Watch | None = None) -> None:
        """Remember where to keep, who does the jobs, and who watches."""
        self.folder, self.do, self.watch = folder, do, watch or Nobody()

    def spread(self, work: Work, jobs: Sequence[Job], scope: Scope) -> Iterator[Rows]:
        """Give each job's rows in the order of the jobs; what is kept is not done again."""
        _must_differ([self.path(job, scope) for job in jobs])
        self.watch.coming(jobs)
        found = {job: done.rows for job, done in self._kept(jobs, scope)}
        for done in self.do(work, dealt([job for job in jobs if job not in found]), scope):
            found[done.job] = self.keep(done, scope)
            self.watch.done(done, before=False)
        return (found[job] for job in jobs)

    def _kept(self, jobs: Sequence[Job], scope: Scope) -> Iterator[tuple[Job, Done]]:
        for job in jobs:
            done = self.kept(job, scope)
            if done is not None:
                self.watch.done(done, before=True)
                yield job, done

    def kept(self, job: Job, scope: Scope) -> Done | None:
        """Give a job that was done before under the same settings; a damaged file is none."""
        try:
            record = json.loads(self.path(job, scope).read_text(encoding="utf-8"))
            if record["head"] != _head(job, scope):
                return None
            return Done(job, plain(record["rows"], named(job)), record.get("seconds"))
        except (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError):
            return None

    def keep(self, done: Done, scope: Scope) -> Rows:
        """Write a job's rows, whole or not at all, and give them as they will be read."""
        path, rows = self.path(done.job, scope), plain(done.rows, named(done.job))
        record = {"head": _head(done.job, scope), "seconds": done.seconds, "rows": rows}
        write(json.dumps(record, allow_nan=False).encode(), path)
        return rows

    def path(self, job: Job, scope: Scope) -> Path:
        """Say where a job's rows are kept."""
        size = "quick" if scope.quick else "full"
        part = f"-{quote(job.part, safe='')}" if job.part else ""
        place = self.folder / job.result / job.dataset / job.method / f"{size}-seed-{scope.seed}"
        return place / f"trial-{job.trial:03d}{part}.json"


def dealt(jobs: Sequence[Job]) -> list[Job]:
    """Put jobs in the order to do them: one of each kind first, so that all are timed early."""
    seen: Counter[tuple[str, ...]] = Counter()
    turns = []
    for job in jobs:
        turns.append(seen[kind(job)])
        seen[kind(job)] += 1
    return [jobs[i] for i in sorted(range(len(jobs)), key=turns.__getitem__)]


def kind(job: Job) -> tuple[str, str, str]:
    """Give what jobs that take about equally long have in common."""
    return job.result, job.dataset, job.method


def _head(job: Job, scope: Scope) -> dict[str, object]:
    return {"format": FORMAT, **asdict(job), "seed": scope.seed, "quick": scope.quick}


def _must_differ(paths: Sequence[Path]) -> None:
    path, times = Counter(paths).most_common(1)[0] if paths else (None, 0)
    if times > 1:
        raise RowError(f"{times} jobs would be kept in {path}: give each a `part` of its own")
