"""What an operator can do on the merge page: adopt, revoke, undo. Each needs a form of ours."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from edgemerge.core.errors import EdgemergeError, SettingError
from edgemerge.server.asking import Name, Serving, in_thread
from edgemerge.server.dashboard.forms import Filled
from edgemerge.server.dashboard.merge_asked import TO, Wanted, key_of, number
from edgemerge.server.dashboard.merge_pages import merge_page
from edgemerge.server.dashboard.merge_view import targets_of
from edgemerge.server.dashboard.signed_in import Acting
from edgemerge.server.merges.merging import Choice
from edgemerge.server.sessions import Session

router = APIRouter(include_in_schema=False)


@router.post("/ui/fleets/{fleet}/merge/adopt")
async def adopt(
    request: Request, fleet: Name, session: Acting, form: Filled, service: Serving
) -> Response:
    """Let the selected devices, or all, be told of the selected ones only."""
    sources, to = list(dict.fromkeys(form.every("source"))), form.one("to")

    def choose() -> Choice:
        if to not in TO:
            raise SettingError(f"found {to[:20]!r}, expected one of {', '.join(TO)} as targets")
        if not sources:
            raise SettingError("found no device selected, expected at least one: tick its box")
        targets = targets_of(service, fleet, sources, to)
        return service.merging.adopt(fleet, sources, targets, session.caller)

    return await _done(request, fleet, session, choose)


@router.post("/ui/fleets/{fleet}/merge/revoke")
async def revoke(
    request: Request, fleet: Name, session: Acting, form: Filled, service: Serving
) -> Response:
    """Tell a contribution to nobody any more."""
    return await _done(
        request,
        fleet,
        session,
        lambda: service.merging.revoke(fleet, key_of(form.one("revoke")), session.caller),
    )


@router.post("/ui/fleets/{fleet}/merge/undo")
async def undo(
    request: Request, fleet: Name, session: Acting, form: Filled, service: Serving
) -> Response:
    """Take a choice back."""
    chosen = number(form.one("number"))
    return await _done(
        request, fleet, session, lambda: service.merging.undo(fleet, chosen, session.caller)
    )


async def _done(
    request: Request, fleet: str, session: Session, choose: Callable[[], Choice]
) -> Response:
    """Lead back to the page, which says what was chosen; or say there why it was not."""
    try:
        choice = await in_thread(choose)
    except EdgemergeError as problem:
        return await merge_page(request, fleet, session, Wanted(), problem)
    return RedirectResponse(f"/ui/fleets/{fleet}/merge?done={choice.number}", 303)
