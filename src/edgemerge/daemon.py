"""For long-running programs: systemd notifications, logs and stopping on signals."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, current_thread, main_thread
from time import gmtime, strftime
from typing import Any


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
    """A log line for people: time, level, words; values as key=value."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one record as one line."""
        text = " ".join(super().format(record).split("\n"))
        values = "".join(f" {key}={value}" for key, value in record_values(record).items())
        at = strftime("%Y-%m-%dT%H:%M:%SZ", gmtime(record.created))
        return f"{at} {record.levelname.lower()} {text}{values}"


class JsonFormatter(logging.Formatter):
    """A log line for machines."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one record as one JSON object."""
        head = {"at": record.created, "level": record.levelname.lower(), "from": record.name}
        words = {"message": super().format(record)}
        return json.dumps(head | words | record_values(record), default=str)


def record_values(record: logging.LogRecord) -> dict[str, Any]:
    """Return the values that a log call passed in `extra={"values": …}`."""
    found = getattr(record, "values", None)
    return found if isinstance(found, dict) else {}


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
