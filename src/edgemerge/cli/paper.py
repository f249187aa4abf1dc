"""`edgemerge paper`: data sets, results and report of the paper's evaluation."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from edgemerge.cli.group import CommandError, LazyGroup
from edgemerge.cli.output import json_option, print_json, print_table, remark

RESULTS = {
    "loss-driving": "Loss before and after merging, driving.",
    "loss-har": "Loss before and after merging, people in motion.",
    "auc": "ROC-AUC of every pair of patterns, with baselines.",
    "latency": "Time to learn, to score and to merge.",
    "convergence": "Merging at once against learning one by one.",
    "auc-by-person": "ROC-AUC of every pair, on people not seen in training.",
    "devices": "ROC-AUC against the number of devices.",
    "bytes": "Bytes on the wire against federated averaging.",
    "cost": "Time and bytes against the size of the layer.",
    "drop-out": "What is lost when devices drop out.",
}
SECTIONS = {
    "Data and report": {"data": "edgemerge.cli.paper", "report": "edgemerge.cli.paper"},
    "Results": {name: f"edgemerge.cli.paper:{name}" for name in (*RESULTS, "all")},
}
TRIALS, BASELINE_TRIALS = 50, 3  # of a full run
CLAIM_COLUMNS = {"mark": "", "result": "RESULT", "claim": "CLAIM", "found": "FOUND"}
STOPPED = "Stopped. What is done is kept: the same command goes on from there."
REQUIRED_PACKAGES = {"matplotlib": "matplotlib", "sklearn": "scikit-learn"}

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


@click.group(cls=LazyGroup, sections=SECTIONS)
def paper() -> None:
    """Make the figures and tables of the paper, and some past it.

    `edgemerge paper data` shows which data sets are there, and fetches those that may be fetched.
    `edgemerge paper all --quick` makes a small version of everything within minutes.
    """


def __getattr__(name: str) -> click.Command:
    """Make the command of a result when it is asked for."""
    if name not in SECTIONS["Results"]:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _result_command(name)


def _result_command(name: str) -> click.Command:
    def run(**options: Any) -> None:
        check_installed(*REQUIRED_PACKAGES)
        from edgemerge.paper.results import load_result

        make_results(
            [load_result(each) for each in (RESULTS if name == "all" else [name])], **options
        )

    run.__doc__ = RESULTS.get(name, "Make all results, and the report.")
    for option in reversed(RESULT_OPTIONS):
        run = option(run)
    return click.command(name)(run)


RESULT_OPTIONS: list[Callable[[Any], Any]] = [
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


def make_results(
    results: Sequence[Any], *, out: Path, as_json: bool, jobs: int | None, **wish: Any
) -> None:
    """Make results, tell what they show, and fail if one that can be had is missing."""
    from edgemerge.paper.running import runner
    from edgemerge.paper.running.progress import progress_display
    from edgemerge.workers import WorkerPool, available_cores

    count = jobs or available_cores()
    with exit_on_signals(), WorkerPool(count) as pool, progress_display(count, remark) as display:
        kitchen = runner.RunContext(make_plan(**wish), out, runner.run_in(pool), display)
        outcomes = list(runner.run_results(results, kitchen))
    made = [one for one in outcomes if isinstance(one, runner.CompletedResult)]
    missed = [one for one in outcomes if isinstance(one, runner.SkippedResult)]
    print_claims(made, missed, as_json=as_json)
    if made:
        finish_report(results, out)
    check_complete(
        [*missed, *(one.missing_data for one in made if one.missing_data)], single=len(results) == 1
    )


def finish_report(results: Sequence[Any], out: Path) -> None:
    """Make the report of all results, or say how to make it."""
    if len(results) == 1:
        remark(f"Files: {out}. `edgemerge paper report --out {out}` makes a page of them.")
        return

    write_report(out, results)


def make_plan(
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


def print_claims(made: Sequence[Any], missed: Sequence[Any], *, as_json: bool) -> None:
    """Print the claims of what was made."""
    from edgemerge.paper.reporting.content import MARKS

    if as_json:
        skipped = [{"result": one.name, "why": one.why} for one in missed]
        print_json({"made": [_claims_as_json(one) for one in made], "skipped": skipped})
        return
    rows = [
        {"mark": MARKS[claim.holds], "result": one.name, "claim": claim.text, "found": claim.found}
        for one in made
        for claim in one.claims
    ]
    if rows:
        print_table(rows, CLAIM_COLUMNS)


def _claims_as_json(one: Any) -> dict[str, Any]:
    claims = [{"claim": it.text, "holds": it.holds, "found": it.found} for it in one.claims]
    return {"result": one.name, "claims": claims, "files": list(map(str, one.files))}


def check_complete(missed: Sequence[Any], *, single: bool) -> None:
    """Fail if a result was asked for by its name, or if one lacks data that everyone can have."""
    if single and missed:
        raise CommandError(missed[0].why)
    for why in dict.fromkeys(one.why for one in missed):
        remark(f"Missing: {why}")
    names = [one.name for one in missed if not one.optional]
    if names:
        raise CommandError(f"not made, or not whole, for lack of data: {', '.join(names)}")


def check_installed(*modules: str) -> None:
    """Say which package is missing, without waiting for those that are there."""
    for module in modules:
        if find_spec(module) is None:
            raise CommandError(
                f"{REQUIRED_PACKAGES[module]} is missing: pip install 'edgemerge[paper]'"
            )


@contextmanager
def exit_on_signals() -> Iterator[None]:
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


FETCHABLE = ("har", "mnist")
DATASET_COLUMNS = {"name": "DATA SET", "state": "STATE", "rows": "SAMPLES", "where": "WHERE"}


@click.command()
@data_option
@click.option(
    "--fetch",
    "wanted",
    type=click.Choice([*FETCHABLE, "all"]),
    multiple=True,
    help="Fetch a data set from its makers; can be repeated.",
)
@json_option
def data(data: Path | None, wanted: Sequence[str], *, as_json: bool) -> None:
    """Show which data sets are there, and fetch them.

    Each is looked for as its makers publish it, and checked before it is used.
    """
    from edgemerge.paper.data import folder_of, status

    for name in FETCHABLE if "all" in wanted else dict.fromkeys(wanted):
        fetch_dataset(name, data)
    print_datasets([_status_as_json(one) for one in status(data)], folder_of(data), as_json=as_json)


def fetch_dataset(name: str, folder: Path | None) -> None:
    """Fetch a data set, unless it is there."""
    from edgemerge.paper.data import fetch, terms

    remark(terms(name))
    with download_progress() as progress:
        paths = fetch(name, folder, progress=progress)
    remark(f"{name}: {', '.join(map(str, paths))}")


def _status_as_json(one: Any) -> dict[str, Any]:
    from edgemerge.paper.data import terms

    return {
        "name": one.name,
        "state": one.state,
        "where": str(one.where) if one.where else None,
        "rows": one.rows,
        "patterns": dict(one.patterns),
        "advice": one.advice,
        "terms": terms(one.name),
    }


def print_datasets(found: Sequence[dict[str, Any]], folder: Path, *, as_json: bool) -> None:
    """Print what there is, what to do about what is not, and the terms."""
    if as_json:
        print_json({"folder": str(folder), "data": found})
        return
    print_table(found, DATASET_COLUMNS)
    for one in found:
        if one["advice"]:
            click.echo(f"\n{one['advice']}.")
    click.echo("\nTerms:")
    for one in found:
        click.echo(f"- {one['terms']}")


@contextmanager
def download_progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """Show a bar for each file that comes, if somebody is watching."""
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def show(name: str, sofar: int, whole: int | None) -> None:
            task = tasks.setdefault(name, None) or bars.add_task(name)
            tasks[name] = task
            bars.update(task, completed=sofar, total=whole)

        yield show


@click.command()
@out_option
@click.option(
    "--markdown",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a Markdown page there, with images/ beside it, instead of report.html.",
)
def report(out: Path, markdown: Path | None) -> None:
    """Make one page of the results in a folder.

    The page is made from the CSV and JSON files alone; nothing is computed again.
    """
    check_installed(*REQUIRED_PACKAGES)
    from edgemerge.paper.results import load_result

    results = [load_result(name) for name in RESULTS]
    if markdown is None:
        write_report(out, results)
        return
    from edgemerge.paper.reporting import markdown as writing
    from edgemerge.paper.reporting.content import read_report

    writing.save_markdown(read_report(out, results), markdown, out)
    remark(f"Report: {markdown}")


def write_report(out: Path, results: Sequence[Any]) -> None:
    """Write report.html."""
    from edgemerge.paper.reporting.content import read_report as gather
    from edgemerge.paper.reporting.html_page import render_html
    from edgemerge.paper.running.storage import write_file

    write_file(render_html(gather(out, results)).encode(), out / "report.html")
    remark(f"Report: {out / 'report.html'}")
