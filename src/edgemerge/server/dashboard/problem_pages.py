"""Problems of the dashboard: told as a page to people, as data to scripts."""

from __future__ import annotations

import json

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from edgemerge.server.dashboard.headers import is_ours
from edgemerge.server.dashboard.rendering import page
from edgemerge.server.dashboard.signed_in import asks_for_data

TITLES = {
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
FORM = ("content-type", "content-length")  # headers that are made anew


def fitting(request: Request, told: JSONResponse) -> Response:
    """Give a problem in the form that whoever asks can use."""
    status = told.status_code
    if status < 400 or not is_ours(request.scope["path"]) or asks_for_data(request):
        return told
    words = str(json.loads(bytes(told.body))["error"])
    heading, session = TITLES.get(status, "Not done"), getattr(request.state, "session", None)
    made = page(request, "problem.html", session, status=status, heading=heading, words=words)
    made.headers.update({k: v for k, v in told.headers.items() if k not in FORM})
    return made
