"""The pages of all fleets and of one fleet."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response

from edgemerge.server.asking import Name, Serving
from edgemerge.server.dashboard import figures
from edgemerge.server.dashboard.rendering import page
from edgemerge.server.dashboard.rows import BLANK, KEYS, in_order, matches
from edgemerge.server.dashboard.signed_in import SignedIn
from edgemerge.server.dashboard.watching import Lookers

router = APIRouter(include_in_schema=False)

COLUMNS = {  # their headings; all but the last can be sorted by
    "device": "Device",
    "state": "State",
    "alarm": "Alarm",
    "pattern": "Pattern",
    "learnt": "Learnt",
    "revision": "Revision",
    "shared": "Last share",
    "merged": "Last merge",
    "score": "Score / threshold",
}
FALLING = ("alarm", "learnt", "revision", "shared", "merged", "score")  # the largest first
Words = Annotated[str, Query(max_length=200)]


@router.get("/ui/")
def show_fleets(
    request: Request, session: SignedIn, service: Serving, lookers: Lookers
) -> Response:
    """Show all fleets; if there is just one, that one."""
    found = [fleet.fleet for fleet, _ in service.fleets(session.caller)]
    if len(found) == 1:
        return RedirectResponse(f"/ui/fleets/{found[0]}", 303)
    seen = [lookers.boards.look(name) for name in found]
    return page(request, "fleets.html", session, seen=seen, here=here(request), figures=figures)


@router.get("/ui/fleets/{fleet}")
def show_fleet(
    request: Request,
    fleet: Name,
    session: SignedIn,
    lookers: Lookers,
    q: Words = "",
    sort: Words = "",
) -> Response:
    """Show a fleet: its totals, and a row for each device."""
    seen = lookers.boards.look(fleet, database_s=0.0)
    sort = sort if sort.removeprefix("-") in KEYS else ""
    rows = in_order(seen.rows, sort)
    shown = {row.device for row in rows if matches(row, q)}
    values: dict[str, Any] = {"fleet": fleet, "tab": "Devices", "seen": seen, "here": here(request)}
    values |= {"columns": COLUMNS, "falling": FALLING, "blank": BLANK, "figures": figures}
    return page(request, "fleet.html", session, rows=rows, shown=shown, q=q, sort=sort, **values)


def here(request: Request) -> str:
    """Give the address of this server, as the browser calls it."""
    return str(request.base_url).rstrip("/")
