"""Verdicts as JSON lines, to standard output or to the end of a file."""

from __future__ import annotations

import logging
import os
import stat
import sys
from functools import partial
from io import UnsupportedOperation
from pathlib import Path
from select import select
from typing import Any, TextIO

from edgemerge.agent.parts import Verdict
from edgemerge.agent.sinks.outlet import Outlet
from edgemerge.agent.sinks.telling import as_line, as_object

logger = logging.getLogger(__name__)


class JsonLines:
    """One object to a line; when nobody listens any more it falls silent.

    In a file, a line is there when `verdict` returns. Whatever else may make one wait (a pipe, a
    terminal) is written by a thread.
    """

    def __init__(self, path: Path = Path("-")) -> None:
        """Write to that file, or with "-" to standard output."""
        self._path, self._file = path, _opened(path)
        self._is_ours = self._file is not sys.stdout
        self._silent, self.failed = False, 0
        self._file.flush()  # what was said there before comes first
        place = _that_may_wait(self._file)
        self._outlet = None if place is None else Outlet(partial(_write, place), self._trouble)

    def verdict(self, verdict: Verdict) -> None:
        """Write it, or leave that to the thread."""
        if self._silent:
            return
        line = as_line(as_object(verdict)) + "\n"
        if self._outlet is not None:
            self._outlet.put(line.encode())
            return
        try:
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            self._trouble(error)

    def status(self, status: dict[str, Any]) -> None:
        """Say nothing: only verdicts are written here."""

    def close(self) -> None:
        """Let go of the file; standard output stays open, and so does what a thread hangs on."""
        self._silent = True
        if self._outlet is not None and not self._outlet.close():
            return
        if self._is_ours:
            try:
                self._file.close()
            except OSError as error:
                self._trouble(error)

    def _trouble(self, error: OSError) -> None:
        values = {"path": str(self._path), "why": error.strerror}
        if isinstance(error, BrokenPipeError):
            logger.info("nobody reads the verdicts any more", extra={"values": values})
            self._fall_silent()
            return
        self.failed += 1
        if self.failed == 1:
            logger.warning("verdicts cannot be written", extra={"values": values})

    def _fall_silent(self) -> None:
        self._silent = True
        if not self._is_ours:  # or Python complains at the end that it cannot be flushed
            with Path(os.devnull).open("wb") as nowhere:
                os.dup2(nowhere.fileno(), self._file.fileno())


def _opened(path: Path) -> TextIO:
    """Open a file to add to it, or give standard output, if it was not closed from the start."""
    if str(path) == "-":
        if sys.stdout is not None:
            return sys.stdout
        path = Path(os.devnull)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a", encoding="utf-8")


def _write(place: int, piece: memoryview) -> int:
    """Write some bytes, when there is room for any: another process may have it not wait."""
    while True:
        try:
            return os.write(place, piece)
        except BlockingIOError:
            select([], [place], [])


def _that_may_wait(file: TextIO) -> int | None:
    """Give the descriptor of a pipe, a terminal or a line; None for a file, or for memory."""
    try:
        found = file.fileno()
    except UnsupportedOperation:
        return None
    return None if stat.S_ISREG(os.fstat(found).st_mode) else found
