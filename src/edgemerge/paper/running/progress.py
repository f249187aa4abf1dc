"""Progress on stderr with the time left: a bar on a terminal, else one line for each result."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean
from time import monotonic
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from edgemerge.paper.plan import FinishedJob, Job
from edgemerge.paper.running.job_cache import job_kind

JobKind = tuple[str, str, str]


class Forecast:
    """Jobs that are to come, jobs that are done, and what the latter took."""

    def __init__(self, workers: int = 1) -> None:
        """Expect nothing yet."""
        self.workers = workers
        self._coming: set[Job] = set()
        self._done: set[Job] = set()
        self._seconds: dict[JobKind, list[float]] = {}

    def expect(self, jobs: Sequence[Job]) -> None:
        """Hear of jobs, perhaps again."""
        self._coming.update(set(jobs) - self._done)

    def done(self, job: Job, seconds: float | None) -> None:
        """Hear that a job is done, and what it took, if that is known."""
        self._coming.discard(job)
        self._done.add(job)
        if seconds is not None:
            self._seconds.setdefault(job_kind(job), []).append(seconds)

    @property
    def jobs(self) -> tuple[int, int]:
        """How many are done, and how many there are."""
        return len(self._done), len(self._done) + len(self._coming)

    @property
    def left_s(self) -> float | None:
        """The seconds until all is done, or None as long as no job was timed."""
        if not self._seconds:
            return None
        return self._work(self._coming) / max(1, min(self.workers, len(self._coming)))

    @property
    def share(self) -> float:
        """The part of all work that is done, from 0 to 1; jobs count by their time."""
        done, coming = self._work(self._done), self._work(self._coming)
        return done / (done + coming) if done + coming else 0.0

    def _work(self, jobs: set[Job]) -> float:
        return sum(self._mean(one) * n for one, n in Counter(map(job_kind, jobs)).items())

    def _mean(self, one: JobKind) -> float:
        """The mean time of a kind; of one that is not known yet, the mean of all kinds."""
        if one in self._seconds:
            return fmean(self._seconds[one])
        return fmean(map(fmean, self._seconds.values())) if self._seconds else 1.0


def format_duration(seconds: float | None) -> str:
    """Write a time for people.

    >>> format_duration(3.4), format_duration(200), format_duration(7330), format_duration(None)
    ('3 s', '3 min 20 s', '2 h 02 min', 'unknown')
    """
    if seconds is None:
        return "unknown"
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


PrintLine = Callable[[str], None]


class Display(Protocol):
    """What hears of results, and, as a Watch, of jobs."""

    def expect(self, jobs: Sequence[Job]) -> None:
        """Hear of jobs of all results, before the first is begun."""

    def begin(self, name: str) -> None:
        """Hear which result is being made."""

    def jobs_added(self, jobs: Sequence[Job]) -> None:
        """Hear of the jobs of a result."""

    def done(self, done: FinishedJob, *, before: bool) -> None:
        """Hear of a job that is done."""

    def end(self, words: str) -> None:
        """Hear that a result is made, or why it is not."""


class LineDisplay:
    """Says one line for each result."""

    def __init__(self, say: PrintLine) -> None:
        """Remember whom to tell."""
        self.say = say

    def expect(self, jobs: Sequence[Job]) -> None:
        """Say nothing."""

    def begin(self, name: str) -> None:
        """Say nothing."""

    def jobs_added(self, jobs: Sequence[Job]) -> None:
        """Say nothing."""

    def done(self, done: FinishedJob, *, before: bool) -> None:
        """Say nothing."""

    def end(self, words: str) -> None:
        """Say what became of a result."""
        self.say(words)


class TimeLeftColumn(ProgressColumn):
    """The time left; it runs on between two jobs."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        """Show the last forecast, less the time since."""
        left: float | None = task.fields["left_s"]
        if left is not None:
            left = max(0.0, left - (monotonic() - task.fields["at_s"]))
        return Text(f"{format_duration(left)} left")


class BarDisplay:
    """Shows one bar for all jobs, weighed by the time that jobs of their kind take."""

    def __init__(self, progress: Progress, workers: int) -> None:
        """Add the bar to what is shown."""
        self.progress, self.forecast = progress, Forecast(workers)
        self.task = progress.add_task("", total=1.0, jobs="0/0", left_s=None, at_s=monotonic())

    def expect(self, jobs: Sequence[Job]) -> None:
        """Make room for jobs."""
        self.forecast.expect(jobs)
        self._show()

    def begin(self, name: str) -> None:
        """Write the name of the result before the bar."""
        self.progress.update(self.task, description=name)

    def jobs_added(self, jobs: Sequence[Job]) -> None:
        """Make room for jobs that were not foreseen."""
        self.expect(jobs)

    def done(self, done: FinishedJob, *, before: bool) -> None:  # noqa: ARG002 (how long it took counts)
        """Move on."""
        self.forecast.done(done.job, done.seconds)
        self._show()

    def end(self, words: str) -> None:
        """Write a line above the bar."""
        self.progress.console.print(words, highlight=False, markup=False, soft_wrap=True)

    def _show(self) -> None:
        done, known = self.forecast.jobs
        self.progress.update(
            self.task,
            completed=self.forecast.share,
            jobs=f"{done}/{known} jobs",
            left_s=self.forecast.left_s,
            at_s=monotonic(),
        )


@contextmanager
def progress_display(workers: int, say: PrintLine) -> Iterator[Display]:
    """Give a bar where stderr is a terminal, else one line for each result."""
    if not sys.stderr.isatty():
        yield LineDisplay(say)
        return
    words = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[jobs]}")
    with Progress(
        *words, TimeLeftColumn(), console=Console(stderr=True), transient=True
    ) as progress:
        yield BarDisplay(progress, workers)
