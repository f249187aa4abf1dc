"""`edgemerge paper data`: which data sets there are, what their makers ask, and how to get them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from edgemerge.cli.output import json_option, remark, say_json, say_table
from edgemerge.cli.paper import data_option

FETCHABLE = ("har", "mnist")
COLUMNS = {"name": "DATA SET", "state": "STATE", "rows": "SAMPLES", "where": "WHERE"}


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
        bring(name, data)
    tell([_told(one) for one in status(data)], folder_of(data), as_json=as_json)


def bring(name: str, folder: Path | None) -> None:
    """Fetch a data set, unless it is there."""
    from edgemerge.paper.data import fetch, terms

    remark(terms(name))
    with download() as progress:
        paths = fetch(name, folder, progress=progress)
    remark(f"{name}: {', '.join(map(str, paths))}")


def _told(one: Any) -> dict[str, Any]:
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


def tell(found: Sequence[dict[str, Any]], folder: Path, *, as_json: bool) -> None:
    """Print what there is, what to do about what is not, and the terms."""
    if as_json:
        say_json({"folder": str(folder), "data": found})
        return
    say_table(found, COLUMNS)
    for one in found:
        if one["advice"]:
            click.echo(f"\n{one['advice']}.")
    click.echo("\nTerms:")
    for one in found:
        click.echo(f"- {one['terms']}")


@contextmanager
def download() -> Iterator[Callable[[str, int, int | None], None]]:
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
