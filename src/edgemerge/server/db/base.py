"""The database interface: transactions, their errors, a connection pool, redacted URLs.

SQL is written once for SQLite and PostgreSQL, with `?` for values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from threading import BoundedSemaphore, Lock
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote

from edgemerge.core.errors import EdgemergeError, UnavailableError

SqlRow = tuple[Any, ...]


class DiskFullError(EdgemergeError, OSError):
    """The disk is full: free some space, or drop devices that are no longer needed."""


class DatabaseDamagedError(EdgemergeError, OSError):
    """The database is damaged: restore it from a backup; devices will push again what is newer."""


class ValueDamagedError(DatabaseDamagedError):
    """One stored value is not what was written; all around it can be used."""


class Transaction(Protocol):
    """What may be done between the beginning and the end of a transaction."""

    def rows(self, sql: str, *values: Any) -> Sequence[SqlRow]:
        """Ask; blobs come as bytes."""
        ...

    def one(self, sql: str, *values: Any) -> SqlRow | None:
        """Ask for one row at most."""
        ...

    def run(self, sql: str, *values: Any) -> int:
        """Change rows; give how many."""
        ...

    def lock(self, name: str) -> None:
        """Wait until no other transaction holds this name; let go of it at the end."""
        ...


class Database(Protocol):
    """Where everything is kept; any number of threads may use it."""

    is_shared: bool  # whether other servers may use it at the same time

    def reading(self) -> AbstractContextManager[Transaction]:
        """See one state of the database, while others write."""
        ...

    def writing(self) -> AbstractContextManager[Transaction]:
        """Change it: all at the end, durably, or nothing if an error leaves the block."""
        ...

    def make_room(self) -> None:
        """Give up the reserve on disk, so that dropping works even when the disk is full."""
        ...

    def restore_reserve(self) -> bool:
        """Make the reserve again, if there is room for it now; say whether it is there."""
        ...

    def close(self) -> None:
        """Let go of all connections."""
        ...


def redact_url(url: str) -> str:
    """Show an address without user, password and options.

    >>> redact_url("postgresql://fleet:pa@ss@db.local:5432/fleets?sslpassword=x")
    'postgresql://…@db.local:5432/fleets'
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return "…" if "=" in url else url
    place = rest.rpartition("@")[2].partition("?")[0]
    return f"{scheme}://{'…@' if '@' in rest else ''}{place}"


def redact_message(words: str, url: str) -> str:
    """Return the words of a driver, unless they repeat a part of what the address keeps secret.

    >>> redact_message('invalid port "pa"', "postgresql://fleet:pa/ss@db.local/fleets")
    'the reason names the password, so it is not shown'
    """
    if any(secret in words for secret in _secrets(url)):
        return "the reason names the password, so it is not shown"
    return " ".join(words.split())


def _secrets(url: str) -> set[str]:
    """Return every part that might be, or be part of, a password, also of a misspelt address."""
    rest = url.partition("://")[2]
    user, _, password = rest.rpartition("@")[0].partition(":")
    options = re.findall(r"(?:ssl)?password=([^&]*)", rest)
    whole = [password, *options]
    parts = [part for text in whole for part in re.split(r"[:/@?#]", text)]
    found = {form for text in (*whole, *parts) for form in (text, unquote(text))}
    return found - {"", user}


class StatementResult(NamedTuple):
    """The rows a statement gave, and how many it changed."""

    rows: Sequence[SqlRow]
    changed: int


Execute = Callable[[str, Sequence[Any]], StatementResult]


class SqlTransaction:
    """A transaction; after a statement has failed, only going back to a savepoint mends it.

    PostgreSQL would turn the commit of such a transaction into a rollback without a word, and
    SQLite may have rolled back by itself and would keep what comes after. Neither may happen.
    """

    def __init__(self, ask: Execute, lock: str | None) -> None:
        """Run statements by `ask`; `lock` is the one that locks a name, if any is needed."""
        self._ask = ask
        self._lock = lock
        self._failure: Exception | None = None

    def rows(self, sql: str, *values: Any) -> Sequence[SqlRow]:
        """Ask; blobs come as bytes."""
        return self._answer(sql, values).rows

    def one(self, sql: str, *values: Any) -> SqlRow | None:
        """Ask for one row at most."""
        return next(iter(self.rows(sql, *values)), None)

    def run(self, sql: str, *values: Any) -> int:
        """Change rows; give how many."""
        return self._answer(sql, values).changed

    def lock(self, name: str) -> None:
        """Wait until no other transaction holds this name; let go of it at the end."""
        if self._lock is not None:
            self._answer(self._lock, (name,))

    def must_be_whole(self) -> None:
        """Raise what went wrong, if it was not undone."""
        if self._failure is not None:
            raise self._failure

    def _answer(self, sql: str, values: Sequence[Any]) -> StatementResult:
        undoing = sql.startswith("rollback to ")
        if not undoing:
            self.must_be_whole()
        try:
            answer = self._ask(sql, values)
        except Exception as error:
            self._failure = error
            raise
        if undoing:
            self._failure = None
        return answer


@contextmanager
def transaction(
    ask: Execute, undo: Callable[[], None], *, begin: str, lock: str | None = None
) -> Iterator[SqlTransaction]:
    """Begin, let the block run, and commit; whatever leaves the block undoes all of it."""
    try:
        ask(begin, ())
        statements = SqlTransaction(ask, lock)
        yield statements
        statements.must_be_whole()
        ask("commit", ())
    except BaseException:
        undo()
        raise


class Closable(Protocol):
    """Anything that can be closed."""

    def close(self) -> None:
        """Let go of it."""
        ...


C = TypeVar("C", bound=Closable)
POOL_CLOSE_TIMEOUT_S = 4.0


class ConnectionPool(Generic[C]):
    """Lends connections; one that is no longer usable is closed, and with it those that wait."""

    def __init__(
        self, make: Callable[[], C], usable: Callable[[C], bool], *, size: int, wait_s: float
    ) -> None:
        """Make connections only when they are needed."""
        self._make, self._usable = make, usable
        self._size, self._wait_s = size, wait_s
        self._room = BoundedSemaphore(size)
        self._guard = Lock()
        self._idle: list[C] = []
        self._closed = False

    @contextmanager
    def connection(self) -> Iterator[C]:
        """Return a connection to the block, after at most `wait_s`."""
        if not self._room.acquire(timeout=self._wait_s):
            raise UnavailableError(
                f"all {self._size} connections to the database were in use for {self._wait_s:g} s: "
                "try again",
                retry_s=1.0,
            )
        try:
            connection = self._take()
            try:
                yield connection
            finally:
                self._give_back(connection)
        finally:
            self._room.release()

    def close(self) -> None:
        """Close those that wait; those that are lent have a moment, or are closed afterwards."""
        self._closed = True
        back = [
            self._room.acquire(timeout=POOL_CLOSE_TIMEOUT_S / self._size) for _ in range(self._size)
        ]
        self._drain()
        for _ in range(sum(back)):
            self._room.release()

    def _take(self) -> C:
        if self._closed:
            raise UnavailableError("the database was closed: open it again")
        with self._guard:
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            return self._make()
        if self._usable(connection):
            return connection
        connection.close()
        self._drain()
        return self._make()

    def _give_back(self, connection: C) -> None:
        with self._guard:
            keep = not self._closed and self._usable(connection)
            if keep:
                self._idle.append(connection)
        if not keep:
            connection.close()
            self._drain()

    def _drain(self) -> None:
        """Close those that wait: what broke one has most likely broken all."""
        with self._guard:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
