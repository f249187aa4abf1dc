"""Samples of a node's own, summed up a chunk at a time: a function's, or a file's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgemerge.agent.sources.rows import BadRow, CsvRows
from edgemerge.core.errors import SampleError
from edgemerge.core.projection import Projection
from edgemerge.core.stats import Stats

Array = NDArray[np.float64]
Samples = Callable[[int, int], ArrayLike]  # of a partition, and of how many

CHUNK = 2**22  # numbers that are in memory at a time


def stats_in(path: Path, projection: Projection) -> Stats:
    """Sum up the samples in an .npy or .csv file; the same bits, whatever its size."""
    if path.suffix not in (".npy", ".csv"):
        raise SampleError(f"found {path}, expected samples in an .npy or .csv file")
    chunks = _npy(path) if path.suffix == ".npy" else _csv(path, projection)
    try:
        return Stats.total(projection, (Stats.of(projection, chunk) for chunk in chunks))
    except SampleError as error:
        raise SampleError(f"{path}: {error}") from error
    except UnicodeDecodeError as error:
        raise SampleError(f"{path}: found no text in UTF-8 ({error.reason})") from error


def _npy(path: Path) -> Iterator[ArrayLike]:
    try:
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise SampleError(f"found no array: {error}") from error
    if rows.ndim != 2:
        raise SampleError(f"found an array of shape {rows.shape}, expected samples (k, n)")
    step = max(1, CHUNK // max(1, rows.shape[1]))
    return (rows[i : i + step] for i in range(0, len(rows), step))


def _csv(path: Path, projection: Projection) -> Iterator[ArrayLike]:
    reader = CsvRows(projection.names or (), width=projection.n_inputs)
    with path.open(encoding="utf-8") as lines:
        rows = _rows(reader, lines)
        while chunk := list(islice(rows, max(1, CHUNK // projection.n_inputs))):
            yield np.array(chunk)


def _rows(reader: CsvRows, lines: Iterable[str]) -> Iterator[Array]:
    for number, line in enumerate(lines, 1):
        try:
            row = reader.row(line)
        except BadRow as error:
            raise SampleError(f"line {number}: {error}: drop such lines first") from error
        if row is not None:
            yield row.values
