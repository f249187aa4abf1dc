"""Verdicts in a file that is changed for a new one before it grows too large."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, BinaryIO

from edgemerge.agent.parts import Verdict
from edgemerge.agent.sinks.telling import as_line, as_object

logger = logging.getLogger(__name__)


class Rotating:
    """JSON lines in `path`; older ones in path.1, path.2, … up to `keep` of them."""

    def __init__(self, path: Path, *, largest: int = 10_000_000, keep: int = 3) -> None:
        """Go on at the end of the file, or begin it; none gets larger than `largest` bytes."""
        self._path, self._largest, self._keep = path, largest, keep
        self.failed = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO | None = path.open("ab", buffering=0)

    def verdict(self, verdict: Verdict) -> None:
        """Write it, in a new file if there is no room for it in this one."""
        line = (as_line(as_object(verdict)) + "\n").encode()
        try:
            if self._file is None:
                self._file = self._path.open("ab", buffering=0)
            if self._file.tell() and self._file.tell() + len(line) > self._largest:
                self._file = self._next(self._file)
            self._file.write(line)
        except OSError as error:
            self._failed(error)

    def status(self, status: dict[str, Any]) -> None:
        """Say nothing: only verdicts are written here."""

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _next(self, full: BinaryIO) -> BinaryIO:
        full.close()
        self._file = None  # should the disk refuse now, the next verdict tries again
        for number in range(self._keep, 0, -1):
            older = self._numbered(number - 1)
            if older.exists():
                older.replace(self._numbered(number))
        if not self._keep:
            self._path.unlink()
        return self._path.open("ab", buffering=0)

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path

    def _failed(self, error: OSError) -> None:
        self.failed += 1
        if self.failed == 1:
            values = {"path": str(self._path), "why": error.strerror}
            logger.warning("verdicts cannot be written", extra={"values": values})
