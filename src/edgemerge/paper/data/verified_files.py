"""Files of a data set, in a folder or a zip archive: size limits, published digests, addresses.

A digest is written as its kind, a colon and hexadecimal digits. The kind `git` is the name that git
gives to a file's content: for some files no other was published.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Protocol
from zipfile import BadZipFile, ZipFile

from edgemerge.paper.data.catalog import DamagedDataError, fetch_advice


@dataclass(frozen=True)
class Manifest:
    """The digest of each file, and the addresses from which it may be downloaded."""

    digests: Mapping[str, str]
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class VerifiedFiles:
    """Verified files: where they were, and the bytes of each."""

    where: Path
    files: Mapping[str, bytes]

    def __repr__(self) -> str:
        """Show the place, not the bytes."""
        return f"VerifiedFiles({len(self.files)} files in {self.where})"

    def content_error(self, found: str, expected: str, name: str) -> DamagedDataError:
        """Return the error for content that is not that of the data set `name`."""
        return DamagedDataError(
            f"{self.where}: found {found}, expected {expected}",
            f"delete it and {fetch_advice(name)}",
            self.where,
        )


@dataclass(frozen=True)
class RemoteFile:
    """A file to download: addresses in the order to try, its maximum size, and a check.

    The file's name is the end of its address, so only equal files may have equal names.
    """

    addresses: tuple[str, ...]
    most: int
    check: Callable[[Path], None]


ZIP_ERRORS = (
    BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    OSError,
    ValueError,
)


class Source(Protocol):
    """Something that holds files with names like `train/X_train.txt`."""

    @property
    def where(self) -> Path:
        """The folder, or the archive."""

    def names(self) -> list[str]:
        """List all files, at any depth, in the order of their names."""

    def read(self, name: str, *, most: int) -> bytes:
        """Read one file of at most `most` bytes."""


@dataclass(frozen=True)
class FolderSource:
    """The files below a folder."""

    where: Path

    def names(self) -> list[str]:
        """List files and folders."""
        return sorted(path.relative_to(self.where).as_posix() for path in self.where.rglob("*"))

    def read(self, name: str, *, most: int) -> bytes:
        """Read one file."""
        return read_limited(self.where / name, most=most)


@dataclass(frozen=True)
class ZipSource:
    """The files of an archive; `inner` is the content of an archive that lies in `where`."""

    where: Path
    inner: bytes | None = None

    def names(self) -> list[str]:
        """List the entries, without the metadata that macOS adds."""
        with self._open() as archive:
            return sorted(one for one in archive.namelist() if not one.startswith("__MACOSX/"))

    def read(self, name: str, *, most: int) -> bytes:
        """Read one entry; check its size first."""
        with self._open() as archive:
            _check_size(self.where, name, archive.getinfo(name).file_size, most)
            return archive.read(name)

    @contextmanager
    def _open(self) -> Iterator[ZipFile]:
        try:
            with ZipFile(self.where if self.inner is None else BytesIO(self.inner)) as archive:
                yield archive
        except DamagedDataError:
            raise
        except ZIP_ERRORS as error:
            raise DamagedDataError(
                f"{self.where} is no whole zip archive ({error})",
                "delete it and fetch it again",
                self.where,
            ) from error


def read_limited(path: Path, *, most: int) -> bytes:
    """Read a file of at most `most` bytes."""
    _check_size(path, "", path.stat().st_size, most)
    return path.read_bytes()


def _check_size(path: Path, part: str, size: int, most: int) -> None:
    if size > most:
        what = f"{part} in {path}" if part else f"{path}"
        raise DamagedDataError(
            f"{what} is not the published file: found {size} bytes, expected at most {most}",
            "delete it and fetch it again",
            path,
        )


SHOWN_DIGITS = 12  # of a digest, in messages


def sha256_digests(table: str) -> dict[str, str]:
    """Read a table as `sha256sum` prints it.

    >>> sha256_digests("e3b0c442  empty.txt")
    {'empty.txt': 'sha256:e3b0c442'}
    """
    lines = (line.split() for line in table.strip().splitlines())
    return {name: f"sha256:{digits}" for digits, name in lines}


def digest(data: bytes, kind: str) -> str:
    """Return the digest of some bytes.

    >>> digest(b"", "sha256")[:19]
    'sha256:e3b0c44298fc'
    >>> digest(b"", "git")
    'git:e69de29bb2d1d6434b8b29ae775ad8c2e48c5391'
    """
    if kind == "git":
        header = f"blob {len(data)}\0".encode()
        return f"git:{hashlib.sha1(header + data, usedforsecurity=False).hexdigest()}"
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def verify_digest(data: bytes, expected: str, *, path: Path, part: str, name: str) -> None:
    """Refuse bytes with another digest; `part` is the name inside an archive, or empty."""
    kind = expected.partition(":")[0]
    found = digest(data, kind)
    if found == expected:
        return
    width = len(kind) + 1 + SHOWN_DIGITS
    what = f"{part} in {path}" if part else f"{path}"
    raise DamagedDataError(
        f"{what} is damaged or not the published file: found {len(data)} bytes with "
        f"{found[:width]}…, expected {expected[:width]}…",
        f"delete {path} and {fetch_advice(name)}",
        path,
    )
