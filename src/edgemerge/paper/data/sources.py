"""Files in a folder or in a zip archive, read alike: whole, size-limited, and never unpacked."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Protocol
from zipfile import BadZipFile, ZipFile

from edgemerge.paper.data.errors import DamagedDataError

BROKEN = (BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError, ValueError)


class Source(Protocol):
    """Something that holds files with names like `train/X_train.txt`."""

    @property
    def where(self) -> Path:
        """The folder, or the archive."""

    def names(self) -> list[str]:
        """List what is there, at any depth, in the order of the names."""

    def read(self, name: str, *, most: int) -> bytes:
        """Read one file that has at most so many bytes."""


class OnDisk:
    """The files below a folder."""

    def __init__(self, where: Path) -> None:
        """Remember the folder."""
        self.where = where

    def names(self) -> list[str]:
        """List files and folders."""
        return sorted(path.relative_to(self.where).as_posix() for path in self.where.rglob("*"))

    def read(self, name: str, *, most: int) -> bytes:
        """Read one file."""
        return read(self.where / name, most=most)


class Zipped:
    """The files of an archive; `inner` is the content of an archive that lies in `where`."""

    def __init__(self, where: Path, inner: bytes | None = None) -> None:
        """Remember the archive."""
        self.where = where
        self._inner = inner

    def names(self) -> list[str]:
        """List the entries, but not the shadows that macOS adds."""
        with self._open() as archive:
            return sorted(one for one in archive.namelist() if not one.startswith("__MACOSX/"))

    def read(self, name: str, *, most: int) -> bytes:
        """Read one entry, having looked at its size first."""
        with self._open() as archive:
            size = archive.getinfo(name).file_size
            _must_be_small(self.where, name, size, most)
            return archive.read(name)

    @contextmanager
    def _open(self) -> Iterator[ZipFile]:
        try:
            with ZipFile(self.where if self._inner is None else BytesIO(self._inner)) as archive:
                yield archive
        except DamagedDataError:
            raise
        except BROKEN as error:
            raise DamagedDataError(
                f"{self.where} is no whole zip archive ({error})",
                "delete it and fetch it again",
                self.where,
            ) from error


def read(path: Path, *, most: int) -> bytes:
    """Read a file that has at most so many bytes."""
    _must_be_small(path, "", path.stat().st_size, most)
    return path.read_bytes()


def _must_be_small(path: Path, part: str, size: int, most: int) -> None:
    if size > most:
        what = f"{part} in {path}" if part else f"{path}"
        raise DamagedDataError(
            f"{what} is not the published file: found {size} bytes, expected at most {most}",
            "delete it and fetch it again",
            path,
        )
