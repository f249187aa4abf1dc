"""PostgreSQL: for several server processes that share one database."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from decimal import Decimal
from functools import lru_cache, partial
from selectors import EVENT_READ, DefaultSelector
from typing import Any

import psycopg
from psycopg.abc import Buffer
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import NumericBinaryLoader

from edgemerge.core.errors import SettingError, UnavailableError
from edgemerge.server.db.base import (
    ConnectionPool,
    DatabaseDamagedError,
    DiskFullError,
    StatementResult,
    Transaction,
    redact_message,
    redact_url,
    transaction,
)

MAX_CONNECTIONS = 8
POOL_TIMEOUT_S = 30.0
MIN_SERVER_VERSION = 120000
LOCK_SQL = "select pg_advisory_xact_lock(hashtextextended(?, 0))"
BEGIN_READ = "begin isolation level repeatable read read only; select 1"  # the state is that of now
BEGIN_WRITE = "begin isolation level read committed read write"  # after a lock, the newest is seen

CONNECTION_DEFAULTS = {  # what the URL says comes first
    "application_name": "edgemerge",
    "client_encoding": "UTF8",
    "connect_timeout": "5",
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
SESSION_SETTINGS = {
    "synchronous_commit": "on",
    "statement_timeout": "30s",
    "lock_timeout": "15s",
    "idle_in_transaction_session_timeout": "60s",  # so long one who hangs can hold up the others
}
SET_SESSION = "; ".join(f"set {name} = '{value}'" for name, value in SESSION_SETTINGS.items())
SET_LOCAL = "".join(f"; set local {name} = '{value}'" for name, value in SESSION_SETTINGS.items())
FULL_STATES = ("53100",)
# Damaged; or a table or column is missing.
DAMAGE_STATES = ("XX001", "XX002", "58030", "42P01", "42703")
# Connection, read-only, conflict, load, shutdown.
UNAVAILABLE_STATES = ("08", "25006", "40", "53", "55P03", "57")

log = logging.getLogger(__name__)
Connection = psycopg.Connection[tuple[Any, ...]]


class PostgresDatabase:
    """A database behind a URL; connections that break are thrown away and made anew."""

    is_shared = True

    def __init__(self, url: str, *, connections: int = MAX_CONNECTIONS) -> None:
        """Connect once, to see that it can be done."""
        self._url = url
        self._settings = _parse_url(url)
        self._pool = ConnectionPool(
            self._connected, _is_usable, size=connections, wait_s=POOL_TIMEOUT_S
        )
        try:
            with self._pool.connection() as connection, self._named():
                _must_be_supported(connection)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"PostgresDatabase({redact_url(self._url)})"

    def reading(self) -> AbstractContextManager[Transaction]:
        """See one state of the database, the one at the beginning of the block."""
        return self._within(BEGIN_READ)

    def writing(self) -> AbstractContextManager[Transaction]:
        """Change it; what must not happen at once with something else locks a name first."""
        return self._within(BEGIN_WRITE)

    def make_room(self) -> None:
        """Do nothing: the disk is that of the database server, which keeps no reserve of ours."""

    def restore_reserve(self) -> bool:
        """Do nothing, likewise."""
        return True

    def close(self) -> None:
        """Let go of all connections."""
        self._pool.close()

    @contextmanager
    def _within(self, begin: str) -> Iterator[Transaction]:
        with self._pool.connection() as connection:
            ask, undo = partial(self._ask, connection), partial(_rollback, connection)
            with transaction(ask, undo, begin=begin, lock=LOCK_SQL) as statements:
                yield statements

    def _connected(self) -> Connection:
        problem = ""
        try:
            return _set_up(psycopg.connect(**self._settings, autocommit=True))
        except psycopg.Error as error:
            problem = redact_message(str(error), self._url)
        raise UnavailableError(  # not from the error itself, whose words might hold the password
            f"{redact_url(self._url)} cannot be reached: {problem}; see that PostgreSQL runs "
            "there, accepts this user, and has connections left: each server takes up to "
            f"{MAX_CONNECTIONS}",
            retry_s=5.0,
        )

    def _ask(self, connection: Connection, sql: str, values: Sequence[Any]) -> StatementResult:
        with self._named():
            if sql in (BEGIN_READ, BEGIN_WRITE, "commit"):
                pooled = connection.prepare_threshold is None
                more = SET_LOCAL if sql != "commit" and pooled else ""
                connection.execute(sql + more, prepare=False)
                return StatementResult([], 0)
            if sql.startswith("copy "):  # the values are rows
                with connection.cursor().copy(sql.encode()) as copy:
                    for row in values:
                        copy.write_row(row)
                return StatementResult([], len(values))
            # SQLite stores truth values as numbers.
            plain = [int(value) if isinstance(value, bool) else value for value in values]
            cursor = connection.execute(_translate(sql), plain, binary=True)
            return StatementResult(cursor.fetchall() if cursor.description else [], cursor.rowcount)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Turn errors of PostgreSQL about the world into ours; those about our SQL stay."""
        try:
            yield
        except psycopg.Error as error:
            named = self._name(error, error.sqlstate or "")
            if named is None:
                raise
            raise named from error

    def _name(self, error: psycopg.Error, state: str) -> Exception | None:
        words = error.diag.message_primary or redact_message(str(error), self._url)
        if state.startswith(FULL_STATES):
            return DiskFullError(
                f"the disk of {redact_url(self._url)} is full ({words}): free some space, or drop "
                "devices that are no longer needed"
            )
        if state.startswith(DAMAGE_STATES):
            return DatabaseDamagedError(
                f"{redact_url(self._url)} is damaged ({words}): restore it from a backup; devices "
                "will push again what is newer"
            )
        if state.startswith(UNAVAILABLE_STATES) or (
            not state and isinstance(error, psycopg.OperationalError)
        ):
            return UnavailableError(
                f"{redact_url(self._url)} broke off ({words}): what was not acknowledged may be "
                "lost; try again",
                retry_s=1.0,
            )
        return None


class NumericLoader(NumericBinaryLoader):
    """Gives sums of integers as integers, as SQLite does."""

    def load(self, data: Buffer) -> Any:
        """Turn a decimal number into an int if it is whole, else into a float."""
        number = Decimal(super().load(data))
        return int(number) if number == number.to_integral_value() else float(number)


def _parse_url(url: str) -> dict[str, Any]:
    with suppress(psycopg.Error):
        return CONNECTION_DEFAULTS | conninfo_to_dict(url)
    raise SettingError(
        f"{redact_url(url)} is no address of a PostgreSQL database: expected "
        "postgresql://user:password@host:port/name, with @ : / ? # % in the password as %40 %3A "
        "%2F %3F %23 %25"
    )


def _set_up(connection: Connection) -> Connection:
    """Set what holds for a session; behind a pooler, the next transaction may be in another one."""
    try:
        connection.adapters.register_loader("numeric", NumericLoader)
        found = connection.execute("select pg_backend_pid()", prepare=False).fetchone()
        if found == (connection.info.backend_pid,):
            connection.execute(SET_SESSION, prepare=False)
        else:  # who greeted us is not who works for us: PgBouncer or the like stands between
            connection.prepare_threshold = None
    except BaseException:
        connection.close()
        raise
    return connection


def _must_be_supported(connection: Connection) -> None:
    """Refuse a server that is too old; warn of one that may lose what it has acknowledged."""
    found = connection.info.server_version
    if found < MIN_SERVER_VERSION:
        raise SettingError(f"found PostgreSQL {found // 10000}, expected 12 or newer: upgrade it")
    if connection.execute("show fsync").fetchone() == ("off",):
        log.warning("this PostgreSQL has fsync off: it may lose what it has acknowledged")


@lru_cache(maxsize=256)
def _translate(sql: str) -> bytes:
    """Write a statement as psycopg wants it."""
    return sql.replace("%", "%%").replace("?", "%s").encode()


def _is_usable(connection: Connection) -> bool:
    """Return whether nothing runs on it and the server has not sent anything, such as an end."""
    if connection.closed or connection.info.transaction_status != TransactionStatus.IDLE:
        return False
    with DefaultSelector() as selector:
        selector.register(connection.fileno(), EVENT_READ)
        return not selector.select(timeout=0)


def _rollback(connection: Connection) -> None:
    """Roll back; a connection that cannot even do that is not idle, and thrown away."""
    with suppress(psycopg.Error):
        connection.rollback()
