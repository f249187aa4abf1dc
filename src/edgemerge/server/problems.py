"""Problems: how our errors are told over HTTP, each with words that say what to do."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from edgemerge.core.errors import (
    AwayError,
    DeniedError,
    EdgemergeError,
    UnknownError,
)
from edgemerge.server.answers import Problem
from edgemerge.server.dashboard.problem_pages import fitting
from edgemerge.server.fleets import ExistsError
from edgemerge.server.limits import CutShortError, TooLargeError
from edgemerge.server.reports.reception import OftenError
from edgemerge.server.store.database import BrokenError, FullError

log = logging.getLogger(__name__)

STATUS: tuple[tuple[type[Exception], int], ...] = (
    (ExistsError, 409),
    (DeniedError, 403),
    (UnknownError, 404),
    (TooLargeError, 413),
    (CutShortError, 400),
    (FullError, 507),
    (BrokenError, 500),
    (OftenError, 429),
    (AwayError, 503),
    (EdgemergeError, 422),
)
WORDS = {
    400: "The request was cut short.",
    401: "The token is missing, unknown or revoked.",
    403: "This token may not do that.",
    404: "There is no such thing.",
    409: "It is there already, and different or newer.",
    413: "More bytes than allowed.",
    422: "What was sent cannot be used; the words say why.",
    429: "More reports than are taken; report again after the given seconds.",
    503: "Too much is under way; try again after the given seconds.",
    507: "The disk is full.",
}


class NobodyError(DeniedError):
    """No token, or one that nobody has."""


def problems(*codes: int) -> dict[int | str, dict[str, Any]]:
    """Describe what else a route may answer."""
    return {code: {"model": Problem, "description": WORDS[code]} for code in codes}


def answer(error: Exception) -> JSONResponse:
    """Tell an error over HTTP."""
    if isinstance(error, NobodyError):
        return JSONResponse({"error": str(error)}, 401, {"WWW-Authenticate": "Bearer"})
    status = next(code for kind, code in STATUS if isinstance(error, kind))
    headers = {}
    if isinstance(error, AwayError):
        headers["Retry-After"] = str(round(error.retry_s or 1))
    if status >= 500 and status != 503:
        log.error("a request failed", extra={"values": {"error": str(error)}})
    content: dict[str, Any] = {"error": str(error)}
    if status == 409:
        content["problem"] = "exists"
    return JSONResponse(content, status, headers)


def tell_problems(app: FastAPI) -> None:
    """Let the app answer our errors, and its own, in the same form."""

    async def ours(request: Request, error: Exception) -> Response:
        return fitting(request, answer(error))

    async def theirs(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101 - registered for no other
        headers = {**(error.headers or {}), **_allowed(request, error.status_code)}
        told = JSONResponse({"error": str(error.detail)}, error.status_code, headers)
        return fitting(request, told)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for no other
        return fitting(request, JSONResponse({"error": in_words(error.errors())}, 422))

    async def faults(request: Request, _error: Exception) -> Response:
        told = JSONResponse({"error": "a fault of the server: its log says more"}, 500)
        told.headers["X-Content-Type-Options"] = "nosniff"  # made outside of what adds it
        return fitting(request, told)

    app.add_exception_handler(Exception, faults)
    app.add_exception_handler(EdgemergeError, ours)
    app.add_exception_handler(HTTPException, theirs)
    app.add_exception_handler(RequestValidationError, invalid)


def _allowed(request: Request, status: int) -> dict[str, str]:
    """Name all methods of an address; the framework names those of one of its routes."""
    path = getattr(request.scope.get("route"), "path", "")
    methods = request.app.openapi()["paths"].get(path, ())
    if status != 405 or not methods:
        return {}
    return {"Allow": ", ".join(sorted(map(str.upper, methods)))}


def in_words(errors: Any) -> str:
    """Say where a request does not fit, and why."""
    found = (": ".join(filter(None, (".".join(map(str, e["loc"])), e["msg"]))) for e in errors)
    return "; ".join(dict.fromkeys(found))  # each once: a name is read for its route and its asker
