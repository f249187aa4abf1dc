"""Text rows as readings: lines of bounded length, parsed as CSV or JSON.

A row that cannot be parsed raises `BadRow` with the reason; `RowReader` skips, counts and logs it.
The commands on files have another reader (`cli/samples.py`), since its rules differ: there a bad
row is an error, a header is a line without any number, and a batch of rows is parsed at once.
"""

from __future__ import annotations

import csv
import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from difflib import get_close_matches
from functools import cached_property
from math import isfinite
from time import monotonic
from typing import Any, NamedTuple, Protocol
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.errors import SettingError
from edgemerge.files import UTF16_WORDS, is_utf16

Array = NDArray[np.float64]
Column = int | str
TimeColumns = Column | Sequence[Column] | None  # two: of dates, and of times of day


class BadRow(ValueError):
    """A row that is no reading; the message says why."""


class Row(NamedTuple):
    """One line: the values (k,), the time if it has one, and the names if it has them."""

    values: Array
    at: float | None
    names: tuple[str, ...] | None = None


class RowFormat(Protocol):
    """Parses lines; `header` has the names found in the first line, None before that."""

    header: tuple[str, ...] | None

    def begin(self) -> None:
        """Expect the first line of a file."""
        ...

    def resume(self, header: tuple[str, ...] | None) -> None:
        """Expect a later line of a file with this header."""
        ...

    def row(self, line: str) -> Row | None:
        """Parse a line; None if it holds no row, such as a header."""
        ...


def column_number(column: Column) -> int | None:
    """Return the index that a column means where no column has that name; None if it is a name.

    Text counts from 1, as on the command line; a bare integer from 0, negative from the end.

    >>> column_number("1"), column_number(0), column_number(-1), column_number("flow")
    (0, 0, -1, None)
    """
    if isinstance(column, int):
        return column
    return int(column) - 1 if column.isdecimal() and int(column) else None


def time_columns(time: TimeColumns) -> tuple[Column, ...]:
    """Return the columns that tell the time together: none, one, or one of dates and one of times.

    >>> time_columns(None), time_columns("time"), time_columns(("Date", "Time"))
    ((), ('time',), ('Date', 'Time'))
    """
    if time is None:
        return ()
    return (time,) if isinstance(time, int | str) else tuple(time)


def _index_among(count: int, column: Column) -> int | None:
    """Return the index from 0 on that a column means; None if it is a name, or not there."""
    number = column_number(column)
    return number % count if number is not None and -count <= number < count else None


def column_names(header: Sequence[str]) -> tuple[str, ...]:
    """Return the names in a header; one that came before gets the number of its column.

    >>> column_names(["time", "flow", "flow", "", ""])
    ('time', 'flow', 'flow (3)', '', '')
    """
    return tuple(
        f"{name} ({i + 1})" if name and name in header[:i] else name
        for i, name in enumerate(header)
    )


# Units as loggers write them below the names, without brackets. Single letters are also names of
# columns, so they count only as they are written here.
UNIT_WORDS = (
    "- % A V W K C F J N g t m s h d l L ° %rh ‰ ppm °c degc °f degf deg rad bar mbar barg pa hpa "
    "kpa mpa psi psig atm mmhg ma ka µa mv kv mw kw va kva var kvar mvar wh kwh mwh kj mj ohm hz "
    "khz mhz rpm u/min 1/min min-1 min^-1 m/s mm/s in/s km/h mph m/s² m/s2 m/s^2 mg kg lb lbs mm "
    "cm km µm um in inch ft m³ m3 ml m³/h m3/h m³/s m3/s l/h l/s l/min lpm gpm cfm kg/h kg/s t/h "
    "kn nm knm sec ms µs us min days ph db dba lx lux ntu"
)
UNITS = frozenset(UNIT_WORDS.split())


def is_unit_line(fields: Sequence[str]) -> bool:
    """Return whether a line has units, as some loggers write them between names and numbers.

    >>> is_unit_line(["dd.mm.yyyy", "m³/h", "[bar]", ""]), is_unit_line(["time", "flow", "A"])
    (True, False)
    """
    filled = [field for field in fields if field]
    units = [field.strip("[]()") for field in filled]
    known = sum((unit if len(unit) == 1 else unit.lower()) in UNITS for unit in units)
    return 2 * known > len(filled)


TIME_UNITS = {"ms": 1e3, "us": 1e6, "ns": 1e9}  # since 1970, in a second


@dataclass(frozen=True)
class TimeFormat:
    """How a column tells the time.

    Args:
        pattern: What `datetime.strptime` takes, or "ms", "us" or "ns" since 1970; None means Unix
            seconds or ISO 8601.
        zone: The time zone of times that name none, such as "Europe/Berlin"; UTC by default.

    >>> TimeFormat("%d.%m.%Y %H:%M", "Europe/Berlin").parse("01.01.1970 01:01")
    60.0
    """

    pattern: str | None = None
    zone: str | None = None

    def parse(self, found: Any, after: float | None = None) -> float:
        """Return the time in Unix seconds.

        When clocks are set back in autumn, an hour of local times comes twice: it is the second
        time where the first would be before `after`, the time of the row before.

        >>> [TimeFormat().parse(t) for t in ("1970-01-01T00:01Z", "60", "1970-01-01 01:01+01:00")]
        [60.0, 60.0, 60.0]
        >>> times = TimeFormat(zone="Europe/Berlin")
        >>> first = times.parse("2026-10-25 02:59")
        >>> times.parse("2026-10-25 02:00", after=first) - first
        60.0
        """
        value = _number_or_none(found)
        if value is not None and isfinite(value) and (self.pattern in (None, *TIME_UNITS)):
            return value / TIME_UNITS.get(self.pattern or "", 1.0)
        text = str(found)
        try:
            if self.pattern is None or self.pattern in TIME_UNITS:
                moment = datetime.fromisoformat(text)
            else:
                moment = datetime.strptime(text, self.pattern)
            local = moment if moment.tzinfo else moment.replace(tzinfo=self._zone)
            at = local.timestamp()
            if after is not None and at < after and not moment.tzinfo:
                at = max(at, local.replace(fold=1).timestamp())
            return at
        except (ValueError, OverflowError) as error:
            expected = f", expected {self.pattern}" if self.pattern else ""
            raise BadRow(f"{text[:40]!r} is no time{expected}") from error

    @cached_property
    def _zone(self) -> tzinfo:
        return UTC if self.zone is None else time_zone(self.zone)


def time_zone(name: str) -> tzinfo:
    """Return a time zone by its name; an unknown one is a `SettingError`."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise SettingError(
            f'found the time zone "{name}", expected one such as "Europe/Berlin" that this system '
            "knows: correct it, or install tzdata"
        ) from error


THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+(,\d*)?")  # with a decimal comma


def with_decimal_point(text: str) -> str:
    """Return a number with a decimal comma as one with a decimal point.

    >>> with_decimal_point("-1.234,5"), with_decimal_point("0,5"), with_decimal_point("0.125")
    ('-1234.5', '0.5', '0.125 with a decimal point')
    """
    if THOUSANDS.fullmatch(text):
        text = text.replace(".", "")
    return f"{text} with a decimal point" if "." in text else text.replace(",", ".")


class CsvRows:
    """Fields with a delimiter between them; the first line may name the columns.

    Without `header`, a first line with a chosen field that is no number is taken for one. A file
    that begins without names has those of the file before, if it has as many columns. A header
    that comes again later is no row, and neither are units below the header.
    """

    def __init__(
        self,
        columns: Sequence[Column] = (),
        *,
        time: TimeColumns = None,
        header: bool | None = None,
        delimiter: str = ",",
        decimal: str = ".",
        skip_lines: int = 0,
        time_format: TimeFormat = TimeFormat(),  # noqa: B008 - a value
        width: int | None = None,
    ) -> None:
        """Choose columns by name or number; without any, all but the time."""
        self.header: tuple[str, ...] | None = None
        self._columns, self._time = tuple(columns), time_columns(time)
        self._has_header = header
        self._delimiter, self._width = delimiter, width
        self._decimal, self._skip_lines, self._time_format = decimal, skip_lines, time_format
        self._first, self._skipped_lines, self._has_read = True, 0, False
        self._below_header = False
        self._last: float | None = None  # the time of the row before
        self._found: tuple[list[int], list[int], tuple[str, ...] | None] = ([], [], None)
        self._found_for: tuple[int, tuple[str, ...] | None] | None = None

    def begin(self) -> None:
        """Expect the first line of a file."""
        self._first, self._skipped_lines = True, 0

    def resume(self, header: tuple[str, ...] | None) -> None:
        """Expect a later line of a file with this header."""
        self.header, self._first = header, False

    def row(self, line: str) -> Row | None:
        """Read a line; None if it is empty or a header."""
        line = line.removeprefix("\ufeff") if self._first else line
        if self._first and self._skipped_lines < self._skip_lines:
            self._skipped_lines += 1
            return None
        if not line.strip():
            return None
        try:
            found = [field.strip() for field in next(csv.reader([line], delimiter=self._delimiter))]
        except csv.Error as error:
            raise BadRow(str(error)) from error
        first, self._first = self._first, False
        below_header, self._below_header = self._below_header, False
        if first and self._is_header(found):
            self._take_header(found)
            return None
        if self.header is not None and found[0] == self.header[0] and self._is_again(found):
            return None
        if below_header and is_unit_line(found):
            return None
        row = self._read(found)
        self._has_read = True
        return row

    def _take_header(self, found: list[str]) -> None:
        self.header, self._below_header = column_names(found), True
        if self._has_read:
            return  # a later file with other columns must not end the agent
        for key, name in self._names():
            must_have_column(name, self.header, key, self._delimiter)

    def _names(self) -> list[tuple[str, str]]:
        """Return the columns that were chosen by name, each with its setting."""
        chosen = [("source.columns", each) for each in self._columns]
        times = [("source.time", each) for each in self._time]
        return [
            (key, name)
            for key, name in [*chosen, *times]
            if isinstance(name, str) and column_number(name) is None
        ]

    def _is_header(self, found: list[str]) -> bool:
        if self._has_header is not None:
            return self._has_header
        if self._is_again(found):
            return True
        if self.header is None and self._names():
            return True
        numbers = [self._index(each, len(found)) for each in self._columns]
        chosen = [each for each in numbers if each is not None]
        times = [self._index(each, len(found)) for each in self._time]
        chosen = chosen or [i for i in range(len(found)) if i not in times]
        return any(self._number(found[i]) is None for i in chosen)

    def _is_again(self, found: list[str]) -> bool:
        """Return whether a line is the header that came before."""
        return self.header is not None and column_names(found) == self.header

    def _index(self, column: Column, count: int) -> int | None:
        """Return where a column is, by the header of the file before if it has as many."""
        header = self.header or ()
        if len(header) == count and column in header:
            return header.index(str(column))
        return _index_among(count, column)

    def _number(self, text: str) -> float | None:
        return _number_or_none(with_decimal_point(text) if self._decimal == "," else text)

    def _read(self, found: list[str]) -> Row:
        if self.header is not None and len(found) != len(self.header):
            raise BadRow(f"{len(found)} fields instead of {len(self.header)}")
        width = len(self._columns) or self._width
        if len(found) == 1 and width != 1 and (marks := _other_delimiters(found[0])):
            raise BadRow(
                f'the row has one field, {found[0][:40]!r}: set source.delimiter = "{marks[0]}"'
            )
        times, columns, names = self._find_columns(len(found))
        at = self._parse_time(" ".join([found[i] for i in times])) if times else None
        chosen = [found[i] for i in columns]
        chosen = [with_decimal_point(each) for each in chosen] if self._decimal == "," else chosen
        return Row(_parse_values(chosen, width, names), at, names)

    def _find_columns(self, count: int) -> tuple[list[int], list[int], tuple[str, ...] | None]:
        """Return where time and values are in rows of so many fields, and the values' names."""
        if self._found_for != (count, self.header):
            times = [self._at(each, count) for each in self._time]
            columns = [self._at(each, count) for each in self._columns]
            columns = columns or [i for i in range(count) if i not in times]
            names = None if self.header is None else tuple(self.header[i] for i in columns)
            self._found, self._found_for = (times, columns, names), (count, self.header)
        return self._found

    def _parse_time(self, text: str) -> float:
        value = self._number(text) if self._decimal == "," else None
        self._last = self._time_format.parse(text if value is None else value, self._last)
        return self._last

    def _at(self, column: Column, count: int) -> int:
        if self.header is not None and column in self.header:
            return self.header.index(str(column))
        number = column_number(column)
        if number is None:
            raise BadRow(f"there is no column {column!r}")
        if not -count <= number < count:
            raise BadRow(f"there is no column {column} among {count}")
        return number % count


def must_have_column(name: str, header: Sequence[str], key: str, delimiter: str = ",") -> None:
    """Raise SettingError that quotes the header unless it has that column."""
    if name in header:
        return
    near = get_close_matches(name, header, n=1)
    advice = f'did you mean "{near[0]}"?' if near else f"name one of them in {key}"
    if len(header) == 1 and (marks := _other_delimiters(header[0])):
        advice = (
            f"the line has one field only, so the delimiter is not {delimiter!r}: "
            f'set source.delimiter = "{marks[0]}"'
        )
    elif 2 * sum(_number_or_none(each) is not None for each in header) >= len(header):
        advice = (
            "the first line has numbers, so the file has no header: set source.header = false, "
            'and columns by number, as in ["1", "2"]'
        )
    raise SettingError(
        f'found no column "{name}" ({key}) in the header {", ".join(header)[:400]}: {advice}'
    )


def _other_delimiters(field: str) -> list[str]:
    """Return delimiters that are within a field, the likeliest first."""
    return [mark.replace("\t", "\\t") for mark in ";\t|," if mark in field]


class JsonRows:
    """One JSON object or array to a line; columns are keys, or numbers of items."""

    def __init__(
        self,
        columns: Sequence[Column] = (),
        *,
        time: TimeColumns = None,
        time_format: TimeFormat = TimeFormat(),  # noqa: B008 - a value
        width: int | None = None,
    ) -> None:
        """Choose columns; without any, all but the time: for objects, those of the first one."""
        self.header: tuple[str, ...] | None = None
        self._columns, self._time, self._width = tuple(columns), time_columns(time), width
        self._time_format = time_format
        self._last: float | None = None  # the time of the row before

    def begin(self) -> None:
        """Do nothing: the first line is like any other."""

    def resume(self, header: tuple[str, ...] | None) -> None:
        """Expect a later line of a file with this header."""
        self.header = header

    def row(self, line: str) -> Row | None:
        """Read a line; None if it is empty."""
        if not line.strip():
            return None
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BadRow(f"not JSON: {error}") from error
        if not isinstance(found, dict | list):
            raise BadRow(f"{type(found).__name__} instead of an object or array")
        at = None
        if self._time:
            parts = [_field(found, each) for each in self._time]
            moment = parts[0] if len(parts) == 1 else " ".join(map(str, parts))
            at = self._last = self._time_format.parse(moment, self._last)
        chosen = self._chosen(found)
        values = [_field(found, each) for each in chosen]
        names = tuple(map(str, chosen)) if isinstance(found, dict) else None
        row = Row(_parse_values(values, len(self._columns) or self._width, names), at, names)
        if isinstance(found, dict) and self.header is None and not self._columns:
            self.header = tuple(found)  # only from a valid row
        return row

    def _chosen(self, found: dict[str, Any] | list[Any]) -> Sequence[Column]:
        if self._columns:
            return self._columns
        if isinstance(found, dict):
            return [key for key in self.header or tuple(found) if key not in self._time]
        times = [_index_among(len(found), each) for each in self._time]
        return [i for i in range(len(found)) if i not in times]


class PayloadRows:
    """JSON if a payload begins like it, else CSV without a header."""

    def __init__(
        self,
        columns: Sequence[Column] = (),
        *,
        time: TimeColumns = None,
        time_format: TimeFormat = TimeFormat(),  # noqa: B008 - a value
        width: int | None = None,
    ) -> None:
        """Choose columns by key or number; without any, all but the time."""
        self.header: tuple[str, ...] | None = None
        options: dict[str, Any] = {"time": time, "time_format": time_format, "width": width}
        self._json = JsonRows(columns, **options)
        self._csv = CsvRows(columns, header=False, **options)

    def begin(self) -> None:
        """Do nothing: messages have no order."""

    def resume(self, header: tuple[str, ...] | None) -> None:
        """Do nothing: messages have no order."""

    def row(self, line: str) -> Row | None:
        """Parse a payload; None if it is empty."""
        return self._json.row(line) if line.lstrip()[:1] in ("{", "[") else self._csv.row(line)


class DeviceRows:
    """The rows of one device among those of several, in another format.

    Args:
        form: Parses a row; its columns must be chosen.
        column: The column that names the device of each row.
        device: What the column has for this device.
        delimiter: What lies between the fields of CSV.
    """

    def __init__(
        self, form: RowFormat, column: Column, device: str, *, delimiter: str = ","
    ) -> None:
        """Expect the first line of a file."""
        self._form, self._column, self._device = form, column, device
        self._delimiter = delimiter
        self._began = False  # the format has read its header, or a row

    @property
    def header(self) -> tuple[str, ...] | None:
        """The names found in the first line."""
        return self._form.header

    @header.setter
    def header(self, names: tuple[str, ...] | None) -> None:
        self._form.header = names

    def begin(self) -> None:
        """Expect the first line of a file."""
        self._form.begin()
        self._began = False

    def resume(self, header: tuple[str, ...] | None) -> None:
        """Expect a later line of a file with this header."""
        self._form.resume(header)
        self._began = True

    def row(self, line: str) -> Row | None:
        """Parse a line; None if it is a header, or of another device."""
        if self._began:
            # Most lines are of others: that the name is not in them is quickly found.
            return self._form.row(line) if self._device in line and self._is_own(line) else None
        row = self._form.row(line)
        self._began = row is not None or self.header is not None
        if row is None and self.header is not None and column_number(self._column) is None:
            key = "source.device_column"
            must_have_column(str(self._column), self.header, key, self._delimiter)
        return row if row is not None and self._is_own(line) else None

    def _is_own(self, line: str) -> bool:
        """Return whether a line names this device; one that cannot be parsed may be its own."""
        try:
            if line.lstrip()[:1] in ("{", "["):
                return str(_field(json.loads(line), self._column)) == self._device
            fields = next(csv.reader([line], delimiter=self._delimiter))
            names = self.header or ()
            found = names.index(str(self._column)) if self._column in names else None
            number = column_number(self._column) if found is None else found
            return number is None or fields[number].strip() == self._device
        except (ValueError, RecursionError, csv.Error, IndexError):
            return True


def _field(found: Any, column: Column) -> Any:
    try:
        return found[column if isinstance(found, dict) else column_number(column)]
    except (KeyError, IndexError, TypeError) as error:
        raise BadRow(f"there is no column {column!r}") from error


def _parse_values(
    found: Sequence[Any], width: int | None, names: Sequence[str] | None = None
) -> Array:
    if width is not None and len(found) != width:
        raise BadRow(f"{len(found)} values instead of {width}")
    if not found:
        raise BadRow("no values")
    values = _plain_numbers(found)
    if values is not None:
        return values
    return np.array([_parse_number(each, i, names) for i, each in enumerate(found)], np.float64)


def _plain_numbers(found: Sequence[Any]) -> Array | None:
    """Return all numbers at once; None if one is none, or unusual, so that each is looked at."""
    if not PLAIN_TYPES.issuperset(map(type, found)):
        return None
    try:
        values = np.array([*map(float, found)])
    except (ValueError, OverflowError):
        return None
    return values if np.isfinite(values).all() else None


PLAIN_TYPES = frozenset((str, int, float))
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")


def _parse_number(found: Any, i: int, names: Sequence[str] | None) -> float:
    value = _number_or_none(found)
    if value is not None and isfinite(value):
        return value
    text, name = str(found)[:40], names[i] if names else i + 1
    words = f"{text!r} is no finite number (column {name})"
    if not text:
        words = f"{words}: the cell is empty; fill it, or leave a column out that often is"
    elif DECIMAL_COMMA.fullmatch(text):
        words = f'{words}: set source.decimal = ","'
    elif _is_iso_time(text):
        words = f"{words}: it is a time, so set source.time to that column"
    raise BadRow(words)


def _is_iso_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _number_or_none(found: Any) -> float | None:
    if isinstance(found, bool) or not isinstance(found, str | int | float):
        return None
    try:
        return float(found)
    except (ValueError, OverflowError):
        return None


MAX_LINE_BYTES = 65536
LOG_INTERVAL_S = 60.0

logger = logging.getLogger(__name__)
logger.addHandler(logging.NullHandler())  # where there is no log, the counts say it


class Line(NamedTuple):
    """A line without its end, and the offset behind it; None if it was too long to keep."""

    text: bytes | None
    end: int


class LineSplitter:
    r"""Cuts a stream of bytes into lines, holding at most `longest` bytes of an unfinished one.

    >>> splitter = LineSplitter()
    >>> list(splitter.feed(b"a,b\r\n1,")), list(splitter.feed(b"2\n"))
    ([Line(text=b'a,b', end=5)], [Line(text=b'1,2', end=9)])
    """

    def __init__(self, offset: int = 0, longest: int = MAX_LINE_BYTES) -> None:
        """Start at an offset of the stream."""
        self._rest = bytearray()
        self._read, self._longest = offset, longest
        self._too_long = False

    def feed(self, chunk: bytes) -> Iterator[Line]:
        """Return the lines that this chunk completes."""
        *complete, rest = chunk.split(b"\n")  # a carriage return alone ends no line
        for part in (*(line + b"\n" for line in complete), rest):
            self._read += len(part)
            if self._too_long or len(self._rest) + len(part) > self._longest + 2:
                self._too_long = True
                self._rest.clear()
            else:
                self._rest += part
            if part.endswith(b"\n"):
                yield self.rest()

    def rest(self) -> Line:
        """Return what there is of the unfinished line, as if it were complete."""
        text = None if self._too_long else bytes(self._rest).rstrip(b"\r\n")
        self._rest.clear()
        self._too_long = False
        return Line(text, self._read)


class RowReader:
    """Parses lines; those that are no rows are counted in `skipped` and logged once a minute."""

    def __init__(
        self, form: RowFormat, encoding: str = "utf-8", clock: Callable[[], float] = monotonic
    ) -> None:
        """Read lines of this form."""
        self.form, self._encoding = form, encoding
        self.skipped, self.why_skipped = 0, ""
        self._has_read = False
        self._clock, self._quiet_until = clock, -1e300

    def row(self, line: bytes | None) -> Row | None:
        """Return the row in a line, or None."""
        try:
            if line is None:
                raise BadRow("the line is too long")
            if b"\0" in line and is_utf16(line):
                if not self._has_read:  # a later file must not end the agent
                    raise SettingError(UTF16_WORDS)
                raise BadRow(UTF16_WORDS)
            row = self.form.row(line.decode(self._encoding))
            self._has_read = self._has_read or row is not None
            return row
        except BadRow as error:
            self.skip(str(error))
        except UnicodeDecodeError:
            self.skip(f'bytes that are not {self._encoding}: set source.encoding = "cp1252"')
        return None

    def skip(self, why: str) -> None:
        """Count a line that is no row; log it unless one was logged within the last minute."""
        self.why_skipped = why
        self.skipped += 1
        now = self._clock()
        if now >= self._quiet_until:
            self._quiet_until = now + LOG_INTERVAL_S
            values = {"why": why, "skipped": self.skipped}
            logger.warning("a row was skipped", extra={"values": values})
