"""Offering contributions to peers: a small HTTP server of the standard library that only gives.

`GET /contributions` lists them as JSON, `GET /contributions/<device>/<incarnation>/<pattern>` gives
the bytes of one. Whoever asks needs the token. One request to a connection, few at a time.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable
from hmac import compare_digest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6
from socketserver import TCPServer
from threading import BoundedSemaphore, Thread
from typing import Any, NamedTuple

from edgemerge.core.contribution import Key
from edgemerge.core.errors import SettingError
from edgemerge.exchange.connection import authorization
from edgemerge.exchange.naming import topic
from edgemerge.exchange.reply import BLOCK
from edgemerge.exchange.timed import Timed, Timing

AT_ONCE = 16
POLL_S = 0.05

logger = logging.getLogger(__name__)


LIST = "/contributions"


def address(key: Key) -> str:
    """Where a contribution is offered."""
    return f"{LIST}/{topic(key)}"


class Offer(NamedTuple):
    """One contribution on offer; its bytes are made when they are asked for."""

    device: str
    incarnation: int
    pattern: str
    revision: int
    data: Callable[[], bytes]

    @property
    def path(self) -> str:
        """Where it can be fetched."""
        return address((self.device, self.incarnation, self.pattern))


class Offering:
    """A server in a thread of its own."""

    def __init__(
        self,
        offers: Callable[[], list[Offer]],
        token: str,
        listen: tuple[str, int],
        timeout_s: float,
    ) -> None:
        """Listen from now on."""
        try:
            self._server = _Server(offers, token, listen, timeout_s)
        except OSError as error:
            raise SettingError(
                f"cannot listen on {listen[0]}:{listen[1]} ({error.strerror}): choose another"
            ) from error
        self._thread = Thread(target=self._server.serve_forever, args=(POLL_S,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 2 * AT_ONCE

    def __init__(
        self,
        offers: Callable[[], list[Offer]],
        token: str,
        listen: tuple[str, int],
        timeout_s: float,
    ) -> None:
        self.offers, self.timeout_s = offers, timeout_s
        self.expected = authorization(token)["Authorization"].encode()
        self._room = BoundedSemaphore(AT_ONCE)
        self.address_family = AF_INET6 if ":" in listen[0] else AF_INET
        super().__init__(listen, _Handler)

    def server_bind(self) -> None:
        """Bind without asking a name server what this host is called."""
        TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Hand a connection to a thread, or close it if there are too many."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - its signature
        """Take a connection that broke as what it is."""
        logger.debug("a peer hung up", extra={"values": {"peer": client_address[0]}})


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "edgemerge", ""

    def setup(self) -> None:
        """Give every wait its time."""
        self.timing = Timing(self.server.timeout_s)
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(Timed(self.connection, self.timing))

    def do_GET(self) -> None:
        """Give the list, or one contribution."""
        given = self.headers.get("Authorization", "").encode("utf-8", "replace")
        if not compare_digest(given, self.server.expected):
            self._send(401, b'{"error": "the token is missing or wrong"}')
            return
        offers = self.server.offers()
        if self.path == LIST:
            self._send(200, json.dumps([offer[:4] for offer in offers]).encode())
            return
        data = next((offer.data() for offer in offers if offer.path == self.path), None)
        if data is None:
            self._send(404, b'{"error": "no such contribution"}')
        else:
            self._send(200, data, kind="application/octet-stream")

    def _send(self, status: int, body: bytes, *, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        for start in range(0, len(body), BLOCK):
            self.connection.settimeout(self.timing.left())
            self.wfile.write(body[start : start + BLOCK])

    def log_message(self, *_: Any) -> None:
        """Keep what strangers send out of the log, except at its lowest level."""
        logger.debug("asked", extra={"values": {"peer": self.client_address[0]}})
