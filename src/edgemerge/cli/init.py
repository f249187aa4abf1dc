"""`edgemerge init`: look at a file of readings and write an agent's configuration for it."""

from __future__ import annotations

import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgemerge.cli.group import CommandError, ExitCode, example
from edgemerge.cli.output import headings, json_option, print_json, print_table, remark
from edgemerge.cli.samples import split_commas

if TYPE_CHECKING:
    from edgemerge.agent.proposal import ColumnReport, FileReport, Proposal

BARS = "▁▂▃▄▅▆▇█"
PLOT_WIDTH = 32
COLUMNS = headings("column", "name", "holds", "lowest", "median", "highest", "missing", "values")


@click.command(
    epilog=example(
        "edgemerge init pump.csv",
        "edgemerge init pump.csv --columns pressure,flow --device pump-3 --yes",
    )
)
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@click.option(
    "--columns", metavar="A,B,...", callback=split_commas,
    help="Columns to watch, by name or by number from 1. Default: all numbers that change.",
)  # fmt: skip
@click.option("--device", help="The name of the device. Default: the name of the file.")
@click.option(
    "--features", type=click.Choice(["raw", "window", "spectrum"]),
    help="What samples are made of. Default: by the rate of the readings.",
)  # fmt: skip
@click.option("--n-hidden", type=click.IntRange(1), help="Hidden values. Default: by the samples.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the projection.")
@click.option("--time-zone", metavar="ZONE", help="Zone of times that name none. Default: UTC.")
@click.option("--follow", is_flag=True, help="The file grows: go on with what is added to it.")
@click.option(
    "--output", "-o", type=click.Path(dir_okay=False, path_type=Path), metavar="CONFIG.toml",
    help="The configuration to write. Default: DEVICE.toml in this folder.",
)  # fmt: skip
@click.option("--yes", is_flag=True, help="Ask nothing; replace files that exist.")
@json_option
def init(
    file: Path,
    columns: list[str],
    output: Path | None,
    *,
    yes: bool,
    as_json: bool,
    **choices: Any,
) -> None:
    """Write an agent's configuration for a file of readings.

    Looks at the beginning of FILE (CSV or JSON lines): delimiter, decimal mark, header, times, rate
    and columns. Proposes features and ranges, and writes CONFIG.toml and the projection beside it.
    """
    from edgemerge.agent.proposal import choose_columns, inspect_file, propose, to_toml
    from edgemerge.files import save, write_atomically

    if not file.is_file():
        raise CommandError(f"{file} is no file: give the path of a CSV file", ExitCode.NO_DATA)
    report = inspect_file(file)
    device = choices.pop("device") or re.sub(r"[^A-Za-z0-9._-]+", "-", file.stem).strip("-._")
    device, chosen = device or "device", choose_columns(report, columns)
    proposal = propose(file.absolute(), report, chosen, device=device, **choices)
    target = output or Path(f"{device}.toml")
    projection_file = target.with_suffix(".projection")
    there = [path for path in (target, projection_file) if path.exists() and not yes]
    if there and not sys.stdin.isatty():
        raise CommandError(f"{there[0]} exists: add --yes to replace it, or choose --output")
    if not as_json:
        _print_report(file, report)
    if there:
        click.confirm(f"Replace {' and '.join(map(str, there))}?", abort=True, err=True)
    save(proposal.projection, projection_file)
    write_atomically(to_toml(proposal, Path(projection_file.name)).encode(), target)
    if as_json:
        print_json(_plain(report, proposal, target, projection_file))
    else:
        _print_proposal(proposal, target, projection_file)


def _print_report(path: Path, report: FileReport) -> None:
    names = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"}
    form = "JSON lines" if report.format == "jsonl" else f"CSV with {names[report.delimiter]}"
    if report.decimal == ",":
        form += ", decimal commas"
    rows = f"{report.rows:,} rows" if report.whole else f"its first {report.rows:,} rows"
    rate = "" if report.rate_hz is None else f", one every {_interval(1.0 / report.rate_hz)}"
    click.echo(f"{path}: {form}, {rows}{rate}\n")
    print_table([_column_row(column) for column in report.columns], COLUMNS)
    click.echo()


def _column_row(column: ColumnReport) -> dict[str, Any]:
    import numpy as np

    found = {"column": column.number, "name": column.name, "holds": column.problem or column.kind}
    if column.kind != "number":
        return found | dict.fromkeys(("lowest", "median", "highest", "missing", "values"), "")
    values = column.values[np.isfinite(column.values)]
    low, middle, high = (f"{each:.4g}" for each in np.quantile(values, [0.0, 0.5, 1.0]))
    found |= {"lowest": low, "median": middle, "highest": high, "missing": column.missing}
    return found | {"values": plot(values.tolist())}


def plot(values: list[float]) -> str:
    """Return a line of bars: the mean of each part of the values, between lowest and highest.

    >>> plot([0.0, 1.0, 2.0, 3.0])
    '▁▃▆█'
    """
    width = min(PLOT_WIDTH, len(values))
    edges = [len(values) * i // width for i in range(width + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((mean - low) * scale)] for mean in means)


def _interval(seconds: float) -> str:
    if seconds < 1.0:
        return f"{1000.0 * seconds:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 120.0 else f"{seconds / 60.0:.3g} min"


def _feature_words(proposal: Proposal) -> str:
    features = proposal.config.features
    if features.kind == "raw":
        return "each row as it is"
    if features.kind == "window":
        return f"{', '.join(features.statistics)} of {features.length} rows"
    return f"spectrum of {features.length} rows in {features.bands} bands"


def _print_proposal(proposal: Proposal, target: Path, projection_file: Path) -> None:
    shared = proposal.projection
    click.echo(f"samples    {_feature_words(proposal)}: {proposal.samples:,} of them")
    click.echo(f"network    {shared.n_inputs} inputs, {shared.n_hidden} hidden values")
    click.echo(f"watching   begins after {proposal.commissioning:,} samples")
    click.echo(f"written    {target}, {projection_file}")
    for words in proposal.remarks:
        remark(f"note: {words}")
    click.echo(f"\nnext: edgemerge agent {target}")


def _plain(
    report: FileReport, proposal: Proposal, target: Path, projection_file: Path
) -> dict[str, Any]:
    names = (
        "format", "rows", "skipped", "delimiter", "decimal", "header", "skip_lines", "time",
        "time_format", "rate_hz", "gaps", "backward",
    )  # fmt: skip
    columns = [
        {"number": c.number, "name": c.name, "holds": c.problem or c.kind, "missing": c.missing}
        for c in report.columns
    ]
    shared = proposal.projection
    return {name: getattr(report, name) for name in names} | {
        "columns": columns,
        "features": proposal.config.features.kind,
        "samples": proposal.samples,
        "n_inputs": shared.n_inputs,
        "n_hidden": shared.n_hidden,
        "commissioning": proposal.commissioning,
        "remarks": list(proposal.remarks),
        "config": str(target),
        "projection": str(projection_file),
    }
