"""The database interface: transactions, their errors, a connection pool, a cache, the writer.

SQL is written once for SQLite and PostgreSQL, with `?` for values. The writer commits queued
changes in batches, then answers their callers.
"""

from __future__ import annotations

import logging
import re
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from math import inf
from threading import BoundedSemaphore, Condition, Lock, Thread
from time import monotonic
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote

from edgemerge.core.errors import EdgemergeError, UnavailableError
from edgemerge.failpoints import failpoint

SqlRow = tuple[Any, ...]

log = logging.getLogger(__name__)


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

    def at_end(self, step: Callable[[], None]) -> None:
        """Do something after everything else, just before the commit, in the order of the calls."""
        ...

    @property
    def steps_at_end(self) -> int:
        """How many times `at_end` was called."""
        ...

    def savepoint(self) -> AbstractContextManager[None]:
        """Undo what the block did, and what it left for the end, if an error leaves it."""
        ...

    def must_be_whole(self) -> None:
        """Raise what went wrong, if it was not undone."""
        ...


WHERE_DEVICE = "where fleet = ? and device = ?"


def upsert(
    tx: Transaction, table: str, fields: str, values: Sequence[Any], *, key: int = 2
) -> None:
    """Write a row; `key` says how many of its fields name it."""
    names = fields.split(", ")
    marks = ", ".join("?" * len(names))
    changes = ", ".join(f"{name} = excluded.{name}" for name in names[key:])
    tx.run(
        f"insert into {table} ({fields}) values ({marks})"
        f" on conflict ({', '.join(names[:key])}) do update set {changes}",
        *values,
    )


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
        self._last_steps: list[Callable[[], None]] = []

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

    def at_end(self, step: Callable[[], None]) -> None:
        """Do something after everything else, just before the commit, in the order of the calls."""
        self._last_steps.append(step)

    @property
    def steps_at_end(self) -> int:
        """How many times `at_end` was called."""
        return len(self._last_steps)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo what the block did, and what it left for the end, if an error leaves it."""
        before = len(self._last_steps)
        self.run("savepoint one")
        try:
            yield
        except Exception:
            del self._last_steps[before:]
            with suppress(Exception):  # then the transaction as a whole fails
                self.run("rollback to savepoint one")
                self.run("release savepoint one")
            raise
        self.run("release savepoint one")

    def finish(self) -> None:
        """Do what was left for the end; raise what went wrong, if it was not undone."""
        self.must_be_whole()
        for step in self._last_steps:
            step()
        self._last_steps.clear()
        self.must_be_whole()

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
        statements.finish()
        ask("commit", ())
    except BaseException:
        undo()
        raise


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """What was read or computed lately, at most so many values; any thread may call.

    Args:
        most: Of more, those that were not asked for longest are forgotten.

    >>> cache = BoundedCache[str, int](2)
    >>> for name in ("a", "b", "a", "c"):
    ...     cache.put(name, len(cache))
    >>> cache.get("a"), cache.get("b"), len(cache)
    (2, None, 2)
    """

    def __init__(self, most: int) -> None:
        """Start empty."""
        self.most = most
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = Lock()

    def get(self, key: K) -> V | None:
        """Return a value, or None if it is not known."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: K, value: V) -> None:
        """Remember a value."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            while len(self._values) > self.most:
                self._values.popitem(last=False)

    def __len__(self) -> int:
        return len(self._values)


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


T = TypeVar("T")
MAX_BATCH = 32  # changes in one commit
MAX_BATCH_S = 0.05  # after which a commit takes no more, if another fleet waits for it
MAX_QUEUED = 4096  # changes that may wait
MAX_WRITERS = 4  # transactions at a time, where a database has several


class WriteJob(NamedTuple):
    """A change to be made, and who waits for it."""

    change: Callable[[Transaction], Any]
    done: Future[Any]


class Writer:
    """Commits changes in batches; each change is undone by itself if it fails.

    A commit costs the disk the same for one change as for many. Fleets take turns, so that one with
    much to write does not hold up the others. SQLite has one transaction at a time, which holds
    changes of all fleets. PostgreSQL has several, each with changes of one fleet, so that none
    waits for a lock of another's.
    """

    def __init__(self, database: Database) -> None:
        """Start the threads."""
        self._database = database
        self._queues: dict[str, deque[WriteJob]] = {}  # by fleet, whose turn is next first
        self._busy: set[str] = set()  # fleets that are being written
        self._news = Condition()
        self._closed = False
        self.waiting = 0  # changes in the queues
        self.disk_full_at = -inf  # when the disk was last full, by the monotonic clock
        count = MAX_WRITERS if database.is_shared else 1
        self._threads = [
            Thread(target=self._work, name=f"writer-{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, change: Callable[[Transaction], T], fleet: str = "") -> Future[T]:
        """Queue a change; the future has its result once that is durable.

        Args:
            change: Makes it.
            fleet: The fleet it is about; "": about none, or about several.
        """
        done: Future[T] = Future()
        with self._news:
            if self._closed or self.waiting >= MAX_QUEUED:
                raise UnavailableError(
                    "too many changes wait to be written: try again", retry_s=1.0
                )
            self._queues.setdefault(fleet, deque()).append(WriteJob(change, done))
            self.waiting += 1
            self._news.notify()
        return done

    def write(
        self, change: Callable[[Transaction], T], timeout_s: float = 30.0, *, fleet: str = ""
    ) -> T:
        """Make a change and wait until it is durable."""
        try:
            return self.submit(change, fleet).result(timeout_s)
        except TimeoutError as error:
            raise UnavailableError(
                "the change was not written in time: check whether it was done", retry_s=5.0
            ) from error

    def close(self) -> None:
        """Write what waits, and stop."""
        with self._news:
            self._closed = True
            self._news.notify_all()
        for thread in self._threads:
            thread.join(timeout=30.0)

    def _work(self) -> None:
        while (next_up := self._wait()) is not None:
            fleet, job = next_up
            try:
                self._commit(fleet, job)
            finally:
                with self._news:
                    self._busy.discard(fleet)
                    self._news.notify_all()

    def _wait(self) -> tuple[str, WriteJob] | None:
        """Return the next change and its fleet, once there is one; None when all is written."""
        with self._news:
            while (found := self._take()) is None:
                if self._closed and not self.waiting:
                    return None
                self._news.wait()
            if self._database.is_shared:
                self._busy.add(found[0])
            return found

    def _goes_on(self, fleet: str | None, end: float) -> bool:
        """Return whether a commit takes more: for long only if no other fleet waits for it."""
        if monotonic() < end or self._database.is_shared:
            return True
        with self._news:
            return {*self._queues} == {fleet}

    def _take(self, fleet: str | None = None) -> tuple[str, WriteJob] | None:
        """Return the next change, of one fleet or of that whose turn it is, and its fleet."""
        with self._news:
            while True:
                free = (each for each in self._queues if each not in self._busy)
                chosen = next(free, None) if fleet is None else fleet
                if chosen is None or chosen not in self._queues:
                    return None
                jobs = self._queues.pop(chosen)
                job = jobs.popleft()
                if jobs:
                    self._queues[chosen] = jobs  # at the end: the others come first
                self.waiting -= 1
                if job.done.set_running_or_notify_cancel():
                    return chosen, job

    def _commit(self, fleet: str, first: WriteJob) -> None:
        """Make changes and commit; callers get their results only then."""
        shared, jobs, outcomes = self._database.is_shared, [first], list[Any]()
        # A change about several fleets locks them in any order, so it gets its own transaction.
        room = 1 if shared and not fleet else MAX_BATCH
        only = fleet if shared else None
        try:
            with self._database.writing() as tx:
                tx.lock(f"writer {fleet}")  # other servers write for the same fleet
                end = monotonic() + MAX_BATCH_S
                outcomes.append(_run_job(tx, first))
                alone: str | None = fleet  # the fleet of all changes, None if they are of several
                while len(jobs) < room and self._goes_on(alone, end) and (more := self._take(only)):
                    alone = alone if more[0] == alone else None
                    jobs.append(more[1])
                    outcomes.append(_run_job(tx, more[1]))
                failpoint("server-before-commit")
            failpoint("server-after-commit")
        except Exception as error:  # noqa: BLE001 - it is handed to everybody who waits
            while len(jobs) < room and (more := self._take(only)):
                jobs.append(more[1])  # most likely they would fail, too, and wait as long for it
            outcomes = [error] * len(jobs)
            if isinstance(error, DiskFullError):
                self.disk_full_at = monotonic()
        for job, outcome in zip(jobs, outcomes, strict=True):
            if isinstance(outcome, Exception):
                job.done.set_exception(outcome)
            else:
                job.done.set_result(outcome)


def _run_job(tx: Transaction, job: WriteJob) -> Any:
    """Make one change; if it is refused, what it did is undone and the others go on."""
    try:
        with tx.savepoint():
            return job.change(tx)
    except EdgemergeError as error:
        if isinstance(error, OSError) and not isinstance(
            error, PermissionError | ValueDamagedError | UnavailableError
        ):
            raise  # the database itself: nothing in this transaction can be kept
        tx.must_be_whole()  # else it was the database that broke off
        return error
    except Exception as error:  # a fault of ours must not take the others with it
        log.exception("a change failed")
        return error
