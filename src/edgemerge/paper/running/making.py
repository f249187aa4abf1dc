"""Results made one after the other: computed, kept, drawn, and held against their claims."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import NoReturn

from edgemerge import __version__
from edgemerge.paper.data import MissingDataError
from edgemerge.paper.plan import Claim, Job, Plan, Scope, Work
from edgemerge.paper.results import Result
from edgemerge.paper.running import keeping, provenance
from edgemerge.paper.running.forecast import clock
from edgemerge.paper.running.keeping import Kept, Record
from edgemerge.paper.running.progress import Display
from edgemerge.paper.running.tally import Tally
from edgemerge.paper.running.trials import Keeper
from edgemerge.paper.running.workers import Do

CACHE = "cache"  # below the folder of the results
OPTIONAL = {"driving"}  # not everyone can have it, so all the rest is whole without it
NO_TORCH = "torch is not installed: pip install 'edgemerge[paper]'"
UNWANTED = "none were asked for"


@dataclass(frozen=True)
class Skipped:
    """A result that could not be made, or not whole, and what to do about it."""

    name: str
    why: str
    optional: bool


@dataclass(frozen=True)
class Made:
    """A result that was made, what it shows, the files it is in, and what it had to do without."""

    name: str
    kept: Kept
    claims: list[Claim]
    files: list[Path]
    lacks: Skipped | None


@dataclass(frozen=True)
class Kitchen:
    """Where results are made: the plan, the folder they go to, who works and who is told."""

    plan: Plan
    folder: Path
    do: Do
    display: Display
    now: Callable[[], datetime] = lambda: datetime.now(UTC)


def make(results: Sequence[Result], kitchen: Kitchen) -> Iterator[Made | Skipped]:
    """Make results; one whose data are not there is skipped."""
    why = no_baselines(kitchen.plan)
    if why:
        kitchen = replace(kitchen, plan=replace(kitchen.plan, baseline_trials=0))
    able = [each for each in results if can_be_made(each, kitchen.plan.scope)]
    kitchen.display.expect(list(chain(*(foreseen(each, kitchen.plan) for each in able))))
    for each in results:
        yield _make(each, kitchen, why) if each in able else _skip(each, kitchen)


def can_be_made(result: Result, scope: Scope) -> bool:
    """Say whether a result has data: some of what it uses, and nothing that is damaged."""
    faults = provenance.lacking(result.DATA, scope.folder)
    missing = [isinstance(fault, MissingDataError) for fault in faults.values()]
    return all(missing) and (not missing or len(missing) < len(result.DATA))


def no_baselines(plan: Plan) -> str:
    """Say why the networks of the baselines will not be trained, if so."""
    if plan.baseline_trials == 0:
        return UNWANTED
    return "" if find_spec("torch") else NO_TORCH


def foreseen(result: Result, plan: Plan) -> Sequence[Job]:
    """Tell which jobs a result will want first, without doing any."""
    try:
        result.run(replace(plan, spread=_stop))
    except _Wanted as wanted:
        return wanted.jobs
    return ()


class _Wanted(Exception):
    def __init__(self, jobs: Sequence[Job]) -> None:
        super().__init__()
        self.jobs = jobs


def _stop(_work: Work, jobs: Sequence[Job], _scope: Scope) -> NoReturn:
    raise _Wanted(jobs)


def _lacks(result: Result, scope: Scope) -> Skipped | None:
    faults = provenance.lacking(result.DATA, scope.folder)
    why = "; ".join(map(str, faults.values()))
    return Skipped(result.NAME, why, optional=set(faults) <= OPTIONAL) if faults else None


def _skip(result: Result, kitchen: Kitchen) -> Skipped:
    kitchen.display.end(f"{result.NAME}: skipped, its data are missing")
    return _lacks(result, kitchen.plan.scope) or Skipped(result.NAME, "", optional=False)


def _make(result: Result, kitchen: Kitchen, why: str) -> Made:
    kitchen.display.begin(result.NAME)
    start, tally = monotonic(), Tally(kitchen.display)
    keeper = Keeper(kitchen.folder / CACHE, kitchen.do, tally)
    rows = result.run(replace(kitchen.plan, spread=keeper.spread))
    record = _record(result, kitchen, tally, why, monotonic() - start)
    kept, lacks = keeping.save(kitchen.folder, record, rows), _lacks(result, kitchen.plan.scope)
    files = _files(result, kitchen.folder, kept)
    without = ", not whole, as data are missing" if lacks else ""
    kitchen.display.end(f"{result.NAME}: {tally}, {clock(record.seconds)}{without}")
    return Made(result.NAME, kept, result.claims(kept.rows), files, lacks)


def _files(result: Result, folder: Path, kept: Kept) -> list[Path]:
    pictures = keeping.draw(folder, result.NAME, result.plot(kept.rows))
    return [folder / f"{result.NAME}.csv", folder / f"{result.NAME}.json", *pictures]


def _record(result: Result, kitchen: Kitchen, tally: Tally, why: str, seconds: float) -> Record:
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
        machine=provenance.machine(),
        packages=provenance.packages(),
        data=provenance.digests([*result.DATA, *tally.datasets], scope.folder),
    )
