"""Exchange between a few devices directly: each serves its contributions and fetches the others'.

`GET /contributions` lists them as JSON, `GET /contributions/<device>/<incarnation>/<pattern>`
returns the bytes of one, and `/faults` does the same for faults; all need the token. Everything is
in memory: after a restart a device serves nothing until it pushes again, and has nothing of its
peers until it pulls. Beyond one machine it is encrypted: each device makes a certificate at its
start, and proves by the shared token that it is its own. A header beside the bytes of a
contribution has the signature of the device that made it.
"""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Callable, Iterable
from functools import partial
from hmac import compare_digest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import AF_INET, AF_INET6
from socketserver import TCPServer
from ssl import SSLContext
from threading import BoundedSemaphore, Lock, Thread
from typing import Any, NamedTuple

from edgemerge.certificates import FINGERPRINT, passing_context, prove
from edgemerge.core.errors import (
    DeniedError,
    EdgemergeError,
    RejectedError,
    SettingError,
    UnavailableError,
    UnknownError,
    must_be,
)
from edgemerge.core.faults import Faults
from edgemerge.core.ledger import (
    KINDS,
    Contribution,
    Freshness,
    Key,
    Kind,
    Ledger,
    Merged,
    Selection,
    must_be_name,
)
from edgemerge.core.projection import Projection, as_int
from edgemerge.exchange.connection import (
    BLOCK_BYTES,
    PROOF_PATH,
    Connection,
    Deadline,
    DeadlineReader,
    authorization_header,
    is_loopback,
)
from edgemerge.exchange.protocol import merge, must_be_contribution, must_be_selection
from edgemerge.exchange.stored_contributions import (
    LogOnce,
    must_be_current,
    read_contribution,
    topic_suffix,
)
from edgemerge.files import read_token
from edgemerge.signatures import KnownKeys, SigningKey
from edgemerge.wire.admission import admit
from edgemerge.wire.codec import encode

MAX_CONNECTIONS = 16
MIN_TOKEN_CHARS = 20  # of a token that must not be guessed
POLL_S = 0.05

logger = logging.getLogger(__name__)


SIGNATURE_HEADER = "X-Edgemerge-Signature"
LIST_PATHS: dict[Kind, str] = {"normal": "/contributions", "fault": "/faults"}


def contribution_path(key: Key, kind: Kind = "normal") -> str:
    """Return the path of a contribution."""
    return f"{LIST_PATHS[kind]}/{topic_suffix(key)}"


class ServedContribution(NamedTuple):
    """A contribution to serve, and the signature of its bytes; None if it is not signed."""

    contribution: Contribution
    signature: str | None


class ContributionServer(ThreadingHTTPServer):
    """An HTTP server of contributions, in its own thread."""

    daemon_threads = True
    request_queue_size = 2 * MAX_CONNECTIONS

    def __init__(
        self,
        contributions: Callable[[], list[ServedContribution]],
        token: str,
        listen: tuple[str, int],
        timeout_s: float,
        *,
        encrypts: bool = False,
    ) -> None:
        """Start to listen."""
        self.contributions, self.timeout_s = contributions, timeout_s
        self._context: SSLContext | None = None
        self._pin = ""
        if encrypts:
            self._context, self._pin = passing_context()
        self._token = token
        self.expected = authorization_header(token)["Authorization"].encode()
        self._room = BoundedSemaphore(MAX_CONNECTIONS)
        self.address_family = AF_INET6 if ":" in listen[0] else AF_INET
        try:
            super().__init__(listen, _Handler)
        except OSError as error:
            raise SettingError(
                f"cannot listen on {listen[0]}:{listen[1]} ({error.strerror}): choose another"
            ) from error
        self._thread = Thread(target=self.serve_forever, args=(POLL_S,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The address to reach it at."""
        host, port = self.server_address[:2]
        return f"{'https' if self._context else 'http'}://{host!s}:{port}"

    def proof(self, nonce: str) -> str:
        """Return the proof that who serves with our certificate has the token."""
        return prove(self._token, nonce, self._pin)

    def close(self) -> None:
        """Stop listening."""
        self.shutdown()
        self._thread.join()
        self.server_close()

    def server_bind(self) -> None:
        """Bind without asking a name server for the name of this host."""
        TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle a connection in a thread, or close it if there are too many."""
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
            if self._context is not None:
                request.settimeout(self.timeout_s)
                request = self._context.wrap_socket(request, server_side=True)
            super().process_request_thread(request, client_address)
        except OSError:  # no TLS, or not ours
            self.handle_error(request, client_address)
            self.shutdown_request(request)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - its signature
        """Log a broken connection as debug."""
        logger.debug("a peer hung up", extra={"values": {"peer": client_address[0]}})


class _Handler(BaseHTTPRequestHandler):
    server: ContributionServer
    server_version, sys_version = "edgemerge", ""

    def setup(self) -> None:
        """Bound the time of the whole request."""
        self.timing = Deadline(self.server.timeout_s)
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(DeadlineReader(self.connection, self.timing))

    def do_GET(self) -> None:
        """Return the list, or one contribution; without the token only a proof of ours."""
        path, _, query = self.path.partition("?")
        if path == PROOF_PATH and FINGERPRINT.fullmatch(query.removeprefix("nonce=")):
            self._send(200, self.server.proof(query.removeprefix("nonce=")).encode())
            return
        given = self.headers.get("Authorization", "").encode("utf-8", "replace")
        if not compare_digest(given, self.server.expected):
            self._send(401, b'{"error": "the token is missing or wrong"}')
            return
        all_served = self.server.contributions()
        contributions = [each for each, _ in all_served]
        served = {contribution_path(each.key, each.kind): (each, by) for each, by in all_served}
        kinds = [kind for kind, path in LIST_PATHS.items() if path == self.path]
        if kinds:
            listed = [(*each.key, each.revision) for each in contributions if each.kind in kinds]
            self._send(200, json.dumps(listed).encode())
        elif self.path in served:
            found, signature = served[self.path]
            self._send(200, encode(found), kind="application/octet-stream", signature=signature)
        else:
            self._send(404, b'{"error": "no such contribution"}')

    def _send(
        self,
        status: int,
        body: bytes,
        *,
        kind: str = "application/json",
        signature: str | None = None,
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        if signature is not None:
            self.send_header(SIGNATURE_HEADER, signature)
        self.end_headers()
        for start in range(0, len(body), BLOCK_BYTES):
            self.connection.settimeout(self.timing.left())
            self.wfile.write(body[start : start + BLOCK_BYTES])

    def log_message(self, *_: Any) -> None:
        """Log requests as debug only, without what the client sent."""
        logger.debug("request", extra={"values": {"peer": self.client_address[0]}})


MAX_CONTRIBUTIONS = 1000  # of one peer
MAX_LIST_BYTES = 2**22


class PeerExchange:
    """Devices that know each other's addresses and share one token.

    A peer that cannot be reached is logged, and its last contributions are used: they stay until
    it pushes empty ones. If no peer can be reached and none was before, `pull` raises
    `UnavailableError`. A contribution under a name that another key signed first is skipped and
    logged. If two peers serve the same revision with different sums, the first is used,
    and the contradiction is logged once.

    Args:
        projection: What all devices share.
        listen: Host and port to listen on; port 0: any free one. The default serves this machine
            only: name an address of the network for peers on others.
        peers: Address of another device, such as "https://10.0.0.3:7070", or several; none by
            default. `meet` adds more.
        token: The secret that all peers share. Give it, or `token_file`; None by default.
        token_file: File with the token on one line; None by default.
        timeout_s: How long to wait for each answer of a peer, in seconds; 10 unless given. Raise it
            on slow links.
        insecure: Whether plain http is allowed beyond this machine; False by default.
        tls: Whether to serve https, which needs the extra `tls`; None: if `listen` is beyond this
            machine, unless `insecure` is set.
        key_file: File of this device's key, made at first use; None: contributions are not signed.
        known_keys_file: File to remember the keys of other devices in; None: only in memory.

    Raises:
        SettingError: There is no address to listen on, not exactly one token, or a short one.

    >>> from edgemerge import Stats
    >>> shared = Projection(n_inputs=2, n_hidden=3)
    >>> a = PeerExchange(shared, token="secret")
    >>> b = PeerExchange(shared, token="secret", peers=[a.url])
    >>> a.push(Contribution("pump-3", Stats.of(shared, [[0.1, 0.2]]), revision=1))
    True
    >>> b.pull(Selection(receiver="pump-4"))
    Merged(1 parts of 1 contributions, 1 samples)
    >>> a.close(), b.close()
    (None, None)
    """

    def __init__(
        self,
        projection: Projection,
        *,
        listen: tuple[str, int] | None = ("127.0.0.1", 0),
        peers: str | Iterable[str] = (),
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        timeout_s: float = 10.0,
        insecure: bool = False,
        tls: bool | None = None,
        key_file: str | os.PathLike[str] | None = None,
        known_keys_file: str | os.PathLike[str] | None = None,
    ) -> None:
        """Start to serve; `url` is the address."""
        if listen is None:
            raise SettingError(
                "found no address to listen on, expected a host and a port for peers"
            )
        must_be(projection, Projection, "build one that all devices share")
        self.projection = projection
        given: Any = listen
        must_be(given, tuple, 'give host and port, such as ("0.0.0.0", 7070)')
        if len(given) != 2 or not 0 <= as_int("port", given[1]) <= 65535:
            raise SettingError(f"found listen={given}, expected a host and a port up to 65535")
        must_be(given[0], str, 'give host and port, such as ("0.0.0.0", 7070)')
        if (token is None) == (token_file is None):
            raise SettingError(
                "found no token or two, expected token or token_file: all peers share it"
            )
        secret = token if token is not None else read_token(str(token_file))
        self._own: dict[Kind, dict[Key, Contribution]] = {kind: {} for kind in KINDS}
        self._signatures: dict[tuple[Kind, Key], str] = {}
        self._key = None if key_file is None else SigningKey.own(Path(key_file))
        self._keys = KnownKeys(None if known_keys_file is None else Path(known_keys_file))
        self._lock = Lock()
        self._connect = partial(
            Connection, token=secret, timeout_s=timeout_s, insecure=insecure, is_peer=True
        )
        self._peers: list[_Peer] = []
        self._log = LogOnce(logger, "a peer could not be asked")
        self._contradictions = LogOnce(logger, "contradicting contributions")
        for url in (peers,) if isinstance(peers, str) else peers:
            self.meet(url)
        encrypts = not (insecure or is_loopback(listen[0])) if tls is None else tls
        if encrypts and len(secret) < MIN_TOKEN_CHARS:
            raise SettingError(
                f"found a token of {len(secret)} characters, expected {MIN_TOKEN_CHARS} or more at "
                "random: a shorter one can be guessed"
            )
        self._server = ContributionServer(
            self._served, secret, listen, timeout_s, encrypts=encrypts
        )

    @property
    def url(self) -> str:
        """The address for peers on this machine; those on others use its host name."""
        return self._server.url

    def meet(self, url: str) -> None:
        """Add a peer.

        Args:
            url: Its address, https://host:port, or http:// on this machine.
        """
        self._peers = [*self._peers, _Peer(self._connect(url), self._keys)]

    def push(self, contribution: Contribution) -> bool:
        """Serve a contribution from now on; return False if it was served before."""
        must_be_contribution(contribution)
        admit(contribution, projection=self.projection, kind=contribution.kind)
        own = self._own[contribution.kind]
        with self._lock:
            if not must_be_current(contribution, own.get(contribution.key)):
                return False
            data = encode(contribution)
            if self._key is not None:
                self._keys.accept(contribution.device, self._key.public)
                self._signatures[contribution.kind, contribution.key] = self._key.sign(data)
            own[contribution.key] = contribution.keep_encoded(data)
            return True

    def pull(self, selection: Selection, *, grouped: bool = False) -> Merged:
        """Fetch what is new from every peer; return the sum of the selected contributions."""
        must_be_selection(selection)
        return merge(self._fetched("normal"), self.projection, selection, grouped=grouped)

    def pull_faults(self, selection: Selection) -> Faults:
        """Fetch new faults from every peer; return the selected ones, those alike as one.

        Args:
            selection: Which contributions; name yourself as `receiver` to leave out your own.
        """
        return Faults.of(self._fetched("fault"), self.projection, selection)

    def _fetched(self, kind: Kind) -> list[Contribution]:
        """Return the newest contributions of this kind, of all peers and own ones."""
        peers = self._peers
        errors = [error for peer in peers if (error := self._fetch_from(peer, kind)) is not None]
        found: dict[Key, Contribution] = {}
        for peer in peers:
            for key, contribution in peer.known[kind].items():
                if self._check(contribution, found.get(key)) == "newer":
                    found[key] = contribution
        if errors and len(errors) == len(peers) and not found:
            denied = all(isinstance(error, DeniedError) for error in errors)
            failure: type[EdgemergeError] = DeniedError if denied else UnavailableError
            raise failure(f"no peer could be asked: {errors[0]}") from errors[0]
        with self._lock:
            own = dict(self._own[kind])
        for key, contribution in own.items():
            self._check(contribution, found.get(key))
        return list((found | own).values())

    def close(self) -> None:
        """Stop serving, and close the connections to peers."""
        self._server.close()
        for peer in self._peers:
            peer.connection.close()

    def __repr__(self) -> str:
        """Show the address and the number of peers."""
        return f"PeerExchange({self.url}, {len(self._peers)} peers)"

    def _served(self) -> list[ServedContribution]:
        with self._lock:
            return [
                ServedContribution(each, self._signatures.get((each.kind, each.key)))
                for own in self._own.values()
                for each in own.values()
            ]

    def _check(self, found: Contribution, known: Contribution | None) -> Freshness:
        freshness = Ledger.check(found, known)
        if freshness == "contradicting":
            error = RejectedError(
                f"{found.device} has revision {found.revision} of {found.pattern} twice with "
                "different numbers: give each device its own name"
            )
            self._contradictions.warn(str(found.key), error)
        return freshness

    def _fetch_from(self, peer: _Peer, kind: Kind) -> EdgemergeError | None:
        try:
            peer.fetch(self.projection, kind)
        except UnknownError as error:
            if kind == "fault":  # an older version, which serves none
                return None
            self._log.warn(peer.connection.url, error)
            return error
        except EdgemergeError as error:
            self._log.warn(peer.connection.url, error)
            return error
        self._log.clear(peer.connection.url)
        return None


class _Peer:
    """Another device, and its last known contributions."""

    def __init__(self, connection: Connection, keys: KnownKeys) -> None:
        self.connection, self._keys = connection, keys
        self.known: dict[Kind, dict[Key, Contribution]] = {kind: {} for kind in KINDS}
        self._log = LogOnce(logger, f"skipped a contribution served by {connection.url}")
        self._lock = Lock()

    def fetch(self, projection: Projection, kind: Kind) -> None:
        """Fetch what is new; skip what is not valid."""
        with self._lock:
            for key, revision in self._list(kind):
                known = self.known[kind].get(key)
                if known and known.revision >= revision:  # the list has no content to check
                    continue
                found = self._fetch(key, projection, kind)
                if found and (known or len(self.known[kind]) < MAX_CONTRIBUTIONS):
                    self.known[kind] = self.known[kind] | {key: found}

    def _list(self, kind: Kind) -> list[tuple[Key, int]]:
        reply = self.connection.ask("GET", LIST_PATHS[kind], limit=MAX_LIST_BYTES).must_be(200)
        found = reply.json()
        if not isinstance(found, list) or len(found) > MAX_CONTRIBUTIONS:
            raise RejectedError(
                f"found no list of at most {MAX_CONTRIBUTIONS} entries: is this a peer?"
            )
        return [_parse_entry(entry) for entry in found]

    def _fetch(self, key: Key, projection: Projection, kind: Kind) -> Contribution | None:
        reply = self.connection.ask("GET", contribution_path(key, kind)).must_be(200)
        try:
            found = read_contribution(
                reply.body,
                projection,
                lambda found: "" if found.key == key else f"the contribution {key}",
                kind,
            )
            self._keys.check(found.device, reply.body, reply.headers.get(SIGNATURE_HEADER.lower()))
        except EdgemergeError as error:
            self._log.warn(str(key), error)
            return None
        return found


def _parse_entry(entry: Any) -> tuple[Key, int]:
    try:
        device, incarnation, pattern, revision = entry
        sound = all(type(n) is int and 0 <= n < 2**63 for n in (incarnation, revision))
    except (TypeError, ValueError):
        sound = False
    if not sound:
        raise RejectedError("found an entry without an origin: is this a peer?")
    must_be_name("device", device)
    must_be_name("pattern", pattern)
    return (device, incarnation, pattern), revision
