"""The merge page: compare, preview, adopt, exclude, undo, trust, approve and dismiss."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from edgemerge.core.errors import EdgemergeError, SettingError
from edgemerge.core.trust import Trust
from edgemerge.server.auth import Session
from edgemerge.server.choices.rules import DECISIONS, Choice
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
from edgemerge.server.dashboard.sign_in import (
    AdminForm,
    DataSession,
    FormDep,
    FormSession,
    PageSession,
)
from edgemerge.server.http import HeavyLimiter, Name, ServiceDep, error_answer, run_in_thread
from edgemerge.server.service import Service

router = APIRouter(include_in_schema=False)


@router.get("/fleets/{fleet}/merge")
async def show_merge(request: Request, fleet: Name, session: PageSession) -> Response:
    """Show similarity, choices and contributions; with a selection, what adopting it would do."""
    query = request.query_params
    exclude = query.get("exclude", query.get("revoke"))  # revoke: the old word
    if exclude is not None:
        session.caller.must_be("operator")
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
        return render_page(request, "_matrix.html", session, matrix=matrix, wanted=wanted)

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
    values: dict[str, Any] = {"tab": "Merge", "fleet": fleet, "wanted": wanted}
    values |= {"preview": None, "matrix": None}
    if wanted.previewing and problem is None:
        look = partial(preview_view, service, fleet, wanted)
        try:
            values["preview"] = await run_in_thread(look, state.heavy_limiter)
        except EdgemergeError as error:
            problem = error
    if wanted.at_once:
        compare = partial(matrix_view, service, fleet, session.caller, wanted)
        values["matrix"] = await run_in_thread(compare, state.heavy_limiter)
    values["problem"] = "" if problem is None else str(problem)
    status = 200 if problem is None else error_answer(problem).status

    def work() -> Response:
        values["view"] = merge_view(service, fleet, session.caller, wanted)
        return render_page(request, "merge.html", session, status=status, **values)

    return await run_in_thread(work)


def _confirm(request: Request, fleet: str, session: Session, exclude: str) -> Response:
    key = parse_key(exclude)
    found = contribution_view(request.app.state.service, fleet, key, session.caller)
    words: dict[str, Any] = {"tab": "Merge", "fleet": fleet, "words": describe_key(key)}
    return render_page(request, "exclude.html", session, found=found, **words)


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
    text = form.one("exclude") or form.one("revoke")

    def choose() -> Choice:
        return service.choices.exclude(fleet, parse_key(text), session.caller)

    return await _run_and_redirect(request, fleet, session, choose)


@router.post("/fleets/{fleet}/merge/decide")
async def decide(
    request: Request, fleet: Name, session: FormSession, form: FormDep, service: ServiceDep
) -> Response:
    """Approve or dismiss a contribution, if it is still the one that was looked at."""
    decision, text = form.one("decision"), form.one("contribution")
    revision, comment = parse_number(form.one("revision")), form.one("comment").strip()

    def choose() -> Choice:
        if decision not in DECISIONS:
            raise SettingError(f"found {decision[:20]!r}, expected one of {', '.join(DECISIONS)}")
        said: Any = decision  # one of the two
        about = fleet, parse_key(text), said, session.caller
        return service.choices.decide(*about, comment=comment, revision=revision)

    return await _run_and_redirect(request, fleet, session, choose)


@router.post("/fleets/{fleet}/merge/trust")
async def set_trust(
    request: Request, fleet: Name, session: AdminForm, form: FormDep, service: ServiceDep
) -> Response:
    """Change which contributions are adopted at once."""
    rule = form.one("rule")
    text = f"quorum:{form.one('quorum').strip()}" if rule == "quorum" else rule
    try:
        trust = Trust.parse(text)
        await run_in_thread(lambda: service.choices.set_trust(fleet, trust, session.caller))
    except EdgemergeError as problem:
        return await merge_page(request, fleet, session, MergeQuery(), problem)
    return RedirectResponse(f"/ui/fleets/{fleet}/merge?done=trust", 303)


@router.post("/fleets/{fleet}/merge/undo")
async def undo(
    request: Request, fleet: Name, session: FormSession, form: FormDep, service: ServiceDep
) -> Response:
    """Undo a choice."""
    undoing = partial(service.choices.undo, fleet, parse_number(form.one("number")))
    return await _run_and_redirect(request, fleet, session, lambda: undoing(session.caller))


async def _run_and_redirect(
    request: Request, fleet: str, session: Session, choose: Callable[[], Choice]
) -> Response:
    """Redirect to the page, which shows what was chosen; or show there why it was not."""
    try:
        choice = await run_in_thread(choose)
    except EdgemergeError as problem:
        return await merge_page(request, fleet, session, MergeQuery(), problem)
    return RedirectResponse(f"/ui/fleets/{fleet}/merge?done={choice.number}", 303)
