"""Cuts files into chunks, without reading their samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from glob import glob
from os import PathLike, fspath
from os.path import realpath
from pathlib import Path

from edgemerge.bulk.chunk import Chunk
from edgemerge.bulk.reading import KINDS, kind_of
from edgemerge.core.errors import SampleError, SettingError

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
        for path in files_of(paths)
        for chunk in _cut(path, chunk_bytes)
    ]


def files_of(paths: Paths) -> list[str]:
    """Give the files that paths, patterns and folders stand for, each once, from the root."""
    given = [paths] if isinstance(paths, str | PathLike) else paths
    found = (path for each in given for path in _files(fspath(each)))
    return list({realpath(path): str(Path(path).absolute()) for path in found}.values())


def _files(given: str) -> Iterator[str]:
    there = [given] if Path(given).exists() else glob(given, recursive=True)  # noqa: PTH207  # keeps the path as it was given
    found = sorted(path for each in there for path in _inside(Path(each)))
    if not found:
        raise SampleError(f"found no file {given}, expected samples: {', '.join(KINDS)}")
    yield from found


def _inside(path: Path) -> Iterator[str]:
    """Give a file itself, and of a folder all that hold samples, in folders below it too."""
    if not path.is_dir():
        yield str(path)
        return
    for each in path.rglob("*"):
        hidden = any(part.startswith((".", "_")) for part in each.relative_to(path).parts)
        if each.suffix.lower() in KINDS and each.is_file() and not hidden:
            yield str(each)


def _cut(path: str, chunk_bytes: int) -> Iterator[Chunk]:
    try:
        yield from kind_of(path).cut(path, chunk_bytes)
    except SampleError as error:
        raise SampleError(f"{path}: {error}") from error
