"""CSV chunks: byte ranges; a line belongs to the chunk in which it begins."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow.csv import ConvertOptions, ReadOptions, read_csv

from edgemerge.bulk.chunk import Chunk, column_indices, is_header, is_number
from edgemerge.core.errors import SampleError
from edgemerge.files import UTF16_WORDS, is_utf16

Array = NDArray[np.float64]

BLOCK_BYTES = 2**21  # in memory at a time
MAX_LINE_BYTES = 2**20
EMPTY_LINE = re.compile(rb'^(?:,|"")+\r?$\n?', re.MULTILINE)  # a line without a value
UTF8_BOM = b"\xef\xbb\xbf"  # some programs write it at the start of a file


@dataclass(frozen=True)
class Head:
    """The start of a file: number of columns, used columns, offset of the first sample."""

    width: int
    places: list[int]
    end: int


def cut(path: str, chunk_bytes: int) -> Iterator[Chunk]:
    """Split a file into byte ranges."""
    size = Path(path).stat().st_size
    for start in range(0, size, chunk_bytes):
        stop = min(start + chunk_bytes, size)
        yield Chunk(path=path, unit="bytes", start=start, stop=stop, bytes=stop - start)


def read(chunk: Chunk, expected: Sequence[str]) -> Iterator[Array]:
    """Yield the rows of a chunk in batches; what is not a number is NaN."""
    with Path(chunk.path).open("rb") as file:
        head = _read_head(file, chunk.columns, expected)
        file.seek(_first_line(file, max(chunk.start, head.end), head.end))
        while file.tell() < chunk.stop:
            block = file.read(min(BLOCK_BYTES, chunk.stop - file.tell()))
            if not block:
                raise SampleError("found its end before: do not change files while they are read")
            rest = b"" if block.endswith(b"\n") else _line(file)
            yield from _rows(block + rest, head)


def _read_head(file: IO[bytes], columns: Sequence[str], expected: Sequence[str]) -> Head:
    start = len(UTF8_BOM) if file.read(len(UTF8_BOM)) == UTF8_BOM else 0
    file.seek(start)
    while (line := _line(file)) and not line.strip(b',"\r\n \t'):
        start = file.tell()
    if is_utf16(line):
        raise SampleError(UTF16_WORDS)
    _check_lines(line)
    cells = next(_cells(line), [])
    if len(cells) == 1 and set(cells[0]) & {";", "\t"}:
        raise SampleError(f"found {cells[0][:40]!r}, expected commas between the columns")
    header = cells if is_header(cells) else []
    places = column_indices(header, len(cells), columns, expected)
    return Head(len(cells), places, file.tell() if header else start)


def _first_line(file: IO[bytes], start: int, first: int) -> int:
    """Return where the first line starts that starts at `start` or later."""
    if start == first:
        return start
    file.seek(start - 1)
    _line(file)
    return file.tell()


def _line(file: IO[bytes]) -> bytes:
    line = file.readline(MAX_LINE_BYTES)
    if len(line) == MAX_LINE_BYTES:
        raise SampleError(f"found a line of {MAX_LINE_BYTES} bytes and more, expected CSV")
    return line


def _rows(block: bytes, head: Head) -> Iterator[Array]:
    _check_lines(block)
    if block[:1] in b',"' or b"\n," in block or b'\n""' in block:
        block = EMPTY_LINE.sub(b"", block)  # as spreadsheets write them
    if block.strip(b"\r\n"):
        try:
            yield _parse_with_arrow(block, head)
        except pa.ArrowInvalid:  # some cell is not a number, or some line is too short
            yield _parse_cells(block, head)


def _check_lines(lines: bytes) -> None:
    if b'"' in lines and any(line.count(b'"') % 2 for line in lines.split(b"\n")):
        raise SampleError("found a quote that its line does not close: a sample is one line")
    if b"\r" in lines and lines.count(b"\r") > lines.count(b"\r\n"):
        raise SampleError("found lines that end with \\r alone, expected \\n or \\r\\n: convert it")


def _parse_with_arrow(block: bytes, head: Head) -> Array:
    names = [str(i) for i in range(head.width)]
    used = [names[i] for i in head.places]
    table = read_csv(
        pa.BufferReader(block),
        read_options=ReadOptions(column_names=names, use_threads=False, block_size=len(block)),
        convert_options=ConvertOptions(
            column_types=dict.fromkeys(used, pa.float64()), include_columns=used
        ),
    )
    X = np.empty((table.num_rows, len(used)))
    for i, column in enumerate(table.columns):
        X[:, i] = column.to_numpy()
    return X


def _parse_cells(block: bytes, head: Head) -> Array:
    rows = [_numbers(cells, head) for cells in _cells(block)]
    return np.array(rows).reshape(-1, len(head.places))


def _cells(lines: bytes) -> Iterator[list[str]]:
    text = lines.decode(errors="replace")  # invalid UTF-8 is not a number either
    try:
        yield from filter(any, csv.reader(text.replace("\r\n", "\n").split("\n")))
    except csv.Error as error:
        raise SampleError(f"found no CSV in it: {error}") from error


def _numbers(cells: list[str], head: Head) -> list[float]:
    if len(cells) != head.width:
        return [np.nan] * len(head.places)
    return [float(cells[i]) if is_number(cells[i]) else np.nan for i in head.places]
