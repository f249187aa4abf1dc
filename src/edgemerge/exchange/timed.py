"""Timing: one wait has its limit, and so have all waits of a conversation together."""

from __future__ import annotations

import io
from socket import socket
from time import monotonic
from typing import Any

WAITS = 30  # so many times the limit of one wait is the limit of all


class Timing:
    """A limit for each wait, and for all from now on."""

    def __init__(self, timeout_s: float) -> None:
        """Start counting."""
        self.each_s = timeout_s
        self._end = monotonic() + WAITS * timeout_s

    def left(self) -> float:
        """How long the next wait may take; an error if there is no time left."""
        left = min(self.each_s, self._end - monotonic())
        if left <= 0.0:
            raise TimeoutError("the other side is too slow")
        return left


class Timed(io.RawIOBase):
    """What a socket receives, read within the time: drop by drop does not take for ever."""

    def __init__(self, sock: socket, timing: Timing) -> None:
        """Read from a socket, which stays open when this is closed."""
        self._sock, self._timing = sock, timing
        self._file: Any = sock.makefile("rb", buffering=0)

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Give it as the file that `http.client` asks a socket for."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        """It can be read."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Wait for the next bytes, no longer than there is time."""
        self._sock.settimeout(self._timing.left())
        found: int | None = self._file.readinto(buffer)
        return found

    def close(self) -> None:
        """Let go of the socket."""
        self._file.close()
        super().close()
