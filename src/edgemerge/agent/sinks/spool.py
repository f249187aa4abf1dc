"""Messages that wait on disk until they have been sent: the newest `room` of them, in order."""

from __future__ import annotations

import json
import logging
from collections import deque
from pathlib import Path
from threading import Lock

from edgemerge import files

ROOM = 1000

logger = logging.getLogger(__name__)


class Spool:
    """A queue that survives kill -9; what was sent just before a kill may be sent again."""

    def __init__(self, path: Path, room: int = ROOM) -> None:
        """Go on with what waits in the file."""
        self._path, self._lock = path, Lock()
        self._waiting: deque[str] = deque(_lines(path), maxlen=room)
        self._written = len(self._waiting)
        self.dropped = 0
        self._rewrite()

    def __len__(self) -> int:
        """Count those that wait."""
        return len(self._waiting)

    def add(self, message: str) -> None:
        """Put a message without line ends behind the others; the oldest makes way if need be."""
        with self._lock:
            self.dropped += len(self._waiting) == self._waiting.maxlen
            self._waiting.append(message)
            self._append(message)

    def first(self) -> str | None:
        """Give the message that is next, or None."""
        with self._lock:
            return self._waiting[0] if self._waiting else None

    def done(self, message: str) -> None:
        """Forget the message, if it is still the first: it has been sent."""
        with self._lock:
            if self._waiting and self._waiting[0] is message:
                self._waiting.popleft()
            if not self._waiting:
                self._rewrite()

    def _append(self, message: str) -> None:
        if self._written >= 2 * (self._waiting.maxlen or 1):
            self._rewrite()
            return
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(message) + "\n")
            self._written += 1
        except OSError as error:
            _tell(error, self._path)

    def _rewrite(self) -> None:
        """Write what waits, and nothing else."""
        text = "".join(json.dumps(message) + "\n" for message in self._waiting)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            files.write(text.encode(), self._path)
            self._written = len(self._waiting)
        except OSError as error:
            _tell(error, self._path)


def _lines(path: Path) -> list[str]:
    """Read the messages; one that a kill has cut off is left out."""
    try:
        found = path.read_bytes().splitlines()
    except OSError:
        return []
    messages = []
    for line in found:
        try:
            message = json.loads(line)
        except ValueError:
            continue
        if isinstance(message, str):
            messages.append(message)
    return messages


def _tell(error: OSError, path: Path) -> None:
    values = {"path": str(path), "why": error.strerror}
    logger.warning("messages cannot be kept on disk", extra={"values": values})
