""".npy chunks: rows of a 2-D array, never loaded as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgemerge.bulk.chunk import Chunk, column_indices
from edgemerge.core.errors import SampleError

Array = NDArray[np.float64]

BATCH_VALUES = 2**19  # in memory at a time


def cut(path: str, chunk_bytes: int) -> Iterator[Chunk]:
    """Split a file into ranges of rows."""
    rows = _open(path)
    size = max(1, rows.shape[1] * rows.itemsize)
    step = max(1, chunk_bytes // size)
    for start in range(0, len(rows), step):
        stop = min(start + step, len(rows))
        yield Chunk(path=path, unit="rows", start=start, stop=stop, bytes=(stop - start) * size)


def read(chunk: Chunk, _expected: Sequence[str]) -> Iterator[Array]:
    """Yield the rows of a chunk in batches."""
    rows = _open(chunk.path)
    if len(rows) < chunk.stop:
        raise SampleError(f"found {len(rows)} rows: do not change files while they are read")
    places = column_indices((), rows.shape[1], chunk.columns, ())
    step = max(1, BATCH_VALUES // max(1, rows.shape[1]))
    for start in range(chunk.start, chunk.stop, step):
        part = rows[start : min(start + step, chunk.stop)]
        yield np.asarray(part[:, places] if chunk.columns else part, dtype=np.float64)


def _open(path: str) -> NDArray[Any]:
    try:
        rows: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (EOFError, ValueError) as error:
        raise SampleError(f"found no array in it: {error}") from error
    if not isinstance(rows, np.ndarray):
        raise SampleError("found several arrays in it, expected one: write .npy, not .npz")
    if rows.ndim != 2 or rows.dtype.kind not in "fiub":
        raise SampleError(
            f"found an array of {rows.dtype} and shape {rows.shape}, expected numbers of (k, n)"
        )
    return rows
