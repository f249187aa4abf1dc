"""Readings and their sources: a file, a growing file (tail), standard input; a rate limit.

A position is the offset after a row, with what identifies the file.
"""

from __future__ import annotations

import logging
import os
import select
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from glob import escape
from hashlib import sha256
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgemerge.agent.rows import MAX_LINE_BYTES, Line, LineSplitter, RowFormat, RowReader
from edgemerge.core.errors import SettingError

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Reading:
    """What the sensors measured at one time, (k,); `position` is where to resume after it.

    `at` is when it was measured; without a time of its own it gets the time when it was read, and
    is not `dated`. The position is plain JSON, or None where a source cannot go back (standard
    input, MQTT). The names are those of the values, where the source knows them. `skipped` counts
    the rows before it that the source could not read.
    """

    values: Array
    at: float | None = None
    position: Any = None
    names: tuple[str, ...] | None = None
    skipped: int = 0
    dated: bool = True


class Source(Protocol):
    """Where readings come from.

    A source may have `skipped` (rows that it could not read), `why_skipped` (of the last one) and
    `waiting` (what it waits for, in words).
    """

    def read(self, stop: Event, position: Any = None) -> Iterator[Reading]:
        """Return readings from a position on, until there are no more or `stop` is set.

        A source that waits for more checks `stop` at least five times a second.
        """
        ...


CHUNK_BYTES = 65536
HEAD_BYTES = 256  # bytes at its beginning that a file is known by


class TrackedFile:
    """A file that is read line by line; an unfinished line waits until it is complete."""

    def __init__(self, path: Path, longest: int = MAX_LINE_BYTES) -> None:
        """Open it at its beginning."""
        self._file = path.open("rb", buffering=0)
        self._longest = longest
        self._inode = os.fstat(self._file.fileno()).st_ino
        self._at(0)

    def _at(self, offset: int) -> None:
        """Start at an offset, and read what is before it of the first `HEAD_BYTES`."""
        self._head = self._first_bytes(min(offset, HEAD_BYTES))
        self._file.seek(offset)
        self._splitter = LineSplitter(offset, self._longest)

    def lines(self) -> Iterator[Line]:
        """Return complete lines up to what is now the end."""
        while chunk := self._file.read(CHUNK_BYTES):
            if len(self._head) < HEAD_BYTES:
                self._head += chunk[: HEAD_BYTES - len(self._head)]
            yield from self._splitter.feed(chunk)

    def rest(self) -> Line:
        """Return what there is of the unfinished line."""
        return self._splitter.rest()

    def seek_last_line(self) -> None:
        """Go to the beginning of the last line that is not complete."""
        size = os.fstat(self._file.fileno()).st_size
        start = max(0, size - self._longest)
        self._file.seek(start)
        self._at(start + self._file.read(size - start).rfind(b"\n") + 1)

    def position(self, end: int, header: tuple[str, ...] | None) -> dict[str, Any]:
        """Return the position after a line, as plain JSON."""
        names = None if header is None else list(header)
        return {
            "offset": end,
            "inode": self._inode,
            "head": self._head_digest(end),
            "header": names,
        }

    def resume(self, position: Any, *, copied: bool = True) -> bool:
        """Go to a position, if it is one of this file or, with `copied`, of a copy of it."""
        offset = position["offset"]
        same = self._inode == position["inode"]
        if not same and not (copied and offset >= HEAD_BYTES):
            return False
        if os.fstat(self._file.fileno()).st_size < offset:
            return False
        self._at(offset)
        if self._head_digest(offset) == position["head"]:
            return True
        self._at(0)
        return False

    def is_truncated(self) -> bool:
        """Return whether the file was truncated or overwritten."""
        read_to = self._file.tell()
        if os.fstat(self._file.fileno()).st_size < read_to:
            return True
        found = self._first_bytes(len(self._head))
        self._file.seek(read_to)
        return found != self._head

    def is_replaced(self, path: Path) -> bool:
        """Return whether another file is at the path now."""
        try:
            found = path.stat()
        except OSError:
            return False  # nothing is there yet
        return found.st_ino != self._inode

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _head_digest(self, end: int) -> str:
        return sha256(self._head[:end]).hexdigest()[:16]

    def _first_bytes(self, count: int) -> bytes:
        self._file.seek(0)
        return self._file.read(count)


def find_rotated(path: Path, position: Any, longest: int = MAX_LINE_BYTES) -> TrackedFile | None:
    """Find the file of a position beside its path, where rotation moved it (path.1 and so on)."""
    for beside in sorted(path.parent.glob(f"{escape(path.name)}?*")):
        with suppress(OSError):  # it may be gone again
            if beside.stat().st_ino == position["inode"]:
                file = TrackedFile(beside, longest)
                if file.resume(position, copied=False):
                    return file
                file.close()
    return None


POLL_S = 0.2

logger = logging.getLogger(__name__)


class RowSource:
    """A source whose rows are parsed; those that cannot be are counted, with the last reason."""

    def __init__(self, form: RowFormat, encoding: str = "utf-8") -> None:
        """Parse rows of this form."""
        self._reader = RowReader(form, encoding)

    @property
    def skipped(self) -> int:
        """The number of rows that could not be parsed."""
        return self._reader.skipped

    @property
    def why_skipped(self) -> str:
        """Why the last of them could not be parsed."""
        return self._reader.why_skipped


class FileSource(RowSource):
    """The rows of a file, from the first or from a position to the last."""

    def __init__(
        self,
        path: Path,
        form: RowFormat,
        *,
        longest: int = MAX_LINE_BYTES,
        encoding: str = "utf-8",
    ) -> None:
        """Read that file."""
        super().__init__(form, encoding)
        self._path, self._longest = path, longest

    @property
    def waiting(self) -> str:
        """What it waits for."""
        return _waiting_words(self._path)

    def read(self, stop: Event, position: Any = None) -> Iterator[Reading]:
        """Return readings; a file that is not the one of the position is read from its start."""
        if self._path.is_fifo():
            yield from _read_pipe(self._path, self._reader, stop, self._longest)
            return
        try:
            file = TrackedFile(self._path, self._longest)
        except OSError as error:
            raise SettingError(f"source.path {self._path}: {error.strerror}") from error
        with closing(file):
            _start_format(self._reader.form, file, position)
            yield from _readings(file.lines(), file, self._reader, stop)
            yield from _readings([file.rest()], file, self._reader, stop)


class TailSource(FileSource):
    """The rows of a file that grows; a new or truncated file is read from its start.

    A row counts once its line is complete. Of a file that was moved away, what is left is read
    first; after a restart it is looked for beside the path, as path.1 and the like.
    """

    def __init__(
        self, path: Path, form: RowFormat, *, at_end: bool = False, **options: Any
    ) -> None:
        """Follow that file; `at_end` leaves out what is there already, if there is no position."""
        super().__init__(path, form, **options)
        self._at_end = at_end

    def read(self, stop: Event, position: Any = None) -> Iterator[Reading]:
        """Return readings until `stop` is set, waiting for the file and for its lines."""
        at_end = self._at_end and position is None
        while not stop.is_set():
            if self._path.is_fifo():
                yield from _read_pipe(self._path, self._reader, stop, self._longest)
                self._reader.form.begin()
                continue
            file = self._open(position)
            if file is None:
                at_end = False  # a file that appears later is new
                stop.wait(POLL_S)
                continue
            with closing(file):
                if at_end:
                    if (first := next(file.lines(), None)) is not None:
                        self._reader.row(first.text)  # the header
                    file.seek_last_line()
                yield from self._follow(file, stop)
            position, at_end = None, False
            self._reader.form.begin()

    def _open(self, position: Any) -> TrackedFile | None:
        """Open the file of the position where it is now, or the one at the path from its start."""
        try:
            file = TrackedFile(self._path, self._longest)
        except OSError:
            file = None
        if position is None:
            return file
        if file is None or not file.resume(position, copied=False):
            rotated = find_rotated(self._path, position, self._longest)
            if rotated is not None and file is not None:
                file.close()
            file = rotated or file
        if file is not None:
            _start_format(self._reader.form, file, position)
        return file

    def _follow(self, file: TrackedFile, stop: Event) -> Iterator[Reading]:
        """Yield what is there and what is added, until the file is truncated or replaced."""
        moved = False
        while not stop.is_set():
            if file.is_truncated():
                logger.info("the file was truncated", extra={"values": {"path": self._path}})
                return
            yield from _readings(file.lines(), file, self._reader, stop)
            if moved:  # what was still written to it before is read now
                logger.info("the file was replaced", extra={"values": {"path": self._path}})
                if file.rest().text != b"":
                    self._reader.skip("the last line of a file that was moved away is not complete")
                return
            moved = file.is_replaced(self._path)
            if not moved:
                stop.wait(POLL_S)


def _start_format(form: RowFormat, file: TrackedFile, position: Any) -> None:
    """Set where in the file the format starts to read."""
    if position is None:
        form.begin()
    elif file.resume(position):
        names = position["header"]
        form.resume(None if names is None else tuple(names))
    else:
        logger.warning("the file is not the one that was read before: reading it from the start")
        form.begin()


def _readings(
    lines: Iterable[Line], file: TrackedFile, reader: RowReader, stop: Event
) -> Iterator[Reading]:
    for line in lines:
        row = reader.row(line.text)
        if row is not None:
            position = file.position(line.end, reader.form.header)
            yield Reading(row.values, row.at, position, row.names, reader.skipped)
        if stop.is_set():
            return


def _waiting_words(path: Path) -> str:
    if path.is_fifo():
        return f"no program writes to the pipe {path}"
    return f"nothing is added to {path}" if path.exists() else f"{path} does not exist"


def _read_pipe(path: Path, reader: RowReader, stop: Event, longest: int) -> Iterator[Reading]:
    """Yield the rows of a named pipe until its writer closes it, waiting for the first."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise SettingError(f"source.path {path}: {error.strerror}") from error
    splitter, begun = LineSplitter(longest=longest), False
    try:
        while not stop.is_set():
            try:
                chunk = os.read(handle, CHUNK_BYTES)
            except BlockingIOError:  # the writer is slow
                select.select([handle], [], [], POLL_S)
                continue
            if not chunk and not begun:
                stop.wait(POLL_S)
                continue
            begun = True
            for line in splitter.feed(chunk) if chunk else [splitter.rest()]:
                row = reader.row(line.text)
                if row is not None:
                    yield Reading(row.values, row.at, names=row.names, skipped=reader.skipped)
            if not chunk:
                return
    finally:
        os.close(handle)


class StdinSource(RowSource):
    """Lines from a pipe or terminal, until it is closed."""

    def __init__(
        self,
        form: RowFormat,
        *,
        handle: int | None = None,
        longest: int = MAX_LINE_BYTES,
        encoding: str = "utf-8",
    ) -> None:
        """Read from file handle 0, or another."""
        super().__init__(form, encoding)
        self._handle, self._longest = handle, longest

    @property
    def waiting(self) -> str:
        """What it waits for."""
        return "nothing comes on standard input"

    def read(self, stop: Event, position: Any = None) -> Iterator[Reading]:  # noqa: ARG002 - there is no going back
        """Return readings until the input ends or `stop` is set."""
        handle = sys.stdin.fileno() if self._handle is None else self._handle
        splitter = LineSplitter(longest=self._longest)
        while not stop.is_set():
            if not _is_readable(handle):
                continue
            chunk = os.read(handle, CHUNK_BYTES)
            lines = splitter.feed(chunk) if chunk else [splitter.rest()]
            for line in lines:
                row = self._reader.row(line.text)
                if row is not None:
                    yield Reading(row.values, row.at, names=row.names, skipped=self.skipped)
            if not chunk:
                return


def _is_readable(handle: int) -> bool:
    """Wait a little for input; Windows cannot wait for pipes, there the next read waits."""
    if sys.platform == "win32":
        return True
    return bool(select.select([handle], [], [], POLL_S)[0])


class RateLimitedSource:
    """Another source, at most `rate_hz` readings a second; late ones are not made up for."""

    def __init__(
        self, source: Source, rate_hz: float, clock: Callable[[], float] = monotonic
    ) -> None:
        """Slow that source down."""
        self._source, self._gap_s, self._clock = source, 1.0 / rate_hz, clock

    @property
    def skipped(self) -> int:
        """The rows that the source has skipped."""
        return int(getattr(self._source, "skipped", 0))

    @property
    def why_skipped(self) -> str:
        """Why the last of them could not be parsed."""
        return str(getattr(self._source, "why_skipped", ""))

    @property
    def waiting(self) -> str:
        """What it waits for."""
        return str(getattr(self._source, "waiting", ""))

    def read(self, stop: Event, position: Any = None) -> Iterator[Reading]:
        """Return its readings, each not before its time."""
        due = self._clock()
        for reading in self._source.read(stop, position):
            now = self._clock()
            if stop.wait(max(0.0, due - now)):
                return
            due = max(due, now) + self._gap_s
            yield reading
