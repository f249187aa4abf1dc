"""SQLite: one file and one process; with a file lock, a disk reserve and checks for damage."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from edgemerge.core.errors import FormatError, SettingError, UnavailableError
from edgemerge.files import lock_file, write_atomically
from edgemerge.server.db.base import (
    ConnectionPool,
    DatabaseDamagedError,
    DiskFullError,
    SqlTransaction,
    StatementResult,
    Transaction,
    transaction,
)

PAGE_BYTES = 16384
APPLICATION_ID = int.from_bytes(b"emDB", "big")  # marks our files
SQLITE_MAGIC = b"SQLite format 3\0"
BACKUP_ID = int.from_bytes(b"emBK", "big")  # marks backups, which are restored before use

log = logging.getLogger(__name__)


class FileLock:
    """Held as long as a process uses the database: what it keeps in memory must stay true."""

    def __init__(self, path: Path) -> None:
        """Take it, or say who is in the way; it ends with the process, however that ends."""
        handle = _open_private(path.with_name(path.name + ".lock"))
        if not lock_file(handle):
            os.close(handle)
            raise SettingError(
                f"{path} is in use by another server: stop that one first; several servers can "
                "share a PostgreSQL database instead"
            )
        self._handle: int | None = handle

    def release(self) -> None:
        """Release the lock; the file stays, so that no process locks a deleted one."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _open_private(path: Path) -> int:
    """Open a file that only its owner may read, making it if need be."""
    if not path.parent.is_dir():
        raise SettingError(
            f"the folder {path.parent} is not there: make it, or put the database elsewhere"
        )
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise _disk_error(error, path) from error


def _disk_error(error: OSError, path: Path) -> Exception:
    """Describe what a failure to write means."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(
            f"there is no room for {path}: free some space on that disk, or drop devices that are "
            "no longer needed"
        )
    return SettingError(
        f"{path} cannot be written ({error.strerror}): choose a place where this user may write"
    )


class DiskReserve:
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
        handle = _open_private(self._path)
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


class DatabaseFile:
    """The file itself, open beside SQLite to look after its length.

    It must be closed after all connections: closing any handle of a file drops SQLite's locks.
    """

    def __init__(self, path: Path) -> None:
        """Open it."""
        self._path = path
        self._handle: int | None = _open_private(path)

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
            raise _disk_error(error, self._path) from error

    def close(self) -> None:
        """Let go of it."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    @property
    def _open(self) -> int:
        if self._handle is None:
            raise UnavailableError("the database was closed: open it again")
        return self._handle


def must_be_database(path: Path) -> None:
    """Refuse a file of another program before anything is changed or made beside it.

    What does not exist, is empty or was cut off is looked at later.
    """
    try:
        with path.open("rb") as file:
            head = file.read(72)
    except OSError:  # opening it will say why
        return
    found = int.from_bytes(head[68:72], "big")  # our id stays where another byte was damaged
    if found in (APPLICATION_ID, BACKUP_ID):
        return
    if not SQLITE_MAGIC.startswith(head[:16]):
        raise SettingError(
            f"{path} is no database of edgemerge (it begins with {head[:16]!r}): name another file"
        )
    if len(head) == 72:
        raise _other_program(path, found)


def _other_program(path: Path, found: int) -> FormatError:
    return FormatError(
        f"{path} is a database of another program (its id is {found:#x}, expected "
        f"{APPLICATION_ID:#x}): give another name"
    )


def create_or_check(path: Path) -> None:
    """Make an empty database if there is none, whole or not at all; refuse what is not ours."""
    if path.is_dir():
        raise SettingError(f"{path} is a folder: give the name of a file in it")
    if not path.exists():
        create_empty(path)
    if path.stat().st_size == 0:
        raise DatabaseDamagedError(
            f"{path} is empty, and an empty file is never left by this program: restore it from a "
            "backup, or remove it to begin anew"
        )
    if path.stat().st_mode & 0o077 and os.name != "nt":
        _make_private(path)


def _make_private(path: Path) -> None:
    log.warning("restricted the database file to its owner", extra={"values": {"file": path.name}})
    try:
        path.chmod(0o600)
    except OSError as error:
        raise _disk_error(error, path) from error


def create_empty(path: Path) -> None:
    """Write a database without tables, which replaces the file if there is one."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute(f"pragma page_size = {PAGE_BYTES}")
        connection.execute("pragma auto_vacuum = incremental")
        connection.execute(f"pragma application_id = {APPLICATION_ID}")
        connection.execute("vacuum")  # writes the above even though there is no table yet
        image = connection.serialize()
    try:
        write_atomically(image, path)
    except OSError as error:
        raise _disk_error(error, path) from error


RESERVE_BYTES = 8 * 2**20
MAX_CHECKED_BYTES = 2**30  # a larger file would delay the start too long
MAX_READERS = 8
BUSY_TIMEOUT_S = 30.0
MIN_SQLITE_VERSION = (3, 37)  # returning came with 3.35, strict tables with 3.37
CHECKPOINT_PAGES = 1000  # 16 MiB: some 25 contributions of 640 kB
# Readers that overlap must not let it grow further.
MAX_WAL_BYTES = 4 * CHECKPOINT_PAGES * PAGE_BYTES
SPARE_PAGES = 1024  # free pages that are kept in the file for what comes next
MAX_PAGES_FREED = 256  # pages given back to the disk after one commit

FULL_CODES = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_IOERR_FSYNC,
    sqlite3.SQLITE_IOERR_DIR_FSYNC,
    sqlite3.SQLITE_IOERR_TRUNCATE,
    sqlite3.SQLITE_IOERR_SHMOPEN,
    sqlite3.SQLITE_IOERR_SHMSIZE,
    sqlite3.SQLITE_IOERR_SHMMAP,
}
DAMAGE_CODES = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR}
BUSY_CODES = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
DAMAGE_MESSAGES = (
    *("not decode to UTF-8", "no such table", "no such column"),
    *("has no column", "already exists", "unsupported file"),
)


class SqliteDatabase:
    """A database in one file; a second process that opens it is refused.

    Opening checks the whole file (`pragma integrity_check`) unless it is larger than 1 GiB. That
    finds damage to its structure; damage inside a blob is found only by the blob's own digest.
    """

    is_shared = False

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open it, making it if need be; on a full disk the reserve is given up for that."""
        if sqlite3.sqlite_version_info < MIN_SQLITE_VERSION:
            raise SettingError(
                f"found SQLite {sqlite3.sqlite_version}, expected {MIN_SQLITE_VERSION[0]}."
                f"{MIN_SQLITE_VERSION[1]} or newer: use another Python, or a PostgreSQL database"
            )
        self.path = Path(path).resolve()
        self._wal = self.path.with_name(self.path.name + "-wal")
        self._wal_limit = MAX_WAL_BYTES
        self._reserve = DiskReserve(self.path, RESERVE_BYTES)
        self._readers = ConnectionPool(
            self._reader, _is_idle, size=MAX_READERS, wait_s=BUSY_TIMEOUT_S
        )
        self._writers = ConnectionPool(self._writer, _is_idle, size=1, wait_s=BUSY_TIMEOUT_S)
        self._body: DatabaseFile | None = None
        must_be_database(self.path)
        self._lock = FileLock(self.path)
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"SqliteDatabase({self.path})"

    def reading(self) -> AbstractContextManager[Transaction]:
        """See one state of the database, the one at the beginning of the block."""
        return self._reading()

    def writing(self) -> AbstractContextManager[Transaction]:
        """Change it; one block after the other, so that no names have to be locked."""
        return self._writing()

    def make_room(self) -> None:
        """Give up the reserve on disk, so that dropping works even when the disk is full."""
        self._reserve.remove()
        with self._writers.connection() as connection, suppress(DiskFullError):
            self._checkpoint(connection)

    def restore_reserve(self) -> bool:
        """Give free pages back to the disk and make the reserve again; return whether it exists."""
        with self._writers.connection() as connection:
            self._checkpoint(connection)
            # In steps, as each needs room in the log.
            while free := self._count(connection, "freelist"):
                self._shrink(connection, MAX_PAGES_FREED)
                self._checkpoint(connection)
                if self._count(connection, "freelist") >= free:
                    break
        return self._reserve.make()

    def close(self) -> None:
        """Let go of all connections, and of the lock."""
        self._readers.close()
        self._writers.close()
        if self._body is not None:
            self._body.close()
        self._lock.release()

    @contextmanager
    def _reading(self) -> Iterator[Transaction]:
        with (
            self._readers.connection() as connection,
            self._transaction(connection, "begin") as seen,
        ):
            seen.rows("select 1 from sqlite_schema limit 1")  # the state is that of now
            yield seen

    @contextmanager
    def _writing(self) -> Iterator[Transaction]:
        with self._writers.connection() as connection:
            try:
                with self._transaction(connection, "begin immediate") as changes:
                    yield changes
                    ((pages,),) = changes.rows("pragma page_count")
                    if self._body is not None:  # now: moving the log there must not fail for room
                        self._body.hold(pages)
            except DiskFullError:
                self._reclaim(connection)
                raise
            self._tidy(connection)

    def _open(self) -> None:
        try:
            self._prepare()
        except DiskFullError:  # not even what SQLite keeps beside an open file has room
            self._reserve.remove()
            self._prepare()
        else:
            self._reserve.make()

    def _prepare(self) -> None:
        with self._named():
            create_or_check(self.path)
        self._body = self._body or DatabaseFile(self.path)
        size, pages = self._body.size, self._body.pages
        logged = self._wal.exists() and self._wal.stat().st_size > 0
        with self._writers.connection() as connection:
            if size < pages * PAGE_BYTES and not logged:  # SQLite would read zeros at the end
                raise self._broken(f"it has {size} bytes, expected {pages} whole pages")
            if size <= MAX_CHECKED_BYTES:
                ((words,),) = self._ask(connection, "pragma integrity_check(1)", ()).rows
                if words != "ok":
                    raise self._broken(" ".join(str(words).split()))
            self._ask(connection, "begin immediate", ())  # makes what lies beside an open file
            self._ask(connection, "rollback", ())

    def _writer(self) -> sqlite3.Connection:
        return self._connected(
            f"pragma wal_autocheckpoint = {CHECKPOINT_PAGES}",
            f"pragma journal_size_limit = {CHECKPOINT_PAGES * PAGE_BYTES}",
            "pragma secure_delete = off",  # else deleting needs as much room as writing
            "pragma cache_size = -65536",  # KiB: so many contributions in one commit do not spill
        )

    def _reader(self) -> sqlite3.Connection:
        return self._connected("pragma query_only = on")

    def _connected(self, *settings: str) -> sqlite3.Connection:
        with self._named():
            connection = sqlite3.connect(
                f"{self.path.as_uri()}?mode=rw",
                uri=True,
                timeout=BUSY_TIMEOUT_S,
                isolation_level=None,
                check_same_thread=False,
            )
        try:
            self._must_be_ours(connection)
            for setting in ("pragma synchronous = full", "pragma foreign_keys = on", *settings):
                self._ask(connection, setting, ())
        except BaseException:
            connection.close()
            raise
        return connection

    def _must_be_ours(self, connection: sqlite3.Connection) -> None:
        ((found,),) = self._ask(connection, "pragma application_id", ()).rows
        if found == BACKUP_ID:
            raise FormatError(
                f"{self.path} is a backup: put its content into a database with `edgemerge restore`"
            )
        if found != APPLICATION_ID:
            raise _other_program(self.path, found)
        ((mode,),) = self._ask(connection, "pragma journal_mode = wal", ()).rows
        if mode != "wal":
            raise SettingError(
                f"{self.path} lies where SQLite cannot keep a log beside it (mode {mode}): "
                "put it on a local disk"
            )

    def _tidy(self, connection: sqlite3.Connection) -> None:
        """Bound the log and give free pages back; what was committed stays so if this fails."""
        try:
            free, pages = self._count(connection, "freelist"), self._count(connection, "page")
            spare = free - max(SPARE_PAGES, pages // 2)  # what comes next fills them again
            if spare > 0:
                self._shrink(connection, min(spare, MAX_PAGES_FREED))
            if self._wal.stat().st_size > self._wal_limit:
                self._checkpoint(connection)
                self._wal_limit = max(MAX_WAL_BYTES, self._wal.stat().st_size + MAX_WAL_BYTES // 4)
        except OSError as error:
            log.warning("tidying the database failed", extra={"values": {"problem": str(error)}})

    def _reclaim(self, connection: sqlite3.Connection) -> None:
        """Find room for the next change after one did not fit.

        SQLite empties the log after a commit, so a log that grew beside a reader, until the disk
        was full, would stay as it is: then there is no commit. Free pages are room for the log.
        """
        with suppress(DiskFullError, UnavailableError):
            self._checkpoint(connection)
            self._shrink(connection, MAX_PAGES_FREED)
            self._checkpoint(connection)

    def _count(self, connection: sqlite3.Connection, what: str) -> int:
        ((pages,),) = self._ask(connection, f"pragma {what}_count", ()).rows
        return int(pages)

    def _shrink(self, connection: sqlite3.Connection, pages: int) -> None:
        """Return so many free pages back to the disk."""
        with self._named():  # `execute` would stop after one page
            connection.executescript(f"pragma incremental_vacuum({pages})")

    def _checkpoint(self, connection: sqlite3.Connection) -> None:
        """Move the log into the file and make it short, unless a reader needs it for long."""
        self._ask(connection, "pragma busy_timeout = 1000", ())
        try:
            self._ask(connection, "pragma wal_checkpoint(truncate)", ())
        finally:
            self._ask(connection, f"pragma busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}", ())

    def _transaction(
        self, connection: sqlite3.Connection, begin: str
    ) -> AbstractContextManager[SqlTransaction]:
        return transaction(
            partial(self._ask, connection), partial(_rollback, connection), begin=begin
        )

    def _ask(
        self, connection: sqlite3.Connection, sql: str, values: Sequence[Any]
    ) -> StatementResult:
        with self._named():
            cursor = connection.execute(sql, values)
            return StatementResult(cursor.fetchall(), cursor.rowcount)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Turn errors of SQLite about the world into ours; those about our SQL stay."""
        try:
            yield
        except sqlite3.Error as error:
            named = self._name(error, getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR))
            if named is None:
                raise
            raise named from error
        except UnicodeDecodeError as error:
            raise self._broken("SQLite reports an error that is not text") from error

    def _name(self, error: sqlite3.Error, code: int) -> Exception | None:
        if code in FULL_CODES:
            return DiskFullError(
                f"{self.path} cannot be written, most likely because the disk is full: free some "
                "space, or drop devices that are no longer needed"
            )
        if code & 0xFF in DAMAGE_CODES or any(words in str(error) for words in DAMAGE_MESSAGES):
            return self._broken(str(error))
        if code & 0xFF in BUSY_CODES:
            return UnavailableError(
                f"{self.path} is in use by another program: try again", retry_s=1.0
            )
        if code & 0xFF in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
            return UnavailableError(f"{self.path} cannot be opened for writing: {error}")
        return None

    def _broken(self, words: str) -> DatabaseDamagedError:
        return DatabaseDamagedError(
            f"{self.path} is damaged, or is no database of edgemerge ({words}): restore it from a "
            f"backup, with {self._wal.name} and {self.path.name}-shm removed; devices will push "
            "again what is newer"
        )


def _is_idle(connection: sqlite3.Connection) -> bool:
    return not connection.in_transaction


def _rollback(connection: sqlite3.Connection) -> None:
    """Roll back; a connection that cannot even do that is not idle, and thrown away."""
    with suppress(sqlite3.Error):
        connection.rollback()
