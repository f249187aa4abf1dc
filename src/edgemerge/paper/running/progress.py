"""Progress on stderr: a bar with the time left, or a line for each result where nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from edgemerge.paper.plan import Job
from edgemerge.paper.running.forecast import Forecast, clock
from edgemerge.paper.running.workers import Done

Say = Callable[[str], None]


class Display(Protocol):
    """What hears of results, and, as a Watch, of jobs."""

    def expect(self, jobs: Sequence[Job]) -> None:
        """Hear of jobs of all results, before the first is begun."""

    def begin(self, name: str) -> None:
        """Hear which result is being made."""

    def coming(self, jobs: Sequence[Job]) -> None:
        """Hear of the jobs of a result."""

    def done(self, done: Done, *, before: bool) -> None:
        """Hear of a job that is done."""

    def end(self, words: str) -> None:
        """Hear that a result is made, or why it is not."""


class Lines:
    """Says one line for each result."""

    def __init__(self, say: Say) -> None:
        """Remember whom to tell."""
        self.say = say

    def expect(self, jobs: Sequence[Job]) -> None:
        """Say nothing."""

    def begin(self, name: str) -> None:
        """Say nothing."""

    def coming(self, jobs: Sequence[Job]) -> None:
        """Say nothing."""

    def done(self, done: Done, *, before: bool) -> None:
        """Say nothing."""

    def end(self, words: str) -> None:
        """Say what became of a result."""
        self.say(words)


class Left(ProgressColumn):
    """The time left; it runs on between two jobs."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        """Show the last forecast, less the time since."""
        left: float | None = task.fields["left_s"]
        if left is not None:
            left = max(0.0, left - (monotonic() - task.fields["at_s"]))
        return Text(f"{clock(left)} left")


class Bar:
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

    def coming(self, jobs: Sequence[Job]) -> None:
        """Make room for jobs that were not foreseen."""
        self.expect(jobs)

    def done(self, done: Done, *, before: bool) -> None:  # noqa: ARG002 (how long it took counts)
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
def shown(workers: int, say: Say) -> Iterator[Display]:
    """Give a bar where stderr is a terminal, else one line for each result."""
    if not sys.stderr.isatty():
        yield Lines(say)
        return
    words = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[jobs]}")
    with Progress(*words, Left(), console=Console(stderr=True), transient=True) as progress:
        yield Bar(progress, workers)
