"""Receivers of messages: web servers that keep what they get, or misbehave."""

from __future__ import annotations

import json
import socket
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle
from threading import Event, Thread
from time import sleep


class Receiver(ThreadingHTTPServer):
    """A web server that keeps what it is sent and answers with the next of its codes."""

    def __init__(self, *codes):
        self.codes, self.got, self.answered = list(codes), [], []
        self.hold = Event()  # while it is set, nothing is answered

        class Handler(BaseHTTPRequestHandler):
            server: Receiver

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self.server.got.append((self.path, dict(self.headers), body))
                while self.server.hold.is_set():
                    sleep(0.01)
                code = self.server.codes.pop(0) if self.server.codes else 200
                self.server.answered.append(code)
                self.send_response(code)
                self.send_header("Location", "/elsewhere")
                self.end_headers()

            def do_GET(self):
                self.server.got.append((self.path, {}, b'"redirected"'))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass

        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def bodies(self):
        return [json.loads(body) for _, _, body in self.got]


@contextmanager
def receiver(*codes):
    server = Receiver(*codes)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def dripping(*pieces, every_s=0.02):
    """A server that takes a connection and then sends these pieces, slowly, again and again."""
    listening, stop = socket.create_server(("127.0.0.1", 0)), Event()

    def work():
        link, _ = listening.accept()
        with link, suppress(OSError):
            for piece in cycle(pieces or [b""]):
                if stop.wait(every_s):
                    return
                link.sendall(piece)

    thread = Thread(target=work)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        stop.set()
        thread.join()
        listening.close()
