"""Print results to stdout, as text or JSON; remarks, progress and questions to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal

import click

from edgemerge.cli.group import CommandError

PIPE_WIDTH = 200  # of a table in a pipe or a file, where wrapping has no use
MAX_UNWRAPPED = 20  # characters of a word that is never cut, such as a time
COLUMN_GAP = 2

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


def print_rich(*parts: Any) -> None:
    """Print tables and text to stdout, in colour on a terminal."""
    from rich.console import Console

    console = Console(highlight=False)
    for part in parts:
        console.print(part)


def print_json(value: Any) -> None:
    """Print one JSON document to stdout."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_json_line(value: Any) -> None:
    """Print one JSON document on one line to stdout, for output that goes on."""
    click.echo(json.dumps(value, ensure_ascii=False))


def print_fields(found: Mapping[str, Any]) -> None:
    """Print one field per line, values aligned."""
    width = max(map(len, found), default=0)
    for word, value in found.items():
        click.echo(f"{word:<{width}}  {format_value(value)}")


def headings(*keys: str, **other: str) -> dict[str, str]:
    """Return the columns of a table: each key in capitals, or with another heading."""
    return {key: key.upper() for key in keys} | other


def print_table(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str]) -> None:
    """Print rows as a table; `columns` maps each key to its heading, numbers are right-aligned.

    Long cells are wrapped at spaces to fit the terminal, the longest first; numbers and short words
    are never wrapped or cut.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = list(rows)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, COLUMN_GAP, 0, 0))
    console = Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
    widths, least = _column_widths(rows, columns, console.width)
    console.width = max(console.width, least)
    for key, heading in columns.items():
        number = bool(rows) and all(isinstance(row.get(key), int | float) for row in rows)
        side: Literal["left", "right"] = "right" if number else "left"
        table.add_column(heading, justify=side, overflow="fold", width=widths[key])
    for row in rows:
        table.add_row(*(Text(format_value(row.get(key))) for key in columns))
    with console.capture() as written:
        console.print(table)
    for line in written.get().splitlines():
        click.echo(line.rstrip())


def _column_widths(
    rows: list[Mapping[str, Any]], columns: Mapping[str, str], total: int
) -> tuple[dict[str, int], int]:
    """Return the width of each column, and the least that all of them need with their gaps."""
    widths, least = {}, {}
    for key, heading in columns.items():
        cells = [format_value(row.get(key)) for row in rows]
        widths[key] = max(map(len, (heading, *cells)))
        words = [word for cell in cells for word in cell.split()]
        short = [len(word) for word in words if len(word) <= MAX_UNWRAPPED]
        least[key] = max([len(heading), *short])
    room = total - COLUMN_GAP * len(columns)
    while sum(widths.values()) > room and widths != least:
        longest = max(widths, key=lambda key: (widths[key] > least[key], widths[key]))
        widths[longest] -= 1
    return widths, sum(least.values()) + COLUMN_GAP * len(columns)


def format_value(value: Any) -> str:
    """Return a value as text for people."""
    match value:
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:,.10g}"
        case None:
            return "-"
        case dict():
            return ", ".join(f"{key} {format_value(each)}" for key, each in value.items()) or "none"
        case list() | tuple():
            return ", ".join(map(format_value, value)) or "none"
    return str(value)


def format_time(moment: float | str | None) -> str | None:
    """Return a time as ISO 8601 in UTC, to the second."""
    if not isinstance(moment, int | float):
        return moment
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def remark(words: str) -> None:
    """Print something other than the result to stderr."""
    click.echo(words, err=True)


def remark_first_total(fleet: Mapping[str, Any]) -> None:
    """Say how many devices a new fleet of totals needs: a smaller one would never merge."""
    if fleet["reads"] == "totals" and fleet["least"] > 1:
        remark(
            f"Its devices get a first total once {fleet['least'] + 1} of them have shared. For a "
            f"smaller fleet, delete it (`edgemerge fleet delete {fleet['fleet']}`) and create it "
            "again with --min-devices N."
        )


LIMIT_KINDS = {"commissioned": "set by commissioning"}  # others are clear as they are


def limit_words(limit: Mapping[str, Any]) -> str:
    """Return a monitor's limit with where it came from, and what a promised one still needs.

    >>> limit_words({"value": 5.0, "kind": "commissioned", "missing": 0})
    '5 (set by commissioning)'
    >>> limit_words({"value": 4.5, "kind": "provisional", "missing": 1200})
    '4.5 (provisional, 1,200 samples missing)'
    """
    missing = f", {limit['missing']:,.0f} samples missing" if limit["missing"] else ""
    kind = LIMIT_KINDS.get(limit["kind"], limit["kind"])
    return f"{limit['value'] or 0:g} ({kind}{missing})"


def confirm(question: str, *, yes: bool) -> None:
    """Ask before deleting something; without a terminal, require --yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandError(f"{question} No terminal to confirm on: add --yes")
    click.confirm(question, abort=True, err=True)


@contextmanager
def progress(words: str, total: float | None = None) -> Iterator[Callable[[float], None]]:
    """Show a progress bar while something runs, if stderr is a terminal.

    Yields a function to call with each step; without a total the bar only moves.
    """
    if not sys.stderr.isatty():
        yield lambda _step: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        yield partial(bar.advance, bar.add_task(words, total=total))
