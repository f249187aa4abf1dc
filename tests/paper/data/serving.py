"""A real web server on this machine that can be told to misbehave, once for each request."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

PATIENCE_S = 3.0  # after which a hanging answer ends; whoever has a timeout is gone by then
ENDLESS = 200  # times the body: enough to be too much, not to fill a disk


class Served:
    """What the server gives: bytes by path, then for each request in turn what goes wrong."""

    def __init__(self, files: dict[str, bytes], acts: list[str]) -> None:
        self.files, self.acts = files, acts
        self.ranges = True
        self.asked: list[tuple[str, str | None]] = []
        self.over = Event()
        self.url = ""

    def act(self) -> str:
        return self.acts.pop(0) if self.acts else "serve"


class Handler(BaseHTTPRequestHandler):
    served: Served

    def do_GET(self) -> None:
        self.served.asked.append((self.path, self.headers["Range"]))
        act = self.served.act()
        if act.isdecimal():
            self.send_error(int(act))
        elif self.path not in self.served.files:
            self.send_error(404)
        else:
            getattr(self, f"_{act}")(self.served.files[self.path])

    def _serve(self, data: bytes) -> None:
        self.wfile.write(self._opened(data))

    def _cut(self, data: bytes) -> None:
        body = self._opened(data)
        self.wfile.write(body[: len(body) // 2])

    def _unsaid(self, data: bytes) -> None:
        """Send half, without having said how much there is."""
        self._head(200, {})
        self.wfile.write(data[: len(data) // 2])

    def _stall(self, data: bytes) -> None:
        self._cut(data)
        self._hang(data)

    def _hang(self, _data: bytes) -> None:
        self.wfile.flush()
        self.served.over.wait(PATIENCE_S)

    def _endless(self, data: bytes) -> None:
        self._head(200, {})
        for _ in range(ENDLESS):
            self.wfile.write(data)

    def _boast(self, data: bytes) -> None:
        self._head(200, {"Content-Length": str(10**12)})
        self.wfile.write(data)

    def _shift(self, data: bytes) -> None:
        self._head(206, {"Content-Range": f"bytes 0-{len(data) - 1}/{len(data)}"})
        self.wfile.write(data)

    def _other(self, data: bytes) -> None:
        self.wfile.write(self._opened(bytes(len(data))))

    def _opened(self, data: bytes) -> bytes:
        """Send the head of a right answer, and give the body that belongs to it."""
        asked = self.headers["Range"] if self.served.ranges else None
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        if start >= len(data):
            self.send_error(416)
            return b""
        size = {"Content-Length": str(len(data) - start)}
        here = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
        self._head(206 if asked else 200, size | here if asked else size)
        return data[start:]

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_args: object) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_args: object) -> None:
        """Say nothing when the other side hangs up: that is what it should do."""


@contextmanager
def serving(files: dict[str, bytes], *acts: str) -> Iterator[Served]:
    served = Served(files, list(acts))
    handler = type("TheirHandler", (Handler,), {"served": served})
    with Server(("127.0.0.1", 0), handler) as server:
        served.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield served
        finally:
            served.over.set()
            server.shutdown()
            thread.join()
