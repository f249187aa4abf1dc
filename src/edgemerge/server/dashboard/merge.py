"""The merge page: compare, preview, adopt, exclude, undo."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from edgemerge.core.errors import EdgemergeError, SettingError
from edgemerge.server.auth import Session
from edgemerge.server.choices.rules import Choice
from edgemerge.server.dashboard import formatting
from edgemerge.server.dashboard.merge_view import (
    TARGET_OPTIONS,
    MergeQuery,
    contribution_view,
    describe_key,
    matrix_view,
    merge_view,
    parse_key,
    parse_number,
    preview_view,
    targets_of,
)
from edgemerge.server.dashboard.pages import render_page
from edgemerge.server.dashboard.sign_in import DataSession, FormDep, FormSession, PageSession
from edgemerge.server.http import STATUS_BY_ERROR, HeavyLimiter, Name, ServiceDep, run_in_thread
from edgemerge.server.service import Service

T = TypeVar("T")
MERGE_TEMPLATE_VALUES: dict[str, Any] = {"tab": "Merge", "say": formatting, "figures": formatting}

router = APIRouter(include_in_schema=False)


@router.get("/fleets/{fleet}/merge")
async def show_merge(request: Request, fleet: Name, session: PageSession) -> Response:
    """Show similarity, choices and contributions; with a selection, what adopting it would do."""
    query = request.query_params
    exclude = query.get("exclude", query.get("revoke"))  # revoke: the old word
    if exclude is not None:
        return await run_in_thread(lambda: _confirm(request, fleet, session, exclude))
    return await merge_page(request, fleet, session, MergeQuery.of(request.query_params))


@router.get("/fleets/{fleet}/merge/matrix")
async def show_matrix(
    request: Request,
    fleet: Name,
    session: DataSession,
    service: ServiceDep,
    heavy_limiter: HeavyLimiter,
) -> Response:
    """Return the matrix alone, to be put into the page."""
    wanted = MergeQuery.of(request.query_params)

    def work() -> Response:
        matrix = matrix_view(service, fleet, session.caller, wanted)
        return render_page(
            request, "_matrix.html", session, matrix=matrix, wanted=wanted, **MERGE_TEMPLATE_VALUES
        )

    return await run_in_thread(work, heavy_limiter)


async def merge_page(
    request: Request,
    fleet: str,
    session: Session,
    wanted: MergeQuery,
    problem: EdgemergeError | None = None,
) -> Response:
    """Render the page; an error is shown on it, in its own words."""
    state = request.app.state
    service: Service = state.service
    preview = matrix = None
    if wanted.previewing and problem is None:
        look = _catch_problem(lambda: preview_view(service, fleet, wanted))
        preview, problem = await run_in_thread(look, state.heavy_limiter)
    if wanted.at_once:
        compare = partial(matrix_view, service, fleet, session.caller, wanted)
        matrix = await run_in_thread(compare, state.heavy_limiter)
    values = {
        "fleet": fleet,
        "wanted": wanted,
        "preview": preview,
        "matrix": matrix,
        **MERGE_TEMPLATE_VALUES,
    }

    def work() -> Response:
        values["view"] = merge_view(service, fleet, session.caller, wanted)
        values["problem"] = "" if problem is None else str(problem)
        return render_page(request, "merge.html", session, status=error_status(problem), **values)

    return await run_in_thread(work)


def error_status(problem: EdgemergeError | None) -> int:
    """Return the status that fits an error, as the rest of the server does."""
    if problem is None:
        return 200
    return next(code for kind, code in STATUS_BY_ERROR if isinstance(problem, kind))


def _catch_problem(work: Callable[[], T]) -> Callable[[], tuple[T | None, EdgemergeError | None]]:
    def tried() -> tuple[T | None, EdgemergeError | None]:
        try:
            return work(), None
        except EdgemergeError as error:
            return None, error

    return tried


def _confirm(request: Request, fleet: str, session: Session, exclude: str) -> Response:
    key = parse_key(exclude)
    found = contribution_view(request.app.state.service, fleet, key, session.caller)
    words = describe_key(key)
    return render_page(
        request,
        "exclude.html",
        session,
        fleet=fleet,
        found=found,
        words=words,
        **MERGE_TEMPLATE_VALUES,
    )


@router.post("/fleets/{fleet}/merge/adopt")
async def adopt(
    request: Request, fleet: Name, session: FormSession, form: FormDep, service: ServiceDep
) -> Response:
    """Let the selected devices, or all, adopt from the selected ones only."""
    sources, to = list(dict.fromkeys(form.every("source"))), form.one("to")

    def choose() -> Choice:
        if to not in TARGET_OPTIONS:
            raise SettingError(
                f"found {to[:20]!r}, expected one of {', '.join(TARGET_OPTIONS)} as targets"
            )
        if not sources:
            raise SettingError("found no device selected, expected at least one: tick its box")
        targets = targets_of(service, fleet, sources, to)
        return service.choices.adopt(fleet, sources, targets, session.caller)

    return await _run_and_redirect(request, fleet, session, choose)


@router.post("/fleets/{fleet}/merge/exclude")
@router.post("/fleets/{fleet}/merge/revoke")  # the old word
async def exclude(
    request: Request, fleet: Name, session: FormSession, form: FormDep, service: ServiceDep
) -> Response:
    """Exclude a contribution."""
    key = form.one("exclude") or form.one("revoke")
    return await _run_and_redirect(
        request,
        fleet,
        session,
        lambda: service.choices.exclude(fleet, parse_key(key), session.caller),
    )


@router.post("/fleets/{fleet}/merge/undo")
async def undo(
    request: Request, fleet: Name, session: FormSession, form: FormDep, service: ServiceDep
) -> Response:
    """Take a choice back."""
    chosen = parse_number(form.one("number"))
    return await _run_and_redirect(
        request, fleet, session, lambda: service.choices.undo(fleet, chosen, session.caller)
    )


async def _run_and_redirect(
    request: Request, fleet: str, session: Session, choose: Callable[[], Choice]
) -> Response:
    """Lead back to the page, which says what was chosen; or say there why it was not."""
    try:
        choice = await run_in_thread(choose)
    except EdgemergeError as problem:
        return await merge_page(request, fleet, session, MergeQuery(), problem)
    return RedirectResponse(f"/ui/fleets/{fleet}/merge?done={choice.number}", 303)
