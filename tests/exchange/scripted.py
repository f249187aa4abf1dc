"""A server that does what a test says, byte by byte, over real sockets."""

import socket
import threading
from contextlib import contextmanager


class Scripted:
    """Answers the requests that come, in any number of connections, with the given acts in turn.

    An act is a function of the connection's socket, or bytes to send; after b"" it hangs up.
    """

    def __init__(self, acts, wrap=lambda sock: sock):
        self.acts, self.wrap = list(acts), wrap
        self.requests, self.connections = [], 0
        self.stop = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.settimeout(0.05)
        self.port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self):
        self.stop.set()
        self._thread.join(10)
        assert not self._thread.is_alive()
        self._socket.close()

    def _run(self):
        while not self.stop.is_set():
            try:
                sock, _ = self._socket.accept()
            except TimeoutError:
                continue
            self.connections += 1
            try:
                sock.settimeout(5)
                sock = self.wrap(sock)
                self._serve(sock)
            except OSError:
                pass  # the other side hung up
            finally:
                sock.close()

    def _serve(self, sock):
        sock.settimeout(0.05)
        while self.acts and (request := self._request(sock)):
            self.requests.append(request)
            act = self.acts.pop(0)
            if callable(act):
                act(sock)
            elif act:
                sock.sendall(act)
            if not act or callable(act):
                return

    def _request(self, sock):
        data = b""
        while b"\r\n\r\n" not in data or len(data.split(b"\r\n\r\n", 1)[1]) < _length(data):
            if self.stop.is_set():
                return None
            try:
                piece = sock.recv(65536)
            except TimeoutError:
                continue
            if not piece:
                return None
            data += piece
        return data


def _length(data):
    head = data.split(b"\r\n\r\n", 1)[0].lower().split(b"\r\n")
    return next((int(line[15:]) for line in head if line.startswith(b"content-length:")), 0)


def reply(body=b"", status="200 OK", **headers):
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *lines]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


@contextmanager
def scripted(*acts, **options):
    server = Scripted(acts, **options)
    try:
        yield server
    finally:
        server.close()
