"""Sinks for verdicts: JSON lines to stdout or a file, rotating files, and messages to people."""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
import sys
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from io import UnsupportedOperation
from math import isfinite
from pathlib import Path
from select import select
from threading import Condition, Lock, Thread
from typing import Any, BinaryIO, Protocol, TextIO

from edgemerge import files
from edgemerge.agent.judge import Verdict
from edgemerge.agent.quality import ProblemEvent
from edgemerge.daemon import Backoff, in_context
from edgemerge.delivery import Channel, Message, Outbox
from edgemerge.files import to_json_line


class Sink(Protocol):
    """Where verdicts go. Errors are logged and counted; they never stop detection."""

    def verdict(self, verdict: Verdict) -> None:
        """Deliver a verdict without waiting for the network."""
        ...

    def status(self, status: dict[str, Any]) -> None:
        """Deliver the status of the agent, as plain JSON."""
        ...

    def close(self) -> None:
        """Deliver what waits within a second or two, then close."""
        ...


SIGNIFICANT_DIGITS = 6


def verdict_to_dict(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as plain JSON; numbers that JSON does not have become null.

    An alarm that was compared with known faults has two keys more, "fault" and "like".

    >>> verdict_to_dict(Verdict("pump-3", 7, 60.0, 1.23456789, float("inf"), False))["score"]
    1.23457
    """
    named = {"fault": verdict.fault, "like": verdict.like} if verdict.like else {}
    return {
        "device": verdict.device,
        "index": verdict.index,
        "at": round(verdict.at, SIGNIFICANT_DIGITS) if isfinite(verdict.at) else None,
        "score": _rounded(verdict.score),
        "limit": _rounded(verdict.limit),
        "alarm": verdict.alarm,
        "pattern": verdict.pattern,
        "why": list(verdict.why),
        "ready": verdict.ready,
        "level": _rounded(verdict.level),
        "episode": verdict.episode,
        **named,
    }


def to_plain_json(value: Any) -> Any:
    """Return anything as plain JSON: numbers that it does not have as null, the rest as text.

    >>> to_plain_json({"limit": float("inf"), "kind": int, "devices": ("b",)})
    {'limit': None, 'kind': "<class 'int'>", 'devices': ['b']}
    """
    if isinstance(value, dict):
        return {str(key): to_plain_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain_json(each) for each in value]
    if isinstance(value, float):
        return float(value) if isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)


def _rounded(number: float | None) -> float | None:
    if number is None or not isfinite(number):
        return None
    return float(f"{number:.{SIGNIFICANT_DIGITS}g}")


MAX_QUEUED_LINES = 1024  # lines that may wait
STALL_TIMEOUT_S = 1.0  # without one byte written, until the reader counts as gone
STDOUT_LOCK = Lock()  # several devices of one process may write to it
WRITE_BYTES = 4096  # bytes per write: a reader of so many a second counts as alive

logger = logging.getLogger(__name__)


class BackgroundWriter:
    """Writes lines in a thread, in order and whole.

    It waits for a slow reader, as any pipe does. When the queue is full and the reader has taken
    nothing for a second, new lines are dropped until the queue is empty.
    """

    def __init__(
        self,
        write: Callable[[memoryview], int],
        failed: Callable[[OSError], None],
        whole: AbstractContextManager[object] = nullcontext(),  # noqa: B008 - has no state
    ) -> None:
        """Start the thread; `write` returns how many bytes it wrote, or raises OSError.

        `whole` is held while lines are written, so that those of other writers do not get between.
        """
        self._write, self._failed, self._whole = write, failed, whole
        self._changed = Condition()
        self._waiting: deque[bytes] = deque()
        self._pieces = 0  # written so far
        self._stalled = self._closed = False
        self.left_out = 0
        self._thread = Thread(target=in_context(self._work), name="writer", daemon=True)
        self._thread.start()

    def put(self, line: bytes) -> None:
        """Queue a line; it is dropped if the queue is full and the reader stalls."""
        with self._changed:
            if self._stalled and not self._waiting:
                self._stalled = False
                logger.info("results are read again", extra={"values": {"lost": self.left_out}})
            if not self._stalled and self._has_room():
                self._waiting.append(line)
                self._changed.notify_all()
            else:
                self.left_out += 1

    def close(self) -> bool:
        """Write what waits as long as it is read; return whether all of it was written."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        seen = -1
        while self._thread.is_alive() and seen != self._pieces:
            seen = self._pieces
            self._thread.join(STALL_TIMEOUT_S)
        if self._stalled:
            lost = {"at_least": self.left_out + len(self._waiting)}  # and what was being written
            logger.warning("the last results were not read", extra={"values": lost})
        return not self._thread.is_alive()

    def _has_room(self) -> bool:
        """Wait for room while bytes are written; when none are, the reader has stalled."""
        seen = -1
        while seen != self._pieces:
            seen = self._pieces
            if self._changed.wait_for(
                lambda: len(self._waiting) < MAX_QUEUED_LINES, STALL_TIMEOUT_S
            ):
                return True
        self._stalled = True
        logger.warning("results are not read: dropping them until they are")
        return False

    def _work(self) -> None:
        while rest := self._next():
            try:
                with self._whole:
                    while rest:
                        rest = rest[self._write(rest[:WRITE_BYTES]) :]
                        self._pieces += 1
            except OSError as error:
                self._pieces += 1
                self._failed(error)

    def _next(self) -> memoryview:
        """Wait for lines; return all that wait, or nothing when there will be no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            lines = b"".join(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()
            return memoryview(lines)


class JsonLinesSink:
    """One JSON object per line; it stops writing when the pipe is closed.

    In a file, a line is written when `verdict` returns. A pipe or a terminal, which may block, is
    written by a thread.
    """

    def __init__(self, path: Path = Path("-")) -> None:
        """Write to that file, or with "-" to standard output."""
        self._path, self._file = path, _open_output(path)
        self._is_ours = self._file is not sys.stdout
        self._silent, self.failed = False, 0
        self._file.flush()  # what was written before comes first
        place = _blocking_descriptor(self._file)
        self._writer = None
        if place is not None:
            whole = nullcontext() if self._is_ours else STDOUT_LOCK
            self._writer = BackgroundWriter(partial(_write_some, place), self._handle_error, whole)

    def verdict(self, verdict: Verdict) -> None:
        """Write a verdict, or queue it for the thread."""
        if self._silent:
            return
        line = to_json_line(verdict_to_dict(verdict)) + "\n"
        if self._writer is not None:
            self._writer.put(line.encode())
            return
        try:
            with nullcontext() if self._is_ours else STDOUT_LOCK:
                self._file.write(line)
                self._file.flush()
        except OSError as error:
            self._handle_error(error)

    def status(self, status: dict[str, Any]) -> None:
        """Do nothing: only verdicts are written here."""

    def close(self) -> None:
        """Close the file; standard output and a pipe that blocks stay open."""
        self._silent = True
        if self._writer is not None and not self._writer.close():
            return
        if self._is_ours:
            try:
                self._file.close()
            except OSError as error:
                self._handle_error(error)

    def _handle_error(self, error: OSError) -> None:
        if isinstance(error, BrokenPipeError):
            values = {"path": str(self._path), "why": error.strerror}
            logger.info("the reader of the results closed the pipe", extra={"values": values})
            self._silent = True
            if not self._is_ours:  # or Python complains at the end that it cannot be flushed
                with Path(os.devnull).open("wb") as nowhere:
                    os.dup2(nowhere.fileno(), self._file.fileno())
            return
        self.failed += 1
        if self.failed == 1:
            _warn("verdicts cannot be written", self._path, error)


def _open_output(path: Path) -> TextIO:
    """Open a file to append to, or return standard output, unless it was closed at the start."""
    if str(path) == "-":
        if sys.stdout is not None:
            return sys.stdout
        path = Path(os.devnull)
    path.parent.mkdir(parents=True, exist_ok=True)
    _end_last_line(path)
    return path.open("a", encoding="utf-8")


def _end_last_line(path: Path) -> None:
    """End a line that a full disk or a loss of power has cut off, so that the next is one."""
    if not (path.is_file() and os.access(path, os.R_OK)):
        return
    with path.open("a+b") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")


def _write_some(place: int, piece: memoryview) -> int:
    """Write some bytes; wait for room even if another process made the pipe non-blocking."""
    while True:
        try:
            return os.write(place, piece)
        except BlockingIOError:
            select([], [place], [])


def _blocking_descriptor(file: TextIO) -> int | None:
    """Return the descriptor of a pipe, terminal or socket; None for a file, or for memory."""
    try:
        found = file.fileno()
    except UnsupportedOperation:
        return None
    return None if stat.S_ISREG(os.fstat(found).st_mode) else found


class RotatingFileSink:
    """JSON lines in `path`; older ones in path.1, path.2, … up to `keep` of them."""

    def __init__(self, path: Path, *, largest: int = 10_000_000, keep: int = 3) -> None:
        """Append to the file; no file gets larger than `largest` bytes."""
        self._path, self._largest, self._keep = path, largest, keep
        self.failed = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO | None = self._open()

    def verdict(self, verdict: Verdict) -> None:
        """Write a verdict, in a new file if this one would become too large."""
        line = (to_json_line(verdict_to_dict(verdict)) + "\n").encode()
        try:
            if self._file is None:
                self._file = self._open()
            if self._file.tell() and self._file.tell() + len(line) > self._largest:
                self._file = self._next(self._file)
            if self._file.write(line) < len(line):
                self.close()  # it ends the line when it is opened again
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self.failed += 1
            if self.failed == 1:
                _warn("verdicts cannot be written", self._path, error)

    def status(self, status: dict[str, Any]) -> None:
        """Do nothing: only verdicts are written here."""

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _next(self, full: BinaryIO) -> BinaryIO:
        full.close()
        self._file = None  # if the disk fails now, the next verdict tries again
        for number in range(self._keep, 0, -1):
            older = self._numbered(number - 1)
            if older.exists():
                older.replace(self._numbered(number))
        if not self._keep:
            self._path.unlink()
        return self._open()

    def _open(self) -> BinaryIO:
        _end_last_line(self._path)
        return self._path.open("ab", buffering=0)

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path


class DeliverySink:
    """Sends a message when an episode, or a problem with the data, begins and when it ends.

    Another one follows when it is known later in an episode which fault it is like.

    Args:
        channel: The way to people.
        spool: The file in which messages wait; beside it lies what was told last.
        link: The address of a page about the device, for the message.
        backoff: The delays between two tries.
    """

    def __init__(
        self,
        channel: Channel,
        spool: Path,
        *,
        link: str | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        """Begin with what waits from before."""
        self._link = link
        self._last_file = spool.with_suffix(".last")
        self._told = _read_told(self._last_file)
        self.outbox = Outbox(channel, spool, backoff=backoff)

    def verdict(self, verdict: Verdict) -> None:
        """Queue a message if there is news; it is on disk when this returns."""
        (before, fault), now = self._told, (verdict.episode or 0) if verdict.alarm else None
        if now == before:
            if now is None or verdict.fault in (None, fault):
                return
            event = "recognized"
        else:
            event = "all clear" if now is None else "alarm"
        # One that ended while another began, in an agent that was down, is not told.
        episode = before if now is None else now
        self.outbox.add(_message(event, verdict, episode=episode or None, link=self._link))
        self._told = now, verdict.fault if verdict.alarm else None
        with suppress(OSError):  # then a restart within the episode tells it again
            files.write_atomically(json.dumps(self._told).encode(), self._last_file)

    def problem(self, device: str, event: ProblemEvent) -> None:
        """Queue a message about the data; it is on disk when this returns."""
        problem = event.problem
        kind, at, words = "problem", problem.since, f"{problem.name}: {problem.words}"
        if event.ended is not None:
            kind, at, words = "problem over", event.ended, problem.name
        about: dict[str, Any] = {"inputs": problem.inputs, "words": words, "link": self._link}
        self.outbox.add(Message(kind, device, at, **about))

    def status(self, status: dict[str, Any]) -> None:
        """Do nothing: people are told about episodes and problems."""

    def close(self) -> None:
        """Try once more to send what waits, for a second or two; the rest waits on disk."""
        self.outbox.close()


def _message(event: str, verdict: Verdict, *, episode: int | None, link: str | None) -> Message:
    """Return the message about the verdict at which something happened."""
    found = Message(
        event,
        verdict.device,
        verdict.at,
        episode,
        _rounded(verdict.score),
        _rounded(verdict.limit),  # there is none while too little is known
        link=link,
    )
    if not verdict.alarm:
        return found
    reasons = tuple((name, _rounded(factor) or 0.0) for name, factor in verdict.carried)
    return replace(
        found,
        inputs=verdict.why,
        pattern=verdict.pattern,
        reasons=reasons,
        fault=verdict.fault,
        like=verdict.like,
    )


def _read_told(path: Path) -> tuple[int | None, str | None]:
    """Return the episode that was told last, if its end was not, and the fault that it was like.

    Earlier versions wrote the episode alone.
    """
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None, None
    episode, fault = found if isinstance(found, list) and len(found) == 2 else (found, None)
    return (
        episode if isinstance(episode, int) else None,
        fault if isinstance(fault, str) else None,
    )


def _warn(message: str, path: Path, error: OSError) -> None:
    logger.warning(message, extra={"values": {"path": str(path), "why": error.strerror}})
