"""`edgemerge paper`: data sets, results and report of the paper's evaluation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from signal import SIGTERM
from typing import Any

import click

from edgemerge.cli.group import (
    CommandError,
    ExitCode,
    LazyGroup,
    example,
    missing_package,
    option,
    options,
    stopped,
)
from edgemerge.cli.output import json_option, print_json, print_table, remark

RESULTS = {
    "loss-driving": "Loss before and after merging, driving.",
    "loss-har": "Loss before and after merging, people in motion.",
    "auc": "ROC-AUC of every pair of patterns, with baselines.",
    "latency": "Time to learn, to score and to merge.",
    "convergence": "Merging at once against learning one by one.",
    "auc-by-person": "ROC-AUC of every pair, on people not seen in training.",
    "small-experiments": "What the paper says in words, each measured.",
    "devices": "ROC-AUC against the number of devices.",
    "bytes": "Bytes on the wire against federated averaging.",
    "cost": "Time and bytes against the size of the layer.",
    "drop-out": "What is lost when devices drop out.",
}
COMPARISONS = {
    "one-shot": "One-shot federated detection, compared with other methods.",
    "streams": "False episodes, time to detect and undo on generated streams, beside others.",
    "ablation": "ROC-AUC against each setting in turn.",
}
SECTIONS = {
    "Data and report": dict.fromkeys(("data", "claims", "report"), "edgemerge.cli.paper"),
    "Results": {name: f"edgemerge.cli.paper:{name}" for name in (*RESULTS, "all")},
    "Comparisons": {name: f"edgemerge.cli.paper:{name}" for name in COMPARISONS},
}
TRIALS, BASELINE_TRIALS = 50, 3  # of a full run
ONE_SHOT_TRIALS = 30, 10  # likewise, of the comparison of that name
CLAIM_COLUMNS = {"mark": "", "result": "RESULT", "claim": "CLAIM", "found": "FOUND"}
STOPPED = "Stopped. Finished work is kept: the same command continues from there."
REQUIRED_PACKAGES = {"matplotlib": "matplotlib", "sklearn": "scikit-learn"}
COMPARED_PACKAGES = {"river": "river", "pysad": "pysad"}

data_option = click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the data sets.  [default: EDGEMERGE_DATA, or the user's cache]",
)
out_option = click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("paper-results"),
    show_default=True,
    help="Folder of the results.",
)


@click.group(
    cls=LazyGroup,
    sections=SECTIONS,
    epilog=example("edgemerge paper data --fetch har", "edgemerge paper all --quick"),
)
def paper() -> None:
    """Make the figures and tables of the paper, and more.

    `edgemerge paper data` lists the data sets and downloads those that may be downloaded.
    `edgemerge paper all --quick` makes a small version of everything within minutes.
    """


def __getattr__(name: str) -> click.Command:
    """Return the command of a result, made on demand."""
    if name not in {**SECTIONS["Results"], **SECTIONS["Comparisons"]}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _result_command(name)


def _result_command(name: str) -> click.Command:
    def run(**given: Any) -> None:
        names = RESULTS if name == "all" else [name]
        usual = ONE_SHOT_TRIALS if name == "one-shot" else (TRIALS, BASELINE_TRIALS)
        make_results([find_result(each) for each in names], usual=usual, **given)

    every = "Make all results of the paper, and the report."
    run.__doc__ = {**RESULTS, **COMPARISONS}.get(name, every)
    shown = example(f"edgemerge paper {name} --quick --out paper-results")
    return click.command(name, epilog=shown)(result_options(run))


def find_result(name: str) -> Any:
    """Return the module of a result or a comparison, if the packages that it needs are there."""
    check_installed(REQUIRED_PACKAGES, "paper")
    from edgemerge.paper.plan import load_result

    if name in COMPARISONS:
        check_installed(COMPARED_PACKAGES, "bench")
        return load_result(name, "edgemerge.comparison")
    return load_result(name)


result_options = options(
    data_option,
    out_option,
    click.option("--seed", type=click.IntRange(min=0), default=7, show_default=True, help="Seed."),
    click.option(
        "--trials",
        type=click.IntRange(min=1),
        help=f"Trials.  [default: {TRIALS}, or {ONE_SHOT_TRIALS[0]} of one-shot; fewer with "
        "--quick]",
    ),
    click.option(
        "--baseline-trials",
        type=click.IntRange(min=0),
        help=f"Trials of networks; 0 for none.  [default: {BASELINE_TRIALS}, or "
        f"{ONE_SHOT_TRIALS[1]} of one-shot; fewer with --quick]",
    ),
    click.option("--quick", is_flag=True, help="Use only a part of the data."),
    option(
        "--workers",
        old={"--jobs": "--workers"},
        type=click.IntRange(min=1),
        help="Processes.  [default: one per core]",
    ),
    json_option,
)


def make_results(
    results: Sequence[Any], *, out: Path, as_json: bool, workers: int | None, **settings: Any
) -> None:
    """Make results, print their claims, and fail if one is missing whose data can be had."""
    from edgemerge.paper.running import results_runner as runner
    from edgemerge.paper.running.progress import progress_display
    from edgemerge.workers import WorkerPool, available_cores

    count = workers or available_cores()
    with exit_on_signals(), WorkerPool(count) as pool, progress_display(count, remark) as display:
        context = runner.RunContext(make_plan(**settings), out, runner.run_in(pool), display)
        outcomes = list(runner.run_results(results, context))
    made = [one for one in outcomes if isinstance(one, runner.CompletedResult)]
    missed = [one for one in outcomes if isinstance(one, runner.SkippedResult)]
    print_claims(made, missed, as_json=as_json)
    if made and len(results) == 1:
        only = f" --only {made[0].name}" if made[0].name in COMPARISONS else ""
        remark(f"Files: {out}. `edgemerge paper report{only} --out {out}` makes a page of them.")
    elif made:
        write_report(out, results)
    check_complete(
        [*missed, *(one.missing_data for one in made if one.missing_data)], single=len(results) == 1
    )


def make_plan(
    *,
    data: Path | None,
    seed: int,
    trials: int | None,
    baseline_trials: int | None,
    quick: bool,
    usual: tuple[int, int] = (TRIALS, BASELINE_TRIALS),
) -> Any:
    """Return the plan that the options describe; `usual` are the trials of a full run."""
    from edgemerge.paper.data import folder_of
    from edgemerge.paper.plan import QUICK_BASELINE_TRIALS, QUICK_TRIALS, Plan, Scope

    usual = (QUICK_TRIALS, QUICK_BASELINE_TRIALS) if quick else usual
    return Plan(
        Scope(folder_of(data), seed, quick),
        trials=usual[0] if trials is None else trials,
        baseline_trials=usual[1] if baseline_trials is None else baseline_trials,
    )


def print_claims(made: Sequence[Any], missed: Sequence[Any], *, as_json: bool) -> None:
    """Print the claims of the results."""
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
    """Fail if a single result is missing, or one whose data everyone can get."""
    if single and missed:
        raise CommandError(missed[0].why, ExitCode.NO_DATA)
    for why in dict.fromkeys(one.why for one in missed):
        remark(f"Missing: {why}")
    names = [one.name for one in missed if not one.optional]
    if names:
        raise CommandError(
            f"missing or incomplete for lack of data: {', '.join(names)}", ExitCode.NO_DATA
        )


def check_installed(packages: Mapping[str, str], extra: str) -> None:
    """Fail if a package is missing, without importing those that are installed.

    Args:
        packages: The name of each package, by that of its module.
        extra: The extra of edgemerge that installs them.
    """
    for module, package in packages.items():
        if find_spec(module) is None:
            raise missing_package(package, extra)


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Exit in order on Ctrl-C and SIGTERM, and say how to continue."""
    from edgemerge.daemon import interrupt_on_signals

    try:
        with interrupt_on_signals(SIGTERM):
            yield
    except KeyboardInterrupt as interrupt:
        raise stopped(interrupt, STOPPED) from None


FETCHABLE = ("har", "mnist")
DATASET_COLUMNS = {"name": "DATA SET", "state": "STATE", "rows": "SAMPLES", "where": "WHERE"}


@click.command(epilog=example("edgemerge paper data --fetch har --data ~/data"))
@data_option
@click.option(
    "--fetch",
    "wanted",
    type=click.Choice([*FETCHABLE, "all"]),
    multiple=True,
    help="Download a data set from its authors; can be repeated.",
)
@json_option
def data(data: Path | None, wanted: Sequence[str], *, as_json: bool) -> None:
    """List the data sets, and download them.

    Each is expected as its authors publish it, and is checked before use.
    """
    from edgemerge.paper.data import folder_of, status

    for name in FETCHABLE if "all" in wanted else dict.fromkeys(wanted):
        fetch_dataset(name, data)
    print_datasets([_status_as_json(one) for one in status(data)], folder_of(data), as_json=as_json)


def fetch_dataset(name: str, folder: Path | None) -> None:
    """Download a data set, unless it exists."""
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
    """Print the data sets, how to get missing ones, and their terms."""
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
    """Show a bar for each download, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def show(name: str, done: int, total: int | None) -> None:
            task = tasks.setdefault(name, None) or bars.add_task(name)
            tasks[name] = task
            bars.update(task, completed=done, total=total)

        yield show


PAPER_CLAIM_COLUMNS = {"verdict": "VERDICT", "claim": "CLAIM", "where": "SECTION", "found": "FOUND"}


@click.command(epilog=example("edgemerge paper claims --out paper-results"))
@out_option
@json_option
def claims(out: Path, *, as_json: bool) -> None:
    """Judge the paper's own claims by the results in a folder.

    It writes claims.csv beside them: what the paper claims and where, what was measured and found,
    and whether it holds. Nothing is computed again; what was not run is left open.
    """
    check_installed(REQUIRED_PACKAGES, "paper")
    from edgemerge.paper.claims import read_claims, save_claims

    rows = read_claims(out)
    path = save_claims(out, rows)
    if as_json:
        print_json({"file": str(path), "claims": rows})
        return
    print_table(rows, PAPER_CLAIM_COLUMNS)
    remark(f"File: {path}")


@click.command(epilog=example("edgemerge paper report --out paper-results"))
@out_option
@click.option(
    "--markdown",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a Markdown page there, with images/ beside it, instead of report.html.",
)
@click.option(
    "--only",
    type=click.Choice([*RESULTS, *COMPARISONS]),
    metavar="NAME",
    help="Make a page of this result alone.  [default: all but comparisons]",
)
def report(out: Path, markdown: Path | None, only: str | None) -> None:
    """Write one page of the results in a folder.

    It is made from the CSV and JSON files; nothing is computed again.
    """
    results = [find_result(name) for name in ([only] if only else RESULTS)]
    if markdown is not None and hasattr(results[0], "page"):
        fill_page(results[0], out, markdown)
        return
    if markdown is None:
        write_report(out, results)
        return
    from edgemerge.paper.reporting import markdown as writing
    from edgemerge.paper.reporting.content import read_report

    save = writing.save_result_page if only else writing.save_markdown
    save(read_report(out, results), markdown, out)
    remark(f"Report: {markdown}")


def write_report(out: Path, results: Sequence[Any]) -> None:
    """Write report.html."""
    from edgemerge.paper.reporting.content import read_report as gather
    from edgemerge.paper.reporting.html_page import render_html
    from edgemerge.paper.running.result_files import write_file

    write_file(render_html(gather(out, results)).encode(), out / "report.html")
    remark(f"Report: {out / 'report.html'}")


def fill_page(result: Any, out: Path, path: Path) -> None:
    """Fill a result's tables into a page, and write its figures to images/ beside it."""
    from edgemerge.paper.running import result_files

    saved = result_files.read_result(out, result.NAME)
    if saved is None:
        raise CommandError(
            f"{out} holds no {result.NAME}: run `edgemerge paper {result.NAME} --out {out}`",
            ExitCode.NO_DATA,
        )
    figures = result.plot(saved.rows)
    result_files.save_figures(path.parent / "images" / path.stem, result.NAME, figures)
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    result_files.write_file(result.page(saved, text).encode(), path)
    remark(f"Report: {path}")
