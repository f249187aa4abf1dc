"""For long-running programs: systemd notifications, logs, stopping on signals, retries."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from functools import partial
from random import Random
from threading import Event, current_thread, main_thread
from time import gmtime, strftime
from types import MappingProxyType
from typing import Any

MAX_RETRY_AFTER_S = 3600.0  # longest delay that the other side may ask for
MAX_DOUBLINGS = 60  # keeps 2.0**failures finite


def notify(state: str) -> None:
    """Send a state to systemd if it started this program: READY=1, STOPPING=1, STATUS=…."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    path = "\0" + address[1:] if address.startswith("@") else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as there, suppress(OSError):
        there.connect(path)  # no listener is no reason to stop
        there.sendall(state.encode())


@contextmanager
def handle_signals(handler: Any, *numbers: int) -> Iterator[None]:
    """Handle these signals with `handler` in this block; restore the handlers at its end."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)


@contextmanager
def stop_on_signals(stop: Event) -> Iterator[list[int]]:
    """Set the event on SIGTERM or SIGINT; a second signal ends the program at once.

    Yields the list of signals received, which grows while the block runs.
    """
    received: list[int] = []

    def receive(number: int, _frame: object) -> None:
        if stop.is_set():
            raise SystemExit(128 + number)
        received.append(number)
        stop.set()

    with handle_signals(receive, signal.SIGTERM, signal.SIGINT):
        yield received


@contextmanager
def interrupt_on_signals(*numbers: int) -> Iterator[None]:
    """Treat these signals as Ctrl-C: raise KeyboardInterrupt with the signal's number."""

    def interrupt(number: int, _frame: object) -> None:
        raise KeyboardInterrupt(number)

    with handle_signals(interrupt, *numbers):
        yield


class TextFormatter(logging.Formatter):
    """A log line for people: time, level, words; values as key=value, those that are not None."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one record as one line."""
        text = " ".join(super().format(record).split("\n"))
        found = record_values(record).items()
        values = "".join(f" {key}={_words(value)}" for key, value in found if value is not None)
        at = strftime("%Y-%m-%dT%H:%M:%SZ", gmtime(record.created))
        return f"{at} {record.levelname.lower()} {text}{values}"


def _words(value: object) -> str:
    """Write a value for people: lists with commas, tables as pairs, without what is None.

    >>> _words(["vibration", "current"]), _words({"devices": None, "patterns": ["a", "b"]})
    ('vibration, current', 'patterns: a, b')
    """
    if isinstance(value, Mapping):
        pairs = ((key, _words(each)) for key, each in value.items() if each is not None)
        return "; ".join(f"{key}: {words}" if words else str(key) for key, words in pairs) or "-"
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(map(_words, value)) or "-"
    return str(value)


class JsonFormatter(logging.Formatter):
    """A log line for machines."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one record as one JSON object."""
        head: dict[str, Any] = {"at": record.created, "level": record.levelname.lower()}
        head |= {"from": record.name, "message": super().format(record)}
        # The head stands first, and no value replaces it.
        return json.dumps(head | record_values(record) | head, default=str)


# Values that every log record of this thread has, and of the threads that `in_context` starts.
log_values: ContextVar[Mapping[str, Any]] = ContextVar("log_values", default=MappingProxyType({}))


def in_context(run: Callable[..., object]) -> Callable[..., object]:
    """Return a function for a new thread to run, whose log records have the values of this one."""
    return partial(copy_context().run, run)


def record_values(record: logging.LogRecord) -> dict[str, Any]:
    """Return `log_values` and what a log call passed in `extra={"values": …}`."""
    found = getattr(record, "values", None)
    return {**log_values.get(), **(found if isinstance(found, dict) else {})}


def log_to_stderr(
    level: str = "info", *, form: Callable[[], logging.Formatter] = TextFormatter
) -> None:
    """Write the log of edgemerge to standard error, one line per record."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(form())
    logger = logging.getLogger("edgemerge")
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False


@contextmanager
def ignore_interrupts() -> Iterator[None]:
    """Make child processes started in this block ignore Ctrl-C; their parent handles it."""
    if current_thread() is not main_thread():
        yield
        return
    with handle_signals(signal.SIG_IGN, signal.SIGINT):
        yield


@dataclass
class Backoff:
    """The delay before a retry: it doubles with each failure and is shortened by random jitter.

    Jitter makes it 50 to 100 % of its nominal length, so that devices do not retry together.

    Args:
        first_s: Nominal delay after the first failure.
        max_s: Longest nominal delay.
        random: Source of the jitter. Seed it with the device's name for repeatable times.
        max_retry_after_s: Longest delay that the other side may ask for.

    >>> backoff = Backoff(2.0, 60.0)
    >>> 1.0 <= backoff.next() <= 2.0 <= backoff.next() <= 4.0
    True
    >>> backoff.next(retry_after_s=30.0)
    30.0
    """

    first_s: float
    max_s: float
    random: Random = field(default_factory=Random, repr=False)
    max_retry_after_s: float = MAX_RETRY_AFTER_S
    failures: int = 0

    @property
    def delay_s(self) -> float:
        """The nominal delay after the failures so far; 0 after a success."""
        if not self.failures:
            return 0.0
        return min(self.first_s * 2.0 ** min(self.failures - 1, MAX_DOUBLINGS), self.max_s)

    def next(self, *, at_least_s: float = 0.0, retry_after_s: float | None = None) -> float:
        """Count a failure and return the seconds to wait.

        Args:
            at_least_s: Shortest nominal delay, before jitter.
            retry_after_s: What the other side asked for; it is honoured up to `max_retry_after_s`.
        """
        self.failures += 1
        wait_s = max(self.delay_s, at_least_s) * (1.0 - 0.5 * self.random.random())
        return max(wait_s, min(retry_after_s or 0.0, self.max_retry_after_s))

    def reset(self) -> None:
        """Start again from the first delay, after a success."""
        self.failures = 0
