"""Create the app and serve it: one process, one database, until SIGTERM or SIGINT.

`serve` opens the database and the port, `create_app` joins API and pages, `RequestMiddleware`
counts requests and refuses more than fit, `HeadTimeoutProtocol` closes connections that send no
complete request head in time.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any

import uvicorn
from anyio import CapacityLimiter
from fastapi import FastAPI, Request, Response
from starlette.routing import Mount
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from edgemerge import __version__
from edgemerge.core.errors import SettingError, UnavailableError
from edgemerge.daemon import notify
from edgemerge.files import write_atomically
from edgemerge.server import api
from edgemerge.server.auth import TOKEN_PREFIXES, new_token
from edgemerge.server.dashboard.pages import error_page
from edgemerge.server.dashboard.routes import DASHBOARD_PATH, mount_dashboard
from edgemerge.server.db.connect import connect
from edgemerge.server.http import (
    InFlight,
    Limits,
    add_error_handlers,
    api_error,
    error_answer,
    error_json,
)
from edgemerge.server.service import Service

REQUEST_HEAD_TIMEOUT_S = 20.0  # for the first line and the headers of a request


class HeadTimeoutProtocol(H11Protocol):
    """Closes connections that have no request under way for too long; uvicorn alone does not."""

    patience_s = REQUEST_HEAD_TIMEOUT_S

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._waiting: asyncio.TimerHandle | None = None
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Take what came; as long as it is no request, go on waiting, but not for longer."""
        super().data_received(data)
        self._wait()

    def on_response_complete(self) -> None:
        """Wait for the next request; uvicorn ends a connection on which nothing comes at all."""
        super().on_response_complete()
        self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            self._stop_waiting()
        elif self._waiting is None:
            self._waiting = self.loop.call_later(self.patience_s, self._give_up)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()


MAX_CONCURRENT_CHECKS = 4  # contributions that are read and checked at the same time
COUNTED_METHODS = {
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
}  # a stranger must not invent what is counted
STREAMING_ROUTES = {
    "/ui/fleets/{fleet}/live"
}  # their length says nothing about how fast answers are

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
    )
    app.state.service = service
    app.state.load = InFlight(limits or Limits())
    app.state.check_limiter = CapacityLimiter(MAX_CONCURRENT_CHECKS)
    app.state.heavy_limiter = CapacityLimiter(1)  # previews and comparisons must not starve shares
    app.include_router(api.router)
    add_error_handlers(app, api_error)
    mount_dashboard(app)
    app.add_middleware(RequestMiddleware, service=service, load=app.state.load)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    try:
        yield
    finally:
        app.state.service.close()


class RequestMiddleware:
    """Counts requests, refuses more than can be handled, and adds headers of caution."""

    def __init__(self, app: ASGIApp, *, service: Service, load: InFlight) -> None:
        """Stand in front of an app."""
        self._app, self._metrics, self._load = app, service.metrics, load

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and take note of how it went."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = perf_counter(), [500]

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                status[0] = message["status"]
                message["headers"] = [*message["headers"], (b"x-content-type-options", b"nosniff")]
            await send(message)

        self._load.requests += 1
        try:
            if self._load.requests > self._load.limits.max_requests_in_flight:
                await _busy_response(scope)(scope, receive, noting)
            else:
                await self._app(scope, receive, noting)
        finally:
            self._load.requests -= 1
            self._note(scope, status[0], perf_counter() - start)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        path = _route_label(scope)
        method = scope["method"] if scope["method"] in COUNTED_METHODS else "other"
        self._metrics.requests.labels(method, path, str(status)).inc()
        if path not in STREAMING_ROUTES:
            self._metrics.seconds.labels(method, path).observe(seconds)


def _busy_response(scope: Scope) -> Response:
    error = UnavailableError("too many requests are under way: try again", retry_s=2.0)
    page = scope["path"].startswith(f"{DASHBOARD_PATH}/")
    return (error_page if page else error_json)(Request(scope), error_answer(error))


def _route_label(scope: Scope) -> str:
    """Return the template of the route that answered, with the path of its mount before it."""
    route: Any = scope.get("route")
    if isinstance(route, Mount):  # nothing in it matched
        return route.path
    mounted = scope.get("root_path", "").removeprefix(scope.get("app_root_path", ""))
    return f"{mounted}{route.path}" if route is not None else "none"


log = logging.getLogger(__name__)
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
TOKEN_FILE_SUFFIX = ".operator-token"
MIN_TOKEN_CHARS = 20  # characters of a token
TOKEN_WRITE_TIMEOUT_S = 2.0  # in which another server has written a token for sure


def serve(
    *,
    database: str,
    host: str = "127.0.0.1",
    port: int = 8470,
    operator_token_file: Path | None = None,
    port_file: Path | None = None,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT; what was acknowledged is on disk at any moment."""
    service = Service(connect(database))
    try:
        load_operator_token(service, operator_token_file or default_token_file(database))
        listening = listen(host, port)
    except BaseException:
        service.close()
        raise
    gc.collect()
    gc.freeze()  # what is there now stays: not looking through it again saves a tenth of the time
    real = listening.getsockname()[1]
    app = create_app(service)
    settings = uvicorn.Config(
        app,
        http=HeadTimeoutProtocol,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=10,
        timeout_keep_alive=65,
        ssl_certfile=tls_cert,
        ssl_keyfile=tls_key,
    )
    way = "https" if tls_cert else "http"
    log.info("listening", extra={"values": {"at": f"{way}://{host}:{real}"}})
    log.info("dashboard", extra={"values": {"at": f"{way}://{display_host(host)}:{real}/ui/"}})
    if port_file:
        write_atomically(f"{real}\n".encode(), port_file)
    server = Server(settings)
    app.state.leaving = lambda: server.should_exit  # pages follow streams that never end
    with listening:
        server.run(sockets=[listening])


class Server(uvicorn.Server):
    """Tells systemd when it is ready; ends well when it is asked to end."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Finish what is under way at SIGTERM or SIGINT; uvicorn's own would then die of it."""
        before = {number: signal.signal(number, self.handle_exit) for number in STOP_SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then say so."""
        await super().startup(sockets)
        notify("READY=1")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Say so, then finish what is under way."""
        notify("STOPPING=1")
        await super().shutdown(sockets)


def display_host(host: str) -> str:
    """Write a host as it stands in an address of this machine.

    >>> display_host("0.0.0.0"), display_host("::1"), display_host("hub")
    ('localhost', '[::1]', 'hub')
    """
    if host in ("", "0.0.0.0", "::"):
        return "localhost"
    return f"[{host}]" if ":" in host else host


def listen(host: str, port: int) -> socket.socket:
    """Take the port, or say who should choose another."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # with the protocol named, asyncio turns Nagle's delay off: 4 ms for an answer instead of 44
    there = socket.socket(family, proto=socket.IPPROTO_TCP)
    there.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        there.bind((host, port))
        there.listen(2048)
    except OSError as error:
        there.close()
        raise SettingError(
            f"port {port} on {host} cannot be taken ({error.strerror}): choose another with --port"
        ) from error
    return there


def default_token_file(database: str) -> Path | None:
    """Give the file for the operator's token that lies beside the database, if that is a file."""
    if database.startswith(("postgres://", "postgresql://")):
        return None
    return Path(database.removeprefix("sqlite:///") + TOKEN_FILE_SUFFIX)


def load_operator_token(service: Service, file: Path | None) -> None:
    """Let in who has the token in the file, which is made if nobody was let in before."""
    if service.has_operator() and (file is None or not file.exists()):
        return
    if file is None:
        raise SettingError(
            "nobody can administer this server yet: give a file for the operator's token "
            "with --operator-token-file (it is made if it is not there)"
        )
    if not file.exists():
        make_token_file(file)
    token = _read_token(file)
    if not token.startswith(TOKEN_PREFIXES["operator"]) or len(token) < MIN_TOKEN_CHARS:
        raise SettingError(f"{file} holds no operator's token: remove it to have one made")
    service.let_in(token, "admin" if file.name.endswith(TOKEN_FILE_SUFFIX) else file.stem)


def _read_token(file: Path) -> str:
    """Read a token; one that another server is just writing has a moment to get there."""
    end = monotonic() + TOKEN_WRITE_TIMEOUT_S
    while not (found := file.read_text(encoding="utf-8").strip()) and monotonic() < end:
        sleep(0.01)
    return found


def make_token_file(file: Path) -> None:
    """Draw a token for an operator and write it where only its owner can read it.

    Servers may start at the same time with the same file: the first one makes it.
    """
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with os.fdopen(handle, "w", encoding="utf-8") as out:
        out.write(new_token("operator") + "\n")
    log.info("made a token for an operator", extra={"values": {"file": file}})
