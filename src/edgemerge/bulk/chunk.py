"""Chunks: the stretches of files that one worker sums up; how files are cut and read."""

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
    """Which part of which file, `start` up to `stop`; small enough to be sent about.

    Lines of a CSV belong to the chunk in which they begin. `bytes` says how large it is, for
    showing how far the work has come. Without `columns` all are read, or those that the
    projection names.

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
        """Name it for people."""
        return f"{self.path}, {self.unit} {self.start:,} to {self.stop:,}"


def column_indices(
    header: Sequence[str], width: int, columns: Sequence[str], expected: Sequence[str]
) -> list[int]:
    """Give the places of `columns`, by name or by number from 1, in a table of `width` columns.

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
    """Say whether a first line holds names: a line without a single number does."""
    return not any(is_number(cell) for cell in cells)


def is_number(cell: str) -> bool:
    """Say whether a cell can be read as a number."""
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
    """Give the samples of a chunk, (k, n) at a time; a value that is missing is NaN."""
    kind = format_of(chunk.path)
    return iter(kind.read(chunk, projection.names or ()))


def format_of(path: str) -> ModuleType:
    """Give the module that reads such a file; one that needs a package is imported only here."""
    name = FORMATS.get(PurePath(path).suffix.lower())
    if name is None:
        raise SampleError(f"found {path}, expected a file of samples: {', '.join(FORMATS)}")
    return import_module(f"edgemerge.bulk.{name}")


def finite_rows(X: NDArray[Any]) -> NDArray[Any]:
    """Give the rows that have a number everywhere."""
    good = np.isfinite(X).all(1)
    return X if good.all() else X[good]


CHUNK_BYTES = 2**26

Paths = str | PathLike[str] | Iterable[str | PathLike[str]]


def chunks_of(
    paths: Paths, *, columns: Sequence[str] = (), chunk_bytes: int = CHUNK_BYTES
) -> list[Chunk]:
    """Cut files into chunks of about `chunk_bytes`; patterns and folders stand for their files.

    A file that is named twice counts once. `columns` are names or numbers from 1.
    """
    if chunk_bytes < 1:
        raise SettingError(f"found chunk_bytes={chunk_bytes}, expected at least 1")
    return [
        replace(chunk, columns=tuple(columns))
        for path in list_files(paths)
        for chunk in _cut_file(path, chunk_bytes)
    ]


def list_files(paths: Paths) -> list[str]:
    """Give the files that paths, patterns and folders stand for, each once, from the root."""
    given = [paths] if isinstance(paths, str | PathLike) else paths
    found = (path for each in given for path in _matching_files(fspath(each)))
    return list({realpath(path): str(Path(path).absolute()) for path in found}.values())


def _matching_files(given: str) -> Iterator[str]:
    there = [given] if Path(given).exists() else glob(given, recursive=True)  # noqa: PTH207  # keeps the path as it was given
    found = sorted(path for each in there for path in _files_inside(Path(each)))
    if not found:
        raise SampleError(f"found no file {given}, expected samples: {', '.join(FORMATS)}")
    yield from found


def _files_inside(path: Path) -> Iterator[str]:
    """Give a file itself, and of a folder all that hold samples, in folders below it too."""
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
