"""`edgemerge paper`: the paper's evaluation, result by result, on real data."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from edgemerge.cli.group import Commands, Failure
from edgemerge.cli.output import json_option, remark, say_json, say_table

SHOWS = {
    "loss-driving": "Loss before and after merging, driving.",
    "loss-har": "Loss before and after merging, people in motion.",
    "auc": "ROC-AUC of every pair of patterns, with baselines.",
    "latency": "Time to learn, to score and to merge.",
    "convergence": "Merging at once against learning one by one.",
    "devices": "ROC-AUC against the number of devices.",
    "bytes": "Bytes on the wire against federated averaging.",
    "cost": "Time and bytes against the size of the layer.",
    "drop-out": "What is lost when devices drop out.",
}
SECTIONS = {
    "Data and report": {"data": "edgemerge.cli.paper_data", "report": "edgemerge.cli.paper_report"},
    "Results": {name: f"edgemerge.cli.paper:{name}" for name in (*SHOWS, "all")},
}
TRIALS, BASELINE_TRIALS = 50, 3  # of a full run
COLUMNS = {"mark": "", "result": "RESULT", "claim": "CLAIM", "found": "FOUND"}
STOPPED = "Stopped. What is done is kept: the same command goes on from there."
NEEDED = {"matplotlib": "matplotlib", "sklearn": "scikit-learn"}

data_option = click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the data sets.  [default: EDGEMERGE_DATA, else in the user's cache]",
)
out_option = click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("paper-results"),
    show_default=True,
    help="Folder of the results.",
)


@click.group(cls=Commands, sections=SECTIONS)
def paper() -> None:
    """Make the figures and tables of the paper, and some past it.

    `edgemerge paper data` shows which data sets are there, and fetches those that may be fetched.
    `edgemerge paper all --quick` makes a small version of everything within minutes.
    """


def __getattr__(name: str) -> click.Command:
    """Make the command of a result when it is asked for."""
    if name not in SECTIONS["Results"]:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _command(name)


def _command(name: str) -> click.Command:
    def run(**options: Any) -> None:
        must_have(*NEEDED)
        from edgemerge.paper.results import result

        make([result(each) for each in (SHOWS if name == "all" else [name])], **options)

    run.__doc__ = SHOWS.get(name, "Make all results, and the report.")
    for option in reversed(OPTIONS):
        run = option(run)
    return click.command(name)(run)


OPTIONS: list[Callable[[Any], Any]] = [
    data_option,
    out_option,
    click.option("--seed", type=click.IntRange(min=0), default=7, show_default=True, help="Seed."),
    click.option(
        "--trials",
        type=click.IntRange(min=1),
        help=f"Trials.  [default: {TRIALS}, fewer with --quick]",
    ),
    click.option(
        "--baseline-trials",
        type=click.IntRange(min=0),
        help=f"Trials of the networks; 0: none.  [default: {BASELINE_TRIALS}, fewer with --quick]",
    ),
    click.option("--quick", is_flag=True, help="Take only a part of the data."),
    click.option(
        "--jobs", type=click.IntRange(min=1), help="Jobs at a time.  [default: one to a core]"
    ),
    json_option,
]


def make(
    results: Sequence[Any], *, out: Path, as_json: bool, jobs: int | None, **wish: Any
) -> None:
    """Make results, tell what they show, and fail if one that can be had is missing."""
    from edgemerge.paper.running import making
    from edgemerge.paper.running.progress import shown
    from edgemerge.paper.running.workers import Workers, cores

    count = jobs or cores()
    with stoppable(), Workers(count) as workers, shown(count, remark) as display:
        kitchen = making.Kitchen(plan(**wish), out, workers.do, display)
        outcomes = list(making.make(results, kitchen))
    made = [one for one in outcomes if isinstance(one, making.Made)]
    missed = [one for one in outcomes if isinstance(one, making.Skipped)]
    tell(made, missed, as_json=as_json)
    if made:
        finish(results, out)
    must_be_whole([*missed, *(one.lacks for one in made if one.lacks)], single=len(results) == 1)


def finish(results: Sequence[Any], out: Path) -> None:
    """Make the report of all results, or say how to make it."""
    if len(results) == 1:
        remark(f"Files: {out}. `edgemerge paper report --out {out}` makes a page of them.")
        return
    from edgemerge.cli.paper_report import build

    build(out, results)


def plan(
    *, data: Path | None, seed: int, trials: int | None, baseline_trials: int | None, quick: bool
) -> Any:
    """Make a plan of what the user wishes."""
    from edgemerge.paper.data import folder_of
    from edgemerge.paper.plan import QUICK_BASELINE_TRIALS, QUICK_TRIALS, Plan, Scope

    usual = (QUICK_TRIALS, QUICK_BASELINE_TRIALS) if quick else (TRIALS, BASELINE_TRIALS)
    return Plan(
        Scope(folder_of(data), seed, quick),
        trials=usual[0] if trials is None else trials,
        baseline_trials=usual[1] if baseline_trials is None else baseline_trials,
    )


def tell(made: Sequence[Any], missed: Sequence[Any], *, as_json: bool) -> None:
    """Print the claims of what was made."""
    from edgemerge.paper.reporting.report import MARKS

    if as_json:
        skipped = [{"result": one.name, "why": one.why} for one in missed]
        say_json({"made": [_told(one) for one in made], "skipped": skipped})
        return
    rows = [
        {"mark": MARKS[claim.holds], "result": one.name, "claim": claim.text, "found": claim.found}
        for one in made
        for claim in one.claims
    ]
    if rows:
        say_table(rows, COLUMNS)


def _told(one: Any) -> dict[str, Any]:
    claims = [{"claim": it.text, "holds": it.holds, "found": it.found} for it in one.claims]
    return {"result": one.name, "claims": claims, "files": list(map(str, one.files))}


def must_be_whole(missed: Sequence[Any], *, single: bool) -> None:
    """Fail if a result was asked for by its name, or if one lacks data that everyone can have."""
    if single and missed:
        raise Failure(missed[0].why)
    for why in dict.fromkeys(one.why for one in missed):
        remark(f"Missing: {why}")
    names = [one.name for one in missed if not one.optional]
    if names:
        raise Failure(f"not made, or not whole, for lack of data: {', '.join(names)}")


def must_have(*modules: str) -> None:
    """Say which package is missing, without waiting for those that are there."""
    for module in modules:
        if find_spec(module) is None:
            raise Failure(f"{NEEDED[module]} is missing: pip install 'edgemerge[paper]'")


@contextmanager
def stoppable() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the work in order, and say how to go on."""
    code = 128 + signal.SIGINT

    def terminated(*_: object) -> None:
        nonlocal code
        code = 128 + signal.SIGTERM
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, terminated)
    try:
        yield
    except KeyboardInterrupt:
        remark(STOPPED)
        raise SystemExit(code) from None
    finally:
        signal.signal(signal.SIGTERM, before)
