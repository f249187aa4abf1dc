"""Chunks: the parts of files that one worker sums up; how files are split and read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from glob import glob
from importlib import import_module
from os import PathLike, fspath
from os.path import realpath
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.errors import SampleError, SettingError
from edgemerge.core.projection import Projection

Unit = Literal["bytes", "rows", "row groups"]


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A part of a file, small enough to send to a worker; `chunks_of` makes them.

    Args:
        path: The file.
        unit: What `start` and `stop` count: "bytes", "rows" or "row groups". A CSV line belongs to
            the chunk in which it begins.
        start: Where the chunk starts.
        stop: Where it ends, exclusive.
        bytes: Its size in bytes, to show progress.
        columns: The columns to read, by name or by number from 1; none (the default) reads those
            that the projection names, else all.

    >>> print(Chunk(path="pump.npy", unit="rows", start=0, stop=5000, bytes=40000))
    pump.npy, rows 0 to 5,000
    """

    path: str
    unit: Unit
    start: int
    stop: int
    bytes: int
    columns: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return file and range, for messages."""
        return f"{self.path}, {self.unit} {self.start:,} to {self.stop:,}"


def column_indices(
    header: Sequence[str], width: int, columns: Sequence[str], expected: Sequence[str]
) -> list[int]:
    """Return the indices of `columns`, by name or by number from 1, in a table of `width` columns.

    Without `columns`, those `expected` by name if the header has any of them, else every one. The
    header is empty where columns have no names.
    """
    names = [name.strip() for name in header]
    if not columns and not set(expected) & set(names):
        return list(range(width))
    places = {name: i for i, name in enumerate(names)}
    if columns:
        places = {str(i + 1): i for i in range(width)} | places
    for name in columns or expected:
        if name not in places:
            known = ", ".join(header) or f"1 to {width}"
            raise SampleError(f"found no column {name!r}, expected one of: {known}")
        if names.count(name) > 1:
            raise SampleError(f"found several columns {name!r}, expected one")
    return [places[name] for name in columns or expected]


def is_header(cells: Sequence[str]) -> bool:
    """Return whether a first line is a header: it has no cell that is a number."""
    return not any(is_number(cell) for cell in cells)


def is_number(cell: str) -> bool:
    """Return whether a cell can be parsed as a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


Array = NDArray[np.float64]

FORMATS = {
    ".csv": "csv_file",
    ".npy": "npy_file",
    ".parquet": "parquet_file",
    ".pq": "parquet_file",
}


def read_chunk(chunk: Chunk, projection: Projection) -> Iterator[Array]:
    """Yield the samples of a chunk in batches (k, n); missing values are NaN."""
    kind = format_of(chunk.path)
    return iter(kind.read(chunk, projection.names or ()))


def format_of(path: str) -> ModuleType:
    """Import the module that reads such a file; its packages are optional."""
    name = FORMATS.get(PurePath(path).suffix.lower())
    if name is None:
        raise SampleError(f"found {path}, expected a file of samples: {', '.join(FORMATS)}")
    return import_module(f"edgemerge.bulk.{name}")


def finite_rows(X: NDArray[Any]) -> NDArray[Any]:
    """Return the rows without missing or infinite values."""
    good = np.isfinite(X).all(1)
    return X if good.all() else X[good]


CHUNK_BYTES = 2**26

Paths = str | PathLike[str] | Iterable[str | PathLike[str]]


def chunks_of(
    paths: Paths, *, columns: Sequence[str] = (), chunk_bytes: int = CHUNK_BYTES
) -> list[Chunk]:
    """Split files into chunks.

    Args:
        paths: Files, folders or glob patterns, one or several; a file named twice counts once.
        columns: The columns to read, by name or by number from 1; none (the default) reads those
            that the projection names, else all.
        chunk_bytes: The size of a chunk in bytes, about; 64 MiB by default. Lower it if workers
            run out of memory.

    Raises:
        SampleError: A file is missing or has another format.
    """
    if chunk_bytes < 1:
        raise SettingError(f"found chunk_bytes={chunk_bytes}, expected at least 1")
    return [
        replace(chunk, columns=tuple(columns))
        for path in list_files(paths)
        for chunk in _cut_file(path, chunk_bytes)
    ]


def list_files(paths: Paths) -> list[str]:
    """Return the files that paths, patterns and folders name: each once, absolute."""
    given = [paths] if isinstance(paths, str | PathLike) else paths
    found = (path for each in given for path in _matching_files(fspath(each)))
    return list({realpath(path): str(Path(path).absolute()) for path in found}.values())


def _matching_files(given: str) -> Iterator[str]:
    there = [given] if Path(given).exists() else glob(given, recursive=True)  # noqa: PTH207  # keeps the path as it was given
    found = sorted(path for each in there for path in _files_inside(Path(each)))
    if not found:
        words = f"found no file {given}, expected samples: {', '.join(FORMATS)}"
        raise SampleError(words) from FileNotFoundError(given)
    yield from found


def _files_inside(path: Path) -> Iterator[str]:
    """Return a file itself, or all sample files below a folder."""
    if not path.is_dir():
        yield str(path)
        return
    for each in path.rglob("*"):
        hidden = any(part.startswith((".", "_")) for part in each.relative_to(path).parts)
        if each.suffix.lower() in FORMATS and each.is_file() and not hidden:
            yield str(each)


def _cut_file(path: str, chunk_bytes: int) -> Iterator[Chunk]:
    try:
        yield from format_of(path).cut(path, chunk_bytes)
    except SampleError as error:
        raise SampleError(f"{path}: {error}") from error
