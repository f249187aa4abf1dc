"""HTTP client connection (standard library): bounded waits and sizes, the token kept secret.

The server may be slow, broken or hostile: its error messages are cut short, its replies limited in
size, and no error, log line or `repr` shows the token. A token that carries a fingerprint is sent
to the server with that certificate only; nothing is sent over plain http to another machine unless
that is asked for.
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
from hmac import compare_digest
from http.client import (
    BadStatusLine,
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
    IncompleteRead,
)
from ipaddress import ip_address
from pathlib import Path
from secrets import token_hex
from socket import socket
from threading import Lock
from time import monotonic
from typing import Any, TypedDict, cast
from urllib.parse import quote, urlencode, urlsplit

from edgemerge.certificates import FINGERPRINT, fingerprint, prove, split_token
from edgemerge.core.errors import (
    DeniedError,
    RejectedError,
    SettingError,
    UnavailableError,
    UnknownError,
)
from edgemerge.daemon import MAX_RETRY_AFTER_S
from edgemerge.files import write_atomically

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

    def json_object(self) -> dict[str, Any]:
        """Parse the body as a JSON object; raise RejectedError if it is not one."""
        found = self.json()
        if not isinstance(found, dict):
            raise RejectedError("found a reply that is no JSON object: is this the server?")
        return found

    def json_objects(self) -> list[dict[str, Any]]:
        """Parse the body as a JSON list of objects; raise RejectedError if it is not one."""
        found = self.json()
        if not (isinstance(found, list) and all(isinstance(entry, dict) for entry in found)):
            raise RejectedError(
                "found a reply that is no JSON list of objects: is this the server?"
            )
        return found

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
        raise RejectedError(f"{self.error_text} (status {self.status})")

    def raise_for_status(self, request: str) -> None:
        """Raise the error of a status that means the same for every request."""
        message = f"{self.error_text} ({request}: status {self.status})"
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
CLOSED = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)  # by the other side
NEXT_CERTIFICATE_HEADER = "edgemerge-next-certificate"
TIMELINE_HEADER = "edgemerge-timeline"  # another one after the server was restored from a backup
MAX_TIMELINE_CHARS = 64
MAX_PINS = 4  # fingerprints that are known of one server
PROOF_PATH = "/proof"  # where a peer proves that it has the token
Query = Mapping[str, str | int | Sequence[str] | None]

logger = logging.getLogger(__name__)


class ConnectionOptions(TypedDict, total=False):
    """How a client connects to its server; `Connection` has the default of each that is left out.

    Args:
        ca_file: Certificates to trust, in PEM, instead of the system's.
        timeout_s: Timeout of each wait, in seconds; raise it on slow links.
        insecure: Whether plain http is allowed to another machine.
        pins_file: File to remember fingerprints in that the server announces for later.
    """

    ca_file: str | os.PathLike[str] | None
    timeout_s: float
    insecure: bool
    pins_file: Path | None


class Connection:
    """A keep-alive connection; several threads may use it, one request at a time.

    If the server closed it meanwhile, idempotent requests are sent once more.

    Args:
        url: Address of the server, http:// or https://.
        token: Sent as bearer token; None: none is sent. If it ends with a dot and a fingerprint,
            only the server whose certificate has it gets the token.
        ca_file: Certificates to trust, in PEM, instead of the system's.
        timeout_s: Timeout of each wait, in seconds; a whole request may take 30 times as long.
        insecure: Whether plain http is allowed to another machine, where all on the way can read
            and change what is sent.
        pin: Fingerprint of the server's certificate; by default the one in the token.
        pins_file: File to remember fingerprints in that the server announces for later.
        is_peer: Whether the other side has the same token and must prove it before it gets ours,
            so that its certificate needs no authority.

    Raises:
        SettingError: The URL, token or certificates are not valid, or the URL is plain http to
            another machine.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        ca_file: str | os.PathLike[str] | None = None,
        timeout_s: float = 10.0,
        insecure: bool = False,
        pin: str | None = None,
        pins_file: Path | None = None,
        is_peer: bool = False,
    ) -> None:
        """Send nothing yet."""
        self._https, self.host, self._port, self._base = _split_url(url)
        self.url, self.timeout_s = url, timeout_s
        secret, named = (None, None) if token is None else split_token(token)
        pin = pin or named
        self._headers = {} if secret is None else authorization_header(secret)
        self._pins = None if pin is None else Pins(pin, pins_file)
        if is_peer and secret is not None:
            self._pins = ProvenPins(secret)
        pinned = self._pins is not None
        self._context = _tls_context(ca_file, pinned=pinned) if self._https else None
        self._open: HTTPConnection | None = None
        self._used = 0.0
        self.timeline = ""  # as the last answer named it
        self._lock = Lock()
        if not self._https and not is_loopback(self.host):
            if not insecure:
                raise SettingError(
                    f"found {url}, expected https:// to another machine: over plain http all on "
                    "the way can read and change what is sent (--insecure allows it, "
                    "insecure=True in Python, insecure = true in a configuration)"
                )
            if token:
                logger.warning(
                    "the token is sent over plain http and can be read on the network",
                    extra={"values": {"url": url}},
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
        except CLOSED:  # also if it was closed before a reply
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
        except (BrokenPipeError, ConnectionResetError, ssl.SSLEOFError):
            if connection.sock is None:  # it broke while connecting
                raise
            # else it may have answered before it had read all, as a server does with 413
        with connection.getresponse() as response:
            reply = read_reply(response, limit)
            if not response.isclosed():
                self._close()
        self._used = monotonic()
        if self._pins is not None and NEXT_CERTIFICATE_HEADER in reply.headers:
            self._pins.add(reply.headers[NEXT_CERTIFICATE_HEADER])
        self.timeline = reply.headers.get(TIMELINE_HEADER, self.timeline)[:MAX_TIMELINE_CHARS]
        return reply

    def _redacted(self, reply: Reply) -> Reply:
        """Remove our token from an error message that repeats it, so that no log shows it."""
        token = self._headers.get("Authorization", "").removeprefix("Bearer ").encode()
        echoed = reply.status >= 400 and token and token in reply.body
        return replace(reply, body=reply.body.replace(token, b"...")) if echoed else reply

    def _new(self) -> HTTPConnection:
        if self._context is None:
            return HTTPConnection(self.host, self._port, timeout=self.timeout_s)
        made = HTTPSConnection(self.host, self._port, timeout=self.timeout_s, context=self._context)
        if self._pins is not None:
            made.connect()
            self._pins.check(made)  # before the token is sent
        return made

    def _close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None


class Pins:
    """The fingerprints of a server: that of the token, and those that it announced since.

    They are announced over a connection that was checked, and remembered in a file, so that a
    server may change its certificate while devices are switched off.
    """

    def __init__(self, first: str, file: Path | None = None) -> None:
        """Know that of the token, and what is in the file."""
        self._first, self._file = first, file
        self._known = [first, *self._read()]

    def check(self, made: HTTPSConnection) -> None:
        """Close a connection and raise ssl.SSLError if the other side has another certificate."""
        found = _fingerprint_of(made)
        if found not in self._known:  # another connection of this device may know more
            self._known = [self._first, *self._read()]
        if found not in self._known:
            made.close()
            raise PinError(found)

    def add(self, pin: str) -> None:
        """Remember a fingerprint that the server announced."""
        if pin in self._known or not FINGERPRINT.fullmatch(pin):
            return
        later = [each for each in [*self._read(), pin] if each != self._first][-(MAX_PINS - 1) :]
        self._known = [self._first, *later]
        logger.info("the server announced its next certificate", extra={"values": {"sha256": pin}})
        if self._file is not None:
            write_atomically(
                "".join(f"{each}\n" for each in later).encode(), self._file, parents=True
            )

    def _read(self) -> list[str]:
        if self._file is None or not self._file.exists():
            return []
        lines = self._file.read_text(encoding="ascii", errors="replace").split()
        return [each for each in lines if FINGERPRINT.fullmatch(each)][-(MAX_PINS - 1) :]


class ProvenPins(Pins):
    """The fingerprint of a peer, which must prove that it has the token too.

    It is asked with a nonce, without the token; see `certificates.prove`.
    """

    def __init__(self, secret: str) -> None:
        """Know no fingerprint yet."""
        super().__init__("")
        self._secret = secret

    def check(self, made: HTTPSConnection) -> None:
        """Close a connection and raise ssl.SSLError if the other side cannot prove it."""
        found = _fingerprint_of(made)
        if found == self._first:
            return
        nonce = token_hex(32)
        made.request("GET", f"{PROOF_PATH}?nonce={nonce}")
        with made.getresponse() as response:
            proof = response.read(MAX_ERROR_BYTES)
        if not compare_digest(proof, prove(self._secret, nonce, found).encode()):
            made.close()
            raise PinError(found)
        self._first, self._known = found, [found]
        if made.sock is None:  # a peer closes after each answer
            made.connect()
            self.check(made)


def _fingerprint_of(made: HTTPSConnection) -> str:
    return fingerprint(made.sock.getpeercert(binary_form=True) or b"")


class PinError(ssl.SSLError):
    """The certificate is not the one that the token names."""

    def __init__(self, found: str) -> None:
        """Remember the fingerprint that was found."""
        super().__init__("another certificate")
        self.found = found


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


def _tls_context(ca_file: str | os.PathLike[str] | None, *, pinned: bool = False) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # also ssl.SSLError
        raise SettingError(f"found no certificates in {ca_file}: {_reason(error)}") from error
    if pinned:  # the fingerprint is checked instead, whatever name the server is reached by
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _response(timing: Deadline, sock: socket, **rest: Any) -> HTTPResponse:
    return HTTPResponse(cast("socket", DeadlineReader(sock, timing)), **rest)


def _blocks(body: bytes, timing: Deadline) -> Iterator[bytes]:
    """Yield a body in blocks, each with its own timeout, so that a slow link is not cut off."""
    for start in range(0, len(body), BLOCK_BYTES):
        timing.left()
        yield body[start : start + BLOCK_BYTES]


# Of the reply of a server that does not speak TLS.
NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE")


PLAIN_REASONS: dict[type[Exception], str] = {
    ConnectionRefusedError: "Connection refused: check the address, and that the server runs there",
    TimeoutError: "no answer in time",
    IncompleteRead: "the reply was cut short",
}


def _reason(error: Exception, *, tls: bool = True) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        advice = (
            "use a token that carries its fingerprint, or give its certificate with --ca-file, or "
            "ca_file in a configuration"
        )
        return f"its certificate is not trusted ({error.verify_message}): {advice}"
    if isinstance(error, PinError):
        return (
            f"it has another certificate ({error.found[:16]}…) than the token names: either this "
            "is not your server, or it has a new one: then enrol again, or write the new "
            "fingerprint after the dot in the token file"
        )
    if isinstance(error, ssl.SSLError) and error.reason in NO_TLS:
        return "it does not speak TLS: write http:// instead of https://, or start it with TLS"
    for kind, reason in PLAIN_REASONS.items():
        if isinstance(error, kind):
            return reason
    words = f"what came back is not HTTP ({type(error).__name__})"
    if isinstance(error, OSError):
        words = error.strerror or "the connection was closed"
    if isinstance(error, ConnectionResetError | BadStatusLine) and not tls:
        words += "; if it has TLS, write https:// instead of http://"
    return words
