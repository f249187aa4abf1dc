"""An HTTP connection with the standard library: every wait and size bounded, the token kept secret.

The other side may be slow, broken or hostile: its words are cut short, its replies limited, and no
error, log line or `repr` shows the token.
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
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead
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

MAX_WAITS = 30  # so many times the limit of one wait is the limit of all


class Deadline:
    """A limit for each wait, and for all from now on."""

    def __init__(self, timeout_s: float) -> None:
        """Start counting."""
        self.wait_timeout_s = timeout_s
        self._end = monotonic() + MAX_WAITS * timeout_s

    def left(self) -> float:
        """How long the next wait may take; an error if there is no time left."""
        left = min(self.wait_timeout_s, self._end - monotonic())
        if left <= 0.0:
            raise TimeoutError("the other side is too slow")
        return left


class DeadlineReader(io.RawIOBase):
    """What a socket receives, read within the time: drop by drop does not take for ever."""

    def __init__(self, sock: socket, timing: Deadline) -> None:
        """Read from a socket, which stays open when this is closed."""
        self._sock, self._timing = sock, timing
        self._file: Any = sock.makefile("rb", buffering=0)

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Give it as the file that `http.client` asks a socket for."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        """It can be read."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Wait for the next bytes, no longer than there is time."""
        self._sock.settimeout(self._timing.left())
        found: int | None = self._file.readinto(buffer)
        return found

    def close(self) -> None:
        """Let go of the socket."""
        self._file.close()
        super().close()


BLOCK_BYTES = 2**14  # bytes
MAX_ERROR_BYTES = 2**14
MAX_RETRY_AFTER_S = 3600.0


@dataclass(frozen=True)
class Reply:
    """What came back; the names of headers are in lower case."""

    status: int
    headers: dict[str, str] = field(repr=False)
    body: bytes = field(repr=False)

    def json(self) -> Any:
        """Read the body as JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise RejectedError("found a reply that is not JSON: is this the server?") from error

    @property
    def words(self) -> str:
        """What the other side says went wrong: at most 300 printable characters."""
        try:
            found = json.loads(self.body)["error"]
        except (ValueError, RecursionError, KeyError, TypeError):
            return "no reason given"
        return "".join(filter(str.isprintable, str(found)[:1000]))[:300]

    @property
    def retry_s(self) -> float | None:
        """When to try again, if the other side says so; at most an hour."""
        text = self.headers.get("retry-after", "")
        plain = text.isascii() and text.isdigit() and len(text) < 10
        return min(float(text), MAX_RETRY_AFTER_S) if plain else None

    def must_be(self, *statuses: int) -> Reply:
        """Give itself if it went well, else an error with the words of the other side."""
        if self.status in statuses:
            return self
        raise RejectedError(f"refused with status {self.status}: {self.words}")

    def judged(self, asked: str) -> Reply:
        """Give itself, or the error that its status stands for whatever was asked."""
        told = f"{asked}: status {self.status}: {self.words}"
        if self.status >= 500 or self.status == 429:
            raise UnavailableError(told, self.retry_s)
        if self.status in (401, 403):
            raise DeniedError(told)
        if self.status == 404:
            raise UnknownError(told)
        return self


def read_reply(response: HTTPResponse, limit: int) -> Reply:
    """Read a reply to its end; of an error only the beginning."""
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


MAX_REPLY_BYTES = 2**26  # bytes of a reply
# Below what servers and routers allow: a connection left alone longer is made afresh.
MAX_IDLE_S = 4.0
IDEMPOTENT = ("GET", "HEAD", "PUT", "DELETE")
Query = Mapping[str, str | int | Sequence[str] | None]

logger = logging.getLogger(__name__)


class Connection:
    """One kept-alive connection, for any number of threads; one asks at a time.

    It may be closed in between, by either side: what is safe to repeat is asked once more then.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        ca_file: str | os.PathLike[str] | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        """Remember where to; nothing is sent yet. `ca_file` says whose certificates count."""
        self._https, self.host, self._port, self._base = _split_url(url)
        self.url, self.timeout_s = url, timeout_s
        self._headers = {} if token is None else authorization_header(token)
        self._context = _tls_context(ca_file) if self._https else None
        self._open: HTTPConnection | None = None
        self._used = 0.0
        self._lock = Lock()
        if token and not self._https and not is_loopback(self.host):
            logger.warning(
                "the token goes over plain http, for all to read", extra=_log_values(url)
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
        """Send a request and give the reply.

        What must not be repeated has a connection of its own, unless it may be lost as well.

        Raises `UnavailableError` if there is none in time, or it says 5xx or 429; `DeniedError` for
        401 and 403, `UnknownError` for 404. Everything else is for the caller to judge. One wait
        takes `timeout_s` at most, all of them thirty times that.
        """
        target = self._base + path + _query_string(query or {})
        sent = {"Content-Length": str(len(body))} if body is not None else {}
        given = {**self._headers, **sent, **(headers or {})}
        request = _Request(method, target, body, given, allow_loss=allow_loss)
        with self._lock:
            try:
                reply = self._asked(request, limit)
            except (OSError, HTTPException, UnicodeError) as error:
                self._close()
                raise UnavailableError(f"{self.url} cannot be reached: {_reason(error)}") from error
            except BaseException:
                self._close()
                raise
        return self._redacted(reply).judged(f"{method} {self.url}{path}")

    def close(self) -> None:
        """Close it; asking again opens it again."""
        with self._lock:
            self._close()

    def __del__(self) -> None:
        """Close it with whoever held it."""
        if getattr(self, "_open", None) is not None:
            self._close()

    def __repr__(self) -> str:
        """Show where it leads."""
        return f"Connection({self.url})"

    def _asked(self, request: _Request, limit: int) -> Reply:
        repeatable = request.method in IDEMPOTENT
        alone = not (repeatable or request.allow_loss)
        if alone or monotonic() - self._used > MAX_IDLE_S:
            self._close()
        kept = self._open is not None
        try:
            return self._once(request, limit)
        except ConnectionError:  # also that of a connection closed before a reply
            self._close()
            if not (kept and repeatable):
                raise
        return self._once(request, limit)

    def _once(self, request: _Request, limit: int) -> Reply:
        timing = Deadline(self.timeout_s)
        connection = self._open = self._open or self._new()
        connection.response_class = partial(_response, timing)  # type: ignore[assignment]  # makes one
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
        """An error that repeats our token shall not carry it into a log."""
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
    """Write names as an address, each percent-encoded.

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
    """Write the header that shows a token."""
    if not (token and token.isascii() and token.isprintable() and " " not in token):
        raise SettingError("found a token with spaces or other signs, expected one line of ASCII")
    return {"Authorization": f"Bearer {token}"}


def is_loopback(host: str) -> bool:
    """Say whether a host is this very machine."""
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


def _query_string(query: Query) -> str:
    given = {key: value for key, value in query.items() if value is not None}
    return "?" + urlencode(given, doseq=True) if given else ""


def _response(timing: Deadline, sock: socket, **rest: Any) -> HTTPResponse:
    return HTTPResponse(cast("socket", DeadlineReader(sock, timing)), **rest)


def _blocks(body: bytes, timing: Deadline) -> Iterator[bytes]:
    """Give a body in pieces, each with its own time: a slow line is not a dead one."""
    for start in range(0, len(body), BLOCK_BYTES):
        timing.left()
        yield body[start : start + BLOCK_BYTES]


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        advice = "give its certificate with --ca-file, or ca_file in a configuration"
        return f"its certificate is not trusted ({error.verify_message}): {advice}"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, IncompleteRead):
        return "the reply was cut short"
    if isinstance(error, OSError):
        return error.strerror or "the connection was closed"
    return f"what came back is not HTTP ({type(error).__name__})"


def _log_values(url: str) -> dict[str, dict[str, str]]:
    return {"values": {"url": url}}
