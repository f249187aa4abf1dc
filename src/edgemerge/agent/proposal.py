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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from math import log2
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgemerge.agent.config import Config, FeaturesConfig, SinkConfig, SourceConfig
from edgemerge.agent.rows import TIME_UNITS, BadRow, TimeFormat, with_decimal_point
from edgemerge.agent.runner import make_features
from edgemerge.core.errors import SampleError, SettingError
from edgemerge.core.monitor import COMMISSIONING_PER_HIDDEN
from edgemerge.core.patterns import inliers
from edgemerge.core.projection import Projection

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
    """A configuration, the projection that it needs, and what was noticed on the way."""

    config: Config
    projection: Projection
    samples: int
    remarks: tuple[str, ...]

    @property
    def commissioning(self) -> int:
        """The samples after which watching begins."""
        return COMMISSIONING_PER_HIDDEN * self.projection.n_hidden


def choose_columns(report: FileReport, names: Sequence[str]) -> list[ColumnReport]:
    """Return the columns of these names or numbers, or all that can be watched."""
    if not names:
        found = report.usable()
        if not found:
            kinds = ", ".join(f"{c.name}: {c.problem or c.kind}" for c in report.columns)
            raise SampleError(f"found no column of numbers that change ({kinds}), expected one")
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


def propose(
    path: Path,
    report: FileReport,
    columns: Sequence[ColumnReport],
    *,
    device: str,
    features: FeatureKind | None = None,
    n_hidden: int | None = None,
    seed: int = 0,
    time_zone: str | None = None,
    follow: bool = False,
) -> Proposal:
    """Choose features, ranges and sizes for a file.

    Args:
        path: The file.
        report: What was found in it.
        columns: Those to watch.
        device: The name of the device.
        features: What samples are made of; None chooses by the rate and the number of columns.
        n_hidden: The hidden values; None takes as many as half of the samples can commission.
        seed: The seed of the projection; all devices of a fleet need the same.
        time_zone: The time zone of times that name none; None means UTC.
        follow: Whether the file grows, and is followed.
    """
    readings = report.readings(columns)
    chosen = _features(features, report, readings)
    source = _source(path, report, columns, time_zone, follow=follow)
    state, sinks = Path(f"{device}-state"), (SinkConfig(kind="file", path=Path(f"{device}.jsonl")),)
    config = Config(device, state, source=source, features=chosen, sinks=sinks)
    samples = _samples(config, readings)
    if not len(samples):
        raise SampleError(f"found {len(readings)} complete rows, expected {chosen.length} at least")
    hidden = n_hidden or _hidden(len(samples))
    names = make_features(config).names([column.name for column in columns])
    kept = samples[inliers(samples)] if len(samples) >= MIN_SAMPLES else samples
    settings: dict[str, Any] = {"n_hidden": hidden, "seed": seed, "activation": "tanh"}
    shared = Projection.of_data(kept, margin=MARGIN, names=_unique(names), **settings)
    return Proposal(config, shared, len(samples), tuple(_remarks(report, columns, samples, hidden)))


def _features(kind: FeatureKind | None, report: FileReport, readings: Array) -> FeaturesConfig:
    rate, columns = report.rate_hz or 0.0, readings.shape[1]
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
    path: Path,
    report: FileReport,
    columns: Sequence[ColumnReport],
    time_zone: str | None,
    *,
    follow: bool,
) -> SourceConfig:
    by_name = report.header
    every = len(columns) == len(report.columns) - (report.time is not None)
    names = tuple(c.name if by_name else str(c.number) for c in columns)
    source = SourceConfig(
        kind="tail" if follow else report.format,
        format=report.format,
        path=path,
        columns=() if every and not by_name else names,
        time=report.time,
    )
    if report.format == "jsonl":
        return replace(source, time_format=report.time_format, time_zone=time_zone)
    return replace(
        source,
        header=report.header,
        delimiter=report.delimiter,
        decimal=report.decimal,
        skip_lines=report.skip_lines,
        time_format=report.time_format,
        time_zone=time_zone,
    )


def _samples(config: Config, readings: Array) -> Array:
    features = make_features(config)
    found = [sample for row in readings if (sample := features.push(row)) is not None]
    return np.array(found).reshape(len(found), -1)


def _hidden(samples: int) -> int:
    fitting = [n for n in HIDDEN if COMMISSIONING_PER_HIDDEN * n <= COMMISSIONING_SHARE * samples]
    return fitting[0] if fitting else HIDDEN[-1]


def _unique(names: Sequence[str]) -> tuple[str, ...] | None:
    return tuple(names) if len(set(names)) == len(names) else None


def _remarks(
    report: FileReport, columns: Sequence[ColumnReport], samples: Array, hidden: int
) -> list[str]:
    found = []
    if report.skipped:
        found.append(f"{report.skipped:,} rows do not fit the others and will be skipped")
    missing = sum(column.missing for column in columns)
    if missing:
        found.append(f"{missing:,} cells have no number; their rows will be skipped")
    if report.gaps:
        found.append(f"{report.gaps:,} gaps in time")
    if report.backward:
        found.append(f"{report.backward:,} rows are older than the row before them")
    if not report.zone_is_known:
        found.append("times name no zone and are read as UTC: set source.time_zone if they are not")
    need = COMMISSIONING_PER_HIDDEN * hidden
    if len(samples) < need:
        found.append(f"{len(samples):,} samples are fewer than the {need:,} for commissioning")
    return found


def to_toml(proposal: Proposal, projection_file: Path) -> str:
    """Return the configuration as a commented TOML file."""
    config = proposal.config
    source, features = config.source, config.features
    lines = [
        f"# Watches {source.path}; see docs/reference/agent-configuration.md for all settings.",
        f"device = {_toml(config.device)}",
        f"state = {_toml(config.state)}  # what the agent keeps; delete it to start anew",
        "",
        "[projection]  # the same file on all devices that share what they learn",
        f"file = {_toml(projection_file)}",
        "",
        "[source]",
        f'kind = {_toml(source.kind)}  # "tail" follows a file that grows, "csv" reads it once',
    ]
    if source.kind == "tail":
        lines.append(f"format = {_toml(source.format)}")
    lines.append(f"path = {_toml(source.path)}")
    usual = SourceConfig()
    names = ("columns", "time", "time_format", "time_zone", "header", "delimiter", "decimal")
    for name in (*names, "skip_lines"):
        value = getattr(source, name)
        if value != getattr(usual, name):
            lines.append(f"{name} = {_toml(value)}")
    lines += ["", "[features]  # what a sample is made of", f"kind = {_toml(features.kind)}"]
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
        f"# Learns what is normal from the first {proposal.commissioning:,} samples, then watches.",
        '# Set commissioning to a number of samples, or to a time such as "2 hours".',
        'limit = 4  # or: false_alarms = "1 per week"',
        "",
        "[[sinks]]  # where results go; the log on the terminal says when an episode begins",
        'kind = "file"',
        f"path = {_toml(config.sinks[0].path)}",
        "",
    ]
    return "\n".join(lines)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, int | float):
        return str(value)
    return json.dumps(str(value), ensure_ascii=False)  # TOML's basic strings are like JSON's
