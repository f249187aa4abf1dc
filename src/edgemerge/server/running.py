"""Running the server: one process, one database, until it is asked to stop."""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

import uvicorn

from edgemerge.core.errors import SettingError
from edgemerge.daemon import notify
from edgemerge.files import write
from edgemerge.server.app import create
from edgemerge.server.patience import Impatient
from edgemerge.server.service import Service
from edgemerge.server.store.connecting import connect
from edgemerge.server.tokens import KINDS, new_token

log = logging.getLogger(__name__)
STOPPING = (signal.SIGTERM, signal.SIGINT)
BESIDE = ".operator-token"
LEAST = 20  # characters of a token
WRITTEN_S = 2.0  # in which another server has written a token for sure


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
        let_operator_in(service, operator_token_file or beside(database))
        listening = listen(host, port)
    except BaseException:
        service.close()
        raise
    gc.collect()
    gc.freeze()  # what is there now stays: not looking through it again saves a tenth of the time
    real = listening.getsockname()[1]
    app = create(service)
    settings = uvicorn.Config(
        app,
        http=Impatient,
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
    log.info("dashboard", extra={"values": {"at": f"{way}://{shown(host)}:{real}/ui/"}})
    if port_file:
        write(f"{real}\n".encode(), port_file)
    server = Server(settings)
    app.state.leaving = lambda: server.should_exit  # pages follow streams that never end
    with listening:
        server.run(sockets=[listening])


class Server(uvicorn.Server):
    """Tells systemd when it is ready; ends well when it is asked to end."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Finish what is under way at SIGTERM or SIGINT; uvicorn's own would then die of it."""
        before = {number: signal.signal(number, self.handle_exit) for number in STOPPING}
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


def shown(host: str) -> str:
    """Write a host as it stands in an address of this machine.

    >>> shown("0.0.0.0"), shown("::1"), shown("hub")
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


def beside(database: str) -> Path | None:
    """Give the file for the operator's token that lies beside the database, if that is a file."""
    if database.startswith(("postgres://", "postgresql://")):
        return None
    return Path(database.removeprefix("sqlite:///") + BESIDE)


def let_operator_in(service: Service, file: Path | None) -> None:
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
    token = _token_in(file)
    if not token.startswith(KINDS["operator"]) or len(token) < LEAST:
        raise SettingError(f"{file} holds no operator's token: remove it to have one made")
    service.let_in(token, "admin" if file.name.endswith(BESIDE) else file.stem)


def _token_in(file: Path) -> str:
    """Read a token; one that another server is just writing has a moment to get there."""
    end = monotonic() + WRITTEN_S
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
