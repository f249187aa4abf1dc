"""Create the app and serve it: one process, one database, until SIGTERM or SIGINT.

`serve` opens the database and the port, `create_app` joins API and pages, `RequestMiddleware`
counts requests and refuses more than fit, `HeadTimeoutProtocol` closes connections that send no
complete request head in time, `BoundedListener` keeps connections below the limit of descriptors.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import re
import resource
import signal
import socket
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import islice
from math import inf
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from anyio import CapacityLimiter
from fastapi import FastAPI, Request, Response
from starlette.routing import BaseRoute, Mount
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from edgemerge import __version__
from edgemerge.certificates import ServerCertificate, split_token
from edgemerge.core.errors import EdgemergeError, SettingError, UnavailableError
from edgemerge.daemon import notify
from edgemerge.exchange.connection import NEXT_CERTIFICATE_HEADER, TIMELINE_HEADER, is_loopback
from edgemerge.files import check_folder, file_stamp, read_secret, write_atomically
from edgemerge.server import api
from edgemerge.server.audit import must_be_writable
from edgemerge.server.auth import (
    TOKEN_CACHE_S,
    TOKEN_PREFIXES,
    Connection,
    new_token,
)
from edgemerge.server.backup import default_head_file
from edgemerge.server.dashboard.pages import error_page
from edgemerge.server.dashboard.routes import DASHBOARD_PATH, mount_dashboard
from edgemerge.server.db.migrations import beside_database, connect, sqlite_path
from edgemerge.server.fleets import NAME_PATTERN
from edgemerge.server.http import (
    ALWAYS_ANSWERED,
    CONNECTION_KEY,
    ErrorAnswer,
    InFlight,
    Limits,
    add_error_handlers,
    api_error,
    error_answer,
    run_in_thread,
)
from edgemerge.server.service import Service

log = logging.getLogger(__name__)

REQUEST_HEAD_TIMEOUT_S = 20.0  # for the first line and the headers of a request
MAX_CONNECTIONS = 8192  # however many descriptors the process may have
RESERVED_DESCRIPTORS = 128  # for the database, files, and what the libraries open
MIN_CONNECTIONS = 16
CLOSED_AT_ONCE = 32  # connections, when there are too many
ACCEPTED_AT_ONCE = 32  # connections, before requests of others go on
ACCEPT_PAUSE_S = 0.5  # without any descriptor, not even a spare one; asyncio waits a second
WARN_EVERY_S = 60.0


class AcceptedSocket(socket.socket):
    """One connection, which its listener counts until it is closed."""

    listener: BoundedListener | None = None

    def close(self) -> None:
        """Close it, and count it no more."""
        if self.listener is not None:
            self.listener.forget(self)
        super().close()


class BoundedListener(socket.socket):
    """A listening socket that makes room when there are too many connections.

    Those go that have waited longest: for a first request (a TLS handshake counts as waiting), for
    the next one, or for the other side to close. A connection with a request under way stays. So a
    flood of idle connections cannot lock others out, and the process never runs out of descriptors,
    of which asyncio would log thousands of errors each second.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        """Make a socket; see `socket.socket`."""
        super().__init__(*args, **options)
        self.max_connections = max_connections()
        self._waiting: OrderedDict[int, AcceptedSocket] = OrderedDict()  # the longest first
        self._busy: OrderedDict[int, AcceptedSocket] = OrderedDict()
        self._closing: OrderedDict[int, AcceptedSocket] = OrderedDict()
        self._spare = _spare_descriptor()
        self._paused_until = self._warned_at = -inf
        self._in_a_row = 0

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection; raise BlockingIOError if room is made for it first.

        asyncio accepts thousands before it does anything else: some at a time are enough.
        """
        self._in_a_row = self._in_a_row % (ACCEPTED_AT_ONCE + 1) + 1
        if self._in_a_row > ACCEPTED_AT_ONCE:
            raise BlockingIOError(errno.EAGAIN, "others are waiting")
        if monotonic() < self._paused_until:
            raise BlockingIOError(errno.EAGAIN, "there are no descriptors")
        if self.connections >= self.max_connections and self._make_room():
            raise BlockingIOError(errno.EAGAIN, "there are too many connections")
        try:
            number, address = self._accept()  # type: ignore[attr-defined]  # of the C socket
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                if self._make_room():
                    raise BlockingIOError(errno.EAGAIN, "there are no descriptors") from error
                self._paused_until = monotonic() + ACCEPT_PAUSE_S
            raise
        found = AcceptedSocket(self.family, self.type, self.proto, fileno=number)
        found.listener = self
        self._waiting[number] = found
        return found, address

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return sum(map(len, self._kinds))

    @property
    def _kinds(self) -> tuple[OrderedDict[int, AcceptedSocket], ...]:
        return self._waiting, self._busy, self._closing

    def mark(self, found: AcceptedSocket, *, busy: bool) -> None:
        """Note whether a connection has a request under way."""
        if found.fileno() not in self._closing:
            self.forget(found)
            (self._busy if busy else self._waiting)[found.fileno()] = found

    def forget(self, found: AcceptedSocket) -> None:
        """Count a connection no more."""
        for kind in self._kinds:
            if kind.get(found.fileno()) is found:
                del kind[found.fileno()]

    def close(self) -> None:
        """Stop listening."""
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None
        super().close()

    def _make_room(self) -> bool:
        """Close some connections that wait, or refuse the next; return whether that was done."""
        if monotonic() > self._warned_at + WARN_EVERY_S:
            self._warned_at = monotonic()
            values = {"open": self.connections, "most": self.max_connections}
            log.warning("too many connections: idle ones are closed", extra={"values": values})
        some = max(CLOSED_AT_ONCE - len(self._closing), 0)
        for number, each in [*islice(self._waiting.items(), some)]:
            self.forget(each)
            self._closing[number] = each
            with suppress(OSError):  # the other side may be gone already
                each.shutdown(socket.SHUT_RDWR)  # its transport sees the end, and closes it
        return bool(self._closing) or self._refuse()

    def _refuse(self) -> bool:
        """Accept and close one connection, by the spare descriptor if there is no other."""
        if self._spare is not None:
            os.close(self._spare)
        try:
            os.close(self._accept()[0])  # type: ignore[attr-defined]  # of the C socket
        except OSError:
            return False
        finally:
            self._spare = _spare_descriptor()
        return True


def _spare_descriptor() -> int | None:
    try:
        return os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return None


def max_connections() -> int:
    """Return how many connections the limit of descriptors has room for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else soft - RESERVED_DESCRIPTORS
    return max(min(allowed, MAX_CONNECTIONS), MIN_CONNECTIONS)


def raise_descriptor_limit() -> None:
    """Raise the limit of descriptors to what the server can use, as far as that is allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + RESERVED_DESCRIPTORS
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class HeadTimeoutProtocol(H11Protocol):
    """Closes connections that have no request under way for too long; uvicorn alone does not."""

    head_timeout_s = REQUEST_HEAD_TIMEOUT_S
    on_lost: Callable[[Connection], None] | None = None  # see `auth.Connections`

    def connection_made(self, transport: Any) -> None:
        """Start the timeout for the first request."""
        super().connection_made(transport)
        self._timer: asyncio.TimerHandle | None = None
        self._update_timer()

    def handle_events(self) -> None:
        """Begin requests; each knows its connection, so that it can end with the caller's token."""
        super().handle_events()
        if self.scope is not None:  # what answers a request begins later, in a task
            self.scope[CONNECTION_KEY] = self  # type: ignore[literal-required]  # a key of ours

    def cut(self, is_meant: Callable[[], bool]) -> None:
        """End this connection, from any thread, unless it has another client meanwhile."""

        def end() -> None:
            if is_meant():
                self.transport.abort()

        with suppress(RuntimeError):  # the loop has ended, and all connections with it
            self.loop.call_soon_threadsafe(end)

    def data_received(self, data: bytes) -> None:
        """Stop the timeout once there is a request; bytes of an incomplete one do not extend it."""
        super().data_received(data)
        self._update_timer()

    def on_response_complete(self) -> None:
        """Stop the timeout; uvicorn closes a connection on which no next request begins."""
        super().on_response_complete()
        self._stop_timer()
        self._mark()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timeout."""
        self._stop_timer()
        if self.on_lost is not None:
            self.on_lost(self)
        super().connection_lost(exc)

    def _update_timer(self) -> None:
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            self._stop_timer()
            self._mark()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.head_timeout_s, self._close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _mark(self) -> None:
        """Tell the listener whether there is a request under way."""
        found = getattr(self.transport.get_extra_info("socket"), "_sock", None)
        if isinstance(found, AcceptedSocket) and found.listener is not None:
            cycle: Any = self.cycle  # None before the first request
            is_busy = cycle is not None and not cycle.response_complete
            found.listener.mark(found, busy=is_busy)

    def _close(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()


MAX_CONCURRENT_CHECKS = 4  # contributions that are read and checked at the same time
# Labels of metrics: a client must not be able to add one.
COUNTED_METHODS = {"GET", "HEAD", "POST", "PUT", "DELETE"}
# The length of a stream says nothing about how fast requests are answered.
STREAMING_ROUTES = {"/ui/fleets/{fleet}/live", "/ui/wall/{link}/live"}

DESCRIPTION = (
    "Devices push what they saw, as sums, and pull what others saw, added up exactly. "
    "Bodies of bytes are those of `edgemerge.encode`."
)


def create_app(service: Service, limits: Limits | None = None) -> FastAPI:
    """Make the app; it closes the service when it ends."""
    app = FastAPI(
        title="edgemerge",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,  # both load scripts from elsewhere
        redoc_url=None,
        lifespan=_lifespan,
        redirect_slashes=False,
        routes=_routes(),
    )
    app.state.service = service
    app.state.load = InFlight(limits or Limits())
    app.state.check_limiter = CapacityLimiter(MAX_CONCURRENT_CHECKS)
    app.state.heavy_limiter = CapacityLimiter(1)  # previews and comparisons must not starve shares
    add_error_handlers(app, _error_response)
    mount_dashboard(app)
    app.add_middleware(RequestMiddleware, service=service, load=app.state.load)
    return app


def _routes() -> list[BaseRoute]:
    """Return the routes of the API; `include_router` would build each of them again.

    A request is compared with one after the other, which took a tenth of the time of a request of
    a masked fleet: so what such devices ask comes first.
    """
    first = api.MASKED_PATH
    return sorted(
        api.router.routes, key=lambda each: not getattr(each, "path", "").startswith(first)
    )


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    cutting = asyncio.create_task(_cut_invalid(app.state.service))
    try:
        yield
    finally:
        cutting.cancel()
        app.state.service.close()


async def _cut_invalid(service: Service) -> None:
    """Cut connections whose tokens ended on another server of the same database."""
    while True:
        await asyncio.sleep(TOKEN_CACHE_S / 2)
        try:
            await run_in_thread(service.cut_invalid)
        except EdgemergeError as error:  # a database that is away now
            log.warning("could not check tokens", extra={"values": {"why": error}})


def _error_response(request: Request, answer: ErrorAnswer) -> Response:
    """Answer an error with a page below /ui, and in JSON elsewhere."""
    path = request.scope["path"]
    page = path == DASHBOARD_PATH or path.startswith(f"{DASHBOARD_PATH}/")
    return (error_page if page else api_error)(request, answer)


class RequestMiddleware:
    """Counts requests, refuses more than can be handled, and forbids to guess media types."""

    def __init__(self, app: ASGIApp, *, service: Service, load: InFlight) -> None:
        """Wrap an app."""
        self._app, self._service, self._load = app, service, load
        self._metrics = service.metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and count it with its status and duration."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = perf_counter(), 500

        async def send_with_header(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message["headers"],
                    (b"x-content-type-options", b"nosniff"),
                    (TIMELINE_HEADER.encode(), self._service.timeline.encode()),
                ]
                certificate = self._service.certificate
                if certificate is not None and certificate.next_pin is not None:
                    announced = (NEXT_CERTIFICATE_HEADER.encode(), certificate.next_pin.encode())
                    message["headers"].append(announced)
            await send(message)

        if CONNECTION_KEY in scope:
            self._service.connections.use(scope[CONNECTION_KEY], None)
        is_counted = scope["path"] not in ALWAYS_ANSWERED
        self._load.requests += is_counted
        try:
            if is_counted and self._load.requests > self._load.limits.max_requests_in_flight:
                busy = UnavailableError("too many requests are under way: try again", retry_s=2.0)
                response = _error_response(Request(scope), error_answer(busy))
                await response(scope, receive, send_with_header)
            else:
                await self._app(scope, receive, send_with_header)
        finally:
            self._load.requests -= is_counted
            self._count(scope, status, perf_counter() - start)

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        route = _route_label(scope)
        method = scope["method"] if scope["method"] in COUNTED_METHODS else "other"
        self._metrics.requests.labels(method, route, str(status)).inc()
        if route not in STREAMING_ROUTES:
            self._metrics.seconds.labels(method, route).observe(seconds)


def _route_label(scope: Scope) -> str:
    """Return the template of the route that answered, with the path of its mount before it."""
    route: Any = scope.get("route")
    if isinstance(route, Mount):  # nothing in it matched
        return route.path
    mounted = scope.get("root_path", "").removeprefix(scope.get("app_root_path", ""))
    return f"{mounted}{route.path}" if route is not None else "none"


STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
TOKEN_FILE_SUFFIX = ".admin-token"
FORMER_TOKEN_FILE_SUFFIX = ".operator-token"  # of databases that were made before
TLS_FILE_SUFFIX = ".tls.pem"
REFRESH_TICKS = 20  # of a tenth of a second each: how often the certificate's files are looked at
MIN_TOKEN_CHARS = 20  # characters of a token
TOKEN_WRITE_TIMEOUT_S = 2.0  # in which another server has written a token for sure


def serve(
    *,
    database: str,
    host: str = "127.0.0.1",
    port: int = 8470,
    admin_token_file: Path | None = None,
    port_file: Path | None = None,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    tls_file: Path | None = None,
    insecure: bool = False,
    public_url: str | None = None,
    audit_head_file: Path | None = None,
    **options: Any,
) -> None:
    """Serve until SIGTERM or SIGINT; what was acknowledged is on disk at any moment.

    Beyond this machine it serves https: with the certificate that is given, or else with one that
    it makes at its first start and keeps in `tls_file`. Further options are those of `Service`.
    """
    if audit_head_file is not None:
        must_be_writable(audit_head_file)
    _check_places(database, port_file)
    listen(host, port).close()  # a wrong address is told before anything is made
    raise_descriptor_limit()
    certificate: ServerCertificate | None = None
    if tls_cert is not None:
        certificate = ServerCertificate(tls_cert, tls_key)
    elif tls_file is not None or needs_own_certificate(host, insecure=insecure):
        names = [found] if (found := urlsplit(public_url or "").hostname) else []
        certificate = ServerCertificate.own(tls_file or default_tls_file(database), names)
    service = Service(
        connect(database),
        certificate=certificate,
        audit_head_file=audit_head_file or default_head_file(database),
        public_url=public_url,
        **options,
    )
    try:
        token_file = admin_token_file or default_token_file(database)
        load_operator_token(service, token_file)
        listening = listen(host, port)
    except BaseException:
        service.close()
        raise
    gc.collect()
    gc.freeze()  # collecting what stays anyway would cost a tenth of the time
    bound_port = listening.getsockname()[1]
    app = create_app(service)
    config = uvicorn.Config(
        app,
        http=HeadTimeoutProtocol,
        loop="asyncio",  # another loop would not ask our socket for connections
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=10,
        timeout_keep_alive=65,
        ssl_certfile=certificate.cert if certificate else None,
        ssl_keyfile=certificate.key if certificate else None,
    )
    scheme = "https" if certificate else "http"
    shown = {"address": f"{scheme}://{host}:{bound_port}"}
    if certificate and certificate.pin:
        shown["sha256"] = certificate.pin
    elif scheme == "http" and not is_loopback(host):
        log.warning("plain http: tokens can be read and changed on the network")
    log.info("listening", extra={"values": shown})
    page = f"{scheme}://{display_host(host)}:{bound_port}/ui/"
    log.info("dashboard", extra={"values": {"address": page}})
    if port_file:
        write_atomically(f"{bound_port}\n".encode(), port_file)
    server = Server(config, service, token_file)
    app.state.is_stopping = lambda: server.should_exit  # event streams never end by themselves
    with listening:
        server.run(sockets=[listening])


def _check_places(database: str, port_file: Path | None) -> None:
    """Refuse a folder in which the database or the file of the port cannot be made."""
    path = sqlite_path(database)
    for file in filter(None, (path, port_file)):
        check_folder(file)
        if not file.exists() and not os.access(file.parent, os.W_OK):
            words = f"its folder {file.parent} cannot be written"
            raise PermissionError(errno.EACCES, words, str(file))


class Server(uvicorn.Server):
    """Notifies systemd when it is ready and when it stops, and follows its certificate's files."""

    def __init__(self, config: uvicorn.Config, service: Service, token_file: Path | None) -> None:
        """Serve for this service; the admin's token in the file gets new fingerprints."""
        super().__init__(config)
        self._service, self._token_file = service, token_file
        self._following: asyncio.Future[None] | None = None
        self._token_stamp = file_stamp(token_file) if token_file else None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Finish what is under way at SIGTERM or SIGINT and exit 0; uvicorn would raise again."""
        before = {number: signal.signal(number, self.handle_exit) for number in STOP_SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then notify systemd."""
        await super().startup(sockets)
        if self._service.certificate is not None and self.config.ssl is not None:
            self._service.certificate.follow(self.config.ssl)
        notify("READY=1")

    def _follow_files(self) -> None:
        """Look at the end of the audit log, and for another token in the file."""
        try:
            self._service.follow_audit_head()
            self._service.bound_audit_log()
        except (EdgemergeError, OSError) as error:
            log.warning("could not check the audit log", extra={"values": {"why": error}})
        before = self._token_stamp
        self._token_stamp = file_stamp(self._token_file) if self._token_file else None
        if self._token_stamp not in (None, before):
            try:
                load_operator_token(self._service, self._token_file)
            except (EdgemergeError, OSError) as error:
                log.warning("could not read the token file", extra={"values": {"why": error}})

    async def on_tick(self, counter: int) -> bool:
        """Look from time to time for another certificate or token, and at the audit log's end."""
        if counter % REFRESH_TICKS == 0:
            certificate = self._service.certificate
            if certificate is not None and certificate.refresh():
                mark_token_file(self._service, self._token_file)
            if self._following is None or self._following.done():
                loop = asyncio.get_running_loop()
                self._following = loop.run_in_executor(None, self._follow_files)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Notify systemd, then finish what is under way."""
        notify("STOPPING=1")
        await super().shutdown(sockets)


def display_host(host: str) -> str:
    """Return a host as it stands in a URL of this machine.

    >>> display_host("0.0.0.0"), display_host("::1"), display_host("hub")
    ('localhost', '[::1]', 'hub')
    """
    if host in ("", "0.0.0.0", "::"):
        return "localhost"
    return f"[{host}]" if ":" in host else host


def listen(host: str, port: int) -> socket.socket:
    """Listen on a port, or raise SettingError if it is taken or the host is another machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # with the protocol named, asyncio turns Nagle's delay off: 4 ms for an answer instead of 44
    found = BoundedListener(family, proto=socket.IPPROTO_TCP)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
        found.listen(2048)
    except OSError as error:
        found.close()
        if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
            raise SettingError(
                f"found --host {host}, expected an address of this machine ({error.strerror}): "
                "127.0.0.1 for this machine only, 0.0.0.0 for all of its addresses"
            ) from error
        raise SettingError(
            f"port {port} on {host} cannot be taken ({error.strerror}): choose another with --port"
        ) from error
    return found


def needs_own_certificate(host: str, *, insecure: bool) -> bool:
    """Return whether a server without another certificate must make one.

    >>> needs_own_certificate("127.0.0.1", insecure=False)
    False
    >>> needs_own_certificate("0.0.0.0", insecure=False)
    True
    """
    return not (insecure or is_loopback(host))


def default_tls_file(database: str) -> Path:
    """Return the file of the server's own certificate: beside the database."""
    file = beside_database(database, TLS_FILE_SUFFIX)
    if file is None:
        raise SettingError(
            "beyond this machine the server needs TLS, and a database on a server has no folder "
            "for its certificate: give --tls-file, or --tls-cert and --tls-key, or --insecure"
        )
    return file


def default_token_file(database: str) -> Path | None:
    """Return the file of the first admin's token: beside the database, if that is a file."""
    former = beside_database(database, FORMER_TOKEN_FILE_SUFFIX)
    if former is not None and former.exists():
        return former
    return beside_database(database, TOKEN_FILE_SUFFIX)


def load_operator_token(service: Service, file: Path | None) -> None:
    """Accept the token in the file as an admin's; it is made if there is no admin yet.

    A token that came from the file before, and is no longer in it, stops working.
    """
    if service.accounts.has_admin() and (file is None or not file.exists()):
        return
    if file is None:
        raise SettingError(
            "this server has no admin yet: give a file for the admin's token "
            "with --admin-token-file (it is made if it is not there)"
        )
    if not file.exists():
        make_token_file(file)
    token = _read_token(file)
    if not token.startswith(TOKEN_PREFIXES["operator"]) or len(token) < MIN_TOKEN_CHARS:
        raise SettingError(f"{file} holds no admin's token: remove it to have one made")
    plain = re.fullmatch(NAME_PATTERN, file.stem) and not file.name.endswith(
        (TOKEN_FILE_SUFFIX, FORMER_TOKEN_FILE_SUFFIX)
    )
    service.accounts.accept_from_file(token, file.stem if plain else "admin")
    mark_token_file(service, file)


def mark_token_file(service: Service, file: Path | None) -> None:
    """Write the fingerprint of the server's own certificate behind the token in a file."""
    pin = service.certificate.pin if service.certificate else None
    if file is None or not file.exists() or pin is None:
        return
    secret, known = split_token(_read_token(file))
    if known == pin:
        return
    try:
        write_atomically(f"{secret}.{pin}\n".encode(), file)
    except OSError as error:  # a file of somebody else, or on a read-only disk
        log.warning("could not add the fingerprint to the admin's token", exc_info=error)


def _read_token(file: Path) -> str:
    """Read a token; wait for one that another server is just writing."""
    end = monotonic() + TOKEN_WRITE_TIMEOUT_S
    while not file.stat().st_size and monotonic() < end:
        sleep(0.01)
    return read_secret(file, "admin's token")


def make_token_file(file: Path) -> None:
    """Draw the first admin's token and write it where only its owner can read it.

    Servers may start at the same time with the same file: the first one makes it.
    """
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with os.fdopen(handle, "w", encoding="utf-8") as out:
        out.write(new_token("operator") + "\n")
    log.info("made the first admin's token", extra={"values": {"file": file}})
