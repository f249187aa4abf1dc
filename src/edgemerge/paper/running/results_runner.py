"""Run results in turn: compute rows, save them with their provenance, draw, check claims."""

from __future__ import annotations

import os
import platform
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from hashlib import sha256
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from time import monotonic, perf_counter
from typing import NoReturn

from edgemerge import EdgemergeError, __version__
from edgemerge.core.errors import install_command
from edgemerge.paper.data import NAMES, DataError, MissingDataError, folder_of
from edgemerge.paper.data.verified_files import VerifiedFiles
from edgemerge.paper.plan import (
    Claim,
    FinishedJob,
    Job,
    JobExecutor,
    JobFunction,
    Plan,
    Result,
    Scope,
    job_label,
)
from edgemerge.paper.running import result_files
from edgemerge.paper.running.job_cache import JobCache, JobListener
from edgemerge.paper.running.progress import Display, format_duration
from edgemerge.paper.running.result_files import Record, SavedResult
from edgemerge.workers import WorkerError, WorkerPool

PACKAGES = (
    *("edgemerge", "numpy", "scipy", "scikit-learn", "torch", "matplotlib"),
    *("river", "pysad"),  # of the comparisons
)
CPUINFO = Path("/proc/cpuinfo")


def machine_info() -> dict[str, str | int]:
    """Return the kind of machine; nothing in it identifies the machine."""
    return {
        "processor": _processor(CPUINFO.read_text(encoding="utf-8") if CPUINFO.exists() else ""),
        "cores": os.cpu_count() or 1,
        "memory_gb": _memory_gb(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def package_versions() -> dict[str, str]:
    """Return the version of each package that is installed."""
    return {name: found for name in PACKAGES if (found := _version(name))}


@lru_cache(maxsize=8)
def dataset_digest(name: str, folder: Path | None) -> str:
    """Return the SHA-256 of a data set's file, or raise the DataError that says what to do.

    For several files it is that of the output of `sha256sum`. All are verified before.
    """
    found: VerifiedFiles = import_module(f"edgemerge.paper.data.{name}").find(folder_of(folder))
    each = {file: sha256(data).hexdigest() for file, data in sorted(found.files.items())}
    if len(each) == 1:
        return next(iter(each.values()))
    return sha256("".join(f"{key}  {file}\n" for file, key in each.items()).encode()).hexdigest()


def unusable_datasets(names: Sequence[str], folder: Path | None) -> dict[str, DataError]:
    """Return the data sets that cannot be used, with the reasons."""
    faults = {}
    for name in names:
        try:
            dataset_digest(name, folder)
        except DataError as error:
            faults[name] = error
    return faults


def dataset_digests(names: Sequence[str], folder: Path | None) -> dict[str, str]:
    """Return the digest of each data set that can be used."""
    faults = unusable_datasets(names, folder)
    return {name: dataset_digest(name, folder) for name in sorted(set(names)) if name not in faults}


def _processor(text: str) -> str:
    r"""Return the processor's name from the text of /proc/cpuinfo.

    >>> _processor("vendor_id : X\nmodel name : Y 3000 @ 2 GHz\n")
    'Y 3000 @ 2 GHz'
    """
    lines = (line.partition(":") for line in text.splitlines())
    found = (value.strip() for key, _, value in lines if key.strip() == "model name")
    return next(found, "") or platform.processor() or platform.machine()


def _memory_gb() -> int:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    except (AttributeError, ValueError, OSError):  # no such question on this system
        return 0


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


class JobCounter:
    """Counts jobs, and passes notifications on."""

    def __init__(self, watch: JobListener) -> None:
        """Start at zero."""
        self.watch = watch
        self.jobs, self.before, self.seconds = 0, 0, 0.0
        self.settings: dict[str, list[str]] = {}
        self.datasets: set[str] = set()

    def jobs_added(self, jobs: Sequence[Job]) -> None:
        """Collect the settings and the data sets."""
        self.datasets |= {job.dataset for job in jobs} & set(NAMES)
        for job in jobs:
            whose = " ".join(filter(None, (job.dataset, job.method)))
            known = self.settings.setdefault(whose, [])
            if job.settings and job.settings not in known:
                known.append(job.settings)
        self.watch.jobs_added(jobs)

    def done(self, done: FinishedJob, *, before: bool) -> None:
        """Count a job."""
        self.jobs += 1
        self.before += before
        self.seconds += done.seconds or 0.0
        self.watch.done(done, before=before)

    def __str__(self) -> str:
        """Show how many jobs there were."""
        jobs = "1 job" if self.jobs == 1 else f"{self.jobs} jobs"
        return f"{jobs}, {self.before} of them done before" if self.before else jobs


class JobError(EdgemergeError, RuntimeError):
    """A job that failed for a reason the user can act on; finished jobs stay in the cache."""


class BrokenJobError(RuntimeError):
    """A job that failed by a mistake of ours; the message holds its stack trace."""


def run_in(pool: WorkerPool) -> JobExecutor:
    """Return what runs jobs in the pool's processes, and yields each as soon as it is finished."""

    def run(work: JobFunction, jobs: Sequence[Job], scope: Scope) -> Iterator[FinishedJob]:
        try:
            for job, (done, text, is_ours) in pool.as_completed(
                partial(_run_job, work, scope), jobs
            ):
                if is_ours:
                    raise BrokenJobError(f"{job_label(job)} failed:\n{text}")
                if done is None:
                    raise JobError(f"{job_label(job)}: {text}")
                yield done
        except WorkerError as error:
            raise JobError(_death(error)) from error

    return run


def _run_job(work: JobFunction, scope: Scope, job: Job) -> tuple[FinishedJob | None, str, bool]:
    """Run a job in a worker; errors travel as text, since not all of them can be pickled."""
    start = perf_counter()
    try:
        return FinishedJob(job, work(job, scope), perf_counter() - start), "", False
    except EdgemergeError as error:
        return None, str(error), False
    except Exception:  # noqa: BLE001 (it is raised in the parent)
        return None, traceback.format_exc(), True


def _death(error: WorkerError) -> str:
    if error.exit_code is None:
        return "a worker process was ended from outside. What is done is kept"
    job = job_label(error.job) if error.job else "nothing yet"
    code = error.exit_code
    how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
    why = "; probably memory ran out: use fewer --workers" if code == -signal.SIGKILL else ""
    return f"the process that did {job} {how}{why}. What is done is kept"


CACHE_FOLDER = "cache"  # below the folder of the results
OPTIONAL_DATASETS = {"driving"}  # not everyone can have it, so all the rest is whole without it
NO_TORCH = f"torch is not installed: {install_command('paper')}"
NOT_REQUESTED = "none were asked for"


@dataclass(frozen=True)
class SkippedResult:
    """A result that could not be made, or not whole, and what to do about it."""

    name: str
    why: str
    optional: bool


@dataclass(frozen=True)
class CompletedResult:
    """A result that was made, its claims and files, and the data sets that were missing."""

    name: str
    kept: SavedResult
    claims: list[Claim]
    files: list[Path]
    missing_data: SkippedResult | None


@dataclass(frozen=True)
class RunContext:
    """How results are made: plan, output folder, what runs the jobs, and the display."""

    plan: Plan
    folder: Path
    do: JobExecutor
    display: Display
    now: Callable[[], datetime] = lambda: datetime.now(UTC)


def run_results(
    results: Sequence[Result], context: RunContext
) -> Iterator[CompletedResult | SkippedResult]:
    """Make results; one whose data are not there is skipped."""
    why = why_no_baselines(context.plan)
    if why:
        context = replace(context, plan=replace(context.plan, baseline_trials=0))
    able = [each for each in results if has_data(each, context.plan.scope)]
    context.display.jobs_added(list(chain(*(planned_jobs(each, context.plan) for each in able))))
    for each in results:
        yield _run_result(each, context, why) if each in able else _skip_result(each, context)


def has_data(result: Result, scope: Scope) -> bool:
    """Return whether a result has data: some of its data sets, and none that is damaged."""
    faults = unusable_datasets(result.DATA, scope.folder)
    missing = [isinstance(fault, MissingDataError) for fault in faults.values()]
    return all(missing) and (not missing or len(missing) < len(result.DATA))


def why_no_baselines(plan: Plan) -> str:
    """Return why the baselines' networks will not be trained; an empty text if they will."""
    if plan.baseline_trials == 0:
        return NOT_REQUESTED
    return "" if find_spec("torch") else NO_TORCH


def planned_jobs(result: Result, plan: Plan) -> Sequence[Job]:
    """Return the first jobs of a result, without running any."""
    planned: list[Job] = []

    def capture(_work: JobFunction, jobs: Sequence[Job], _scope: Scope) -> NoReturn:
        planned.extend(jobs)
        raise _JobsPlanned

    with suppress(_JobsPlanned):
        result.run(replace(plan, spread=capture))
    return planned


class _JobsPlanned(Exception):
    """Ends a run once its jobs are known."""


def _missing_data(result: Result, scope: Scope) -> SkippedResult | None:
    faults = unusable_datasets(result.DATA, scope.folder)
    if not faults:
        return None
    why, optional = "; ".join(map(str, faults.values())), set(faults) <= OPTIONAL_DATASETS
    return SkippedResult(result.NAME, why, optional=optional)


def _skip_result(result: Result, context: RunContext) -> SkippedResult:
    context.display.end(f"{result.NAME}: skipped, its data are missing")
    missing = _missing_data(result, context.plan.scope)
    return missing or SkippedResult(result.NAME, "", optional=False)


def _run_result(result: Result, context: RunContext, why: str) -> CompletedResult:
    context.display.begin(result.NAME)
    start, counter, folder = monotonic(), JobCounter(context.display), context.folder
    cache = JobCache(folder / CACHE_FOLDER, context.do, counter)
    rows = result.run(replace(context.plan, spread=cache.spread))
    record = _record(result, context, counter, why, monotonic() - start)
    saved = result_files.save_result(folder, record, rows)
    missing = _missing_data(result, context.plan.scope)
    pictures = result_files.save_figures(folder, result.NAME, result.plot(saved.rows))
    files = [folder / f"{result.NAME}.csv", folder / f"{result.NAME}.json", *pictures]
    partly = ", not whole, as data are missing" if missing else ""
    context.display.end(f"{result.NAME}: {counter}, {format_duration(record.seconds)}{partly}")
    return CompletedResult(result.NAME, saved, result.claims(saved.rows), files, missing)


def _record(
    result: Result, context: RunContext, counter: JobCounter, why: str, seconds: float
) -> Record:
    plan, scope = context.plan, context.plan.scope
    return Record(
        result=result.NAME,
        date=context.now().strftime("%Y-%m-%dT%H:%M:%SZ"),
        version=__version__,
        seed=scope.seed,
        quick=scope.quick,
        trials=len(plan.merging),
        baseline_trials=len(plan.training),
        baselines=why,
        settings=counter.settings,
        jobs=counter.jobs,
        jobs_before=counter.before,
        seconds=round(seconds, 1),
        job_seconds=round(counter.seconds, 1),
        machine=machine_info(),
        packages=package_versions(),
        data=dataset_digests([*result.DATA, *counter.datasets], scope.folder),
    )
