"""What lies on disk of an SQLite database: the file itself, its lock and its reserve."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import sqlite3
import sys
from contextlib import closing, suppress
from pathlib import Path

from edgemerge.core.errors import AwayError, SettingError
from edgemerge.files import write
from edgemerge.server.store.database import BrokenError, FullError

PAGE_BYTES = 16384
APPLICATION = int.from_bytes(b"emDB", "big")  # tells our files from those of other programs

log = logging.getLogger(__name__)


class Lock:
    """Held as long as a process uses the database: what it keeps in memory must stay true."""

    def __init__(self, path: Path) -> None:
        """Take it, or say who is in the way; it ends with the process, however that ends."""
        handle = _opened(path.with_name(path.name + ".lock"))
        try:
            _take(handle)
        except (BlockingIOError, PermissionError) as error:
            os.close(handle)
            raise SettingError(
                f"{path} is in use by another server: stop that one first; several servers can "
                "share a PostgreSQL database instead"
            ) from error
        self._handle: int | None = handle

    def release(self) -> None:
        """Let others have it; the file stays, so that nobody locks one that is gone."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _take(handle: int) -> None:
    if sys.platform == "win32":
        import msvcrt  # noqa: PLC0415 - only there

        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl  # noqa: PLC0415 - not there on Windows

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _opened(path: Path) -> int:
    """Open a file that only its owner may read, making it if need be."""
    if not path.parent.is_dir():
        raise SettingError(
            f"the folder {path.parent} is not there: make it, or put the database elsewhere"
        )
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise _plain(error, path) from error


def _plain(error: OSError, path: Path) -> Exception:
    """Say what a failure to write means."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return FullError(
            f"there is no room for {path}: free some space on that disk, or drop devices that are "
            "no longer needed"
        )
    return SettingError(
        f"{path} cannot be written ({error.strerror}): choose a place where this user may write"
    )


class Reserve:
    """Room on the disk that is kept for the day when it is full."""

    def __init__(self, path: Path, size: int) -> None:
        """Know where it lies; it is not made yet."""
        self._path = path.with_name(path.name + ".reserve")
        self._size = size

    def make(self) -> bool:
        """Take the room unless that would fill the disk; say whether it is there."""
        if self._path.exists() and self._path.stat().st_size == self._size:
            return True
        self.remove()
        free = shutil.disk_usage(self._path.parent).free
        if free < 2 * self._size:
            log.warning("no room for a reserve on disk", extra={"values": {"free_bytes": free}})
            return False
        try:
            self._allocate()
        except OSError as error:
            self.remove()
            log.warning("no reserve on disk", extra={"values": {"problem": error.strerror}})
            return False
        return True

    def remove(self) -> None:
        """Give the room back."""
        self._path.unlink(missing_ok=True)

    def _allocate(self) -> None:
        handle = _opened(self._path)
        try:
            allocate(handle, 0, self._size)
            os.fsync(handle)
        finally:
            os.close(handle)


def allocate(handle: int, start: int, size: int) -> None:
    """Take room on the disk for the end of a file, really: one with holes would keep none."""
    if hasattr(os, "posix_fallocate"):
        with suppress(OSError):  # not every file system can: then by writing
            os.posix_fallocate(handle, start, size)
            return
    os.lseek(handle, start, os.SEEK_SET)
    left = size
    while left:
        left -= os.write(handle, bytes(min(left, 2**16)))


class Body:
    """The file itself, open beside SQLite to look after its length.

    It must be closed after all connections: closing any handle of a file drops SQLite's locks.
    """

    def __init__(self, path: Path) -> None:
        """Open it."""
        self._path = path
        self._handle: int | None = _opened(path)

    @property
    def size(self) -> int:
        """Its length in bytes."""
        return os.fstat(self._open).st_size

    @property
    def pages(self) -> int:
        """The pages that its beginning says it has."""
        return int.from_bytes(os.pread(self._open, 4, 28), "big")

    def hold(self, pages: int) -> None:
        """Take the room on disk that so many pages need, before anything is acknowledged."""
        before, after = self.size, pages * PAGE_BYTES
        if after <= before:
            return
        try:
            allocate(self._open, before, after - before)
        except OSError as error:
            os.ftruncate(self._open, before)
            raise _plain(error, self._path) from error

    def close(self) -> None:
        """Let go of it."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    @property
    def _open(self) -> int:
        if self._handle is None:
            raise AwayError("the database was closed: open it again")
        return self._handle


def make_or_check(path: Path) -> None:
    """Make an empty database if there is none, whole or not at all; refuse what is not ours."""
    if path.is_dir():
        raise SettingError(f"{path} is a folder: give the name of a file in it")
    if not path.exists():
        _make(path)
    if path.stat().st_size == 0:
        raise BrokenError(
            f"{path} is empty, and an empty file is never left by this program: restore it from a "
            "backup, or remove it to begin anew"
        )
    if path.stat().st_mode & 0o077 and os.name != "nt":
        _make_private(path)


def _make_private(path: Path) -> None:
    log.warning("others could read the database: no longer", extra={"values": {"file": path.name}})
    try:
        path.chmod(0o600)
    except OSError as error:
        raise _plain(error, path) from error


def _make(path: Path) -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute(f"pragma page_size = {PAGE_BYTES}")
        connection.execute("pragma auto_vacuum = incremental")
        connection.execute(f"pragma application_id = {APPLICATION}")
        connection.execute("vacuum")  # writes the above even though there is no table yet
        image = connection.serialize()
    try:
        write(image, path)
    except OSError as error:
        raise _plain(error, path) from error
