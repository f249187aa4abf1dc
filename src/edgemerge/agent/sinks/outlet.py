"""An outlet: a thread writes to whatever may make one wait (a pipe, a terminal, a line)."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from threading import Condition, Thread

ROOM = 1024  # lines that may wait
PATIENCE_S = 1.0  # without one byte taken, until nobody is believed to read
PIECE = 4096  # bytes written at a time: a reader who takes so many a second is one

logger = logging.getLogger(__name__)


class Outlet:
    """Lines on their way out, in order and whole.

    A reader who is slow is waited for, as in any pipe. One who takes nothing for a second is not:
    when there is no more room, new lines are left out until those that wait have gone.
    """

    def __init__(
        self, write: Callable[[memoryview], int], failed: Callable[[OSError], None]
    ) -> None:
        """Start the thread; `write` takes some bytes and gives their number, or raises OSError."""
        self._write, self._failed = write, failed
        self._changed = Condition()
        self._waiting: deque[bytes] = deque()
        self._pieces = 0  # written so far
        self._stuck = self._closed = False
        self.left_out = 0
        self._thread = Thread(target=self._work, name="outlet", daemon=True)
        self._thread.start()

    def put(self, line: bytes) -> None:
        """Send a line; it is left out if there is no room and nobody reads."""
        with self._changed:
            if self._stuck and not self._waiting:
                self._stuck = False
                logger.info("verdicts are read again", extra={"values": {"lost": self.left_out}})
            if not self._stuck and self._has_room():
                self._waiting.append(line)
                self._changed.notify_all()
            else:
                self.left_out += 1

    def close(self) -> bool:
        """Let what waits leave, as long as somebody reads it; say whether all of it has left."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        seen = -1
        while self._thread.is_alive() and seen != self._pieces:
            seen = self._pieces
            self._thread.join(PATIENCE_S)
        if self._stuck:
            lost = {"at_least": self.left_out + len(self._waiting)}  # and what was being written
            logger.warning("nobody has read the last verdicts", extra={"values": lost})
        return not self._thread.is_alive()

    def _has_room(self) -> bool:
        """Wait for room while bytes leave; when none do, say that nobody reads."""
        seen = -1
        while seen != self._pieces:
            seen = self._pieces
            if self._changed.wait_for(lambda: len(self._waiting) < ROOM, PATIENCE_S):
                return True
        self._stuck = True
        logger.warning("nobody reads the verdicts: they are left out until somebody does")
        return False

    def _work(self) -> None:
        while rest := self._next():
            try:
                while rest:
                    rest = rest[self._write(rest[:PIECE]) :]
                    self._pieces += 1
            except OSError as error:
                self._pieces += 1
                self._failed(error)

    def _next(self) -> memoryview:
        """Wait for lines; give all that wait, or nothing when there will be no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            lines = b"".join(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()
            return memoryview(lines)
