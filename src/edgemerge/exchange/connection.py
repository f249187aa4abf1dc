"""HTTP client connection (standard library): bounded waits and sizes, the token kept secret.

The server may be slow, broken or hostile: its error messages are cut short, its replies limited in
size, and no error, log line or `repr` shows the token.
"""

from __future__ import annotations

import io
import json
import logging
import os
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from http.client import (
    BadStatusLine,
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
    IncompleteRead,
)
from ipaddress import ip_address
from socket import socket
from threading import Lock
from time import monotonic
from typing import Any, cast
from urllib.parse import quote, urlencode, urlsplit

from edgemerge.core.errors import (
    DeniedError,
    RejectedError,
    SettingError,
    UnavailableError,
    UnknownError,
)
from edgemerge.daemon import MAX_RETRY_AFTER_S

MAX_WAITS = 30  # the timeout of a whole request, as a multiple of that of one wait


class Deadline:
    """The timeout of each wait, and of all waits together from now on."""

    def __init__(self, timeout_s: float) -> None:
        """Start counting."""
        self.wait_timeout_s = timeout_s
        self._end = monotonic() + MAX_WAITS * timeout_s

    def left(self) -> float:
        """Return the timeout of the next wait; raise TimeoutError if no time is left."""
        left = min(self.wait_timeout_s, self._end - monotonic())
        if left <= 0.0:
            raise TimeoutError("the other side is too slow")
        return left


class DeadlineReader(io.RawIOBase):
    """Reads from a socket until a deadline, however slowly the bytes arrive."""

    def __init__(self, sock: socket, timing: Deadline) -> None:
        """Read from a socket; closing this does not close the socket."""
        self._sock, self._timing = sock, timing
        self._file: Any = sock.makefile("rb", buffering=0)

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return a buffered file, as `http.client` expects of a socket."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Wait for the next bytes, at most until the deadline."""
        self._sock.settimeout(self._timing.left())
        found: int | None = self._file.readinto(buffer)
        return found

    def close(self) -> None:
        """Release the socket."""
        self._file.close()
        super().close()


BLOCK_BYTES = 2**14  # bytes
MAX_ERROR_BYTES = 2**14


@dataclass(frozen=True)
class Reply:
    """A reply; header names are in lower case."""

    status: int
    headers: dict[str, str] = field(repr=False)
    body: bytes = field(repr=False)

    def json(self) -> Any:
        """Parse the body as JSON; raise RejectedError if it is not."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise RejectedError("found a reply that is not JSON: is this the server?") from error

    @property
    def error_text(self) -> str:
        """The server's error message: at most 300 printable characters."""
        try:
            found = json.loads(self.body)["error"]
        except (ValueError, RecursionError, KeyError, TypeError):
            return "no reason given"
        return "".join(filter(str.isprintable, str(found)[:1000]))[:300]

    @property
    def retry_s(self) -> float | None:
        """The Retry-After header in seconds, at most an hour; None without one."""
        text = self.headers.get("retry-after", "")
        plain = text.isascii() and text.isdigit() and len(text) < 10
        return min(float(text), MAX_RETRY_AFTER_S) if plain else None

    def must_be(self, *statuses: int) -> Reply:
        """Return itself if it has one of these statuses; else raise RejectedError."""
        if self.status in statuses:
            return self
        raise RejectedError(f"refused with status {self.status}: {self.error_text}")

    def raise_for_status(self, request: str) -> None:
        """Raise the error of a status that means the same for every request."""
        message = f"{request}: status {self.status}: {self.error_text}"
        if self.status >= 500 or self.status == 429:
            raise UnavailableError(message, self.retry_s)
        if self.status in (401, 403):
            raise DeniedError(message)
        if self.status == 404:
            raise UnknownError(message)


def read_reply(response: HTTPResponse, limit: int) -> Reply:
    """Read a whole reply; of an error only the first `MAX_ERROR_BYTES`."""
    failed = response.status >= 400
    limit = MAX_ERROR_BYTES if failed else limit
    expected, body = response.length, bytearray()
    if expected is None and not response.chunked:
        raise IncompleteRead(b"")  # it may have been cut anywhere, even within its headers
    while len(body) <= limit and (piece := response.read(BLOCK_BYTES)):
        body += piece
    if len(body) > limit and not failed:
        raise RejectedError(f"found a reply of more than {limit} bytes: it was not read")
    if expected is not None and len(body) < min(expected, limit):
        raise IncompleteRead(bytes(body), expected - len(body))
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Reply(response.status, headers, bytes(body[:limit]))


MAX_REPLY_BYTES = 2**26
# Below the idle timeouts of servers and routers: after a longer pause, connect again.
MAX_IDLE_S = 4.0
IDEMPOTENT = ("GET", "HEAD", "PUT", "DELETE")
Query = Mapping[str, str | int | Sequence[str] | None]

logger = logging.getLogger(__name__)


class Connection:
    """A keep-alive connection; several threads may use it, one request at a time.

    If the server closed it meanwhile, idempotent requests are sent once more.

    Args:
        url: Address of the server, http:// or https://.
        token: Sent as bearer token; None: none is sent.
        ca_file: Certificates to trust, in PEM, instead of the system's.
        timeout_s: Timeout of each wait, in seconds; a whole request may take 30 times as long.

    Raises:
        SettingError: The URL, token or certificates are not valid.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        ca_file: str | os.PathLike[str] | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        """Send nothing yet."""
        self._https, self.host, self._port, self._base = _split_url(url)
        self.url, self.timeout_s = url, timeout_s
        self._headers = {} if token is None else authorization_header(token)
        self._context = _tls_context(ca_file) if self._https else None
        self._open: HTTPConnection | None = None
        self._used = 0.0
        self._lock = Lock()
        if token and not self._https and not is_loopback(self.host):
            logger.warning(
                "the token goes over plain http, for all to read", extra={"values": {"url": url}}
            )

    def ask(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        limit: int = MAX_REPLY_BYTES,
        allow_loss: bool = False,
    ) -> Reply:
        """Send a request and return the reply.

        Args:
            method: The HTTP method. Requests that are not idempotent get a new connection.
            path: Path below the URL, with a leading slash.
            query: Parameters; those that are None are left out.
            body: Content to send.
            headers: More headers.
            limit: The most bytes of a reply to accept.
            allow_loss: Whether the request may get lost, so that a POST may use an open connection.

        Raises:
            UnavailableError: No reply in time, or status 5xx or 429.
            DeniedError: Status 401 or 403.
            UnknownError: Status 404.
        """
        given = {key: value for key, value in (query or {}).items() if value is not None}
        target = self._base + path + ("?" + urlencode(given, doseq=True) if given else "")
        length = {"Content-Length": str(len(body))} if body is not None else {}
        sent = {**self._headers, **length, **(headers or {})}
        request = _Request(method, target, body, sent, allow_loss=allow_loss)
        with self._lock:
            try:
                reply = self._send(request, limit)
            except (OSError, HTTPException, UnicodeError) as error:
                self._close()
                why = _reason(error, tls=self._context is not None)
                raise UnavailableError(f"{self.url} cannot be reached: {why}") from error
            except BaseException:
                self._close()
                raise
        reply = self._redacted(reply)
        reply.raise_for_status(f"{method} {self.url}{path}")
        return reply

    def close(self) -> None:
        """Close it; the next request opens it again."""
        with self._lock:
            self._close()

    def __del__(self) -> None:
        """Close it when it is no longer used."""
        if getattr(self, "_open", None) is not None:
            self._close()

    def __repr__(self) -> str:
        """Show the URL."""
        return f"Connection({self.url})"

    def _send(self, request: _Request, limit: int) -> Reply:
        repeatable = request.method in IDEMPOTENT
        needs_new = not (repeatable or request.allow_loss)
        if needs_new or monotonic() - self._used > MAX_IDLE_S:
            self._close()
        kept = self._open is not None
        try:
            return self._send_once(request, limit)
        except ConnectionError:  # also if it was closed before a reply
            self._close()
            if not (kept and repeatable):
                raise
        return self._send_once(request, limit)

    def _send_once(self, request: _Request, limit: int) -> Reply:
        timing = Deadline(self.timeout_s)
        connection = self._open = self._open or self._new()
        connection.response_class = partial(_response, timing)  # type: ignore[assignment]  # returns one
        if connection.sock is not None:
            connection.sock.settimeout(self.timeout_s)
        try:
            blocks = None if request.body is None else _blocks(request.body, timing)
            connection.request(request.method, request.target, blocks, request.headers)
        except (BrokenPipeError, ConnectionResetError):
            if connection.sock is None:  # it broke while connecting
                raise
            # else it may have answered before it had read all, as a server does with 413
        with connection.getresponse() as response:
            reply = read_reply(response, limit)
            if not response.isclosed():
                self._close()
        self._used = monotonic()
        return reply

    def _redacted(self, reply: Reply) -> Reply:
        """Remove our token from an error message that repeats it, so that no log shows it."""
        token = self._headers.get("Authorization", "").removeprefix("Bearer ").encode()
        echoed = reply.status >= 400 and token and token in reply.body
        return replace(reply, body=reply.body.replace(token, b"...")) if echoed else reply

    def _new(self) -> HTTPConnection:
        if self._context is None:
            return HTTPConnection(self.host, self._port, timeout=self.timeout_s)
        return HTTPSConnection(self.host, self._port, timeout=self.timeout_s, context=self._context)

    def _close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None


def url_path(*segments: str | int) -> str:
    """Return the path of these segments, each percent-encoded.

    >>> url_path("fleets", "pumps", "contributions", "pump-3", 0, "idle, warm")
    '/fleets/pumps/contributions/pump-3/0/idle%2C%20warm'
    """
    for segment in map(str, segments):
        if not segment.strip(".") or set(segment) & {"/", "\\"} or not segment.isprintable():
            raise SettingError(
                f"found {segment!r}, expected a name without / and \\ that is not only dots"
            )
    return "".join(f"/{quote(str(segment), safe='')}" for segment in segments)


def authorization_header(token: str) -> dict[str, str]:
    """Return the header with a bearer token."""
    if not (token and token.isascii() and token.isprintable() and " " not in token):
        raise SettingError("found a token with spaces or other signs, expected one line of ASCII")
    return {"Authorization": f"Bearer {token}"}


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class _Request:
    method: str
    target: str
    body: bytes | None = field(repr=False)
    headers: dict[str, str] = field(repr=False)
    allow_loss: bool = False


def _split_url(url: str) -> tuple[bool, str, int, str]:
    try:
        found = urlsplit(url)
        host, port = found.hostname, found.port
    except ValueError as error:
        raise SettingError(f"found url {url!r}: {error}") from error
    plain = not (found.query or found.fragment or "@" in found.netloc)
    if found.scheme not in ("http", "https") or not host or not plain or not url.isprintable():
        shown = url if "@" not in url else "one with a name or password in it"
        raise SettingError(f"found url {shown!r}, expected http://host:port or https://host:port")
    https = found.scheme == "https"
    port = port or (443 if https else 80)
    return https, host, port, quote(found.path.rstrip("/"), safe="/%")


def _tls_context(ca_file: str | os.PathLike[str] | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # also ssl.SSLError
        raise SettingError(f"found no certificates in {ca_file}: {_reason(error)}") from error


def _response(timing: Deadline, sock: socket, **rest: Any) -> HTTPResponse:
    return HTTPResponse(cast("socket", DeadlineReader(sock, timing)), **rest)


def _blocks(body: bytes, timing: Deadline) -> Iterator[bytes]:
    """Yield a body in blocks, each with its own timeout, so that a slow link is not cut off."""
    for start in range(0, len(body), BLOCK_BYTES):
        timing.left()
        yield body[start : start + BLOCK_BYTES]


# Of the reply of a server that does not speak TLS.
NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE")


def _reason(error: Exception, *, tls: bool = True) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        advice = "give its certificate with --ca-file, or ca_file in a configuration"
        return f"its certificate is not trusted ({error.verify_message}): {advice}"
    if isinstance(error, ssl.SSLError) and error.reason in NO_TLS:
        return "it does not speak TLS: write http:// instead of https://, or start it with TLS"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, IncompleteRead):
        return "the reply was cut short"
    words = f"what came back is not HTTP ({type(error).__name__})"
    if isinstance(error, OSError):
        words = error.strerror or "the connection was closed"
    if isinstance(error, ConnectionResetError | BadStatusLine) and not tls:
        words += "; if it has TLS, write https:// instead of http://"
    return words
