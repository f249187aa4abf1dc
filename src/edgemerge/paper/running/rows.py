"""Rows as text and back: flat, finite, and of one type in each column."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping
from io import StringIO

from edgemerge import EdgemergeError
from edgemerge.paper.plan import Row, Rows

Types = dict[str, str]  # of each column: "str", "int" or "float"
_READ: dict[str, Callable[[str | int | float], str | int | float]] = {
    "str": str,
    "int": int,
    "float": float,
}


class RowError(EdgemergeError, ValueError):
    """Rows that could not be written and read again without loss."""


def plain(rows: Rows, whose: str) -> Rows:
    """Give the rows as they are after writing and reading; refuse what would not survive that.

    >>> plain([{"auc": float("nan")}], "auc")
    Traceback (most recent call last):
    edgemerge.paper.running.rows.RowError: auc: found auc = nan, expected text or a finite number
    """
    return [{key: _plain(key, value, whose) for key, value in row.items()} for row in rows]


def _plain(key: str, value: object, whose: str) -> str | int | float:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    raise RowError(f"{whose}: found {key} = {value!r}, expected text or a finite number")


def types(rows: Rows, whose: str) -> Types:
    """Tell the type of each column, in the order in which columns appear.

    >>> types([{"device": "a", "auc": 1}, {"device": "b", "auc": 0.5}], "auc")
    {'device': 'str', 'auc': 'float'}
    """
    seen: dict[str, set[str]] = {}
    for row in rows:
        for key, value in row.items():
            seen.setdefault(key, set()).add(type(value).__name__)
    return {key: _one(key, found, whose) for key, found in seen.items()}


def _one(key: str, found: set[str], whose: str) -> str:
    if len(found) > 1 and "str" in found:
        raise RowError(f"{whose}: column {key} holds text and numbers, expected one of both")
    return "float" if "float" in found else found.pop()


def to_csv(rows: Rows, columns: Mapping[str, str]) -> str:
    """Write rows as a table; a row without some column has an empty cell there."""
    text = StringIO()
    table = csv.DictWriter(text, list(columns), lineterminator="\n")
    table.writeheader()
    for row in rows:
        table.writerow({key: _READ[columns[key]](value) for key, value in row.items()})
    return text.getvalue()


def from_csv(text: str, columns: Mapping[str, str], whose: str) -> Rows:
    """Read what `to_csv` wrote; an empty cell is empty text, or no number at all."""
    table = csv.DictReader(StringIO(text, newline=""))
    if list(table.fieldnames or []) != list(columns):
        found = ", ".join(table.fieldnames or ["nothing"])
        raise RowError(f"{whose}: found the columns {found}, expected {', '.join(columns)}")
    return [_row(cells, columns, f"{whose}, line {table.line_num}") for cells in table]


def _row(cells: Mapping[str, str | None], columns: Mapping[str, str], whose: str) -> Row:
    if None in cells or None in cells.values():
        raise RowError(f"{whose}: expected {len(columns)} cells; restore the file, or run it again")
    try:
        kept = {key: cell for key, cell in cells.items() if cell or columns[key] == "str"}
        return {key: _READ[columns[key]](cell or "") for key, cell in kept.items()}
    except ValueError as error:
        raise RowError(f"{whose}: {error}; restore the file, or run it again") from error
