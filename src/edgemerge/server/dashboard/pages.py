"""Rendering of pages: templates, static files, security headers, error pages."""

from __future__ import annotations

import mimetypes
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from os.path import normpath
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.datastructures import MutableHeaders
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgemerge import __version__
from edgemerge.core.errors import EdgemergeError, UnknownError
from edgemerge.delivery import NONE_UNUSUAL, USUAL_FACTOR
from edgemerge.server.auth import Session
from edgemerge.server.dashboard import formatting
from edgemerge.server.http import ErrorAnswer, error_answer, error_json

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
PERMISSIONS_POLICY = ", ".join(
    f"{feature}=()"
    for feature in (
        *("accelerometer", "camera", "display-capture", "geolocation", "gyroscope", "hid"),
        *("magnetometer", "microphone", "midi", "payment", "serial", "usb"),
    )
)
SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    # not no-referrer: with it browsers send "Origin: null" with our own forms
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": PERMISSIONS_POLICY,
    "Cache-Control": "no-store",
}


OPENER_POLICY = "Cross-Origin-Opener-Policy"


def security_headers(scope: Scope) -> dict[str, str]:
    """Return security headers; one is left out over plain http, where browsers complain of it."""
    trusts = any(name == b"sec-fetch-site" for name, _ in scope["headers"])
    if trusts or scope["scheme"] == "https":
        return {**SECURITY_HEADERS, OPENER_POLICY: "same-origin"}
    return SECURITY_HEADERS


class SecurityHeaders:
    """Adds the headers to every answer of the dashboard, also to redirects and refusals."""

    def __init__(self, app: ASGIApp) -> None:
        """Stand in front of an app."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and its answer back."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarding(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in security_headers(scope).items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, guarding)


# Styles, scripts and pictures. Their address carries a digest of all of them, so that browsers may
# keep them for ever.

STATIC_PATH = "/ui/static"
STATIC_DIR = Path(__file__).parent / "static"
CACHE_FOREVER = "public, max-age=31536000, immutable"
STATIC_FILES = StaticFiles(directory=STATIC_DIR)
for kind, suffix in (("text/javascript", ".js"), ("font/woff2", ".woff2")):
    mimetypes.add_type(kind, suffix)  # the tables of the machine may say otherwise, or nothing

router = APIRouter(include_in_schema=False)


@cache
def static_files() -> dict[str, str]:
    """Return the digest of every file, by its name."""
    paths = sorted(path for path in STATIC_DIR.rglob("*") if path.is_file())
    return {
        path.relative_to(STATIC_DIR).as_posix(): sha256(path.read_bytes()).hexdigest()
        for path in paths
    }


@cache
def static_version() -> str:
    """Return a digest of all files."""
    return sha256(repr(list(static_files().items())).encode()).hexdigest()[:16]


def static_url(name: str) -> str:
    """Return the address of a file, which must be there."""
    if name not in static_files():
        raise UnknownError(f"no file {name} in {STATIC_DIR.name}")
    return f"{STATIC_PATH}/{static_version()}/{name}"


@router.api_route("/static/{version}/{name:path}", methods=["GET", "HEAD"])
async def get_file(request: Request, version: str, name: str) -> Response:
    """Return a file; under an older digest browsers ask again each time."""
    response = await STATIC_FILES.get_response(normpath(name), request.scope)
    kept = CACHE_FOREVER if version == static_version() else "no-cache"
    response.headers["Cache-Control"] = kept
    if response.status_code == 200 and not Path(name).suffix:  # LICENSE: shown, not saved
        response.headers["Content-Type"] = "text/plain; charset=utf-8"
    return response


TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    auto_reload=False,
)
TEMPLATES.globals.update(static=static_url, version=__version__, figures=formatting)
TEMPLATES.globals.update(NONE_UNUSUAL=NONE_UNUSUAL, USUAL_FACTOR=USUAL_FACTOR)


def render_page(
    request: Request,
    template: str,
    session: Session | None,
    *,
    status: int = 200,
    problem: EdgemergeError | None = None,
    **values: Any,
) -> HTMLResponse:
    """Fill in a template; it also sees `static`, `figures`, `session`, `version` and `now`.

    A `problem` is shown on the page, which is then answered with the status of that error.
    """
    values |= {"session": session, "now": request.app.state.service.clock()}
    values["problem"] = "" if problem is None else str(problem)
    status = status if problem is None else error_answer(problem).status
    text = TEMPLATES.get_template(template).render(**values)
    return HTMLResponse(text, status, security_headers(request.scope))


def answer_form(
    change: Callable[[], object], address: str, render: Callable[..., Response]
) -> Response:
    """Make a change and lead to a page; or render one with the `problem`: why it was not made."""
    try:
        change()
    except EdgemergeError as problem:
        return render(problem=problem)
    return RedirectResponse(address, 303)


# Who looks at a page, and whether a change was really asked for on one of our pages.
#
# Without a session every page leads to the sign-in form.

SCRIPT_MEDIA_TYPES = ("application/json", "text/event-stream")  # what scripts ask for


def wants_json(request: Request) -> bool:
    """Return whether a script asks, which wants no page."""
    return any(kind in request.headers.get("accept", "") for kind in SCRIPT_MEDIA_TYPES)


ERROR_TITLES = {
    401: "Not signed in",
    403: "This was refused",
    404: "There is no such page",
    405: "This address takes something else",
    409: "It has changed meanwhile",
    413: "That is too much",
    422: "That cannot be used",
    429: "Too many attempts",
    500: "A fault of the server",
    503: "The server cannot answer now",
    507: "The disk of the server is full",
}


def error_page(request: Request, answer: ErrorAnswer) -> Response:
    """Answer an error with a page, or in JSON to a script; redirects stay what they are."""
    if answer.status < 400 or wants_json(request):
        response: Response = error_json(request, answer)
    else:
        session = getattr(request.state, "session", None)
        words: dict[str, Any] = {"words": answer.message}
        words["heading"] = ERROR_TITLES.get(answer.status, "Not done")
        response = render_page(request, "problem.html", session, status=answer.status, **words)
    response.headers.update({**security_headers(request.scope), **answer.headers})
    return response
