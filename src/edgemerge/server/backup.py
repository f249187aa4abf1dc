"""Backups: everything that a database holds in one file, and what restoring one means.

A backup of either database is a SQLite file with the same tables, followed by a trailer with its
length and SHA-256. So a backup of a SQLite database can be restored into PostgreSQL, and the other
way round. What is beside the database (TLS key, operator's token, audit head) is not in it.

A restored database is another history of what devices know already: a new timeline. It begins with
an entry in the audit log, and its numbers come after all that were given out before.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from time import gmtime, strftime, time
from typing import Any, BinaryIO

from edgemerge import __version__
from edgemerge.core.errors import EdgemergeError, FormatError, SettingError, UnknownError
from edgemerge.files import sync_folder, write_atomically
from edgemerge.server import audit
from edgemerge.server.db.base import (
    DatabaseDamagedError,
    SqlRow,
    StatementResult,
    Transaction,
    redact_url,
    transaction,
)
from edgemerge.server.db.migrations import (
    MIGRATIONS,
    SQLITE,
    beside_database,
    connect,
    migrate,
    must_not_be_newer,
    open_database,
    sqlite_path,
)
from edgemerge.server.db.sqlite import (
    APPLICATION_ID,
    BACKUP_ID,
    FileLock,
    create_empty,
    must_be_database,
)

AUDIT_HEAD_SUFFIX = ".audit-head"
FORMAT = 1
MAGIC = b"edgemerge backup\n"
TRAILER_BYTES = 4096
COPY_BYTES = 2**20
ROWS_PER_PAGE, BLOB_ROWS_PER_PAGE = 500, 16  # read and written by one statement
BUSY_TIMEOUT_S = 30.0
MS_PER_S = 1000
RESTORE_ACTION = "restore"  # in the audit log
RESTORE_ACTOR = "command line"
# Void after a restore: what was used, ended or revoked since the backup would work again.
VOIDED = ("sessions", "links", "invitations")


@dataclass(frozen=True)
class BackupFacts:
    """What a backup says of itself.

    Args:
        made: When it was made, in Unix seconds.
        schema: The number of the newest migration of its tables.
        version: The version of edgemerge that made it.
        source: The kind of database it is of: "sqlite" or "postgresql".
        size: Bytes of the SQLite file, without the trailer.
        sha256: Of those bytes.
        audit_head: Number and hash of the last entry of the audit log.
        fleets: How many fleets are in it.
        devices: How many devices.
        contributions: How many contributions.
        format: The format of the trailer.
    """

    made: float
    schema: int
    version: str
    source: str
    size: int
    sha256: str
    audit_head: str
    fleets: int
    devices: int
    contributions: int
    format: int = FORMAT


@dataclass(frozen=True)
class RestoreFacts:
    """What a restore did.

    Args:
        backup: What the backup says of itself.
        timeline: The new timeline's name.
        audit_head: Number and hash of the entry of the audit log that records the restore.
        replaced: Where the database that was there before is kept; None if there was none.
        replaced_head: The last entry of its audit log, "" if there was none or it is unreadable.
        voided: How many sessions, links and invitations no longer work.
    """

    backup: BackupFacts
    timeline: str
    audit_head: str
    replaced: Path | None
    replaced_head: str
    voided: int


def default_head_file(url: str) -> Path | None:
    """Return the file of the audit log's head: beside the database, if that is a file."""
    return beside_database(url, AUDIT_HEAD_SUFFIX)


# Timelines


def current_timeline(tx: Transaction) -> str:
    """Return the name of the history that this database has; a restore begins another one."""
    row = tx.one("select name from timelines order by began desc limit 1")
    return str(row[0]) if row else ""


def numbers_begin(tx: Transaction) -> int:
    """Return the number after which new numbers of reviews and settings come.

    It is 0 in a database that was never restored, else the time of the restore: what was numbered
    since the backup, and lost, came before. So a device never takes a new review for one that it
    has done.
    """
    row = tx.one("select max(began) from timelines")
    return int(row[0]) if row and row[0] is not None else 0


def begin_timeline(
    tx: Transaction, facts: BackupFacts, *, now: float, replaced_head: str
) -> tuple[str, int]:
    """Make a restored database safe to meet devices that know more; return timeline and voided.

    Args:
        tx: The transaction to write in.
        facts: Of the backup.
        now: The time of the restore, in Unix seconds.
        replaced_head: The last entry of the audit log that is replaced.
    """
    name = token_hex(8)
    began = max(now, numbers_begin(tx) + 1.0)
    tx.run("insert into timelines (name, began) values (?, ?)", name, began)
    voided = sum(tx.run(f"delete from {table}") for table in VOIDED)
    # Devices fetch their desired states again, whatever revision they know.
    for fleet, epoch in tx.rows("select fleet, epoch from fleets"):
        after = max(int(began * MS_PER_S), epoch) + 1
        tx.run("update fleets set epoch = ?, trust_epoch = ? where fleet = ?", after, after, fleet)
    audit.append(
        tx,
        at=now,
        actor=RESTORE_ACTOR,
        action=RESTORE_ACTION,
        fleet="",
        subject="database",
        made=facts.made,
        backup_head=facts.audit_head,
        replaced_head=replaced_head,
        sha256=facts.sha256,
        timeline=name,
    )
    return name, voided


# Making a backup


def backup(url: str, out: Path) -> BackupFacts:
    """Write a consistent backup of a database, while servers use it.

    Args:
        url: Address of the database, as for `edgemerge serve`.
        out: The file to write, for its owner only; an existing one is replaced at the end.
    """
    beside = out.with_name(f".{out.name}.{token_hex(4)}")
    path = sqlite_path(url)
    try:
        os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        made = time()
        if path is None:
            _copy_from_server(url, beside)
        else:
            _copy_from_file(path, beside)
        facts = _facts(beside, made, "sqlite" if path else "postgresql")
        with beside.open("r+b") as file:
            facts = replace(facts, size=file.seek(0, os.SEEK_END), sha256=_digest(file))
            file.seek(0, os.SEEK_END)
            file.write(_trailer(facts))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(out)
        sync_folder(out.parent)
    except OSError as error:
        if isinstance(error, EdgemergeError):
            raise
        raise SettingError(
            f"the backup {out} cannot be written ({error.strerror}): choose another place"
        ) from error
    finally:
        for suffix in ("", "-journal"):
            beside.with_name(beside.name + suffix).unlink(missing_ok=True)
    return facts


def _copy_from_file(path: Path, image: Path) -> None:
    """Copy a SQLite database as of one moment; it is not kept from writing."""
    if not path.exists():
        raise UnknownError(f"there is no database {path}: give that of your server")
    must_be_database(path)
    with _named(path), closing(_connected(path)) as source:
        (found,) = source.execute("pragma application_id").fetchone()
        if found != APPLICATION_ID:
            raise FormatError(f"{path} is no database of edgemerge: give that of your server")
        source.execute("vacuum into ?", (str(image),))


def _copy_from_server(url: str, image: Path) -> None:
    """Copy all rows of a PostgreSQL database in one transaction, which sees one state."""
    database, _ = open_database(url)
    with closing(database), database.reading() as source:
        schema = _schema_of(source, url)
        create_empty(image)
        with _Image(image) as copy:
            migrate(copy, SQLITE, [each for each in MIGRATIONS if each.number <= schema])
            with copy.writing() as target:
                for table in _tables(target):
                    target.run(f"delete from {table.name}")  # what migrations filled in
                    _copy_rows(source, target, table, _insert_values)


def _schema_of(tx: Transaction, url: str) -> int:
    try:
        row = tx.one("select max(number) from migrations")
    except DatabaseDamagedError as error:
        words = f"{redact_url(url)} has no tables of edgemerge: give the database of your server"
        raise SettingError(words) from error
    must_not_be_newer(tx, MIGRATIONS[-1].number)
    return int(row[0]) if row and row[0] is not None else 0


def _facts(image: Path, made: float, source: str) -> BackupFacts:
    """Mark a copy as a backup, and return what is in it."""
    with _Image(image) as copy, copy.writing() as tx:
        tx.run(f"pragma application_id = {BACKUP_ID}")
        seq, sealed = audit.head(tx)
        counts = [
            (tx.one(f"select count(*) from {table}") or (0,))[0]
            for table in ("fleets", "devices", "contributions")
        ]
        row = tx.one("select max(number) from migrations") or (0,)
        return BackupFacts(made, row[0], __version__, source, 0, "", f"{seq} {sealed}", *counts)


def _trailer(facts: BackupFacts) -> bytes:
    text = json.dumps(asdict(facts), sort_keys=True).encode()
    trailer = MAGIC + sha256(text).hexdigest().encode() + b"\n" + text + b"\n"
    return trailer.ljust(TRAILER_BYTES, b" ")


def _digest(file: BinaryIO, size: int | None = None, copy: BinaryIO | None = None) -> str:
    """Return the SHA-256 of a file, or of its first bytes; copy them on the way."""
    found, left = sha256(), size
    file.seek(0)
    while data := file.read(COPY_BYTES if left is None else min(COPY_BYTES, left)):
        found.update(data)
        left = None if left is None else left - len(data)
        if copy is not None:
            copy.write(data)
    return found.hexdigest()


# Reading a backup


def read_facts(file: Path) -> BackupFacts:
    """Return what a backup says of itself; its content is not checked yet.

    Args:
        file: The backup.

    Raises:
        FormatError: It is not a backup, is cut short, or is of a newer edgemerge.
    """
    try:
        with file.open("rb") as opened:
            size = opened.seek(0, os.SEEK_END)
            opened.seek(max(0, size - TRAILER_BYTES))
            magic, seal, text, *_ = [*opened.read(TRAILER_BYTES).split(b"\n", 3), b"", b"", b""]
    except OSError as error:
        raise SettingError(f"{file} cannot be read: {error.strerror}") from error
    if magic + b"\n" != MAGIC or sha256(text).hexdigest().encode() != seal:
        raise FormatError(
            f"{file} is no backup of edgemerge, or is cut short: `edgemerge backup` writes one"
        )
    found = json.loads(text)
    if found["format"] != FORMAT or found["schema"] > MIGRATIONS[-1].number:
        raise FormatError(
            f"{file} was made by a newer edgemerge ({found['version']}, schema {found['schema']}; "
            f"expected at most {MIGRATIONS[-1].number}): install that version"
        )
    facts = BackupFacts(**found)
    if size != facts.size + TRAILER_BYTES:
        raise FormatError(
            f"{file} has {size} bytes, expected {facts.size + TRAILER_BYTES}: it was cut or changed"
        )
    return facts


def _extract(file: Path, facts: BackupFacts, image: Path) -> None:
    """Copy the database out of a backup, and verify it: checksum, structure and audit log."""
    with (
        file.open("rb") as source,
        open(image, "xb", opener=partial(os.open, mode=0o600)) as target,
    ):
        if _digest(source, facts.size, target) != facts.sha256:
            raise FormatError(f"{file} was changed: its checksum is another; take another backup")
    with _Image(image) as copy:
        copy.must_be_sound(file)
        with copy.writing() as tx:
            tx.run(f"pragma application_id = {APPLICATION_ID}")
        migrate(copy, SQLITE)
        with copy.reading() as tx:
            audit.verify(tx)


# Restoring


def restore(
    file: Path,
    url: str,
    *,
    replace_existing: bool = False,
    audit_head_file: Path | None = None,
    clock: Callable[[], float] = time,
) -> RestoreFacts:
    """Put the content of a backup into a database that no server uses.

    Everything is checked before anything changes, and what was there before is kept.

    Args:
        file: The backup.
        url: Address of the database, as for `edgemerge serve`.
        replace_existing: Whether a database that has content is replaced.
        audit_head_file: The file in which servers keep the head of the audit log, if any.
        clock: The time, in Unix seconds.

    Raises:
        FormatError: The backup is damaged, or of a newer version.
        SettingError: The database is in use, or has content and is not to be replaced.
    """
    path = sqlite_path(url)
    job = _Restore(file, read_facts(file), clock(), replace_existing)
    if path is None:
        with TemporaryDirectory(prefix="edgemerge-restore-") as folder:
            found = _restore_to_server(job, url, Path(folder) / "image")
    else:
        with _locked(path):
            found = _restore_to_file(job, path)
    if audit_head_file is not None:
        _continue_head(audit_head_file, found.audit_head, job.now)
    return found


@dataclass(frozen=True)
class _Restore:
    file: Path
    facts: BackupFacts
    now: float
    replaces: bool


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = FileLock(path)
    try:
        yield
    finally:
        lock.release()


def _restore_to_file(job: _Restore, path: Path) -> RestoreFacts:
    file, facts, now, exists = job.file, job.facts, job.now, path.exists()
    if exists and not job.replaces:
        raise SettingError(
            f"{path} already exists: give another name, or --replace, which keeps a copy of it"
        )
    beside = path.with_name(f".{path.name}.{token_hex(4)}")
    replaced, replaced_head = None, ""
    try:
        _extract(file, facts, beside)
        if exists:
            replaced = _keep_beside(path, now)
            replaced_head = _head_of_file(path)
        timeline, head, voided = _begin_in_image(beside, facts, now, replaced_head)
        _sync(beside)
        for suffix in ("-wal", "-shm"):  # a log that stays would be taken for that of the new file
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        beside.replace(path)
        sync_folder(path.parent)
    finally:
        for suffix in ("", "-journal"):
            beside.with_name(beside.name + suffix).unlink(missing_ok=True)
    return RestoreFacts(facts, timeline, head, replaced, replaced_head, voided)


def _head_of_file(path: Path) -> str:
    """Return the head of an audit log; "" if the database cannot be read, as when it is damaged."""
    with suppress(EdgemergeError, sqlite3.Error), _Image(path) as old, old.reading() as tx:
        return "{} {}".format(*audit.head(tx))
    return ""


def _keep_beside(path: Path, now: float) -> Path:
    """Keep a database under another name, with its log; it also stays where it is.

    The log is copied, since SQLite removes that of a database that it can open or not read at all.
    """
    kept = _unused(path.with_name(f"{path.name}.replaced-{_stamp(now)}"))
    log = path.with_name(path.name + "-wal")
    if log.exists():
        shutil.copy2(log, copied := kept.with_name(kept.name + "-wal"))
        _sync(copied)
    try:
        os.link(path, kept)
    except OSError:  # a file system without hard links
        shutil.copy2(path, kept)
        _sync(kept)
    sync_folder(path.parent)
    return kept


def _restore_to_server(job: _Restore, url: str, image: Path) -> RestoreFacts:
    file, facts, now = job.file, job.facts, job.now
    kept, replaced_head = None, ""
    _extract(file, facts, image)
    database = connect(url)
    try:
        with database.reading() as tx:
            _must_be_alone(tx, url)
            old = audit.head(tx)
        if old != (0, audit.FIRST_HASH):
            if not job.replaces:
                raise SettingError(
                    f"{redact_url(url)} has content already: give another database, or --replace, "
                    "which writes a backup of it first"
                )
            kept = _unused(file.with_name(f"{file.name}.replaced-{_stamp(now)}"))
            backup(url, kept)
            replaced_head = "{} {}".format(*old)
        timeline, head, voided = _begin_in_image(image, facts, now, replaced_head)
        with _Image(image) as copy, copy.reading() as source, database.writing() as target:
            _replace_rows(source, target)
    finally:
        database.close()
    return RestoreFacts(facts, timeline, head, kept, replaced_head, voided)


def _begin_in_image(
    image: Path, facts: BackupFacts, now: float, replaced_head: str
) -> tuple[str, str, int]:
    with _Image(image) as copy:
        with copy.writing() as tx:
            timeline, voided = begin_timeline(tx, facts, now=now, replaced_head=replaced_head)
        with copy.reading() as tx:
            return timeline, "{} {}".format(*audit.head(tx)), voided


def _must_be_alone(tx: Transaction, url: str) -> None:
    others = tx.rows(
        "select pid from pg_stat_activity where datname = current_database()"
        " and application_name = 'edgemerge' and pid <> pg_backend_pid()"
    )
    if others:
        raise SettingError(
            f"{len(others)} connections of servers use {redact_url(url)}: stop the servers first"
        )


def _replace_rows(source: Transaction, target: Transaction) -> None:
    """Replace the content of a PostgreSQL database: all of it, or nothing."""
    tables = _tables(source)
    target.run(f"truncate {', '.join(table.name for table in tables)}")
    for table in tables:
        _copy_rows(source, target, table, _insert_by_copy)
        if table.key == ("id",):  # new rows are numbered after those that were copied
            target.rows(
                f"select setval(pg_get_serial_sequence('{table.name}', 'id'),"
                f" (select coalesce(max(id), 0) + 1 from {table.name}), false)"
            )


def _continue_head(head_file: Path, head: str, now: float) -> None:
    """Follow the restored log from now on; the head of the old one is kept beside."""
    if head_file.exists():
        kept = _unused(head_file.with_name(f"{head_file.name}.replaced-{_stamp(now)}"))
        shutil.copy2(head_file, kept)
    write_atomically(f"{head}\n".encode(), head_file)


# Tables and rows


@dataclass(frozen=True)
class _Table:
    name: str
    columns: tuple[str, ...]
    types: tuple[str, ...]
    key: tuple[str, ...]

    @property
    def page(self) -> int:
        return BLOB_ROWS_PER_PAGE if "blob" in self.types else ROWS_PER_PAGE


def _tables(tx: Transaction) -> list[_Table]:
    """Return the tables of a SQLite database, in the order of their names."""
    names = tx.rows(
        "select name from sqlite_schema where type = 'table' and name not like 'sqlite!_%' escape"
        " '!' order by name"
    )
    found = []
    for (name,) in names:
        columns = tx.rows(f"pragma table_info({name})")
        key = sorted((place, column) for _, column, _, _, _, place in columns if place)
        found.append(
            _Table(
                name,
                tuple(column[1] for column in columns),
                tuple(column[2].lower() for column in columns),
                tuple(column for _, column in key),
            )
        )
    return found


Insert = Callable[[Transaction, _Table, Sequence[SqlRow]], None]


def _copy_rows(source: Transaction, target: Transaction, table: _Table, insert: Insert) -> None:
    """Copy a table in the order of its key, a page at a time."""
    columns, key = ", ".join(table.columns), ", ".join(table.key)
    places = [table.columns.index(name) for name in table.key]
    after, last = "", ()
    while rows := source.rows(
        f"select {columns} from {table.name}{after} order by {key} limit {table.page}", *last
    ):
        insert(target, table, rows)
        last = tuple(rows[-1][place] for place in places)
        after = f" where ({key}) > ({', '.join('?' * len(places))})"


def _insert_values(tx: Transaction, table: _Table, rows: Sequence[SqlRow]) -> None:
    one = f"({', '.join('?' * len(table.columns))})"
    many, columns = ", ".join([one] * len(rows)), ", ".join(table.columns)
    values = [value for row in rows for value in row]
    tx.run(f"insert into {table.name} ({columns}) values {many}", *values)


def _insert_by_copy(tx: Transaction, table: _Table, rows: Sequence[SqlRow]) -> None:
    """Insert into PostgreSQL, for which this is many times faster than values."""
    tx.run(f"copy {table.name} ({', '.join(table.columns)}) from stdin", *rows)


# A SQLite file that no server uses


class _Image:
    """A copy of a database in a file: one connection, nothing beside it."""

    is_shared = False

    def __init__(self, path: Path) -> None:
        self._path = path
        with _named(path):
            self._connection = _connected(path)

    def __enter__(self) -> _Image:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def reading(self) -> Any:
        return self._transaction("begin")

    def writing(self) -> Any:
        return self._transaction("begin immediate")

    def close(self) -> None:
        self._connection.close()

    def make_room(self) -> None:
        """Do nothing: there is no reserve."""

    def restore_reserve(self) -> bool:
        """Do nothing, likewise."""
        return True

    def must_be_sound(self, file: Path) -> None:
        """Refuse a file whose structure is damaged."""
        ((words,),) = self._ask("pragma integrity_check(1)", ()).rows
        if words != "ok":
            raise FormatError(f"{file} is damaged ({words}): take another backup")

    def _transaction(self, begin: str) -> Any:
        def undo() -> None:
            with suppress(sqlite3.Error):
                self._connection.rollback()

        return transaction(self._ask, undo, begin=begin)

    def _ask(self, sql: str, values: Sequence[Any]) -> StatementResult:
        with _named(self._path):
            cursor = self._connection.execute(sql, values)
            return StatementResult(cursor.fetchall(), cursor.rowcount)


def _connected(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.resolve().as_uri()}?mode=rw",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
    )


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Turn errors of SQLite into ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise DatabaseDamagedError(
            f"{path} cannot be read or written ({error}): see that there is room on the disk and "
            "that this user may write there"
        ) from error


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _stamp(at: float) -> str:
    return strftime("%Y%m%dT%H%M%SZ", gmtime(at))


def _unused(path: Path) -> Path:
    """Return a name that is not taken."""
    number = 2
    found = path
    while found.exists():
        found, number = path.with_name(f"{path.name}-{number}"), number + 1
    return found
