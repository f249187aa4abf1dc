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

from edgemerge.core.errors import AwayError, SettingError
from edgemerge.server.store.addresses import hidden, without_secrets
from edgemerge.server.store.database import BrokenError, FullError, Transaction
from edgemerge.server.store.pool import Pool
from edgemerge.server.store.statements import Answer, transaction

CONNECTIONS = 8
WAIT_S = 30.0
LEAST_VERSION = 120000
LOCK = "select pg_advisory_xact_lock(hashtextextended(?, 0))"
READING = "begin isolation level repeatable read read only; select 1"  # the state is that of now
WRITING = "begin isolation level read committed read write"  # after a lock, the newest is seen

DEFAULTS = {  # what the URL says comes first
    "application_name": "edgemerge",
    "client_encoding": "UTF8",
    "connect_timeout": "5",
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
SETTINGS = {
    "synchronous_commit": "on",
    "statement_timeout": "30s",
    "lock_timeout": "15s",
    "idle_in_transaction_session_timeout": "60s",  # so long one who hangs can hold up the others
}
SESSION = "; ".join(f"set {name} = '{value}'" for name, value in SETTINGS.items())
EACH_TIME = "".join(f"; set local {name} = '{value}'" for name, value in SETTINGS.items())
FULL = ("53100",)
BROKEN = ("XX001", "XX002", "58030", "42P01", "42703")  # damaged; or a table or column is missing
AWAY = ("08", "25006", "40", "53", "55P03", "57")  # connection, read-only, conflict, load, shutdown

log = logging.getLogger(__name__)
Connection = psycopg.Connection[tuple[Any, ...]]


class PostgresDatabase:
    """A database behind a URL; connections that break are thrown away and made anew."""

    is_shared = True

    def __init__(self, url: str, *, connections: int = CONNECTIONS) -> None:
        """Connect once, to see that it can be done."""
        self._url = url
        self._settings = _parsed(url)
        self._pool = Pool(self._connected, _usable, size=connections, wait_s=WAIT_S)
        try:
            with self._pool.lent() as connection, self._named():
                _must_do(connection)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"PostgresDatabase({hidden(self._url)})"

    def reading(self) -> AbstractContextManager[Transaction]:
        """See one state of the database, the one at the beginning of the block."""
        return self._within(READING)

    def writing(self) -> AbstractContextManager[Transaction]:
        """Change it; what must not happen at once with something else locks a name first."""
        return self._within(WRITING)

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
        with self._pool.lent() as connection:
            ask, undo = partial(self._ask, connection), partial(_undo, connection)
            with transaction(ask, undo, begin=begin, lock=LOCK) as statements:
                yield statements

    def _connected(self) -> Connection:
        problem = ""
        try:
            return _set_up(psycopg.connect(**self._settings, autocommit=True))
        except psycopg.Error as error:
            problem = without_secrets(str(error), self._url)
        raise AwayError(  # not from the error itself, whose words might hold the password
            f"{hidden(self._url)} cannot be reached: {problem}; see that PostgreSQL runs there, "
            f"lets this user in, and has connections left: each server takes up to {CONNECTIONS}",
            retry_s=5.0,
        )

    def _ask(self, connection: Connection, sql: str, values: Sequence[Any]) -> Answer:
        with self._named():
            if sql in (READING, WRITING, "commit"):
                more = EACH_TIME if sql != "commit" and _is_pooled(connection) else ""
                connection.execute(sql + more, prepare=False)
                return Answer([], 0)
            cursor = connection.execute(_translated(sql), _plain(values), binary=True)
            return Answer(cursor.fetchall() if cursor.description else [], cursor.rowcount)

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
        words = error.diag.message_primary or without_secrets(str(error), self._url)
        if state.startswith(FULL):
            return FullError(
                f"the disk of {hidden(self._url)} is full ({words}): free some space, or drop "
                "devices that are no longer needed"
            )
        if state.startswith(BROKEN):
            return BrokenError(
                f"{hidden(self._url)} is damaged ({words}): restore it from a backup; devices will "
                "push again what is newer"
            )
        if state.startswith(AWAY) or (not state and isinstance(error, psycopg.OperationalError)):
            return AwayError(
                f"{hidden(self._url)} broke off ({words}): what was not acknowledged may be lost; "
                "try again",
                retry_s=1.0,
            )
        return None


class PlainNumbers(NumericBinaryLoader):
    """Gives sums of integers as integers, as SQLite does."""

    def load(self, data: Buffer) -> Any:
        """Turn a decimal number into an int if it is whole, else into a float."""
        number = Decimal(super().load(data))
        return int(number) if number == number.to_integral_value() else float(number)


def _parsed(url: str) -> dict[str, Any]:
    with suppress(psycopg.Error):
        return DEFAULTS | conninfo_to_dict(url)
    raise SettingError(
        f"{hidden(url)} is no address of a PostgreSQL database: expected "
        "postgresql://user:password@host:port/name, with @ : / ? # % in the password as %40 %3A "
        "%2F %3F %23 %25"
    )


def _set_up(connection: Connection) -> Connection:
    """Set what holds for a session; behind a pooler, the next transaction may be in another one."""
    try:
        connection.adapters.register_loader("numeric", PlainNumbers)
        found = connection.execute("select pg_backend_pid()", prepare=False).fetchone()
        if found == (connection.info.backend_pid,):
            connection.execute(SESSION, prepare=False)
        else:  # who greeted us is not who works for us: PgBouncer or the like stands between
            connection.prepare_threshold = None
    except BaseException:
        connection.close()
        raise
    return connection


def _is_pooled(connection: Connection) -> bool:
    return connection.prepare_threshold is None


def _must_do(connection: Connection) -> None:
    """Refuse a server that is too old; warn of one that may lose what it has acknowledged."""
    found = connection.info.server_version
    if found < LEAST_VERSION:
        raise SettingError(f"found PostgreSQL {found // 10000}, expected 12 or newer: upgrade it")
    if connection.execute("show fsync").fetchone() == ("off",):
        log.warning("this PostgreSQL has fsync off: it may lose what it has acknowledged")


@lru_cache(maxsize=256)
def _translated(sql: str) -> bytes:
    """Write a statement as psycopg wants it."""
    return sql.replace("%", "%%").replace("?", "%s").encode()


def _plain(values: Sequence[Any]) -> Sequence[Any]:
    """Give truth values as numbers, as SQLite keeps them."""
    return [int(value) if isinstance(value, bool) else value for value in values]


def _usable(connection: Connection) -> bool:
    """Tell if nothing runs on it and the server has said nothing meanwhile, such as farewell."""
    if connection.closed or connection.info.transaction_status != TransactionStatus.IDLE:
        return False
    with DefaultSelector() as selector:
        selector.register(connection.fileno(), EVENT_READ)
        return not selector.select(timeout=0)


def _undo(connection: Connection) -> None:
    """Roll back; a connection that cannot even do that is not idle, and thrown away."""
    with suppress(psycopg.Error):
        connection.rollback()
