"""A stand-in for a server that takes reports: it checks each, and answers what it is told to."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from edgemerge.exchange.client import MAX_REPORT_BYTES
from edgemerge.server.schemas import ReportRequest


class StandIn:
    """Keeps the reports that it has taken; `status` and `answer` say what it answers."""

    def __init__(self, port: int) -> None:
        """Answer at a port, as a server would that has no wishes."""
        self.url = f"http://127.0.0.1:{port}"
        self.status = 200
        self.answer: Any = {"every_s": 0.2, "choice": 0}  # bytes are sent as they are
        self.reports: list[ReportRequest] = []
        self.refused: list[str] = []
        self.asked: list[tuple[str, str]] = []
        self.headers: dict[str, str] = {}

    def take(self, body: bytes) -> tuple[int, bytes]:
        """Take a report; give status and answer."""
        try:
            report = ReportRequest.model_validate_json(body)
        except ValueError as error:
            self.refused.append(str(error))
            return 422, b"{}"
        if len(body) > MAX_REPORT_BYTES:
            self.refused.append(f"{len(body)} bytes")
        if self.status == 200:
            self.reports.append(report)
        given = self.answer
        return self.status, given if isinstance(given, bytes) else json.dumps(given).encode()

    @property
    def points(self) -> list[Any]:
        """All scores so far."""
        return [point for report in self.reports for point in report.points]

    @property
    def alarms(self) -> list[Any]:
        """All alarms so far."""
        return [alarm for report in self.reports for alarm in report.alarms]


@contextmanager
def standing_in() -> Iterator[StandIn]:
    """Answer until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.asked.append((self.path, self.headers["Authorization"]))
            status, answer = found.take(body)
            self.send_response(status)
            for name, value in found.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_given: object) -> None:
            """Say nothing."""

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except ConnectionError:  # the device did not wait for the answer
                self.close_connection = True

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found = StandIn(server.server_address[1])
        thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield found
        server.shutdown()
        thread.join()


@contextmanager
def dead() -> Iterator[str]:
    """Give the address of a server that lets everybody in and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
