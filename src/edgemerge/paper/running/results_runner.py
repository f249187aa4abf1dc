"""Run results in turn: compute rows, save them with their provenance, draw, check claims."""

from __future__ import annotations

import os
import platform
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
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
from edgemerge.paper.data import NAMES, DataError, MissingDataError, folder_of
from edgemerge.paper.data.verified_files import VerifiedFiles
from edgemerge.paper.plan import (
    Claim,
    FinishedJob,
    Job,
    JobExecutor,
    JobFunction,
    Plan,
    Scope,
    job_label,
)
from edgemerge.paper.results import Result
from edgemerge.paper.running import result_files
from edgemerge.paper.running.job_cache import JobCache, JobListener
from edgemerge.paper.running.progress import Display, format_duration
from edgemerge.paper.running.result_files import Record, SavedResult
from edgemerge.workers import WorkerError, WorkerPool

PACKAGES = ("edgemerge", "numpy", "scipy", "scikit-learn", "torch", "matplotlib")
CPUINFO = Path("/proc/cpuinfo")


def machine_info() -> dict[str, str | int]:
    """Tell what kind of machine this is; nothing here says which one."""
    return {
        "processor": _processor(CPUINFO.read_text(encoding="utf-8") if CPUINFO.exists() else ""),
        "cores": os.cpu_count() or 1,
        "memory_gb": _memory_gb(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def package_versions(names: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Give the version of each package; one that is not there is left out."""
    return {name: found for name in names if (found := _version(name))}


@lru_cache(maxsize=8)
def dataset_digest(name: str, folder: Path | None) -> str:
    """Give the SHA-256 of a data set's file, or raise the DataError that says what to do.

    Of several files it is that of what `sha256sum` says of them. All are verified before.
    """
    found: VerifiedFiles = import_module(f"edgemerge.paper.data.{name}").find(folder_of(folder))
    each = {file: sha256(data).hexdigest() for file, data in sorted(found.files.items())}
    if len(each) == 1:
        return next(iter(each.values()))
    return sha256("".join(f"{key}  {file}\n" for file, key in each.items()).encode()).hexdigest()


def unusable_datasets(names: Sequence[str], folder: Path | None) -> dict[str, DataError]:
    """Tell which data sets cannot be used, and why."""
    faults = {}
    for name in names:
        try:
            dataset_digest(name, folder)
        except DataError as error:
            faults[name] = error
    return faults


def dataset_digests(names: Sequence[str], folder: Path | None) -> dict[str, str]:
    """Give the digest of each data set that can be used."""
    faults = unusable_datasets(names, folder)
    return {name: dataset_digest(name, folder) for name in sorted(set(names)) if name not in faults}


def _processor(text: str) -> str:
    r"""Find the name of the processor among what Linux says of it.

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
    """Counts jobs, and passes on what it hears."""

    def __init__(self, watch: JobListener) -> None:
        """Start at nothing."""
        self.watch = watch
        self.jobs, self.before, self.seconds = 0, 0, 0.0
        self.settings: dict[str, list[str]] = {}
        self.datasets: set[str] = set()

    def jobs_added(self, jobs: Sequence[Job]) -> None:
        """Note the settings and the data sets."""
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
        """Say how many jobs there were."""
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
NO_TORCH = "torch is not installed: pip install 'edgemerge[paper]'"
NOT_REQUESTED = "none were asked for"


@dataclass(frozen=True)
class SkippedResult:
    """A result that could not be made, or not whole, and what to do about it."""

    name: str
    why: str
    optional: bool


@dataclass(frozen=True)
class CompletedResult:
    """A result that was made, what it shows, the files it is in, and what it had to do without."""

    name: str
    kept: SavedResult
    claims: list[Claim]
    files: list[Path]
    missing_data: SkippedResult | None


@dataclass(frozen=True)
class RunContext:
    """Where results are made: the plan, the folder they go to, who works and who is told."""

    plan: Plan
    folder: Path
    do: JobExecutor
    display: Display
    now: Callable[[], datetime] = lambda: datetime.now(UTC)


def run_results(
    results: Sequence[Result], kitchen: RunContext
) -> Iterator[CompletedResult | SkippedResult]:
    """Make results; one whose data are not there is skipped."""
    why = why_no_baselines(kitchen.plan)
    if why:
        kitchen = replace(kitchen, plan=replace(kitchen.plan, baseline_trials=0))
    able = [each for each in results if has_data(each, kitchen.plan.scope)]
    kitchen.display.expect(list(chain(*(planned_jobs(each, kitchen.plan) for each in able))))
    for each in results:
        yield _run_result(each, kitchen, why) if each in able else _skip_result(each, kitchen)


def has_data(result: Result, scope: Scope) -> bool:
    """Say whether a result has data: some of what it uses, and nothing that is damaged."""
    faults = unusable_datasets(result.DATA, scope.folder)
    missing = [isinstance(fault, MissingDataError) for fault in faults.values()]
    return all(missing) and (not missing or len(missing) < len(result.DATA))


def why_no_baselines(plan: Plan) -> str:
    """Say why the networks of the baselines will not be trained, if so."""
    if plan.baseline_trials == 0:
        return NOT_REQUESTED
    return "" if find_spec("torch") else NO_TORCH


def planned_jobs(result: Result, plan: Plan) -> Sequence[Job]:
    """Tell which jobs a result will want first, without doing any."""
    try:
        result.run(replace(plan, spread=_capture_jobs))
    except _JobsPlanned as wanted:
        return wanted.jobs
    return ()


class _JobsPlanned(Exception):
    def __init__(self, jobs: Sequence[Job]) -> None:
        super().__init__()
        self.jobs = jobs


def _capture_jobs(_work: JobFunction, jobs: Sequence[Job], _scope: Scope) -> NoReturn:
    raise _JobsPlanned(jobs)


def _missing_data(result: Result, scope: Scope) -> SkippedResult | None:
    faults = unusable_datasets(result.DATA, scope.folder)
    why = "; ".join(map(str, faults.values()))
    return (
        SkippedResult(result.NAME, why, optional=set(faults) <= OPTIONAL_DATASETS)
        if faults
        else None
    )


def _skip_result(result: Result, kitchen: RunContext) -> SkippedResult:
    kitchen.display.end(f"{result.NAME}: skipped, its data are missing")
    return _missing_data(result, kitchen.plan.scope) or SkippedResult(
        result.NAME, "", optional=False
    )


def _run_result(result: Result, kitchen: RunContext, why: str) -> CompletedResult:
    kitchen.display.begin(result.NAME)
    start, tally = monotonic(), JobCounter(kitchen.display)
    keeper = JobCache(kitchen.folder / CACHE_FOLDER, kitchen.do, tally)
    rows = result.run(replace(kitchen.plan, spread=keeper.spread))
    record = _record(result, kitchen, tally, why, monotonic() - start)
    kept, lacks = (
        result_files.save_result(kitchen.folder, record, rows),
        _missing_data(result, kitchen.plan.scope),
    )
    files = _files(result, kitchen.folder, kept)
    without = ", not whole, as data are missing" if lacks else ""
    kitchen.display.end(f"{result.NAME}: {tally}, {format_duration(record.seconds)}{without}")
    return CompletedResult(result.NAME, kept, result.claims(kept.rows), files, lacks)


def _files(result: Result, folder: Path, kept: SavedResult) -> list[Path]:
    pictures = result_files.save_figures(folder, result.NAME, result.plot(kept.rows))
    return [folder / f"{result.NAME}.csv", folder / f"{result.NAME}.json", *pictures]


def _record(
    result: Result, kitchen: RunContext, tally: JobCounter, why: str, seconds: float
) -> Record:
    plan, scope = kitchen.plan, kitchen.plan.scope
    return Record(
        result=result.NAME,
        date=kitchen.now().strftime("%Y-%m-%dT%H:%M:%SZ"),
        version=__version__,
        seed=scope.seed,
        quick=scope.quick,
        trials=len(plan.merging),
        baseline_trials=len(plan.training),
        baselines=why,
        settings=tally.settings,
        jobs=tally.jobs,
        jobs_before=tally.before,
        seconds=round(seconds, 1),
        job_seconds=round(tally.seconds, 1),
        machine=machine_info(),
        packages=package_versions(),
        data=dataset_digests([*result.DATA, *tally.datasets], scope.folder),
    )
