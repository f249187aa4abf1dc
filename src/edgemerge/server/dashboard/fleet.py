"""The pages of all fleets, of one fleet, of what its devices exchange, and of its known faults."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response

from edgemerge.server.dashboard.fleet_table import (
    BLANK_ROW,
    SORT_KEYS,
    DeviceRow,
    matches,
    sort_rows,
)
from edgemerge.server.dashboard.merge_view import count_waiting
from edgemerge.server.dashboard.pages import render_page
from edgemerge.server.dashboard.sign_in import PageSession
from edgemerge.server.dashboard.stream import ViewersDep
from edgemerge.server.http import Name, ServiceDep
from edgemerge.server.reports.model import Traffic

router = APIRouter(include_in_schema=False)

TABLE_COLUMNS = {  # their headings; all but the last can be sorted by
    "device": "Device",
    "state": "State",
    "alarm": "Alarm",
    "review": "Review",
    "pattern": "Pattern",
    "learnt": "Learnt",
    "score": "Score / threshold",
}
DESCENDING_FIRST = ("alarm", "review", "learnt", "score")  # the largest first
SearchText = Annotated[str, Query(max_length=200)]


@router.get("/")
def show_fleets(
    request: Request, session: PageSession, service: ServiceDep, viewers: ViewersDep
) -> Response:
    """Show all fleets; if there is just one, its episodes, or how devices join it."""
    found = service.fleets(session.caller)
    if len(found) == 1:
        (fleet, counts) = found[0]
        page = "/episodes" if counts.devices else ""
        return RedirectResponse(f"/ui/fleets/{fleet.name}{page}", 303)
    seen = [viewers.tables.look(fleet.name) for fleet, _ in found]
    return render_page(request, "fleets.html", session, seen=seen, here=server_url(request))


@router.get("/fleets/{fleet}")
def show_fleet(
    request: Request,
    fleet: Name,
    session: PageSession,
    service: ServiceDep,
    viewers: ViewersDep,
    q: SearchText = "",
    sort: SearchText = "",
) -> Response:
    """Show a fleet: its totals, and a row for each device."""
    seen = viewers.tables.look(fleet, database_s=0.0)
    sort = sort if sort.removeprefix("-") in SORT_KEYS else ""
    rows = sort_rows(seen.rows, sort)
    shown = {row.device for row in rows if matches(row, q)}
    page: dict[str, Any] = {"fleet": fleet, "tab": "Devices", "here": server_url(request)}
    page["capacity"] = service.capacity(fleet)
    page["waiting"] = count_waiting(service.choices.waiting(fleet))
    table = {"columns": TABLE_COLUMNS, "falling": DESCENDING_FIRST, "blank": BLANK_ROW}
    found = {"seen": seen, "rows": rows, "shown": shown, "q": q, "sort": sort}
    values = page | table | found
    return render_page(request, "fleet.html", session, **values)


def server_url(request: Request) -> str:
    """Return the address of this server, as the browser calls it."""
    return str(request.base_url).rstrip("/")


class ExchangeRow(NamedTuple):
    """What a device has shared and received."""

    row: DeviceRow
    incarnation: int | None
    traffic: Traffic


@router.get("/fleets/{fleet}/exchange")
def show_exchange(
    request: Request, fleet: Name, session: PageSession, service: ServiceDep, viewers: ViewersDep
) -> Response:
    """Show what devices push, pull and merge: revisions, incarnations and bytes."""
    seen = viewers.tables.look(fleet, database_s=0.0)
    reports, traffic = service.history.latest_reports(fleet), service.history.traffic(fleet)
    rows = [
        ExchangeRow(
            row,
            reports[row.device].status.incarnation if row.device in reports else None,
            traffic.get(row.device, Traffic()),
        )
        for row in sort_rows(seen.rows, "device")
    ]
    values: dict[str, Any] = {"fleet": fleet, "tab": "Exchange", "seen": seen, "rows": rows}
    return render_page(request, "exchange.html", session, **values)


@router.get("/fleets/{fleet}/faults")
def show_faults(
    request: Request, fleet: Name, session: PageSession, service: ServiceDep
) -> Response:
    """Show the faults that people named in a fleet, the largest first."""
    agreed, found = service.faults.known(fleet)
    values: dict[str, Any] = {
        "fleet": fleet,
        "tab": "Faults",
        "faults": found,
        "least": agreed.min_devices,
    }
    return render_page(request, "faults.html", session, **values)
