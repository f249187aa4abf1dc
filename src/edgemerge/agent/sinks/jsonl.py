"""Verdicts as JSON lines, to standard output or to the end of a file."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any, TextIO

from edgemerge.agent.parts import Verdict
from edgemerge.agent.sinks.telling import as_line, as_object

logger = logging.getLogger(__name__)


class JsonLines:
    """One object to a line, flushed; when nobody listens any more it falls silent."""

    def __init__(self, path: Path = Path("-")) -> None:
        """Write to that file, or with "-" to standard output."""
        self._path = path
        self._file: TextIO | None = sys.stdout
        if str(path) != "-":
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8")
        self.failed = 0

    def verdict(self, verdict: Verdict) -> None:
        """Write it."""
        if self._file is None:
            return
        try:
            self._file.write(as_line(as_object(verdict)) + "\n")
            self._file.flush()
        except BrokenPipeError:
            logger.info("nobody reads the verdicts any more", extra={"values": self._values()})
            self._fall_silent()
        except OSError as error:
            self._failed(error)

    def status(self, status: dict[str, Any]) -> None:
        """Say nothing: only verdicts are written here."""

    def close(self) -> None:
        """Let go of the file; standard output stays open."""
        if self._file is not None and self._file is not sys.stdout:
            try:
                self._file.close()
            except OSError as error:
                self._failed(error)
        self._file = None

    def _fall_silent(self) -> None:
        if (
            self._file is not None and self._file is sys.stdout
        ):  # or Python complains at the end that it cannot be flushed
            with Path(os.devnull).open("wb") as nowhere:
                os.dup2(nowhere.fileno(), self._file.fileno())
        self.close()

    def _failed(self, error: OSError) -> None:
        self.failed += 1
        if self.failed == 1:
            values = self._values() | {"why": error.strerror}
            logger.warning("verdicts cannot be written", extra={"values": values})

    def _values(self) -> dict[str, Any]:
        return {"path": str(self._path)}
