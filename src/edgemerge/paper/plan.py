"""What a run of the evaluation takes and returns: plan, jobs, rows, claims; results by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from edgemerge.paper.dataset import Dataset

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, str | int | float]
Rows = list[Row]
QUICK_SAMPLES = 400  # of each pattern, in a quick run
QUICK_TRIALS, QUICK_BASELINE_TRIALS = 3, 1


@dataclass(frozen=True)
class Scope:
    """What all jobs share: the folder of the data sets, the seed, and whether to be quick."""

    folder: Path
    seed: int = 7
    quick: bool = False

    def dataset(self, name: str) -> Dataset:
        """Return a data set; a quick run takes a part of each pattern."""
        return _dataset(self.folder, name, QUICK_SAMPLES if self.quick else 0, self.seed)

    def has(self, name: str) -> bool:
        """Return whether a data set is there; a damaged one raises its error."""
        from edgemerge.paper.data import MissingDataError  # noqa: PLC0415 (as below)

        try:
            self.dataset(name)
        except MissingDataError:
            return False
        return True


@lru_cache(maxsize=2)
def _dataset(folder: Path, name: str, most: int, seed: int) -> Dataset:
    from edgemerge.paper.data import load  # noqa: PLC0415 (a job that needs no data reads none)

    found = load(name, folder)
    return found.subsample(most, seed) if most else found


@dataclass(frozen=True)
class Job:
    """One piece of work whose rows are cached: they depend on these fields and the scope alone."""

    result: str
    dataset: str
    method: str
    trial: int
    part: str = ""
    settings: str = ""


def job_label(job: Job) -> str:
    """Return a job's name for messages.

    >>> job_label(Job("auc", "har", "BP-NN3", 2, "0-1"))
    'auc har BP-NN3 trial 2 0-1'
    """
    words = (job.result, job.dataset, job.method, f"trial {job.trial}", job.part)
    return " ".join(filter(None, words))


@dataclass(frozen=True)
class FinishedJob:
    """A job, its rows, and how long it took; None if that was not recorded."""

    job: Job
    rows: Rows
    seconds: float | None


JobFunction = Callable[[Job, Scope], Rows]
JobExecutor = Callable[[JobFunction, Sequence[Job], Scope], Iterator[FinishedJob]]
JobRunner = Callable[[JobFunction, Sequence[Job], Scope], Iterator[Rows]]


def run_here(work: JobFunction, jobs: Sequence[Job], scope: Scope) -> Iterator[FinishedJob]:
    """Run the jobs in this process, and time them."""
    for job in jobs:
        start = perf_counter()
        rows = work(job, scope)
        yield FinishedJob(job, rows, perf_counter() - start)


def run_in_order(work: JobFunction, jobs: Sequence[Job], scope: Scope) -> Iterator[Rows]:
    """Run the jobs in this process, without a cache."""
    return (work(job, scope) for job in jobs)


@dataclass(frozen=True)
class Plan:
    """How many trials to run, and what runs the jobs."""

    scope: Scope
    trials: int = 50
    baseline_trials: int = 3
    spread: JobRunner = run_in_order

    @property
    def merging(self) -> range:
        """The trials of methods that merge sums, which are fast."""
        return range(min(self.trials, QUICK_TRIALS) if self.scope.quick else self.trials)

    @property
    def training(self) -> range:
        """The trials of methods trained by back-propagation, which are slow."""
        trials = self.baseline_trials
        return range(min(trials, QUICK_BASELINE_TRIALS) if self.scope.quick else trials)

    def rows(self, work: JobFunction, jobs: Sequence[Job]) -> Rows:
        """Run the jobs and return all their rows, in the order of the jobs."""
        return [row for rows in self.spread(work, jobs, self.scope) for row in rows]


@dataclass(frozen=True)
class Claim:
    """A statement that a result supports or not, with the numbers; None: not measured."""

    text: str
    holds: bool | None
    found: str

    @classmethod
    def not_measured(cls, text: str) -> Claim:
        """Return a claim without measurements."""
        return cls(text, None, "not measured")

    @classmethod
    def at_most(cls, text: str, target: int, share: float | None, found: str) -> Claim:
        """Claim that a share is 1/target or less; None was not measured."""
        if share is None:
            return cls.not_measured(text)
        factor = target * share
        missed = "" if factor <= 1.0 else f"; missed by a factor of {factor:.3g}"
        return cls(text, factor <= 1.0, found + missed)


NAMES = (
    *("loss-driving", "loss-har", "auc", "latency", "convergence"),  # the paper's section 5
    *("auc-by-person", "small-experiments", "devices", "bytes", "cost", "drop-out"),  # past it
)


class Result(Protocol):
    """A figure or table of the evaluation: a module with these names.

    It may have `NOTE`, a few sentences on how it was measured, and `table(rows)`, which returns the
    rows that the report shows; without it the report shows all, if they are few. With several
    tables, `tables(rows)` returns them by title.
    """

    NAME: str
    TITLE: str
    DATA: tuple[str, ...]  # the data sets without which there is nothing to run

    def run(self, plan: Plan) -> Rows:
        """Return the rows; write nothing."""

    def plot(self, rows: Rows) -> dict[str, Figure]:
        """Return the figures, by the ends of their file names."""

    def claims(self, rows: Rows) -> list[Claim]:
        """Return what the rows should show, and whether they do."""


def load_result(name: str, package: str = "edgemerge.paper") -> Result:
    """Import a result of a package; `loss-har` is in loss_har.py."""
    module: Result = import_module(f"{package}.{name.replace('-', '_')}")
    return module
