"""A real server on loopback, in a thread of the test: fleets, devices and their tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp

from edgemerge import Projection
from edgemerge.exchange.client import ServerClient
from edgemerge.exchange.http import HttpExchange
from edgemerge.server.auth import new_token
from edgemerge.server.db.migrations import connect
from edgemerge.server.http import Limits
from edgemerge.server.main import HeadTimeoutProtocol, create_app, listen
from edgemerge.server.service import Service
from tests.waiting import DEADLINE_S


@dataclass(frozen=True)
class Running:
    """A server that answers at `url`; `token` is the operator's."""

    url: str
    token: str
    service: Service
    app: FastAPI

    @property
    def operator(self) -> ServerClient:
        """Give a connection that may administer."""
        return ServerClient(self.url, self.token)

    def enrol(self, fleet: str, device: str) -> str:
        """Let a device in; give its token."""
        invitation = self.operator.invite(fleet, device)["token"]
        return str(ServerClient(self.url, invitation).enrol(fleet, device)["token"])

    def exchange(self, fleet: str, device: str, projection: Projection) -> HttpExchange:
        """Let a device in; give its exchange."""
        return HttpExchange(self.url, fleet, self.enrol(fleet, device), projection=projection)


@contextmanager
def running(
    database: str,
    limits: Limits | None = None,
    *,
    port: int = 0,
    around: Callable[[ASGIApp], ASGIApp] = lambda app: app,
) -> Iterator[Running]:
    """Serve until the block ends; without a port, at any that is free; `around` wraps the app."""
    service, token = Service(connect(database)), new_token("operator")
    known = {account.name for account in service.accounts.all()}  # of servers before, or beside it
    service.accounts.accept_from_file(token, f"test-{len(known)}" if "test" in known else "test")
    listening = listen("127.0.0.1", port)
    app = create_app(service, limits)
    settings = uvicorn.Config(
        around(app),
        http=HeadTimeoutProtocol,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=3,
        timeout_keep_alive=65,  # as `serve` has it
    )
    server = uvicorn.Server(settings)
    app.state.is_stopping = lambda: server.should_exit
    thread = Thread(target=lambda: asyncio.run(server.serve([listening])), daemon=True)
    thread.start()
    try:
        yield Running(f"http://127.0.0.1:{listening.getsockname()[1]}", token, service, app)
    finally:
        server.should_exit = True
        thread.join(DEADLINE_S)
        listening.close()
