"""A proxy on loopback that does to HTTP requests what a bad network does to them."""

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock, Thread

PIECE = 4096
WAIT_S = 10.0
MOST_HELD = 4

FAULTS = (
    "cut the request",  # only some of it arrives
    "cut the reply",  # all of the request arrives, some of the reply
    "no reply",  # it was done, and nobody says so
    "delay",
    "throttle",
    "duplicate",  # the same bytes arrive again, later
    "hold back",  # it arrives after a newer one
)


@dataclass(frozen=True)
class Message:
    """A request or a reply as it went over the line."""

    first: str
    data: bytes

    @property
    def changes(self) -> bool:
        return self.first.startswith("PUT ")


class Gone(ConnectionError):
    """The other side has closed the connection."""


class Proxy:
    """Stands before a server; `choose` gives a fault, or "", for each request in turn."""

    def __init__(self, host: str, port: int, choose: Callable[[Message], tuple[str, float]]):
        self._target, self._choose = (host, port), choose
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._lock = Lock()
        self._late: list[Message] = []
        self._threads: list[Thread] = []
        self._closed = False
        self.done: dict[str, int] = dict.fromkeys(FAULTS, 0)
        self.late_answers: list[int] = []
        self._start(self._accept)

    def deliver(self, *, all_of_them: bool = True) -> None:
        """Let what was held back or is to come twice arrive now, oldest last."""
        with self._lock:
            keep = 0 if all_of_them else MOST_HELD
            due, self._late = self._late[keep:][::-1], self._late[:keep]
        for message in due:
            with self._connected() as there:
                there.sendall(message.data)
                status = int(read(there).first.split(" ")[1])
            with self._lock:
                self.late_answers.append(status)

    def close(self) -> None:
        self._closed = True
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join(2 * WAIT_S)
            assert not thread.is_alive(), "the proxy hangs"

    def _start(self, work, *values) -> None:
        thread = Thread(target=work, args=values, daemon=True)
        with self._lock:
            self._threads = [t for t in self._threads if t.is_alive()] + [thread]
        thread.start()

    def _accept(self) -> None:
        while not self._closed:
            with suppress(OSError):
                connection, _ = self._listening.accept()
                self._start(self._serve, connection)

    def _serve(self, here: socket.socket) -> None:
        with here, suppress(OSError):
            here.settimeout(WAIT_S)
            with self._connected() as there:
                while not self._closed:
                    self._pass(read(here), here, there)

    def _pass(self, request: Message, here: socket.socket, there: socket.socket) -> None:
        fault, amount = self._choose(request)
        if fault in ("duplicate", "hold back") and not request.changes:
            fault = ""
        if fault:
            with self._lock:
                self.done[fault] += 1
        self._ask(fault, amount, request, there)
        reply = read(there)
        self._answer(fault, amount, reply, here)
        if request.changes:
            self.deliver(all_of_them=False)

    def _ask(self, fault: str, amount: float, request: Message, there: socket.socket) -> None:
        if fault == "cut the request":
            there.sendall(request.data[: int(amount * len(request.data))])
            raise Gone
        if fault in ("duplicate", "hold back"):
            with self._lock:
                self._late.append(request)
        if fault == "hold back":
            raise Gone
        if fault == "delay":
            time.sleep(0.05 * amount)  # the fault itself
        if fault == "throttle":
            for start in range(0, len(request.data), PIECE):
                there.sendall(request.data[start : start + PIECE])
                time.sleep(0.001 * amount)
        else:
            there.sendall(request.data)

    def _answer(self, fault: str, amount: float, reply: Message, here: socket.socket) -> None:
        if fault == "no reply":
            raise Gone
        if fault == "cut the reply":
            here.sendall(reply.data[: int(amount * len(reply.data))])
            raise Gone
        here.sendall(reply.data)

    def _connected(self) -> socket.socket:
        there = socket.create_connection(self._target, timeout=WAIT_S)
        there.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return there


def read(connection: socket.socket) -> Message:
    """Read one whole message: its head, and as many bytes as that says."""
    data = bytearray()
    while b"\r\n\r\n" not in data:
        data += _some(connection)
    head = bytes(data).partition(b"\r\n\r\n")[0]
    lines = head.decode("latin-1").split("\r\n")
    names = dict(line.lower().split(": ", 1) for line in lines[1:])
    assert "transfer-encoding" not in names, "a length is given"
    end = len(head) + 4 + int(names.get("content-length", 0)) * (" 304 " not in lines[0])
    while len(data) < end:
        data += _some(connection)
    return Message(lines[0], bytes(data))


def _some(connection: socket.socket) -> bytes:
    found = connection.recv(2**16)
    if not found:
        raise Gone
    return found
