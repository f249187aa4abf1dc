"""The control socket: other programs on this machine send commands, one JSON object per line."""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Full, Queue, SimpleQueue
from threading import BoundedSemaphore, Event, Thread
from typing import Any

from edgemerge.core.errors import SettingError, UnavailableError
from edgemerge.daemon import in_context

SOCKET_NAME = "control"
MAX_PATH_BYTES = 100  # bytes; systems allow 104 to 108
MAX_COMMAND_BYTES = 2**22
MAX_CLIENTS = 8
MAX_QUEUED = 16  # commands
POLL_S = 0.2
IDLE_TIMEOUT_S = 10.0  # idle timeout of control-socket clients
ANSWER_TIMEOUT_S = 600.0  # for the loop to answer: longer than any exchange may take

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    """A command with its arguments; it gets one answer."""

    command: dict[str, Any]
    _answers: SimpleQueue[dict[str, Any]] = field(default_factory=SimpleQueue)

    def answer(self, found: dict[str, Any]) -> None:
        """Send the answer."""
        self._answers.put(found)

    def wait(self, timeout_s: float) -> dict[str, Any]:
        """Wait for the answer."""
        try:
            return self._answers.get(timeout=timeout_s)
        except Empty:
            return {"error": f"the agent did not answer within {timeout_s:g} s: look at its log"}


class ControlSocket:
    """Listens on a socket in the state folder; the loop takes the requests and answers them."""

    def __init__(self, folder: Path) -> None:
        """Start listening; the socket of a dead agent is replaced."""
        self._requests: Queue[Request] = Queue(MAX_QUEUED)
        self._room = BoundedSemaphore(MAX_CLIENTS)
        self._path = folder / SOCKET_NAME
        coming = folder / f"{SOCKET_NAME}.new"  # has its name once it listens, to its owner alone
        coming.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with _address(coming) as address:
            self._socket.bind(address)
        coming.chmod(0o600)
        self._socket.listen(MAX_CLIENTS)
        coming.replace(self._path)
        self._socket.settimeout(POLL_S)
        self._stop = Event()
        self._thread = Thread(target=in_context(self._listen), name="control", daemon=True)
        self._thread.start()

    def requests(self) -> Iterator[Request]:
        """Yield the requests that have arrived."""
        while not self._requests.empty():  # asked after every sample: an exception takes longer
            yield self._requests.get_nowait()

    def close(self) -> None:
        """Stop listening and refuse the requests that wait."""
        self._stop.set()
        self._thread.join(5 * POLL_S)
        self._socket.close()
        self._path.unlink(missing_ok=True)
        for request in self.requests():
            request.answer({"error": "the agent is stopping"})

    def _listen(self) -> None:
        while not self._stop.is_set():
            with suppress(TimeoutError):
                client, _ = self._socket.accept()
                if self._room.acquire(blocking=False):
                    Thread(target=in_context(self._talk), args=(client,), daemon=True).start()
                else:
                    with client, suppress(OSError):  # the client may be gone
                        _send_json(client, {"error": f"{MAX_CLIENTS} others are asking: try again"})

    def _talk(self, client: socket.socket) -> None:
        try:
            with client, client.makefile("rb") as lines:
                client.settimeout(IDLE_TIMEOUT_S)
                while line := lines.readline(MAX_COMMAND_BYTES + 1):
                    _send_json(client, self._answer(line))
        except OSError as error:
            logger.debug("a client was disconnected", extra={"values": {"why": error}})
        finally:
            self._room.release()

    def _answer(self, line: bytes) -> dict[str, Any]:
        if len(line) > MAX_COMMAND_BYTES:
            return {"error": f"found a line of more than {MAX_COMMAND_BYTES} bytes"}
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            return {"error": f"found a line that is not JSON: {error}"}
        if not isinstance(found, dict):
            return {"error": 'expected an object such as {"command": "status"}'}
        request = Request(found)
        try:
            self._requests.put_nowait(request)
        except Full:
            return {"error": f"{MAX_QUEUED} commands wait already: try again"}
        return request.wait(ANSWER_TIMEOUT_S)


def send_command(
    state_folder: Path, command: dict[str, Any] | str, timeout_s: float
) -> dict[str, Any]:
    """Send a command to the agent that runs on a state folder, and return its answer.

    The commands are status, sync, undo, trust, save, score, learn, review, acknowledge, snooze,
    watch, relearn and accept_drift.

    Args:
        state_folder: The state folder of a running agent.
        command: Its name, or an object with "command" and arguments.
        timeout_s: How long to wait for the answer.

    Raises:
        UnavailableError: No agent runs there, or it takes too long.
        SettingError: The agent refused the command; the message has its reason.
    """
    asked = {"command": command} if isinstance(command, str) else command
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(timeout_s)
        try:
            with _address(Path(state_folder) / SOCKET_NAME) as address:
                client.connect(address)
            _send_json(client, asked)
            with client.makefile("rb") as lines:
                line = lines.readline(MAX_COMMAND_BYTES)
        except TimeoutError as error:
            raise UnavailableError(f"the agent did not answer within {timeout_s:g} s") from error
        except OSError as error:
            raise UnavailableError(
                f"no agent answers in {state_folder} ({error.strerror or error}): start it first"
            ) from error
    if not line:
        raise UnavailableError(
            f"the agent in {state_folder} closed the connection without an answer"
        )
    found: dict[str, Any] = json.loads(line)
    if "error" in found:
        raise SettingError(f"the agent answered: {found['error']}")
    return found


def _send_json(client: socket.socket, value: dict[str, Any]) -> None:
    client.sendall(json.dumps(value).encode() + b"\n")


@contextmanager
def _address(path: Path) -> Iterator[str]:
    """Return an address for the socket that is short enough, through /proc if need be."""
    plain = os.fspath(path)
    if len(os.fsencode(plain)) <= MAX_PATH_BYTES:
        yield plain
        return
    handle = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if not Path(f"/proc/self/fd/{handle}").exists():
            raise SettingError(
                f"the path {plain} is too long for a socket on this system: "
                f"choose a state folder with at most {MAX_PATH_BYTES - len(SOCKET_NAME) - 5} bytes"
            )
        yield f"/proc/self/fd/{handle}/{path.name}"
    finally:
        os.close(handle)
