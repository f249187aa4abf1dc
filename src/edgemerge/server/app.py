"""The app: routes, limits and metrics around a service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any

from anyio import CapacityLimiter
from fastapi import FastAPI, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgemerge import __version__
from edgemerge.core.errors import AwayError
from edgemerge.server import (
    contribution_routes,
    fleet_routes,
    pull_routes,
    session_routes,
    status_routes,
)
from edgemerge.server.dashboard import routes as dashboard
from edgemerge.server.dashboard.headers import Guarded
from edgemerge.server.dashboard.problem_pages import fitting
from edgemerge.server.limits import Limits, Load
from edgemerge.server.merges import choice_routes
from edgemerge.server.problems import answer, tell_problems
from edgemerge.server.reports import report_routes
from edgemerge.server.service import Service

AT_ONCE = 4  # contributions that are read and checked at the same time
METHODS = {"GET", "HEAD", "POST", "PUT", "DELETE"}  # a stranger must not invent what is counted
STREAMS = {"/ui/fleets/{fleet}/live"}  # their length says nothing about how fast answers are

DESCRIPTION = (
    "Devices push what they saw, as sums, and pull what others saw, added up exactly. "
    "Bodies of bytes are those of `edgemerge.encode`."
)


def create(service: Service, limits: Limits | None = None) -> FastAPI:
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
    app.state.load = Load(limits or Limits())
    app.state.checking = CapacityLimiter(AT_ONCE)
    app.state.weighing = CapacityLimiter(1)  # previews and comparisons must not starve shares
    for routes in (contribution_routes, report_routes, pull_routes, fleet_routes, status_routes):
        app.include_router(routes.router)  # by use
    app.include_router(choice_routes.router)
    app.include_router(session_routes.router)
    app.include_router(dashboard.router)
    tell_problems(app)
    app.add_middleware(Watched, service=service, load=app.state.load)
    app.add_middleware(Guarded)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    try:
        yield
    finally:
        app.state.service.close()


class Watched:
    """Counts requests, refuses more than can be handled, and adds headers of caution."""

    def __init__(self, app: ASGIApp, *, service: Service, load: Load) -> None:
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
            if self._load.requests > self._load.limits.requests_under_way:
                busy = answer(AwayError("too many requests are under way: try again", retry_s=2.0))
                await fitting(Request(scope), busy)(scope, receive, noting)
            else:
                await self._app(scope, receive, noting)
        finally:
            self._load.requests -= 1
            self._note(scope, status[0], perf_counter() - start)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route: Any = scope.get("route")
        path = getattr(route, "path", "none")
        method = scope["method"] if scope["method"] in METHODS else "other"
        self._metrics.requests.labels(method, path, str(status)).inc()
        if path not in STREAMS:
            self._metrics.seconds.labels(method, path).observe(seconds)
