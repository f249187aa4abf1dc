"""Parquet chunks: runs of row groups, read some rows at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import csv

from edgemerge.bulk.chunk import Chunk, column_indices
from edgemerge.core.errors import SampleError

Array = NDArray[np.float64]

BATCH_VALUES = 2**20  # in memory at a time, twice over
CSV_ROWS = 10_000  # in memory at a time
BUFFER_BYTES = 2**16  # read ahead per column
NUMERIC = (
    *(pa.types.is_floating, pa.types.is_integer, pa.types.is_decimal, pa.types.is_boolean),
    pa.types.is_null,
)
PANDAS_INDEX = re.compile(r"__index_level_\d+__")  # what pandas adds


def cut(path: str, chunk_bytes: int) -> Iterator[Chunk]:
    """Split a file into ranges of row groups; a row group is never split."""
    with _open(path) as file:
        sizes = [file.metadata.row_group(i).total_byte_size for i in range(file.num_row_groups)]
    start, held = 0, 0
    for i, size in enumerate(sizes):
        if held and held + size > chunk_bytes:
            yield Chunk(path=path, unit="row groups", start=start, stop=i, bytes=held)
            start, held = i, 0
        held += size
    if start < len(sizes):
        yield Chunk(path=path, unit="row groups", start=start, stop=len(sizes), bytes=held)


def read(chunk: Chunk, expected: Sequence[str]) -> Iterator[Array]:
    """Yield the rows of a chunk in batches; a null is NaN."""
    with _open(chunk.path) as file, _arrow_errors():
        names = _names(file.schema_arrow, chunk.columns, expected)
        batches = file.iter_batches(
            batch_size=max(1, BATCH_VALUES // max(1, len(names))),
            row_groups=range(chunk.start, chunk.stop),
            columns=names,
            use_threads=False,
        )
        for batch in batches:
            yield _array(batch, names)


def write_csv(
    path: str, target: BinaryIO, most: int | None = None, *, header: bool = True
) -> tuple[int, int]:
    """Write rows as CSV, times as ISO 8601; return how many, and how many the file has.

    Columns of lists, structures and bytes are left out, and so is the index that pandas adds.

    Args:
        path: The Parquet file.
        target: Where to write.
        most: The first rows only, so many; None writes all.
        header: Whether the first line has the names.
    """
    with _open(path) as file, _arrow_errors():
        fields = [each for each in file.schema_arrow if _fits_csv(each)]
        if not fields:
            raise SampleError("found no column of numbers, text or times, expected one")
        kinds = [pa.int8() if pa.types.is_boolean(each.type) else each.type for each in fields]
        schema = pa.schema([(each.name, kind) for each, kind in zip(fields, kinds, strict=True)])
        options = csv.WriteOptions(include_header=header, quoting_style="needed")
        rows, total = 0, file.metadata.num_rows
        with csv.CSVWriter(target, schema, write_options=options) as writer:
            names = [each.name for each in fields]
            for batch in file.iter_batches(CSV_ROWS, columns=names, use_threads=False):
                part = batch.slice(0, None if most is None else most - rows)
                writer.write(pa.Table.from_batches([part]).select(names).cast(schema))
                rows += len(part)
                if rows == most:
                    break
    return rows, total


def _fits_csv(field: pa.Field) -> bool:
    odd = pa.types.is_nested(field.type) or pa.types.is_binary(field.type)
    return not odd and not PANDAS_INDEX.fullmatch(field.name)


def _open(path: str) -> pq.ParquetFile:
    with _arrow_errors():
        return pq.ParquetFile(
            path,
            pre_buffer=False,  # it would hold whole row groups
            buffer_size=BUFFER_BYTES,
            page_checksum_verification=True,  # if there are checksums
        )


@contextmanager
def _arrow_errors() -> Iterator[None]:
    """Turn errors of Arrow into SampleError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        words = f"found no Parquet that can be read ({error}): copy it again, or leave it out"
        raise SampleError(words) from error


def _names(schema: pa.Schema, columns: Sequence[str], expected: Sequence[str]) -> list[str]:
    known = [name for name in schema.names if not PANDAS_INDEX.fullmatch(name)]
    if len(set(known)) < len(known):
        raise SampleError("found several columns with one name, expected different names")
    names = [known[i] for i in column_indices(known, len(known), columns, expected)]
    for name in names:
        kind = schema.field(name).type
        if not any(is_kind(kind) for is_kind in NUMERIC):
            raise SampleError(f"column {name!r}: found {kind}, expected numbers: choose columns")
    return names


def _array(batch: pa.RecordBatch, names: Sequence[str]) -> Array:
    numbers = batch.select(names)
    if any(not _is_machine_number(kind) for kind in numbers.schema.types):
        columns = [_as_floats(column) for column in numbers.columns]
        numbers = pa.RecordBatch.from_arrays(columns, names)
    return np.asarray(numbers.to_tensor(null_to_nan=True).to_numpy(), np.float64)


def _is_machine_number(kind: pa.DataType) -> bool:
    half = pa.types.is_float16(kind)  # Arrow does not mix it with integers
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind)) and not half


def _as_floats(column: pa.Array) -> pa.Array:
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    return column.cast(pa.float64(), safe=False)
