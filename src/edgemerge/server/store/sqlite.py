"""SQLite: one file and one process, for which nothing has to be set up."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from edgemerge.core.errors import AwayError, FormatError, SettingError
from edgemerge.server.store.database import BrokenError, FullError, Transaction
from edgemerge.server.store.pool import Pool
from edgemerge.server.store.sqlite_file import (
    APPLICATION,
    PAGE_BYTES,
    Body,
    Lock,
    Reserve,
    make_or_check,
)
from edgemerge.server.store.statements import Answer, Statements, transaction

RESERVE_BYTES = 8 * 2**20
CHECKED_BYTES = 2**30  # a larger file would delay the start too long
READERS = 8
WAIT_S = 30.0
LEAST_VERSION = (3, 37)  # returning came with 3.35, strict tables with 3.37
CHECKPOINT_PAGES = 1000  # 16 MiB: some 25 contributions of 640 kB
WAL_BYTES = 4 * CHECKPOINT_PAGES * PAGE_BYTES  # readers that overlap must not let it grow further
SPARE_PAGES = 1024  # free pages that are kept in the file for what comes next
GIVEN_BACK = 256  # pages given back to the disk after one commit

FULL = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_IOERR_FSYNC,
    sqlite3.SQLITE_IOERR_DIR_FSYNC,
    sqlite3.SQLITE_IOERR_TRUNCATE,
    sqlite3.SQLITE_IOERR_SHMOPEN,
    sqlite3.SQLITE_IOERR_SHMSIZE,
    sqlite3.SQLITE_IOERR_SHMMAP,
}
BROKEN = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR}
BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
DAMAGE = (
    *("not decode to UTF-8", "no such table", "no such column"),
    *("has no column", "already exists", "unsupported file"),
)

log = logging.getLogger(__name__)


class SqliteDatabase:
    """A database in one file; a second process that opens it is refused.

    Opening checks the whole file (`pragma integrity_check`) unless it is larger than 1 GiB. That
    finds damage to its structure; damage inside a blob is found only by the blob's own digest.
    """

    is_shared = False

    def __init__(self, path: str | os.PathLike[str], *, reserve_bytes: int = RESERVE_BYTES) -> None:
        """Open it, making it if need be; on a full disk the reserve is given up for that."""
        if sqlite3.sqlite_version_info < LEAST_VERSION:
            raise SettingError(
                f"found SQLite {sqlite3.sqlite_version}, expected {LEAST_VERSION[0]}."
                f"{LEAST_VERSION[1]} or newer: use another Python, or a PostgreSQL database"
            )
        self.path = Path(path).resolve()
        self._wal = self.path.with_name(self.path.name + "-wal")
        self._wal_limit = WAL_BYTES
        self._reserve = Reserve(self.path, reserve_bytes)
        self._readers = Pool(self._reader, _idle, size=READERS, wait_s=WAIT_S)
        self._writers = Pool(self._writer, _idle, size=1, wait_s=WAIT_S)
        self._body: Body | None = None
        self._lock = Lock(self.path)
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
        with self._writers.lent() as connection, suppress(FullError):
            self._checkpoint(connection)

    def restore_reserve(self) -> bool:
        """Give free pages back to the disk and make the reserve again; say if it is there."""
        with self._writers.lent() as connection:
            self._checkpoint(connection)
            while free := self._count(
                connection, "freelist"
            ):  # in steps, as each needs room in the log
                self._shrink(connection, GIVEN_BACK)
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
        with self._readers.lent() as connection, self._transaction(connection, "begin") as seen:
            seen.rows("select 1 from sqlite_schema limit 1")  # the state is that of now
            yield seen

    @contextmanager
    def _writing(self) -> Iterator[Transaction]:
        with self._writers.lent() as connection:
            with self._transaction(connection, "begin immediate") as changes:
                yield changes
                self._hold(changes)
            self._tidy(connection)

    def _open(self) -> None:
        try:
            self._prepare()
        except FullError:  # not even what SQLite keeps beside an open file has room
            self._reserve.remove()
            self._prepare()
        else:
            self._reserve.make()

    def _prepare(self) -> None:
        with self._named():
            make_or_check(self.path)
        self._body = self._body or Body(self.path)
        size, pages = self._body.size, self._body.pages
        logged = self._wal.exists() and self._wal.stat().st_size > 0
        with self._writers.lent() as connection:
            if size < pages * PAGE_BYTES and not logged:  # SQLite would read zeros at the end
                raise self._broken(f"it has {size} bytes, expected {pages} whole pages")
            if size <= CHECKED_BYTES:
                self._must_be_sound(connection)
            self._ask(connection, "begin immediate", ())  # makes what lies beside an open file
            self._ask(connection, "rollback", ())

    def _must_be_sound(self, connection: sqlite3.Connection) -> None:
        ((words,),) = self._ask(connection, "pragma integrity_check(1)", ()).rows
        if words != "ok":
            raise self._broken(" ".join(str(words).split()))

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
                timeout=WAIT_S,
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
        ((mark,),) = self._ask(connection, "pragma application_id", ()).rows
        if mark != APPLICATION:
            raise FormatError(
                f"{self.path} is a database of another program (mark {mark:#x}, expected "
                f"{APPLICATION:#x}): give another name"
            )
        ((mode,),) = self._ask(connection, "pragma journal_mode = wal", ()).rows
        if mode != "wal":
            raise SettingError(
                f"{self.path} lies where SQLite cannot keep a log beside it (mode {mode}): "
                "put it on a local disk"
            )

    def _hold(self, changes: Transaction) -> None:
        """Take the room in the file now: moving the log there must not fail for lack of it."""
        ((pages,),) = changes.rows("pragma page_count")
        if self._body is not None:
            self._body.hold(pages)

    def _tidy(self, connection: sqlite3.Connection) -> None:
        """Bound the log and give free pages back; what was committed stays so if this fails."""
        try:
            free, pages = self._count(connection, "freelist"), self._count(connection, "page")
            spare = free - max(SPARE_PAGES, pages // 2)  # what comes next fills them again
            if spare > 0:
                self._shrink(connection, min(spare, GIVEN_BACK))
            if self._wal.stat().st_size > self._wal_limit:
                self._checkpoint(connection)
                self._wal_limit = max(WAL_BYTES, self._wal.stat().st_size + WAL_BYTES // 4)
        except OSError as error:
            log.warning("tidying the database failed", extra={"values": {"problem": str(error)}})

    def _count(self, connection: sqlite3.Connection, what: str) -> int:
        ((pages,),) = self._ask(connection, f"pragma {what}_count", ()).rows
        return int(pages)

    def _shrink(self, connection: sqlite3.Connection, pages: int) -> None:
        """Give so many free pages back to the disk."""
        with self._named():  # `execute` would stop after one page
            connection.executescript(f"pragma incremental_vacuum({pages})")

    def _checkpoint(self, connection: sqlite3.Connection) -> None:
        """Move the log into the file and make it short, unless a reader needs it for long."""
        self._ask(connection, "pragma busy_timeout = 1000", ())
        try:
            self._ask(connection, "pragma wal_checkpoint(truncate)", ())
        finally:
            self._ask(connection, f"pragma busy_timeout = {int(WAIT_S * 1000)}", ())

    def _transaction(
        self, connection: sqlite3.Connection, begin: str
    ) -> AbstractContextManager[Statements]:
        return transaction(partial(self._ask, connection), partial(_undo, connection), begin=begin)

    def _ask(self, connection: sqlite3.Connection, sql: str, values: Sequence[Any]) -> Answer:
        with self._named():
            cursor = connection.execute(sql, values)
            return Answer(cursor.fetchall(), cursor.rowcount)

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
            raise self._broken("its own words cannot be read") from error

    def _name(self, error: sqlite3.Error, code: int) -> Exception | None:
        if code in FULL:
            return FullError(
                f"{self.path} cannot be written, most likely because the disk is full: free some "
                "space, or drop devices that are no longer needed"
            )
        if code & 0xFF in BROKEN or any(words in str(error) for words in DAMAGE):
            return self._broken(str(error))
        if code & 0xFF in BUSY:
            return AwayError(f"{self.path} is in use by another program: try again", retry_s=1.0)
        if code & 0xFF in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
            return AwayError(f"{self.path} cannot be opened for writing: {error}")
        return None

    def _broken(self, words: str) -> BrokenError:
        return BrokenError(
            f"{self.path} is damaged, or is no database of edgemerge ({words}): restore it from a "
            f"backup, with {self._wal.name} and {self.path.name}-shm removed; devices will push "
            "again what is newer"
        )


def _idle(connection: sqlite3.Connection) -> bool:
    return not connection.in_transaction


def _undo(connection: sqlite3.Connection) -> None:
    """Roll back; a connection that cannot even do that is not idle, and thrown away."""
    with suppress(sqlite3.Error):
        connection.rollback()
