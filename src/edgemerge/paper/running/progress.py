"""Progress on stderr with the time left: a bar on a terminal, else one line for each result."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import fmean
from time import monotonic
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from edgemerge.paper.plan import FinishedJob, Job
from edgemerge.paper.running.job_cache import job_kind

JobKind = tuple[str, str, str]


class Forecast:
    """Counts jobs, and estimates the time left from those that are done."""

    def __init__(self, workers: int = 1) -> None:
        """Start without jobs."""
        self.workers = workers
        self._coming: set[Job] = set()
        self._done: set[Job] = set()
        self._seconds: dict[JobKind, list[float]] = {}

    def expect(self, jobs: Sequence[Job]) -> None:
        """Add jobs; some may be known already."""
        self._coming.update(set(jobs) - self._done)

    def done(self, job: Job, seconds: float | None) -> None:
        """Count a finished job, and its time if that is known."""
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
        """The share of work that is done, from 0 to 1; jobs count by their time."""
        done, coming = self._work(self._done), self._work(self._coming)
        return done / (done + coming) if done + coming else 0.0

    def _work(self, jobs: set[Job]) -> float:
        return sum(self._mean(one) * n for one, n in Counter(map(job_kind, jobs)).items())

    def _mean(self, one: JobKind) -> float:
        """The mean time of a kind of job; for a kind without times, the mean of all kinds."""
        if one in self._seconds:
            return fmean(self._seconds[one])
        return fmean(map(fmean, self._seconds.values())) if self._seconds else 1.0


def format_duration(seconds: float | None) -> str:
    """Format a duration.

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


class TimeLeftColumn(ProgressColumn):
    """The time left; it counts down between two jobs."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        """Show the last forecast, less the time since."""
        left: float | None = task.fields["left_s"]
        if left is not None:
            left = max(0.0, left - (monotonic() - task.fields["at_s"]))
        return Text(f"{format_duration(left)} left")


class Display:
    """Prints one line for each result; `progress` also shows a bar for all jobs.

    Jobs count in the bar by the time that jobs of their kind take.
    """

    def __init__(self, say: PrintLine, progress: Progress | None = None, workers: int = 1) -> None:
        """Add the bar, if any, at zero."""
        self.say, self.forecast = say, Forecast(workers)
        self.progress = progress or Progress(disable=True)
        start: dict[str, Any] = {"jobs": "0/0", "left_s": None, "at_s": monotonic()}
        self.task = self.progress.add_task("", total=1.0, **start)

    def jobs_added(self, jobs: Sequence[Job]) -> None:
        """Count jobs that will run, perhaps some of them again."""
        self.forecast.expect(jobs)
        self._show()

    def begin(self, name: str) -> None:
        """Show the name of the result before the bar."""
        self.progress.update(self.task, description=name)

    def done(self, done: FinishedJob, *, before: bool) -> None:  # noqa: ARG002 (a JobListener)
        """Advance the bar by a finished job."""
        self.forecast.done(done.job, done.seconds)
        self._show()

    def end(self, words: str) -> None:
        """Print a line about a finished result."""
        self.say(words)

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
    """Return a display with a bar if stderr is a terminal, else one without."""
    if not sys.stderr.isatty():
        yield Display(say)
        return
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[jobs]}")
    console = Console(stderr=True)
    above = partial(console.print, highlight=False, markup=False, soft_wrap=True)
    with Progress(*columns, TimeLeftColumn(), console=console, transient=True) as progress:
        yield Display(above, progress, workers)
