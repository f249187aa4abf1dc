"""All pages of the dashboard: one line for each file of them, strangers' nowhere last."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import RedirectResponse, Response

from edgemerge.core.errors import UnknownError
from edgemerge.server.dashboard import (
    device_pages,
    files,
    fleet_pages,
    live,
    log_pages,
    merge_actions,
    merge_pages,
    sign_in_routes,
)
from edgemerge.server.dashboard.signed_in import HOME, SignedIn

router = APIRouter(include_in_schema=False)
nowhere = APIRouter(include_in_schema=False)


@router.get("/")
@router.get("/ui")
async def go_home() -> Response:
    """Lead to the first page."""
    return RedirectResponse(HOME, 303)


@nowhere.get("/ui/{rest:path}")
async def find_nothing(_session: SignedIn) -> Response:
    """Say that there is no such page, but only to those who are signed in."""
    raise UnknownError("found no page at this address: go on from the list of fleets")


router.include_router(files.router)
router.include_router(sign_in_routes.router)
router.include_router(fleet_pages.router)
router.include_router(device_pages.router)
router.include_router(live.router)
router.include_router(merge_pages.router)
router.include_router(merge_actions.router)
router.include_router(log_pages.router)
router.include_router(nowhere)  # the last: it takes what is left
