"""Read samples from CSV in batches as they arrive, from a file or standard input."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from math import isfinite
from pathlib import Path
from shlex import quote
from typing import IO, Any

import click

from edgemerge.cli.output import progress
from edgemerge.core.errors import SampleError, SettingError

READ_BYTES = 65_536  # at most per read
MAX_LINE_BYTES = 2**20  # as in `edgemerge.bulk.csv_file`, which needs pyarrow
# Loggers and Windows programs write other tables, with other encodings, times and empty cells.
INIT_ADVICE = (
    "`edgemerge init` writes a configuration that reads it, for `edgemerge agent` and `replay`"
)
UTF8_BOM = b"\xef\xbb\xbf"  # some programs write it at the start of a file

CSV_PATH = click.Path(dir_okay=False, allow_dash=True)


def split_commas(_ctx: click.Context, _option: click.Parameter, value: str | None) -> list[str]:
    """Split an option at its commas."""
    return [part.strip() for part in value.split(",")] if value else []


columns_option = click.option(
    "--columns",
    metavar="A,B,...",
    callback=split_commas,
    help="Columns to use, by name or by number from 1. Default: all.",
)


skip_option = click.option(
    "--skip-bad-rows",
    is_flag=True,
    help="Skip and count rows that are no samples, as an agent does. Default: they are an error.",
)


class CsvReader:
    """Read a CSV stream once, in batches (k, n) of numbers.

    A first line without a single number is the header; where it comes again, it is no row. `names`
    are the names of the used columns. `skipped` rows were no samples, the last because of `why`.

    Args:
        stream: Bytes in UTF-8.
        columns: The columns to use, by name or number from 1. Default: see `expected`.
        expected: The names of the projection's inputs; used if the header has all of them.
            Otherwise all columns are used.
        skip_bad_rows: Whether to skip rows that are no samples. Default: they raise SampleError.
    """

    def __init__(
        self,
        stream: IO[bytes],
        *,
        columns: Sequence[str] = (),
        expected: Sequence[str] = (),
        skip_bad_rows: bool = False,
    ) -> None:
        """Start at the current position of the stream."""
        self._stream, self._columns, self._expected = stream, columns, expected
        self._skips, self.skipped, self.why = skip_bad_rows, 0, ""
        self._header: list[str] = []
        self._used: list[int] | None = None
        self._line = 0
        self.names: list[str] = []
        self.step: Callable[[float], None] = lambda _bytes: None

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches, one array each."""
        from numpy import array

        for lines in complete_lines(self._stream, self.step):
            rows = [row for cells in csv.reader(lines) if (row := self._numbers(cells))]
            if rows:
                yield array(rows)

    def _numbers(self, cells: list[str]) -> list[float]:
        self._line += 1
        if not any(cells):
            return []
        if self._used is None and self._begin(cells):
            return []
        if cells == self._header:
            return []
        try:
            return self._sample(cells)
        except SampleError as error:
            if not self._skips:
                raise
            self.skipped, self.why = self.skipped + 1, str(error)
            return []

    def _sample(self, cells: list[str]) -> list[float]:
        if len(cells) != self._width:
            mark = next((mark for mark in ";\t|" if mark in "".join(cells)), None)
            if mark and self._width == 1:  # the comma is a decimal mark
                raise SampleError(
                    f"line {self._line}: found {mark!r} between the cells, expected CSV with commas"
                    f" there: {INIT_ADVICE}"
                )
            raise SampleError(
                f"line {self._line}: found {len(cells)} columns, expected {self._width} as before"
            )
        return [self._number(cells, i) for i in self._used or ()]

    def _begin(self, cells: list[str]) -> bool:
        """Choose the columns by the first line; return whether it is a header."""
        from edgemerge.bulk.chunk import column_indices, is_header

        self._header = header = cells if is_header(cells) else []
        try:
            self._used = column_indices(header, len(cells), self._columns, self._expected)
        except SampleError as error:  # it is the columns that do not fit, not a sample
            raise SettingError(str(error)) from error
        self.names = [cells[i].strip() if header else str(i + 1) for i in self._used]
        self._width = len(cells)
        return bool(header)

    def _number(self, cells: list[str], i: int) -> float:
        value = _number_or_nan(cells[i])
        if isfinite(value):
            return value
        name = f" (column {self._header[i].strip()})" if self._header and len(cells) > 1 else ""
        raise SampleError(
            f"line {self._line}: found {cells[i][:80]!r}, expected a number{name}: "
            + self._advice(cells, i)
        )

    def _advice(self, cells: list[str], i: int) -> str:
        """Say what to do about a cell that is no number."""
        if not cells[i].strip():
            return (
                "remove such lines, or skip them: `learn` and `score` do with --skip-bad-rows, an "
                "agent and `replay CONFIG.toml` always do"
            )
        numbers = [j for j in self._used or () if isfinite(_number_or_nan(cells[j]))]
        if numbers and self._header:
            names = quote(",".join(self._header[j].strip() for j in numbers))
            return (
                "remove such lines, run `edgemerge init FILE`, whose configuration also reads "
                f"times, or leave that column out: --columns {names}"
            )
        if len(cells) == 1 and (marks := [mark for mark in ";\t|" if mark in cells[0]]):
            return (
                f"this command reads CSV with commas, and the line has {marks[0]!r}; {INIT_ADVICE}"
            )
        return "remove such lines, or choose columns of numbers with --columns"


def _number_or_nan(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return float("nan")


@contextmanager
def open_csv(path: str, words: str | None, **choice: Any) -> Iterator[CsvReader]:
    """Open a CSV file, or standard input for "-", with a progress bar labelled `words`."""
    if path == "-":
        yield CsvReader(sys.stdin.buffer, **choice)
        return
    shown = progress(words, Path(path).stat().st_size) if words else nullcontext(lambda _: None)
    with Path(path).open("rb") as stream, shown as step:
        rows = CsvReader(stream, **choice)
        rows.step = step
        try:
            yield rows
        except (SampleError, SettingError) as error:
            raise type(error)(f"{path}: {error}") from error


def complete_lines(stream: Any, step: Callable[[float], None]) -> Iterator[list[str]]:
    """Yield complete lines as soon as they arrive."""
    rest, data = b"", stream.read1(READ_BYTES).removeprefix(UTF8_BOM)
    while data:
        *whole, rest = (rest + data).split(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            raise SampleError(f"found a line of more than {MAX_LINE_BYTES} bytes, expected CSV")
        if whole:
            yield list(map(_decode_line, whole))
        step(len(data))
        data = stream.read1(READ_BYTES)
    if rest:
        yield [_decode_line(rest)]


def _decode_line(line: bytes) -> str:
    if b"\0" in line:  # UTF-16 without its mark is UTF-8 as well, with zeros
        from edgemerge.files import UTF16_WORDS, is_utf16

        if is_utf16(line):
            raise SampleError(UTF16_WORDS)
    try:
        return line.decode().rstrip("\r")
    except UnicodeDecodeError as error:
        raise SampleError(f"found {line[:40]!r}, expected CSV in UTF-8; {INIT_ADVICE}") from error
