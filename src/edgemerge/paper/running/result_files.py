"""Files of a result: rows as NAME.csv, how they were made as NAME.json, and its figures."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from edgemerge import EdgemergeError
from edgemerge.files import write_atomically
from edgemerge.paper.plan import Row, Rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# Results can be made again, so they need not wait for the disk; anyone may read them.
write_file = partial(write_atomically, mode="umask", parents=True, sync=False)

ColumnTypes = dict[str, str]  # of each column: "str", "int" or "float"
_PARSERS: dict[str, Callable[[str | int | float], str | int | float]] = {
    "str": str,
    "int": int,
    "float": float,
}


class RowError(EdgemergeError, ValueError):
    """Rows that could not be written and read again without loss."""


def checked_rows(rows: Rows, whose: str) -> Rows:
    """Return the rows as they are after writing and reading; refuse values that would change.

    >>> checked_rows([{"auc": float("nan")}], "auc")
    Traceback (most recent call last):
    edgemerge.paper.running.result_files.RowError: auc: found auc = nan, expected text or ...
    """
    return [{key: _checked_value(key, value, whose) for key, value in row.items()} for row in rows]


def _checked_value(key: str, value: object, whose: str) -> str | int | float:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    raise RowError(f"{whose}: found {key} = {value!r}, expected text or a finite number")


def column_types(rows: Rows, whose: str) -> ColumnTypes:
    """Return the type of each column, in the order in which columns appear.

    >>> column_types([{"device": "a", "auc": 1}, {"device": "b", "auc": 0.5}], "auc")
    {'device': 'str', 'auc': 'float'}
    """
    seen: dict[str, set[str]] = {}
    for row in rows:
        for key, value in row.items():
            seen.setdefault(key, set()).add(type(value).__name__)
    for key, found in seen.items():
        if len(found) > 1 and "str" in found:
            raise RowError(f"{whose}: column {key} holds text and numbers, expected one of both")
    return {key: "float" if "float" in found else min(found) for key, found in seen.items()}


def to_csv(rows: Rows, columns: Mapping[str, str]) -> str:
    """Write rows as a table; a row without some column has an empty cell there."""
    text = StringIO()
    table = csv.DictWriter(text, list(columns), lineterminator="\n")
    table.writeheader()
    for row in rows:
        table.writerow({key: _PARSERS[columns[key]](value) for key, value in row.items()})
    return text.getvalue()


def from_csv(text: str, columns: Mapping[str, str], whose: str) -> Rows:
    """Read what `to_csv` wrote; an empty cell is empty text, or no number at all."""
    table = csv.DictReader(StringIO(text, newline=""))
    if list(table.fieldnames or []) != list(columns):
        found = ", ".join(table.fieldnames or ["nothing"])
        raise RowError(f"{whose}: found the columns {found}, expected {', '.join(columns)}")
    return [_parse_row(cells, columns, f"{whose}, line {table.line_num}") for cells in table]


def _parse_row(cells: Mapping[str, str | None], columns: Mapping[str, str], whose: str) -> Row:
    if None in cells or None in cells.values():
        raise RowError(f"{whose}: expected {len(columns)} cells; restore the file, or run it again")
    try:
        kept = {key: cell for key, cell in cells.items() if cell or columns[key] == "str"}
        return {key: _PARSERS[columns[key]](cell or "") for key, cell in kept.items()}
    except ValueError as error:
        raise RowError(f"{whose}: {error}; restore the file, or run it again") from error


RERUN = "run `edgemerge paper {name}` again"


@dataclass(frozen=True)
class Record:
    """How rows were made, so that they can be made again."""

    result: str
    date: str  # UTC, ISO 8601
    version: str
    seed: int
    quick: bool
    trials: int
    baseline_trials: int
    baselines: str = ""  # why there are none, if so
    settings: dict[str, list[str]] = field(default_factory=dict)  # of each data set and method
    jobs: int = 0
    jobs_before: int = 0  # of them, done in an earlier run
    seconds: float = 0.0  # of this run
    job_seconds: float = 0.0  # of all jobs, one after the other, as far as known
    machine: dict[str, str | int] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)
    data: dict[str, str] = field(default_factory=dict)  # SHA-256 over the files of each data set
    columns: ColumnTypes = field(default_factory=dict)


@dataclass(frozen=True)
class SavedResult:
    """A result in a folder: its rows, and how they were made."""

    record: Record
    rows: Rows


def save_result(folder: Path, record: Record, rows: Rows) -> SavedResult:
    """Write rows and record, and return them as they will be read."""
    name = record.result
    rows = checked_rows(rows, name)
    columns = column_types(rows, name)
    table = to_csv(rows, columns)
    document = json.dumps({**asdict(record), "columns": columns}, indent=2, ensure_ascii=False)
    write_file(table.encode(), folder / f"{name}.csv")
    write_file(f"{document}\n".encode(), folder / f"{name}.json")
    return SavedResult(Record(**json.loads(document)), from_csv(table, columns, name))


def read_result(folder: Path, name: str) -> SavedResult | None:
    """Read a result; None if it is not there."""
    table, document = folder / f"{name}.csv", folder / f"{name}.json"
    if not table.exists() and not document.exists():
        return None
    try:
        record = Record(**json.loads(_read_text(document)))
    except (ValueError, TypeError) as error:
        raise RowError(f"{document} is damaged ({error}): {RERUN.format(name=name)}") from error
    return SavedResult(record, from_csv(_read_text(table), record.columns, str(table)))


def _read_text(path: Path) -> str:
    if not path.exists():
        raise RowError(f"{path} is missing: {RERUN.format(name=path.stem)}")
    return path.read_bytes().decode("utf-8")


def figure_name(result: str, end: str) -> str:
    """Return the file name of a figure.

    >>> figure_name("auc", "har"), figure_name("latency", "")
    ('auc-har.png', 'latency.png')
    """
    return f"{result}-{end}.png" if end else f"{result}.png"


def figure_png(figure: Figure) -> bytes:
    """Return a figure as PNG; the same figure gives the same bytes."""
    file = BytesIO()
    figure.savefig(file, format="png", facecolor="white", metadata={"Software": None})
    return file.getvalue()


def save_figures(folder: Path, result: str, figures: dict[str, Figure]) -> list[Path]:
    """Write the figures of a result; return their paths."""
    paths = {folder / figure_name(result, end): figure for end, figure in figures.items()}
    for path, figure in paths.items():
        write_file(figure_png(figure), path)
    return list(paths)
