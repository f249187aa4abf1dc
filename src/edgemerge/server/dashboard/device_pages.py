"""The page of a device, and its last day for the chart."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from edgemerge.server.asking import Name, Serving
from edgemerge.server.dashboard import figures
from edgemerge.server.dashboard.device_view import device_view, numbers
from edgemerge.server.dashboard.device_watch import mark_of
from edgemerge.server.dashboard.fleet_pages import here
from edgemerge.server.dashboard.rendering import page
from edgemerge.server.dashboard.signed_in import SignedIn, SignedInFeed
from edgemerge.server.dashboard.watching import Lookers

router = APIRouter(include_in_schema=False)
DAY_S = 86_400.0


@router.get("/ui/fleets/{fleet}/devices/{device}")
def show_device(
    request: Request,
    fleet: Name,
    device: Name,
    session: SignedIn,
    service: Serving,
    lookers: Lookers,
) -> Response:
    """Show a device: its scores, what is unusual, what it knows and from whom."""
    view = device_view(service, lookers.boards, fleet, device)
    values: dict[str, Any] = {"fleet": fleet, "view": view, "here": here(request)}
    mark = mark_of(view.points, lookers.run)
    values |= {"points": numbers(view.points), "figures": figures, "tab": ""}
    return page(request, "device.html", session, mark=mark, **values)


@router.get("/ui/fleets/{fleet}/devices/{device}/minutes")
def get_minutes(
    fleet: Name, device: Name, _session: SignedInFeed, service: Serving
) -> dict[str, Any]:
    """Give the minutes of the last day: times, highest scores, thresholds, alarms, means."""
    since = service.clock() - DAY_S
    found = service.history.minutes(fleet, device, since=since)
    return {
        "at": [minute.at for minute in found],
        "highest": [minute.highest for minute in found],
        "threshold": [minute.threshold for minute in found],
        "alarms": [minute.alarms for minute in found],
        "mean": [minute.mean for minute in found],
    }
