"""Statements: what runs inside a transaction, the same way over both databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from edgemerge.server.store.database import Row


class Answer(NamedTuple):
    """The rows a statement gave, and how many it changed."""

    rows: Sequence[Row]
    changed: int


Ask = Callable[[str, Sequence[Any]], Answer]


class Statements:
    """A transaction; after a statement has failed, only going back to a savepoint mends it.

    PostgreSQL would turn the commit of such a transaction into a rollback without a word, and
    SQLite may have rolled back by itself and would keep what comes after. Neither may happen.
    """

    def __init__(self, ask: Ask, lock: str | None) -> None:
        """Run statements by `ask`; `lock` is the one that locks a name, if any is needed."""
        self._ask = ask
        self._lock = lock
        self._failure: Exception | None = None

    def rows(self, sql: str, *values: Any) -> Sequence[Row]:
        """Ask; blobs come as bytes."""
        return self._answer(sql, values).rows

    def one(self, sql: str, *values: Any) -> Row | None:
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

    def _answer(self, sql: str, values: Sequence[Any]) -> Answer:
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
    ask: Ask, undo: Callable[[], None], *, begin: str, lock: str | None = None
) -> Iterator[Statements]:
    """Begin, let the block run, and commit; whatever leaves the block undoes all of it."""
    try:
        ask(begin, ())
        statements = Statements(ask, lock)
        yield statements
        statements.must_be_whole()
        ask("commit", ())
    except BaseException:
        undo()
        raise
