"""The dashboard: pages for operators, a mounted app with its own error pages and headers."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import RedirectResponse, Response

from edgemerge.core.errors import UnknownError
from edgemerge.server.dashboard import (
    device,
    episodes,
    fleet,
    live,
    log,
    merge,
    notify,
    pages,
    sign_in,
)
from edgemerge.server.dashboard.pages import SecurityHeaders, error_page, security_headers
from edgemerge.server.dashboard.sign_in import HOME_PATH, ViewerPage
from edgemerge.server.http import add_error_handlers

DASHBOARD_PATH = "/ui"

fallback_router = APIRouter(include_in_schema=False)


@fallback_router.get("/{rest:path}")
async def find_nothing(_page: ViewerPage) -> Response:
    """Answer 404, but only to those who are signed in."""
    raise UnknownError("found no page at this address: go on from the list of fleets")


def mount_dashboard(app: FastAPI) -> None:
    """Mount the pages under /ui, and lead / and /ui to them."""

    @app.get("/", include_in_schema=False)
    @app.get(DASHBOARD_PATH, include_in_schema=False)
    async def go_home(request: Request) -> Response:
        return RedirectResponse(HOME_PATH, 303, security_headers(request.scope))

    app.mount(DASHBOARD_PATH, create_dashboard(app))


def create_dashboard(app: FastAPI) -> FastAPI:
    """Return the app of the pages; it shares the state of the app it is mounted in."""
    parts = (pages, sign_in, fleet, episodes, device, live, merge, notify, log)
    dashboard = FastAPI(
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        routes=[
            *(route for part in parts for route in part.router.routes),
            *fallback_router.routes,  # the last: it takes every other path
        ],
    )
    dashboard.state = app.state
    add_error_handlers(dashboard, error_page)
    dashboard.add_middleware(SecurityHeaders)
    return dashboard
