"""The merge page, the part of it that takes longer, and the page that asks before revoking."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response

from edgemerge.core.errors import EdgemergeError
from edgemerge.server.asking import Name, Serving, in_thread
from edgemerge.server.dashboard import figures, saying
from edgemerge.server.dashboard.choice_view import key_words
from edgemerge.server.dashboard.merge_asked import Wanted, key_of
from edgemerge.server.dashboard.merge_view import (
    contribution_view,
    matrix_view,
    merge_view,
    preview_view,
)
from edgemerge.server.dashboard.rendering import page
from edgemerge.server.dashboard.signed_in import SignedIn, SignedInFeed
from edgemerge.server.merges.choice_routes import Weighing
from edgemerge.server.problems import STATUS
from edgemerge.server.service import Service
from edgemerge.server.sessions import Session

T = TypeVar("T")
WORDS: dict[str, Any] = {"tab": "Merge", "say": saying, "figures": figures}

router = APIRouter(include_in_schema=False)


@router.get("/ui/fleets/{fleet}/merge")
async def show_merge(request: Request, fleet: Name, session: SignedIn) -> Response:
    """Show likeness, choices and contributions; with a selection, what adopting it would do."""
    revoke = request.query_params.get("revoke")
    if revoke is not None:
        return await in_thread(lambda: _confirm(request, fleet, session, revoke))
    return await merge_page(request, fleet, session, Wanted.of(request.query_params))


@router.get("/ui/fleets/{fleet}/merge/matrix")
async def show_matrix(
    request: Request, fleet: Name, session: SignedInFeed, service: Serving, weighing: Weighing
) -> Response:
    """Give the matrix alone, to be put into the page."""
    wanted = Wanted.of(request.query_params)

    def work() -> Response:
        matrix = matrix_view(service, fleet, session.caller, wanted)
        return page(request, "_matrix.html", session, matrix=matrix, wanted=wanted, **WORDS)

    return await in_thread(work, weighing)


async def merge_page(
    request: Request,
    fleet: str,
    session: Session,
    wanted: Wanted,
    problem: EdgemergeError | None = None,
) -> Response:
    """Make the page; what cannot be done is told on it, in the words of the error."""
    state = request.app.state
    service: Service = state.service
    preview = matrix = None
    if wanted.previewing and problem is None:
        look = _or_problem(lambda: preview_view(service, fleet, wanted))
        preview, problem = await in_thread(look, state.weighing)
    if wanted.at_once:
        compare = partial(matrix_view, service, fleet, session.caller, wanted)
        matrix = await in_thread(compare, state.weighing)
    values = {"fleet": fleet, "wanted": wanted, "preview": preview, "matrix": matrix, **WORDS}

    def work() -> Response:
        values["view"] = merge_view(service, fleet, session.caller, wanted)
        values["problem"] = "" if problem is None else str(problem)
        return page(request, "merge.html", session, status=status_of(problem), **values)

    return await in_thread(work)


def status_of(problem: EdgemergeError | None) -> int:
    """Give the status that fits an error, as the rest of the server does."""
    if problem is None:
        return 200
    return next(code for kind, code in STATUS if isinstance(problem, kind))


def _or_problem(work: Callable[[], T]) -> Callable[[], tuple[T | None, EdgemergeError | None]]:
    def tried() -> tuple[T | None, EdgemergeError | None]:
        try:
            return work(), None
        except EdgemergeError as error:
            return None, error

    return tried


def _confirm(request: Request, fleet: str, session: Session, revoke: str) -> Response:
    key = key_of(revoke)
    found = contribution_view(request.app.state.service, fleet, key, session.caller)
    words = key_words(key)
    return page(request, "revoke.html", session, fleet=fleet, found=found, words=words, **WORDS)
