"""One open file: its lines, where it was read to, and whether it is still the same file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from glob import escape
from hashlib import sha256
from pathlib import Path
from typing import Any

from edgemerge.agent.sources.lines import LONGEST, Line, Splitter

CHUNK = 65536
HEAD = 256  # bytes at its beginning that a file is known by


class Opened:
    """A file that is read line by line; an unfinished line waits until it is complete."""

    def __init__(self, path: Path, longest: int = LONGEST) -> None:
        """Open it at its beginning."""
        self._file = path.open("rb", buffering=0)
        self._longest = longest
        self._inode = os.fstat(self._file.fileno()).st_ino
        self._at(0)

    def _at(self, offset: int) -> None:
        """Begin at an offset, knowing what lies at the head of the file before it."""
        self._head = self._first_bytes(min(offset, HEAD))
        self._file.seek(offset)
        self._splitter = Splitter(offset, self._longest)

    def lines(self) -> Iterator[Line]:
        """Give complete lines up to what is now the end."""
        while chunk := self._file.read(CHUNK):
            if len(self._head) < HEAD:
                self._head += chunk[: HEAD - len(self._head)]
            yield from self._splitter.feed(chunk)

    def rest(self) -> Line:
        """Give what there is of the unfinished line."""
        return self._splitter.rest()

    def to_end(self) -> None:
        """Go to the beginning of the last line that is not complete."""
        size = os.fstat(self._file.fileno()).st_size
        start = max(0, size - self._longest)
        self._file.seek(start)
        self._at(start + self._file.read(size - start).rfind(b"\n") + 1)

    def position(self, end: int, header: tuple[str, ...] | None) -> dict[str, Any]:
        """Give what is needed to go on behind a line, as plain JSON."""
        names = None if header is None else list(header)
        return {"offset": end, "inode": self._inode, "head": self._mark(end), "header": names}

    def go_on(self, position: Any, *, copied: bool = True) -> bool:
        """Go to a position, if it is one of this file; `copied` says that a copy will do."""
        offset = position["offset"]
        same = self._inode == position["inode"]
        if not same and not (copied and offset >= HEAD):
            return False
        if os.fstat(self._file.fileno()).st_size < offset:
            return False
        self._at(offset)
        if self._mark(offset) == position["head"]:
            return True
        self._at(0)
        return False

    def is_cut(self) -> bool:
        """Say whether the file was cut, or written anew from its beginning."""
        read_to = self._file.tell()
        if os.fstat(self._file.fileno()).st_size < read_to:
            return True
        found = self._first_bytes(len(self._head))
        self._file.seek(read_to)
        return found != self._head

    def is_moved(self, path: Path) -> bool:
        """Say whether another file is at the path now."""
        try:
            found = path.stat()
        except OSError:
            return False  # nothing is there yet
        return found.st_ino != self._inode

    def close(self) -> None:
        """Let go of it."""
        self._file.close()

    def _mark(self, end: int) -> str:
        return sha256(self._head[:end]).hexdigest()[:16]

    def _first_bytes(self, count: int) -> bytes:
        self._file.seek(0)
        return self._file.read(count)


def find_rotated(path: Path, position: Any, longest: int = LONGEST) -> Opened | None:
    """Find the file of a position beside its path, where rotation moved it (path.1 and so on)."""
    for beside in sorted(path.parent.glob(f"{escape(path.name)}?*")):
        with suppress(OSError):  # another one is no matter, and it may be gone again
            if beside.stat().st_ino == position["inode"]:
                file = Opened(beside, longest)
                if file.go_on(position, copied=False):
                    return file
                file.close()
    return None
