"""A connection to a server: HTTP or HTTPS with the standard library, every wait and size bounded.

The other side may be slow, broken or hostile: its words are cut short, its replies limited, and
no error, log line or `repr` shows the token.
"""

from __future__ import annotations

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

from edgemerge.core.errors import AwayError, SettingError
from edgemerge.exchange.reply import BLOCK, Reply, read
from edgemerge.exchange.timed import Timed, Timing

LIMIT = 2**26  # bytes of a reply
IDLE_S = 4.0  # below what servers and routers allow: a connection left alone longer is made afresh
REPEATABLE = ("GET", "HEAD", "PUT", "DELETE")
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
        self._https, self.host, self._port, self._base = _parts(url)
        self.url, self.timeout_s = url, timeout_s
        self._headers = {} if token is None else authorization(token)
        self._context = _trust(ca_file) if self._https else None
        self._open: HTTPConnection | None = None
        self._used = 0.0
        self._lock = Lock()
        if token and not self._https and not is_loopback(self.host):
            logger.warning("the token goes over plain http, for all to read", extra=_about(url))

    def ask(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        limit: int = LIMIT,
        may_be_lost: bool = False,
    ) -> Reply:
        """Send a request and give the reply.

        What must not be repeated has a connection of its own, unless it may be lost as well.

        Raises `AwayError` if there is none in time, or it says 5xx or 429; `DeniedError` for 401
        and 403, `UnknownError` for 404. Everything else is for the caller to judge. One wait
        takes `timeout_s` at most, all of them thirty times that.
        """
        target = self._base + path + _query(query or {})
        sent = {"Content-Length": str(len(body))} if body is not None else {}
        given = {**self._headers, **sent, **(headers or {})}
        request = _Request(method, target, body, given, may_be_lost=may_be_lost)
        with self._lock:
            try:
                reply = self._asked(request, limit)
            except (OSError, HTTPException, UnicodeError) as error:
                self._close()
                raise AwayError(f"{self.url} cannot be reached: {_why(error)}") from error
            except BaseException:
                self._close()
                raise
        return self._silenced(reply).judged(f"{method} {self.url}{path}")

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
        repeatable = request.method in REPEATABLE
        alone = not (repeatable or request.may_be_lost)
        if alone or monotonic() - self._used > IDLE_S:
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
        timing = Timing(self.timeout_s)
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
            reply = read(response, limit)
            if not response.isclosed():
                self._close()
        self._used = monotonic()
        return reply

    def _silenced(self, reply: Reply) -> Reply:
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


def path(*segments: str | int) -> str:
    """Write names as an address, each percent-encoded.

    >>> path("fleets", "pumps", "contributions", "pump-3", 0, "idle, warm")
    '/fleets/pumps/contributions/pump-3/0/idle%2C%20warm'
    """
    for segment in map(str, segments):
        if not segment.strip(".") or set(segment) & {"/", "\\"} or not segment.isprintable():
            raise SettingError(
                f"found {segment!r}, expected a name without / and \\ that is not only dots"
            )
    return "".join(f"/{quote(str(segment), safe='')}" for segment in segments)


def authorization(token: str) -> dict[str, str]:
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
    may_be_lost: bool = False


def _parts(url: str) -> tuple[bool, str, int, str]:
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


def _trust(ca_file: str | os.PathLike[str] | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # also ssl.SSLError
        raise SettingError(f"found no certificates in {ca_file}: {_why(error)}") from error


def _query(query: Query) -> str:
    given = {key: value for key, value in query.items() if value is not None}
    return "?" + urlencode(given, doseq=True) if given else ""


def _response(timing: Timing, sock: socket, **rest: Any) -> HTTPResponse:
    return HTTPResponse(cast("socket", Timed(sock, timing)), **rest)


def _blocks(body: bytes, timing: Timing) -> Iterator[bytes]:
    """Give a body in pieces, each with its own time: a slow line is not a dead one."""
    for start in range(0, len(body), BLOCK):
        timing.left()
        yield body[start : start + BLOCK]


def _why(error: Exception) -> str:
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


def _about(url: str) -> dict[str, dict[str, str]]:
    return {"values": {"url": url}}
