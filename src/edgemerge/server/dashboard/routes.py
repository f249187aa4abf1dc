"""All routes of the dashboard, in order; the fallback for unknown pages is last."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import RedirectResponse, Response

from edgemerge.core.errors import UnknownError
from edgemerge.server.dashboard import device, fleet, live, log, merge, pages, sign_in
from edgemerge.server.dashboard.sign_in import HOME_PATH, PageSession

router = APIRouter(include_in_schema=False)
fallback_router = APIRouter(include_in_schema=False)


@router.get("/")
@router.get("/ui")
async def go_home() -> Response:
    """Lead to the first page."""
    return RedirectResponse(HOME_PATH, 303)


@fallback_router.get("/ui/{rest:path}")
async def find_nothing(_session: PageSession) -> Response:
    """Say that there is no such page, but only to those who are signed in."""
    raise UnknownError("found no page at this address: go on from the list of fleets")


router.include_router(pages.router)
router.include_router(sign_in.router)
router.include_router(fleet.router)
router.include_router(device.router)
router.include_router(live.router)
router.include_router(merge.router)
router.include_router(log.router)
router.include_router(fallback_router)  # the last: it takes what is left
