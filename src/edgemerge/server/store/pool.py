"""A pool: at most so many connections at once, lent to one thread at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import BoundedSemaphore, Lock
from typing import Generic, Protocol, TypeVar

from edgemerge.core.errors import AwayError


class Closable(Protocol):
    """Anything that can be closed."""

    def close(self) -> None:
        """Let go of it."""
        ...


C = TypeVar("C", bound=Closable)
PARTING_S = 4.0


class Pool(Generic[C]):
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
    def lent(self) -> Iterator[C]:
        """Give a connection to the block, after at most `wait_s`."""
        if not self._room.acquire(timeout=self._wait_s):
            raise AwayError(
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
        back = [self._room.acquire(timeout=PARTING_S / self._size) for _ in range(self._size)]
        self._drain()
        for _ in range(sum(back)):
            self._room.release()

    def _take(self) -> C:
        if self._closed:
            raise AwayError("the database was closed: open it again")
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
