"""What a file of readings looks like: delimiter, decimal mark, header, time, rate and columns.

Only the beginning of a file is read. What is found has the words of the agent's `[source]`, so
that a configuration can be written from it.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from math import log2
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgemerge.agent.rows import TIME_UNITS, BadRow, TimeFormat, with_decimal_point
from edgemerge.core.errors import SampleError

Array = NDArray[np.float64]
ColumnKind = Literal["number", "time", "text", "empty"]

MAX_BYTES = 2**25  # of a file that are looked at
MAX_ROWS = 50_000
DIALECT_LINES = 200  # that tell delimiter and decimal mark
DELIMITERS = (",", ";", "\t", "|", " ")
TIME_PATTERNS = (
    "%Y/%m/%d %H:%M:%S", "%Y-%m-%d %H:%M:%S,%f", "%d.%m.%Y %H:%M:%S", "%d.%m.%Y %H:%M",
    "%d/%m/%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S", "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M",
    "%m/%d/%Y %I:%M:%S %p", "%d-%m-%Y %H:%M:%S", "%H:%M:%S", "%H:%M:%S.%f",
    "%d.%m.%Y %H:%M:%S.%f", "%d.%m.%Y %H:%M:%S,%f",
)  # fmt: skip
TIME_WORDS = re.compile(r"time|date|stamp|epoch|unix|zeit|datum|^ts?$", re.IGNORECASE)
UNIX_TIMES = (5e8, 5e9)  # seconds: from 1985 to 2128
MIN_SHARE = 0.9  # of the rows that must fit what is found
GAP_STEPS = 5.0  # usual steps without a row are a gap


@dataclass(frozen=True, eq=False)
class ColumnReport:
    """One column: its number from 1, its name, what it holds, and why it is of no use, if so."""

    number: int
    name: str
    kind: ColumnKind
    values: Array  # (rows,), NaN where there is no number
    problem: str = ""

    @property
    def missing(self) -> int:
        """The rows without a number."""
        return int(np.isnan(self.values).sum())

    @property
    def usable(self) -> bool:
        """Whether it can be watched."""
        return self.kind == "number" and not self.problem


@dataclass(frozen=True, eq=False)
class FileReport:
    """What was found in the beginning of a file.

    `time` is the column with the time of day, with its `time_format` (None: Unix seconds or
    ISO 8601); `rate_hz` the usual rate of rows, `gaps` the pauses in between, `backward` the rows
    whose time is before that of the row before. `skipped` rows do not fit the others.
    """

    format: Literal["csv", "jsonl"]
    columns: tuple[ColumnReport, ...]
    rows: int
    skipped: int = 0
    delimiter: str = ","
    decimal: Literal[".", ","] = "."
    header: bool = False
    skip_lines: int = 0
    time: str | None = None
    time_format: str | None = None
    zone_is_known: bool = True
    rate_hz: float | None = None
    gaps: int = 0
    backward: int = 0
    whole: bool = True

    def usable(self) -> list[ColumnReport]:
        """Return the columns that can be watched."""
        return [column for column in self.columns if column.usable]

    def readings(self, columns: Sequence[ColumnReport]) -> Array:
        """Return the rows in which all these columns have a number, (k, columns)."""
        rows = np.stack([column.values for column in columns], axis=1)
        return rows[np.isfinite(rows).all(axis=1)]


def inspect_file(path: Path) -> FileReport:
    """Return what is found in a file; one that cannot be a table raises SampleError."""
    with path.open("rb") as file:
        data = file.read(MAX_BYTES)
        whole = not file.read(1)
    return inspect_bytes(data, whole=whole)


def inspect_bytes(data: bytes, *, whole: bool = True) -> FileReport:
    """Return what is found in the bytes of a file, or of its beginning."""
    lines = _decoded(data).split("\n")
    lines = [line.removesuffix("\r") for line in (lines if whole else lines[:-1])]
    lines = lines[: MAX_ROWS + 100]
    filled = [line for line in lines if line.strip()]
    if not filled:
        raise SampleError("found no line, expected a table of numbers")
    if filled[0].lstrip()[:1] in ("{", "["):
        return _inspect_json(filled, whole=whole)
    return _inspect_csv(lines, whole=whole)


def _decoded(data: bytes) -> str:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff") or data[:1000].count(0) > len(data[:1000]) // 4:
        raise SampleError(
            "found UTF-16, expected UTF-8: convert it, as with `iconv -f UTF-16 -t UTF-8`"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if error.start > len(data) - 4:  # the beginning of a file ends within a character
            return data[: error.start].decode("utf-8-sig")
        line = data.count(b"\n", 0, error.start) + 1
        raise SampleError(
            f"found bytes in line {line} that are not UTF-8: convert the file, as with "
            "`iconv -f LATIN1 -t UTF-8`"
        ) from error


def _inspect_csv(lines: list[str], *, whole: bool) -> FileReport:
    delimiter, decimal = find_dialect([line for line in lines if line.strip()][:DIALECT_LINES])
    rows = [_fields(line, delimiter) if line.strip() else [] for line in lines]
    width = Counter(map(len, filter(None, rows))).most_common(1)[0][0]
    first = _first_data_row(rows, width, decimal)
    names = rows[first - 1] if first and len(rows[first - 1]) == width else []
    header = bool(names) and not any(_number(each, decimal) is not None for each in names)
    data = [row for row in rows[first:] if row and row != names]
    fitting = [row for row in data if len(row) == width][:MAX_ROWS]
    start = first - 1 if header else first
    cells = list(zip(*fitting, strict=True))
    found = _FoundColumns(names if header else [], cells, decimal)
    return found.report(
        format="csv",
        rows=len(fitting),
        skipped=len(data) - len(fitting),
        delimiter=delimiter,
        decimal=decimal,
        header=header,
        skip_lines=start,
        whole=whole,
    )


def _inspect_json(lines: list[str], *, whole: bool) -> FileReport:
    rows, skipped = [], 0
    for line in lines[:MAX_ROWS]:
        try:
            row = json.loads(line)
            rows.append(
                row if isinstance(row, dict) else {str(i + 1): v for i, v in enumerate(row)}
            )
        except (ValueError, RecursionError, TypeError):
            skipped += 1
    if not rows:
        raise SampleError("found no JSON object or array in a line, expected one in each")
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[row.get(name, "") for row in rows] for name in names]
    found = _FoundColumns(names, cells, ".")
    return found.report(format="jsonl", rows=len(rows), skipped=skipped, header=True, whole=whole)


def find_dialect(lines: Sequence[str]) -> tuple[str, Literal[".", ","]]:
    """Return the delimiter and the decimal mark that make most of the lines a table of numbers.

    >>> find_dialect(["t;a", "08:00;1,5", "08:01;2,5"]), find_dialect(["a b", "1 2.5"])
    ((';', ','), (' ', '.'))
    """
    best: tuple[float, str, Literal[".", ","]] = (-1.0, ",", ".")
    for delimiter in DELIMITERS:
        rows = [_fields(line, delimiter) for line in lines]
        width, often = Counter(map(len, rows)).most_common(1)[0]
        cells = [cell for row in rows if len(row) == width for cell in row]
        for decimal in (".", ","):
            if decimal == delimiter:
                continue
            numbers = sum(
                _number(cell, decimal) is not None or _time_pattern([cell]) is not None
                for cell in cells
            )
            score = often / len(rows) * numbers / len(cells) * (1.0 + 0.1 * log2(min(width, 64)))
            score *= 1.0 if _header_fits(rows, width, decimal) else 0.8
            if score > best[0] * (1.0 + 1e-9):
                best = score, delimiter, decimal
    return best[1], best[2]


def _header_fits(rows: Sequence[Sequence[str]], width: int, decimal: str) -> bool:
    """Return whether the line above the first numbers, if there is one, has as many fields."""
    has_number = [any(_number(each, decimal) is not None for each in row) for row in rows]
    first = has_number.index(True) if any(has_number) else 0
    return not first or len(rows[first - 1]) == width


def _fields(line: str, delimiter: str) -> list[str]:
    try:
        found = next(csv.reader([line], delimiter=delimiter, skipinitialspace=delimiter == " "))
    except (csv.Error, StopIteration):
        return [line]
    return [field.strip() for field in found]


def _first_data_row(rows: list[list[str]], width: int, decimal: str) -> int:
    for i, row in enumerate(rows):
        if len(row) == width and any(_number(each, decimal) is not None for each in row):
            return i
    raise SampleError("found no row with a number, expected a table of numbers")


def _number(text: Any, decimal: str) -> float | None:
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        return None
    try:
        plain = with_decimal_point(text) if decimal == "," and isinstance(text, str) else text
        return float(plain)
    except (ValueError, OverflowError):
        return None


def _time_pattern(texts: Sequence[str]) -> str | None:
    """Return how these texts tell the time: "" for ISO 8601, a pattern, or None if they do not."""
    texts = [text for text in texts if text]
    if not texts or not all(len(text) >= 5 and text[0].isdigit() for text in texts[:5]):
        return None
    fitting = [p for p in ("", *TIME_PATTERNS) if all(_parses(text, p) for text in texts[:50])]
    fitting = [p for p in fitting if _share_parsed(texts, p) >= MIN_SHARE]
    if not fitting:
        return None
    return min(fitting, key=lambda p: _disorder(texts, p))  # day or month first: which is in order?


def _parses(text: str, pattern: str) -> bool:
    try:
        TimeFormat(pattern or None).parse(text)
    except BadRow:
        return False
    return True


def _share_parsed(texts: Sequence[str], pattern: str) -> float:
    looked = texts[:: max(1, len(texts) // 200)]
    return sum(_parses(text, pattern) for text in looked) / len(looked)


def _disorder(texts: Sequence[str], pattern: str) -> tuple[int, float]:
    times = [TimeFormat(pattern or None).parse(t) for t in texts[:500] if _parses(t, pattern)]
    steps = [b - a for a, b in pairwise(times)]
    return sum(step < 0 for step in steps), max(map(abs, steps), default=0.0)


class _FoundColumns:
    """The cells of a table by column, and what each column holds."""

    def __init__(self, names: Sequence[str], cells: Sequence[Sequence[Any]], decimal: str) -> None:
        self._names = [name or str(i + 1) for i, name in enumerate(names)]
        self._names = self._names or [str(i + 1) for i in range(len(cells))]
        self._cells, self._decimal = cells, decimal
        self._time: int | None = None
        self._pattern: str | None = None
        self._times: Array = np.empty(0)
        self.columns = [self._column(i) for i in range(len(cells))]
        self._find_time()
        self._find_problems()

    def report(self, **about: Any) -> FileReport:
        """Return what was found, with what is known about the file."""
        steps = np.diff(self._times[np.isfinite(self._times)])
        forward = steps[steps > 0.0]
        usual = float(np.median(forward)) if len(forward) else 0.0
        is_clock = self._time is not None and self._times[0] >= UNIX_TIMES[0]
        return FileReport(
            columns=tuple(self.columns),
            time=self._names[self._time] if self._time is not None and is_clock else None,
            time_format=self._pattern or None,
            zone_is_known=self._names_zone(),
            rate_hz=float(f"{1.0 / usual:.4g}") if usual else None,
            gaps=int((forward > GAP_STEPS * usual).sum()),
            backward=int((steps < 0.0).sum()),
            **about,
        )

    def _names_zone(self) -> bool:
        if self._time is None or self.columns[self._time].kind != "time":
            return True
        if np.isfinite(self.columns[self._time].values).any():
            return True  # numbers count from 1970
        first = str(self._cells[self._time][0])
        return not self._pattern and datetime.fromisoformat(first).tzinfo is not None

    def _column(self, i: int) -> ColumnReport:
        cells = self._cells[i]
        found = [_number(cell, self._decimal) for cell in cells]
        values = np.array([np.nan if each is None else each for each in found])
        values[~np.isfinite(values)] = np.nan
        filled = sum(cell not in ("", None) for cell in cells)
        numbers = int(np.isfinite(values).sum())
        kind: ColumnKind = "number" if numbers >= MIN_SHARE * max(filled, 1) else "text"
        if not filled:
            kind = "empty"
        elif kind == "text" and _time_pattern([str(c) for c in cells]) is not None:
            kind = "time"
        return ColumnReport(i + 1, self._names[i], kind, values)

    def _find_time(self) -> None:
        """Take the first column of times, or of numbers that look like them."""
        for i, column in enumerate(self.columns):
            if column.kind == "time":
                texts = [str(cell) for cell in self._cells[i]]
                self._pattern = _time_pattern(texts)
                form = TimeFormat(self._pattern or None)
                times = [
                    form.parse(t) if _parses(t, self._pattern or "") else np.nan for t in texts
                ]
                self._time, self._times = i, np.array(times)
                return
        for i, column in enumerate(self.columns):
            unit = _time_unit(column)
            if unit is not None:
                self._time, self._pattern = i, unit or None
                self._times = column.values / TIME_UNITS.get(unit, 1.0)
                self.columns[i] = _with(column, kind="time")
                return

    def _find_problems(self) -> None:
        seen: dict[bytes, str] = {}
        for i, column in enumerate(self.columns):
            if column.kind != "number":
                continue
            values = column.values[np.isfinite(column.values)]
            key = np.nan_to_num(column.values, nan=0.12345).tobytes()
            problem = ""
            if len(values) and (values == values[0]).all():
                problem = "constant"
            elif key in seen:
                problem = f"same as {seen[key]}"
            elif len(values) > 2 and np.ptp(np.diff(values)) == 0.0 and values[0] != values[1]:
                problem = "counts rows"
            elif column.missing > 0.5 * len(column.values):
                problem = "mostly empty"
            seen.setdefault(key, column.name)
            self.columns[i] = _with(column, problem=problem)


def _with(column: ColumnReport, **changes: Any) -> ColumnReport:
    return ColumnReport(**{**vars(column), **changes})


def _time_unit(column: ColumnReport) -> str | None:
    """Return the unit of a column of times as numbers ("" for seconds), or None if it is none."""
    values = column.values[np.isfinite(column.values)]
    if column.kind != "number" or len(values) < 3 or (np.diff(values) >= 0.0).mean() < MIN_SHARE:
        return None
    if not values[-1] > values[0]:
        return None
    low, high = UNIX_TIMES
    for unit, each in {"": 1.0, **TIME_UNITS}.items():
        if low <= values.min() / each and values.max() / each <= high:
            return unit
    return "" if TIME_WORDS.search(column.name) else None
