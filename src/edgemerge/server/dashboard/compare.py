"""The page that shows the scores of several devices in one chart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from edgemerge.core.errors import SettingError, UnknownError
from edgemerge.server.dashboard.chart import (
    LIVE,
    ChartView,
    SpanDep,
    TimeSpan,
    joined_series,
    offered_ranges,
)
from edgemerge.server.dashboard.pages import render_page
from edgemerge.server.dashboard.sign_in import DataSession, PageSession
from edgemerge.server.fleets import NAME_PATTERN
from edgemerge.server.http import Name, ServiceDep
from edgemerge.server.service import Service

MAX_COMPARED = 6  # devices in one chart
DEFAULT_S = 86_400.0

router = APIRouter(include_in_schema=False)
Devices = Annotated[list[Annotated[str, Query(pattern=NAME_PATTERN)]], Query(default_factory=list)]


def compare_devices(
    service: Service, fleet: str, devices: Sequence[str], span: TimeSpan
) -> ChartView:
    """Return one chart of several devices, all in the same steps."""
    if span.name == LIVE:  # is what no range means; scores of moments have no steps in common
        span = TimeSpan("day", span.until - DEFAULT_S, span.until)
    series, step_s = {}, 60.0
    for device in devices:
        step_s, found = service.history.scores(fleet, device, since=span.since, until=span.until)
        series[device] = joined_series(found, step_s)
    ranges = offered_ranges(service.history.kept_days, live=False)
    return ChartView(span, series, step_s, ranges, compares=True)


def _known_devices(
    service: Service, fleet: str, asked: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return all devices, and those that are compared, each once."""
    known = [each.device for each in service.devices(fleet)]
    chosen = list(dict.fromkeys(asked))
    if len(chosen) > MAX_COMPARED:
        raise SettingError(f"found {len(chosen)} devices, expected at most {MAX_COMPARED}")
    for device in chosen:
        if device not in known:
            raise UnknownError(f"no device {device} in {fleet}: its devices are listed")
    return known, chosen


@router.get("/fleets/{fleet}/compare")
def show_comparison(
    request: Request,
    fleet: Name,
    session: PageSession,
    service: ServiceDep,
    span: SpanDep,
    device: Devices,
) -> Response:
    """Show the scores of a few devices in one chart, and a form to choose others."""
    known, chosen = _known_devices(service, fleet, device)
    chart = compare_devices(service, fleet, chosen, span)
    query = "".join(f"device={quote(each)}&" for each in chosen)
    values: dict[str, Any] = {"fleet": fleet, "tab": "", "chart": chart, "query": query}
    values |= {"known": known, "chosen": chosen, "most": MAX_COMPARED}
    return render_page(request, "compare.html", session, **values)


@router.get("/fleets/{fleet}/compare/scores")
def get_comparison(
    fleet: Name,
    _session: DataSession,
    service: ServiceDep,
    span: SpanDep,
    device: Devices,
) -> dict[str, Any]:
    """Return what the chart shows of a time."""
    _, chosen = _known_devices(service, fleet, device)
    return compare_devices(service, fleet, chosen, span).data
