"""A configuration for a file of readings: what the file looks like, and settings that suit it.

`inspect_file` reads the beginning of a file and finds delimiter, decimal mark, header, time, rate
and columns, in the words of the agent's `[source]`. `propose` chooses features, ranges and sizes
that work without tuning; the TOML file that a proposal becomes says what each choice means.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from itertools import pairwise
from math import log2
from pathlib import Path
from typing import Any, Literal
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from edgemerge.agent.config import (
    Config,
    ExchangeConfig,
    FeaturesConfig,
    SinkConfig,
    SourceConfig,
)
from edgemerge.agent.factory import make_features
from edgemerge.agent.judge import RANGE_CHECK_SAMPLES, is_mostly_outside
from edgemerge.agent.rows import (
    TIME_UNITS,
    BadRow,
    TimeFormat,
    column_names,
    is_unit_line,
    time_columns,
    with_decimal_point,
)
from edgemerge.core.errors import SampleError, SettingError
from edgemerge.core.monitor import COMMISSIONING_PER_HIDDEN, FAR_OUTSIDE
from edgemerge.core.patterns import common
from edgemerge.core.projection import Projection
from edgemerge.files import UTF16_WORDS, is_utf16


class EmptyTableError(SampleError):
    """A file without a row, or a folder without a table, that could be looked at."""


Array = NDArray[np.float64]
ColumnKind = Literal["number", "time", "text", "empty"]
Encoding = Literal["utf-8", "cp1252"]
CONTROL_BYTES = re.compile(rb"[\x00-\x08\x0e-\x1f]")  # which no text has
MAX_BYTES = 2**25  # of a file that are looked at
MAX_ROWS = 50_000
MAX_FILES = 200  # of a folder, and devices in one file
MIN_FILE_BYTES = 2**20  # of each file in a folder that are looked at
TABLE_SUFFIXES = (
    ".csv", ".jsonl", ".parquet", ".tsv", ".txt", ".dat", ".log", ".json", ".ndjson", ".pq",
)  # fmt: skip
DEVICE_WORDS = re.compile(r"device|machine|asset|unit|gateway|maschine|anlage|ger.t", re.IGNORECASE)
TAG_WORDS = re.compile(
    r"tag|signal|sensor|variable|parameter|channel|metric|measure|quantity|kanal|messstelle|point",
    re.IGNORECASE,
)
DIALECT_LINES = 200  # that tell delimiter and decimal mark
DELIMITERS = (",", ";", "\t", "|", " ")
TIME_PATTERNS = (
    "%Y/%m/%d %H:%M:%S", "%Y-%m-%d %H:%M:%S,%f", "%d.%m.%Y %H:%M:%S", "%d.%m.%Y %H:%M",
    "%d/%m/%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S", "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M",
    "%m/%d/%Y %I:%M:%S %p", "%m/%d/%Y %I:%M %p", "%d-%m-%Y %H:%M:%S", "%H:%M:%S",
    "%H:%M:%S.%f", "%H:%M:%S,%f", "%I:%M:%S %p",
    "%d.%m.%Y %H:%M:%S.%f", "%d.%m.%Y %H:%M:%S,%f", "%Y/%m/%d %H:%M", "%d-%m-%Y %H:%M",
    "%Y-%m-%d %H.%M.%S", "%d.%m.%Y %H.%M.%S", "%d/%m/%Y %H.%M.%S", "%m/%d/%Y %H.%M.%S",
)  # fmt: skip
DATE = re.compile(r"\d{4}([-./])\d\d?\1\d\d?|\d\d?([-./])\d\d?\2\d{4}")  # no time of day
TIME_OF_DAY = re.compile(r"\d\d?(:\d\d(:\d\d([.,]\d+)?)?|\.\d\d\.\d\d)( ?[AaPp][Mm])?")
TIME_WORDS = re.compile(r"time|date|stamp|epoch|unix|zeit|datum|^ts?$", re.IGNORECASE)
UNIX_TIMES = (5e8, 5e9)  # seconds: from 1985 to 2128
SPREADSHEET_DAYS = (36_526.0, 73_051.0)  # as days since 1900: from 2000 to 2100
ELAPSED_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "min": 60.0, "h": 3600.0}
DAY_S = 86400.0
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
    texts: tuple[str, ...] = ()  # the cells of a column of text

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

    `time` is the column with date and time, or the two that have them, with the `time_format`
    (None: Unix seconds or ISO 8601); `rate_hz` the usual rate of rows, `gaps` the pauses in
    between, `backward` the rows whose time is before that of the row before. `skipped` rows do not
    fit the others.
    """

    format: Literal["csv", "jsonl"]
    columns: tuple[ColumnReport, ...]
    rows: int
    skipped: int = 0
    delimiter: str = ","
    decimal: Literal[".", ","] = "."
    header: bool = False
    skip_lines: int = 0
    encoding: Encoding = "utf-8"
    units: tuple[str, ...] = ()  # of all columns, if a line below the header has them
    time: str | tuple[str, ...] | None = None
    time_format: str | None = None
    zone_is_known: bool = True
    rate_hz: float | None = None
    gaps: int = 0
    backward: int = 0
    whole: bool = True
    times: Array = field(default_factory=lambda: np.empty(0))  # (rows,), Unix seconds or NaN

    @property
    def shape(self) -> tuple[Any, ...]:
        """What files must have in common to be read with the same settings."""
        names = tuple(column.name for column in self.columns)
        return (
            names, self.format, self.encoding, self.delimiter, self.decimal, self.header,
            self.skip_lines,
        )  # fmt: skip

    def of_rows(self, mask: NDArray[np.bool_]) -> FileReport:
        """Return what was found in some of the rows."""
        columns = tuple(_with(column, values=column.values[mask]) for column in self.columns)
        times = self.times[mask] if len(self.times) else self.times
        about = _pace(times)
        return replace(self, columns=columns, rows=int(mask.sum()), times=times, **about)

    def in_zone(self, name: str) -> FileReport:
        """Return what was found if the times, which name no zone, are of this one."""
        if self.time is None or self.zone_is_known:
            return self
        form, after, times = TimeFormat(zone=name), None, self.times.copy()
        for i in np.flatnonzero(np.isfinite(times)).tolist():
            local = datetime.fromtimestamp(times[i], UTC).replace(tzinfo=None)
            times[i] = after = form.parse(local.isoformat(), after)
        return replace(self, times=times, zone_is_known=True, **_pace(times))

    def usable(self) -> list[ColumnReport]:
        """Return the columns that can be watched."""
        return [column for column in self.columns if column.usable]

    def readings(self, columns: Sequence[ColumnReport]) -> Array:
        """Return the rows in which all these columns have a number, (k, columns)."""
        rows = np.stack([column.values for column in columns], axis=1)
        return rows[np.isfinite(rows).all(axis=1)]


def inspect_file(path: Path, max_bytes: int | None = None) -> FileReport:
    """Return what is found in a file; one that cannot be a table raises SampleError."""
    with path.open("rb") as file:
        data = file.read(max_bytes or MAX_BYTES)
        whole = not file.read(1)
    return inspect_bytes(data, whole=whole)


@dataclass(frozen=True, eq=False)
class Member:
    """One of several devices, or one of several files: its name, and its rows.

    `path` is its file, and `value` what the column of devices has for it.
    """

    device: str
    report: FileReport
    path: Path | None = None
    value: str | None = None


def inspect_folder(
    folder: Path, inspect: Callable[[Path, int], FileReport] = inspect_file
) -> tuple[list[Member], dict[str, str]]:
    """Return the files of a folder that have the same columns, and why others are left out.

    Args:
        folder: Its files are looked at, by name; those of other kinds than tables are not.
        inspect: Returns what is found in a file, reading at most so many bytes.
    """
    files = sorted(each for each in folder.iterdir() if each.suffix.lower() in TABLE_SUFFIXES)
    files = [each for each in files if each.is_file() and not each.name.startswith(".")]
    if not files:
        raise EmptyTableError(
            f"found no table in {folder}, expected files such as *{', *'.join(TABLE_SUFFIXES[:3])}"
        )
    reports, left_out = {}, {}
    for path in files[:MAX_FILES]:
        try:
            reports[path] = inspect(path, max(MIN_FILE_BYTES, MAX_BYTES // len(files)))
        except SampleError as error:
            left_out[path.name] = str(error).removeprefix(f"{path}: ")
    left_out |= {path.name: f"only {MAX_FILES} files are read" for path in files[MAX_FILES:]}
    if not reports:
        name, why = next(iter(left_out.items()))
        raise SampleError(f"{folder / name}: {why}")
    usual = Counter(report.shape for report in reports.values()).most_common(1)[0][0]
    left_out |= {
        path.name: "it has other columns than most"
        for path, r in reports.items()
        if r.shape != usual
    }
    paths = [path for path, report in reports.items() if report.shape == usual]
    names = device_names([path.stem for path in paths])
    return [Member(n, reports[path], path) for n, path in zip(names, paths, strict=True)], left_out


def device_names(texts: Sequence[str]) -> list[str]:
    """Return names of devices that are allowed, each once.

    >>> device_names(["Pump 1", "Pump/1", "Süd"])
    ['Pump-1', 'Pump-1-2', 'Sud']
    """
    names: list[str] = []
    for text in texts:
        letters = normalize("NFKD", text).encode("ascii", "ignore").decode()  # without accents
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", letters).strip("-._")[:90] or "device"
        number = 2
        while (unique := name if number == 2 else f"{name}-{number - 1}") in names:
            number += 1
        names.append(unique)
    return names


def of_one_device(members: Sequence[Member]) -> bool:
    """Return whether files look like one device's, one after the other, such as one for each day.

    They do if no two cover the same time; without times, if their names differ by a date only.
    """
    spans = [(r.times[0], r.times[-1]) for r in (m.report for m in members) if len(r.times)]
    if len(spans) == len(members):
        spans.sort()
        return all(before[1] <= after[0] for before, after in pairwise(spans))
    rests = {re.sub(r"\d{4}[-_]?\d\d[-_]?\d\d", "", member.device) for member in members}
    return len(rests) == 1 and rests != {member.device for member in members}


def find_device_column(report: FileReport) -> str | None:
    """Return the column of text that seems to name the device of each row, or None."""
    for column in report.columns:
        several = 2 <= len(set(column.texts)) <= MAX_FILES
        if column.kind == "text" and several and DEVICE_WORDS.search(column.name):
            return column.name
    return None


def split_by_device(report: FileReport, name: str) -> list[Member]:
    """Return the rows of each device that a column names, in the order in which they come."""
    column = choose_columns(report, [name])[0]
    texts = column.texts
    if not texts:
        texts = tuple(f"{value:g}" for value in column.values)
    values = list(dict.fromkeys(texts))
    if len(values) > MAX_FILES:
        raise SampleError(
            f"found {len(values):,} values in column {name!r}, expected a few names of devices"
        )
    found = np.array(texts)
    return [
        Member(device, report.of_rows(found == value), value=value)
        for device, value in zip(device_names(values), values, strict=True)
    ]


def inspect_bytes(data: bytes, *, whole: bool = True) -> FileReport:
    """Return what is found in the bytes of a file, or of its beginning."""
    text, encoding = _decoded(data)
    lines = text.split("\n")
    lines = [line.removesuffix("\r") for line in (lines if whole else lines[:-1])]
    whole = whole and len(lines) <= MAX_ROWS + 100
    lines = lines[: MAX_ROWS + 100]
    filled = [line for line in lines if line.strip()]
    if not filled:
        raise EmptyTableError("found no line, expected a table of numbers")
    if filled[0].lstrip()[:1] in ("{", "["):
        return _inspect_json(filled, whole=whole)
    return replace(_inspect_csv(lines, whole=whole), encoding=encoding)


def _decoded(data: bytes) -> tuple[str, Encoding]:
    """Return the text and its encoding: UTF-8, or what Windows writes in Western Europe."""
    if is_utf16(data):
        raise SampleError(UTF16_WORDS)
    try:
        return data.decode("utf-8-sig"), "utf-8"
    except UnicodeDecodeError as error:
        if error.start > len(data) - 4:  # the beginning of a file ends within a character
            return data[: error.start].decode("utf-8-sig"), "utf-8"
        with suppress(UnicodeDecodeError):
            if not CONTROL_BYTES.search(data):
                return data.decode("cp1252"), "cp1252"
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
    units: list[str] = []
    if first > 1 and is_unit_line(names) and len(rows[first - 2]) == width:
        names, units = rows[first - 2], names
    header = bool(names) and not any(_number(each, decimal) is not None for each in names)
    data = [row for row in rows[first:] if row and row not in (names, units)]
    whole, data = whole and len(data) <= MAX_ROWS, data[:MAX_ROWS]
    fitting = [row for row in data if len(row) == width]
    start = first - 1 - bool(units) if header else first
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
        units=tuple(units),
        whole=whole,
    )


def _inspect_json(lines: list[str], *, whole: bool) -> FileReport:
    rows, skipped = [], 0
    whole = whole and len(lines) <= MAX_ROWS
    for line in lines[:MAX_ROWS]:
        try:
            row = json.loads(line)
            rows.append(
                row if isinstance(row, dict) else {str(i + 1): v for i, v in enumerate(row)}
            )
        except (ValueError, RecursionError, TypeError):
            skipped += 1
    if not rows:
        raise EmptyTableError("found no JSON object or array in a line, expected one in each")
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
            numbers = sum(_number(cell, decimal) is not None or _is_time(cell) for cell in cells)
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
    raise EmptyTableError("found no row with a number, expected a table of numbers")


def _number(text: Any, decimal: str) -> float | None:
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        return None
    try:
        plain = with_decimal_point(text) if decimal == "," and isinstance(text, str) else text
        return float(plain)
    except (ValueError, OverflowError):
        return None


@lru_cache(maxsize=4096)
def _is_time(text: str) -> bool:
    """Return whether a cell is a time, or a date or a time of day that another cell completes."""
    half = DATE.fullmatch(text) or TIME_OF_DAY.fullmatch(text)
    return bool(half) or _time_pattern([text]) is not None


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
    if pattern and (":" in pattern) != (":" in text):  # `strptime` is slow
        return False
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
        self._names = [name or str(i + 1) for i, name in enumerate(column_names(names))]
        self._names = self._names or [str(i + 1) for i in range(len(cells))]
        self._cells, self._decimal = cells, decimal
        self._time: tuple[int, ...] = ()
        self._pattern: str | None = None
        self._times: Array = np.empty(0)
        self.columns = [self._column(i) for i in range(len(cells))]
        self._find_time()
        self._find_problems()

    def report(self, **about: Any) -> FileReport:
        """Return what was found, with what is known about the file."""
        known = self._times[np.isfinite(self._times)]
        is_clock = bool(len(known)) and known[0] >= UNIX_TIMES[0]
        names = tuple(self._names[i] for i in self._time)
        return FileReport(
            columns=tuple(self.columns),
            time=(names[0] if len(names) == 1 else names) if is_clock else None,
            time_format=self._pattern or None if is_clock else None,
            zone_is_known=self._names_zone(),
            times=self._times,
            **_pace(self._times),
            **about,
        )

    def _names_zone(self) -> bool:
        if not self._time or np.isfinite(self.columns[self._time[0]].values).any():
            return True  # numbers count from 1970
        if self._pattern:
            return False
        first = next(text for text in self._texts(self._time) if _parses(text, ""))
        return datetime.fromisoformat(first).tzinfo is not None

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
        texts = tuple(str(cell) for cell in cells) if kind == "text" else ()
        return ColumnReport(i + 1, self._names[i], kind, values, texts=texts)

    def _find_time(self) -> None:
        """Take the first column of times, or of numbers that look like them.

        One with date and time comes first, or two that have them together.
        """
        texts = [i for i, column in enumerate(self.columns) if column.kind in ("time", "text")]
        dates = [i for i in texts if self._holds(i, DATE)]
        clocks = [i for i in texts if self._holds(i, TIME_OF_DAY)]
        alone = [(i,) for i in texts if self.columns[i].kind == "time"]
        complete = [(i,) for (i,) in alone if i not in dates and i not in clocks]
        pairs = [(dates[0], clocks[0])] if dates and clocks else []
        for chosen in [*sorted([*complete, *pairs], key=min), *alone]:
            if (pattern := _time_pattern(self._texts(chosen))) is not None:
                self._take_times(chosen, pattern)
                return
        for i, column in enumerate(self.columns):
            unit = _time_unit(column)
            if unit is not None:
                self._time, self._pattern = (i,), unit or None
                self._times = column.values / TIME_UNITS.get(unit, 1.0)
                first = np.nanmin(column.values)
                if not unit and first < UNIX_TIMES[0]:
                    self._times = (column.values - first) * _elapsed_unit_s(column)
                self.columns[i] = _with(column, kind="time")
                return

    def _texts(self, chosen: tuple[int, ...]) -> list[str]:
        """Return the texts of some columns in each row, joined as the agent does."""
        rows = zip(*(self._cells[i] for i in chosen), strict=True)
        return [" ".join(map(str, row)) if all(row) else "" for row in rows]

    def _holds(self, i: int, form: re.Pattern[str]) -> bool:
        """Return whether all of the first texts in a column have this form."""
        filled = [str(cell) for cell in self._cells[i] if cell][:50]
        return bool(filled) and all(form.fullmatch(text) for text in filled)

    def _take_times(self, chosen: tuple[int, ...], pattern: str) -> None:
        form = TimeFormat(pattern or None)
        texts = self._texts(chosen)
        times = [form.parse(text) if _parses(text, pattern) else np.nan for text in texts]
        self._time, self._pattern, self._times = chosen, pattern, np.array(times)
        if pattern and "%Y" not in pattern:
            self._times = _over_midnight(self._times)
        for i in chosen:
            self.columns[i] = _with(self.columns[i], kind="time", texts=())

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


def _pace(times: Array) -> dict[str, Any]:
    """Return rate, gaps and steps backward of times in seconds."""
    steps = np.diff(times[np.isfinite(times)])
    forward = steps[steps > 0.0]
    usual = float(np.median(forward)) if len(forward) else 0.0
    return {
        "rate_hz": float(f"{1.0 / usual:.4g}") if usual else None,
        "gaps": int((forward > GAP_STEPS * usual).sum()),
        "backward": int((steps < 0.0).sum()),
    }


def _with(column: ColumnReport, **changes: Any) -> ColumnReport:
    return ColumnReport(**{**vars(column), **changes})


def _time_unit(column: ColumnReport) -> str | None:
    """Return the unit of a column of times as numbers ("" for seconds), or None if it is none."""
    values = column.values[np.isfinite(column.values)]
    if column.kind != "number" or len(values) < 3 or values[0] == values[-1]:
        return None
    steps = np.diff(values)
    newest_first = bool(values[0] > values[-1])
    if ((steps <= 0.0) if newest_first else (steps >= 0.0)).mean() < MIN_SHARE:
        return None
    low, high = UNIX_TIMES
    for unit, each in {"": 1.0, **TIME_UNITS}.items():
        if low <= values.min() / each and values.max() / each <= high:
            return unit
    return "" if TIME_WORDS.search(column.name) and not newest_first else None


def _elapsed_unit_s(column: ColumnReport) -> float:
    """Return the unit of times that do not count from 1970: as the name says, else seconds.

    Spreadsheets write a date as the days since 1900.
    """
    words = re.split(r"[^a-zµ]+", column.name.lower())
    for word in reversed(words):
        if word in ELAPSED_UNITS:
            return ELAPSED_UNITS[word]
    low, high = SPREADSHEET_DAYS
    values = column.values[np.isfinite(column.values)]
    is_days = low <= values.min() and values.max() <= high and (values != values.round()).any()
    return DAY_S if is_days and "s" not in words else 1.0


def _over_midnight(times: Array) -> Array:
    """Return times of day, with a day more after each midnight."""
    known = np.isfinite(times)
    passed = np.cumsum(np.diff(times[known], prepend=times[known][:1]) < -DAY_S / 2.0)
    found = times.copy()
    found[known] += DAY_S * passed
    return found


FeatureKind = Literal["raw", "window", "spectrum"]
SPECTRUM_HZ = 100.0  # readings a second from which a spectrum tells most
WINDOW_HZ = 2.0  # and from which statistics of windows do
MAX_SPECTRUM_COLUMNS, MAX_WINDOW_COLUMNS = 8, 32
WINDOW_S = 5.0  # seconds in a window of statistics
MIN_SAMPLES = 200  # fewer samples than that tell too little: then shorter windows, or none
HIDDEN = (64, 32, 16, 8)
COMMISSIONING_SHARE = 0.5  # of the file's samples at most
MARGIN = 0.1  # of the range, on either side


@dataclass(frozen=True, eq=False)
class Proposal:
    """A configuration, the projection that it needs, and what was noticed on the way.

    With `members`, it is one of several devices; `config` is what they share.
    """

    config: Config
    projection: Projection
    samples: int
    remarks: tuple[str, ...]
    commissioning: int  # samples after which watching begins
    members: tuple[Member, ...] = ()


def choose_columns(report: FileReport, names: Sequence[str]) -> list[ColumnReport]:
    """Return the columns of these names or numbers, or all that can be watched."""
    if not names:
        found = report.usable()
        _must_be_wide(report, found)
        if not found:
            kinds = ", ".join(f"{c.name}: {c.problem or c.kind}" for c in report.columns)
            raise SampleError(
                f"found no column of numbers that change ({kinds}), expected one: "
                "give a file with more rows, or one in which the readings change"
            )
        return found
    known = {column.name: column for column in report.columns}
    known |= {str(c.number): c for c in report.columns if str(c.number) not in known}
    missing = [name for name in names if name not in known]
    if missing:
        raise SettingError(
            f"found no column {missing[0]!r}, expected some of "
            f"{', '.join(column.name for column in report.columns)}"
        )
    return [known[name] for name in names]


def _must_be_wide(report: FileReport, found: Sequence[ColumnReport]) -> None:
    """Raise SampleError if each row has one number and says of which sensor it is."""
    tags = [c for c in report.columns if c.kind == "text" and TAG_WORDS.search(c.name)]
    if len(found) != 1 or not tags or len(set(tags[0].texts)) < 2:
        return
    some = list(dict.fromkeys(tags[0].texts))
    raise SampleError(
        f"found one number in each row, {found[0].name!r}, and what it is in {tags[0].name!r} "
        f"({', '.join(some[:3])}{', …' if len(some) > 3 else ''}), expected a column for each: "
        "make such a table, as with `pivot` of pandas, or give "
        f"--columns {found[0].name} to watch all of them as one"
    )


def propose(
    path: Path | None,
    report: FileReport,
    columns: Sequence[ColumnReport],
    *,
    device: str,
    members: Sequence[Member] = (),
    of_one: bool = False,
    device_column: str | None = None,
    features: FeatureKind | None = None,
    n_hidden: int | None = None,
    seed: int = 0,
    time_zone: str | None = None,
    follow: bool = False,
) -> Proposal:
    """Choose features, ranges and sizes for a file.

    Args:
        path: The file; None means standard input.
        report: What was found in it.
        columns: Those to watch.
        device: The name of the device, or of all of them together.
        members: Several files or devices: ranges are taken from all of them.
        of_one: Whether these are files of one device.
        device_column: The column that names the device of a row; None makes devices of files.
        features: What samples are made of; None chooses by the rate and the number of columns.
        n_hidden: The hidden values; None takes as many as half of the samples can commission.
        seed: The seed of the projection; all devices of a fleet need the same.
        time_zone: The time zone of times that name none; None means UTC.
        follow: Whether the file grows, and is followed.
    """
    parts = [member.report for member in members] or [report]
    if time_zone is not None:
        parts = [part.in_zone(time_zone) for part in parts]
    readings = [part.readings([part.columns[c.number - 1] for c in columns]) for part in parts]
    rates = [part.rate_hz for part in parts if part.rate_hz]
    rate = float(np.median(rates)) if rates else None
    chosen = _features(features, rate, np.vstack(readings))
    several = bool(members) and not of_one
    source = _source(path, report, columns, time_zone, follow=follow)
    source = replace(source, device_column=device_column)
    results = Path(f"{'{device}' if several else device}.jsonl")
    sinks = (SinkConfig(kind="file", path=results),)
    config = Config(device, Path(f"{device}-state"), source=source, features=chosen, sinks=sinks)
    each = [_samples(config, rows) for rows in readings]
    samples = np.vstack([part for part in each if len(part)] or [np.empty((0, 1))])
    if not len(samples):
        rows = sum(map(len, readings))
        raise SampleError(f"found {rows} complete rows, expected {chosen.length} at least")
    usual = int(np.median([len(part) for part in each])) if several else len(samples)
    hidden = n_hidden or _hidden(usual)
    names = make_features(config).names([column.name for column in columns])
    kept = samples[common(samples)] if len(samples) >= MIN_SAMPLES else samples
    settings: dict[str, Any] = {"n_hidden": hidden, "seed": seed, "activation": "tanh"}
    settings |= {"margin": MARGIN, "names": _unique(names)}
    shared = Projection.of_data(kept, **settings)
    remarks = _remarks(parts, columns, usual, hidden)
    if any(begins_outside(shared, part) for part in each if len(part)):
        shared = Projection.of_data(samples, **settings)
        remarks.append(
            "the range has a beginning that is unlike the rest: if the machine is seldom like "
            "that, cut those rows off and run init again"
        )
    commissioning = max(_commissioning(part, hidden) for part in (each if several else [samples]))
    config = replace(config, monitor=replace(config.monitor, commissioning=commissioning))
    kept_members = tuple(members if several else ())
    return Proposal(config, shared, len(samples), tuple(remarks), commissioning, kept_members)


def _features(kind: FeatureKind | None, rate_hz: float | None, readings: Array) -> FeaturesConfig:
    rate, columns = rate_hz or 0.0, readings.shape[1]
    if kind is None:
        kind = "raw"
        if rate >= SPECTRUM_HZ and columns <= MAX_SPECTRUM_COLUMNS:
            kind = "spectrum"
        elif rate >= WINDOW_HZ and columns <= MAX_WINDOW_COLUMNS:
            kind = "window"
        if kind != "raw" and len(readings) < MIN_SAMPLES * 8:
            kind = "raw"  # too few readings for windows
    if kind == "raw":
        return FeaturesConfig()
    longest = max(8, len(readings) // MIN_SAMPLES)
    if kind == "window":
        length = min(max(8, round(WINDOW_S * rate)), longest, 512)
        return FeaturesConfig(kind="window", length=length)
    if not rate:
        raise SettingError("a spectrum needs the rate of readings: the file has no column of times")
    length = 2 ** int(np.log2(min(max(rate / 2.0, 64.0), longest, 1024.0)))
    bands = min(length // 4, 32 if columns <= 2 else 16)
    return FeaturesConfig(kind="spectrum", length=length, bands=bands, rate_hz=rate)


def _source(
    path: Path | None,
    report: FileReport,
    columns: Sequence[ColumnReport],
    time_zone: str | None,
    *,
    follow: bool,
) -> SourceConfig:
    by_name = report.header
    every = len(columns) == len(report.columns) - len(time_columns(report.time))
    names = tuple(c.name if by_name else str(c.number) for c in columns)
    source = SourceConfig(
        kind="stdin" if path is None else "tail" if follow else report.format,
        format=report.format,
        path=path,
        columns=() if every and not by_name else names,
        units=_units(report, columns),
        time=report.time,
    )
    if report.format == "jsonl":
        return replace(source, time_format=report.time_format, time_zone=time_zone)
    return replace(
        source,
        header=report.header,
        encoding=report.encoding,
        delimiter=report.delimiter,
        decimal=report.decimal,
        skip_lines=report.skip_lines,
        time_format=report.time_format,
        time_zone=time_zone,
    )


def _units(report: FileReport, columns: Sequence[ColumnReport]) -> tuple[str, ...]:
    """Return the units of some columns, without brackets; none if the file names none."""
    units = [report.units[c.number - 1].strip("[]()") for c in columns if report.units]
    return tuple(units) if any(units) else ()


def _samples(config: Config, readings: Array) -> Array:
    features = make_features(config)
    found = [sample for row in readings if (sample := features.push(row)) is not None]
    return np.array(found).reshape(len(found), -1)


def begins_outside(projection: Projection, samples: Array) -> bool:
    """Return whether the agent would stop at these samples, as its projection does not fit."""
    first = projection.to_grid(samples[:RANGE_CHECK_SAMPLES])
    far = (np.abs(first) > FAR_OUTSIDE).any(axis=1)
    return is_mostly_outside(int(far.sum()), len(first))


def _hidden(samples: int) -> int:
    fitting = [n for n in HIDDEN if COMMISSIONING_PER_HIDDEN * n <= COMMISSIONING_SHARE * samples]
    return fitting[0] if fitting else HIDDEN[-1]


def _commissioning(samples: Array, hidden: int) -> int:
    """Return after how many samples most of what the first half has to show was seen.

    A machine that goes through its speeds in half an hour must be watched so long before it is
    known. A half that shows something new up to its end is taken whole.
    """
    need = COMMISSIONING_PER_HIDDEN * hidden
    half = samples[: int(COMMISSIONING_SHARE * len(samples))]
    low, high = (np.quantile(half, q, axis=0) for q in (0.01, 0.99)) if len(half) else (0.0, 0.0)
    while need < len(half):
        seen = half[:need]
        if (seen.min(axis=0) <= low).all() and (seen.max(axis=0) >= high).all():
            return need
        need *= 2
    return max(len(half), COMMISSIONING_PER_HIDDEN * hidden)


def _unique(names: Sequence[str]) -> tuple[str, ...] | None:
    return tuple(names) if len(set(names)) == len(names) else None


def _remarks(
    reports: Sequence[FileReport], columns: Sequence[ColumnReport], samples: int, hidden: int
) -> list[str]:
    chosen = [column.number for column in columns]
    found = [
        f"{column.name} is left out: {column.problem or column.kind}"
        for column in reports[0].columns
        if column.number not in chosen and (column.problem or column.kind in ("text", "empty"))
    ]
    skipped = sum(report.skipped for report in reports)
    if skipped:
        words = "row does not fit" if skipped == 1 else "rows do not fit"
        found.append(f"{skipped:,} {words} the others and will be skipped")
    missing = sum(report.columns[i - 1].missing for report in reports for i in chosen)
    if missing:
        words = (
            "cell has no number; its row" if missing == 1 else "cells have no number; their rows"
        )
        found.append(f"{missing:,} {words} will be skipped")
    found += _time_remarks(reports)
    need = COMMISSIONING_PER_HIDDEN * hidden
    if samples < need:
        found.append(f"{samples:,} samples are fewer than the {need:,} for commissioning")
    return found


def _time_remarks(reports: Sequence[FileReport]) -> list[str]:
    found = []
    gaps, backward, rows = (
        sum(getattr(report, name) for report in reports) for name in ("gaps", "backward", "rows")
    )
    if gaps:
        found.append(f"{gaps:,} {'gap' if gaps == 1 else 'gaps'} in time")
    if 2 * backward > rows:
        found.append(
            "the newest row comes first, and the agent reads from the top: sort the file by time "
            "before you go on"
        )
    elif backward:
        words = "row is" if backward == 1 else "rows are"
        found.append(f"{backward:,} {words} older than the row before")
    if not any(report.time for report in reports):
        found.append("no column has date and time: results have the time at which a row is read")
    if reports[0].time and not reports[0].zone_is_known:
        found.append("times name no zone and are read as UTC: give --time-zone if they are not")
    return found


def to_toml(proposal: Proposal, projection_file: Path) -> str:
    """Return the configuration as a commented TOML file."""
    config = proposal.config
    features = config.features
    watched = "standard input" if config.source.kind == "stdin" else config.source.path
    lines = [
        f"# Watches {watched}; see docs/reference/agent-configuration.md for all settings.",
        *([] if proposal.members else [f"device = {_toml(config.device)}"]),
        f"state = {_toml(config.state)}  # what the agent keeps; delete it to start anew",
        "",
        "[projection]  # the same file on all devices that share what they learn",
        f"file = {_toml(projection_file)}",
        "",
        *_source_lines(config.source, proposal.members),
        "",
        "[features]  # what a sample is made of",
        f"kind = {_toml(features.kind)}",
    ]
    if features.kind != "raw":
        lines.append(f"length = {features.length}  # readings in a window")
    if features.kind == "window":
        lines.append(f"statistics = {_toml(features.statistics)}")
    if features.kind == "spectrum":
        lines += [f"bands = {features.bands}", f"rate_hz = {features.rate_hz:g}"]
    lines += [
        "",
        "[learner]",
        'kind = "bank"  # several kinds of normal; "detector" knows one',
        "",
        "[monitor]",
        "# Learns what is normal from the first samples, then watches: take as many as show all",
        '# that the machine usually does; a time such as "2 hours" is possible too.',
        f"commissioning = {proposal.commissioning}",
        '# Commissioning sets a limit, often 4 to 6; or limit = 5, or false_alarms = "1 per week"',
        "",
        "[[sinks]]  # where results go; the log on the terminal says when an episode begins",
        'kind = "file"',
        f"path = {_toml(config.sinks[0].path)}",
        "",
        *_exchange_lines(config.exchange),
        *_device_lines(proposal.members),
    ]
    return "\n".join(lines)


def _source_lines(source: SourceConfig, members: Sequence[Member]) -> list[str]:
    kinds = '"tail" follows a file that grows, "csv" reads it once'
    lines = ["[source]", f"kind = {_toml(source.kind)}  # {kinds}"]
    if source.kind in ("tail", "stdin"):
        lines.append(f"format = {_toml(source.format)}")
    if source.path is not None and not any(member.path for member in members):
        lines.append(f"path = {_toml(source.path)}")
    usual = SourceConfig()
    names = (
        "columns",
        "units",
        "time",
        "time_format",
        "time_zone",
        "header",
        "delimiter",
        "decimal",
    )
    for name in (*names, "encoding", "skip_lines", "device_column"):
        value = getattr(source, name)
        if value != getattr(usual, name):
            lines.append(f"{name} = {_toml(value)}")
    return lines


def _exchange_lines(exchange: ExchangeConfig) -> list[str]:
    if exchange.kind == "none":
        return []
    names = ("kind", "url", "fleet", "token_file", "ca_file", "insecure")
    values = {name: getattr(exchange, name) for name in names}
    given = {name: value for name, value in values.items() if value not in (None, False)}
    lines = [f"{name} = {_toml(value)}" for name, value in given.items()]
    return [
        "[exchange]  # shares what was learnt, as sums, and reports to the fleet's page",
        *lines,
        "",
    ]


def _device_lines(members: Sequence[Member]) -> list[str]:
    lines = ["# Each of [[devices]] has what differs: any key from above."] if members else []
    for member in members:
        lines += ["[[devices]]", f"device = {_toml(member.device)}"]
        if member.path is not None:
            lines.append(f"source.path = {_toml(member.path)}")
        if member.value not in (None, member.device):
            lines.append(f"source.device_value = {_toml(member.value)}")
        lines.append("")
    return lines


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, int | float):
        return str(value)
    return json.dumps(str(value), ensure_ascii=False)  # TOML's basic strings are like JSON's
