"""The database: transactions that are durable when they end; SQLite or PostgreSQL behind it.

SQL is written once, for both, with `?` for values.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from edgemerge.core.errors import EdgemergeError

Row = tuple[Any, ...]


class FullError(EdgemergeError, OSError):
    """The disk is full: free some space, or drop devices that are no longer needed."""


class BrokenError(EdgemergeError, OSError):
    """The database is damaged: restore it from a backup; devices will push again what is newer."""


class DamagedError(BrokenError):
    """One stored value is not what was written; all around it can be used."""


class Transaction(Protocol):
    """What may be done between the beginning and the end of a transaction."""

    def rows(self, sql: str, *values: Any) -> Sequence[Row]:
        """Ask; blobs come as bytes."""
        ...

    def one(self, sql: str, *values: Any) -> Row | None:
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
