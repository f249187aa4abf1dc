"""Text rows as readings: lines of bounded length, parsed as CSV or JSON.

A row that cannot be parsed raises `BadRow` with the reason; `RowReader` skips, counts and logs it.
The commands on files have another reader (`cli/samples.py`), since its rules differ: there a bad
row is an error, a header is a line without any number, and a batch of rows is parsed at once.
"""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from math import isfinite
from time import monotonic
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Column = int | str


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


class CsvRows:
    """Fields with a delimiter between them; the first line may name the columns.

    Without `header`, a first line with a chosen field that is no number is taken for one. A file
    that begins without names has those of the file before, if it has as many columns.
    """

    def __init__(
        self,
        columns: Sequence[Column] = (),
        *,
        time: Column | None = None,
        header: bool | None = None,
        delimiter: str = ",",
        width: int | None = None,
    ) -> None:
        """Choose columns by name or number; without any, all but the time."""
        self.header: tuple[str, ...] | None = None
        self._columns, self._time, self._has_header = tuple(columns), time, header
        self._delimiter, self._width = delimiter, width
        self._first = True

    def begin(self) -> None:
        """Expect the first line of a file."""
        self._first = True

    def resume(self, header: tuple[str, ...] | None) -> None:
        """Expect a later line of a file with this header."""
        self.header, self._first = header, False

    def row(self, line: str) -> Row | None:
        """Read a line; None if it is empty or a header."""
        line = line.removeprefix("\ufeff") if self._first else line
        if not line.strip():
            return None
        try:
            found = [field.strip() for field in next(csv.reader([line], delimiter=self._delimiter))]
        except csv.Error as error:
            raise BadRow(str(error)) from error
        first, self._first = self._first, False
        if first and self._is_header(found):
            self.header = tuple(found)
            return None
        return self._read(found)

    def _is_header(self, found: list[str]) -> bool:
        if self._has_header is not None:
            return self._has_header
        if self.header is not None and tuple(found) == self.header:
            return True
        numbers = [column_number(each) for each in self._columns]
        chosen = [each for each in numbers if each is not None]
        time = None if self._time is None else column_number(self._time)
        chosen = chosen or [i for i in range(len(found)) if i != time]
        looked = [found[i] for i in chosen if -len(found) <= i < len(found)]
        return any(_number_or_none(field) is None for field in looked)

    def _read(self, found: list[str]) -> Row:
        if self.header is not None and len(found) != len(self.header):
            raise BadRow(f"{len(found)} fields instead of {len(self.header)}")
        time = None if self._time is None else self._at(self._time, len(found))
        at = None if time is None else _parse_time(found[time])
        columns = [self._at(each, len(found)) for each in self._columns]
        columns = columns or [i for i in range(len(found)) if i != time]
        names = None if self.header is None else tuple(self.header[i] for i in columns)
        values = _parse_values([found[i] for i in columns], len(self._columns) or self._width)
        return Row(values, at, names)

    def _at(self, column: Column, count: int) -> int:
        if self.header is not None and column in self.header:
            return self.header.index(str(column))
        number = column_number(column)
        if number is None:
            raise BadRow(f"there is no column {column!r}")
        if not -count <= number < count:
            raise BadRow(f"there is no column {column} among {count}")
        return number % count


class JsonRows:
    """One JSON object or array to a line; columns are keys, or numbers of items."""

    def __init__(
        self,
        columns: Sequence[Column] = (),
        *,
        time: Column | None = None,
        width: int | None = None,
    ) -> None:
        """Choose columns; without any, all but the time: for objects, those of the first one."""
        self.header: tuple[str, ...] | None = None
        self._columns, self._time, self._width = tuple(columns), time, width

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
        at = None if self._time is None else _parse_time(_field(found, self._time))
        chosen = self._chosen(found)
        values = [_field(found, each) for each in chosen]
        names = tuple(map(str, chosen)) if isinstance(found, dict) else None
        row = Row(_parse_values(values, len(self._columns) or self._width), at, names)
        if isinstance(found, dict) and self.header is None and not self._columns:
            self.header = tuple(found)  # only from a valid row
        return row

    def _chosen(self, found: dict[str, Any] | list[Any]) -> Sequence[Column]:
        if self._columns:
            return self._columns
        if isinstance(found, dict):
            return [key for key in self.header or tuple(found) if key != self._time]
        time = None if self._time is None else column_number(self._time)
        return [i for i in range(len(found)) if i != time]


class PayloadRows:
    """JSON if a payload begins like it, else CSV without a header."""

    def __init__(
        self,
        columns: Sequence[Column] = (),
        *,
        time: Column | None = None,
        width: int | None = None,
    ) -> None:
        """Choose columns by key or number; without any, all but the time."""
        self.header: tuple[str, ...] | None = None
        self._json = JsonRows(columns, time=time, width=width)
        self._csv = CsvRows(columns, time=time, width=width, header=False)

    def begin(self) -> None:
        """Do nothing: messages have no order."""

    def resume(self, header: tuple[str, ...] | None) -> None:
        """Do nothing: messages have no order."""

    def row(self, line: str) -> Row | None:
        """Parse a payload; None if it is empty."""
        return self._json.row(line) if line.lstrip()[:1] in ("{", "[") else self._csv.row(line)


def _field(found: Any, column: Column) -> Any:
    try:
        return found[column if isinstance(found, dict) else column_number(column)]
    except (KeyError, IndexError, TypeError) as error:
        raise BadRow(f"there is no column {column!r}") from error


def _parse_values(found: Sequence[Any], width: int | None) -> Array:
    if width is not None and len(found) != width:
        raise BadRow(f"{len(found)} values instead of {width}")
    if not found:
        raise BadRow("no values")
    return np.array([_parse_number(each) for each in found], dtype=np.float64)


def _parse_number(found: Any) -> float:
    value = _number_or_none(found)
    if value is None or not isfinite(value):
        raise BadRow(f"{str(found)[:40]!r} is no finite number")
    return value


def _number_or_none(found: Any) -> float | None:
    if isinstance(found, bool) or not isinstance(found, str | int | float):
        return None
    try:
        return float(found)
    except (ValueError, OverflowError):
        return None


def _parse_time(found: Any) -> float:
    """Parse unix seconds or ISO 8601; without a zone it is UTC.

    >>> [_parse_time(t) for t in ("1970-01-01T00:01:00Z", "60", "1970-01-01 01:01+01:00")]
    [60.0, 60.0, 60.0]
    """
    value = _number_or_none(found)
    if value is not None and isfinite(value):
        return value
    try:
        moment = datetime.fromisoformat(str(found))
    except ValueError as error:
        raise BadRow(f"{str(found)[:40]!r} is no time") from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


MAX_LINE_BYTES = 65536
LOG_INTERVAL_S = 60.0

logger = logging.getLogger(__name__)


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

    def __init__(self, form: RowFormat, clock: Callable[[], float] = monotonic) -> None:
        """Read lines of this form."""
        self.form = form
        self.skipped = 0
        self._clock, self._quiet_until = clock, -1e300

    def row(self, line: bytes | None) -> Row | None:
        """Return the row in a line, or None."""
        try:
            if line is None:
                raise BadRow("the line is too long")
            return self.form.row(line.decode())
        except BadRow as error:
            self.skip(str(error))
        except UnicodeDecodeError:
            self.skip("not UTF-8")
        return None

    def skip(self, why: str) -> None:
        """Count a line that is no row; log it unless one was logged within the last minute."""
        self.skipped += 1
        now = self._clock()
        if now >= self._quiet_until:
            self._quiet_until = now + LOG_INTERVAL_S
            values = {"why": why, "skipped": self.skipped}
            logger.warning("a row was skipped", extra={"values": values})
