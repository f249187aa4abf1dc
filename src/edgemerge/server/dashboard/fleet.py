"""The pages of all fleets and of one: devices, adding and comparing them, exchange, faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response

from edgemerge.core.errors import EdgemergeError, SettingError, UnknownError
from edgemerge.privacy.gate import min_cohort
from edgemerge.server.auth import Session
from edgemerge.server.dashboard.chart import (
    LIVE,
    ChartView,
    SpanDep,
    TimeSpan,
    joined_series,
    offered_ranges,
)
from edgemerge.server.dashboard.fleet_table import (
    BLANK_ROW,
    SORT_KEYS,
    DeviceRow,
    matches,
    sort_rows,
)
from edgemerge.server.dashboard.merge import count_waiting
from edgemerge.server.dashboard.pages import answer_form, render_page
from edgemerge.server.dashboard.sign_in import (
    AdminForm,
    DataSession,
    Form,
    FormDep,
    OperatorForm,
    OperatorPage,
    Page,
    ViewerPage,
    WallLink,
    server_url,
)
from edgemerge.server.dashboard.stream import Viewers, ViewersDep
from edgemerge.server.fleets import MASKED, NAME_PATTERN, Fleet, must_be_plain_name
from edgemerge.server.http import Name, Number, ServiceDep, refuse_invalid, wall_path
from edgemerge.server.masked_epochs import MAX_COHORT, CohortRecord, Suspects
from edgemerge.server.reports.model import Traffic
from edgemerge.server.schemas import CohortRequest
from edgemerge.server.service import Service

router = APIRouter(include_in_schema=False)

TABLE_COLUMNS = {  # their headings; all but the last can be sorted by
    "device": "Device",
    "state": "State",
    "alarm": "Alarm",
    "review": "Review",
    "pattern": "Pattern",
    "learnt": "Learnt",
    "score": "Score / limit",
}
DESCENDING_FIRST = ("alarm", "review", "learnt", "score")  # the largest first
HOUR_S = 3600.0
VALID_HOURS = {"1": "1 hour", "24": "1 day", "168": "1 week"}
MAX_COMPARED = 6  # devices in one chart
COMPARED_S = 86_400.0
Devices = Annotated[list[Annotated[str, Query(pattern=NAME_PATTERN)]], Query(default_factory=list)]
SearchText = Annotated[str, Query(max_length=200)]


@router.get("/")
def show_fleets(page: ViewerPage) -> Response:
    """Show all fleets; if there is just one, its episodes, or how devices join it."""
    found = page.service.fleets(page.caller)
    if len(found) == 1:
        (fleet, counts) = found[0]
        path = "/episodes" if counts.devices else ""
        return RedirectResponse(f"/ui/fleets/{fleet.name}{path}", 303)
    seen = [page.viewers.tables.look(fleet.name) for fleet, _ in found]
    return page.render("fleets.html", seen=seen, here=server_url(page.request))


@router.get("/fleets/{fleet}")
def show_fleet(
    fleet: Name, page: ViewerPage, q: SearchText = "", sort: SearchText = ""
) -> Response:
    """Show a fleet: its totals, and a row for each device."""
    return _render_fleet(*page, fleet, q=q, sort=sort)


@router.get("/wall/{link}")
def show_wall(
    request: Request, account: WallLink, service: ServiceDep, viewers: ViewersDep, link: str
) -> Response:
    """Show the fleet of a wall link, without a sign-in, and without anything to press."""
    live = f"{wall_path(link)}/live"
    return _render_fleet(request, None, service, viewers, account.fleet or "", live=live)


def _render_fleet(
    request: Request,
    session: Session | None,
    service: Service,
    viewers: Viewers,
    fleet: str,
    *,
    q: str = "",
    sort: str = "",
    live: str = "",
    problem: EdgemergeError | None = None,
) -> Response:
    seen = viewers.tables.look(fleet, database_s=0.0)
    sort = sort if sort.removeprefix("-") in SORT_KEYS else ""
    rows = sort_rows(seen.rows, sort)
    shown = {row.device for row in rows if matches(row, q)}
    page: dict[str, Any] = {"fleet": fleet, "tab": "Devices", "here": server_url(request)}
    page |= {"wall": session is None, "live": live or f"/ui/fleets/{fleet}/live"}
    page["capacity"] = service.capacity(fleet)
    is_masked = session is not None and seen.fleet.read_mode == MASKED
    page |= {"cohorts": cohorts_view(service, seen.fleet) if is_masked else None}
    page["waiting"] = count_waiting(service.choices.waiting(fleet))
    table = {"columns": TABLE_COLUMNS, "falling": DESCENDING_FIRST, "blank": BLANK_ROW}
    found = {"seen": seen, "rows": rows, "shown": shown, "q": q, "sort": sort}
    values = page | table | found
    return render_page(request, "fleet.html", session, problem=problem, **values)


@dataclass(frozen=True)
class CohortsView:
    """The cohorts of a masked fleet that were formed last, and the form for new ones.

    From `enough` devices on a total hides its samples.
    """

    records: list[CohortRecord]
    suspects: Suspects
    registered: int
    enough: int

    @property
    def fields(self) -> dict[str, str]:
        """What the form begins with: the numbers of the last cohorts."""
        if not self.records:
            return {"size": str(MAX_COHORT), "min_devices": "", "hours": "1", "colluding": "0"}
        last, sizes = self.records[0], [len(each.cohort.members) for each in self.records]
        keepers, more = last.cohort.keepers, last.cohort.threshold - 1 - last.cohort.keepers // 2
        bad = 2 * more + 1 - keepers % 2 if more else 0  # the most with this threshold
        return {
            "size": str(max(sizes) if len(sizes) > 1 else max(MAX_COHORT, *sizes)),
            "min_devices": str(last.cohort.least),
            "hours": f"{last.collect_s / HOUR_S:g}",
            "colluding": str(ceil(100 * bad / sizes[0])),
        }

    @property
    def slots(self) -> list[str]:
        """The patterns that are added up; new cohorts keep them."""
        return list(self.records[0].cohort.slots) if self.records else ["normal"]


def cohorts_view(service: Service, fleet: Fleet) -> CohortsView:
    """Gather what is shown of cohorts."""
    masked = service.masked
    records = masked.records(fleet.name)
    last = [record for record in records if record.formed == records[-1].formed]
    registered = masked.count_registered(fleet.name)
    return CohortsView(last, masked.suspects(fleet.name), registered, min_cohort(fleet.projection))


def read_cohorts(form: Form, slots: list[str]) -> CohortRequest:
    """Read how cohorts are formed; an empty field for the fewest devices is the default."""
    asked: dict[str, Any] = {"slots": slots, "mix": form.one("mix") == "on"}
    try:
        asked |= {"size": int(form.one("size")), "collect_s": HOUR_S * float(form.one("hours"))}
        asked["colluding"] = float(form.one("colluding")) / 100.0
        fewest = form.one("min_devices")
        asked |= {"min_devices": int(fewest)} if fewest else {}
    except ValueError as error:
        raise SettingError("found a field that is no number, expected one in each") from error
    with refuse_invalid():
        return CohortRequest(**asked)


@router.post("/fleets/{fleet}/cohorts")
def form_cohorts(fleet: Name, page: AdminForm, form: FormDep) -> Response:
    """Form the cohorts of a masked fleet, and show its page again; or show there why not."""
    service = page.service

    def change() -> None:
        slots = cohorts_view(service, service.fleet(fleet)).slots
        service.masked.form(fleet, page.caller, **read_cohorts(form, slots).settings())

    return answer_form(change, f"/ui/fleets/{fleet}#cohorts", partial(_render_fleet, *page, fleet))


@router.get("/fleets/{fleet}/cohorts/{cohort}/drop")
def confirm_drop(fleet: Name, cohort: Number, page: OperatorPage) -> Response:
    """Ask before a cohort is dropped."""
    for record in page.service.masked.records(fleet):
        if record.number == cohort:
            return page.render("drop_cohort.html", fleet=fleet, tab="", record=record)
    raise UnknownError(f"no cohort {cohort} in {fleet}: the page of the fleet lists them")


@router.post("/fleets/{fleet}/cohorts/{cohort}/drop")
def drop_cohort(fleet: Name, cohort: Number, page: OperatorForm) -> Response:
    """Drop a cohort, and show the fleet."""
    page.service.masked.drop_cohort(fleet, cohort, page.caller)
    return RedirectResponse(f"/ui/fleets/{fleet}#cohorts", 303)


class ExchangeRow(NamedTuple):
    """What a device has shared and received."""

    row: DeviceRow
    incarnation: int | None
    traffic: Traffic


@router.get("/fleets/{fleet}/exchange")
def show_exchange(fleet: Name, page: ViewerPage) -> Response:
    """Show what devices push, pull and merge: revisions, incarnations and bytes."""
    seen, history = page.viewers.tables.look(fleet, database_s=0.0), page.service.history
    reports, traffic = history.latest_reports(fleet), history.traffic(fleet)
    rows = [
        ExchangeRow(
            row,
            reports[row.device].status.incarnation if row.device in reports else None,
            traffic.get(row.device, Traffic()),
        )
        for row in sort_rows(seen.rows, "device")
    ]
    return page.render("exchange.html", fleet=fleet, tab="Exchange", seen=seen, rows=rows)


@router.get("/fleets/{fleet}/faults")
def show_faults(fleet: Name, page: ViewerPage) -> Response:
    """Show the faults that people named in a fleet, the largest first."""
    agreed, found = page.service.faults.known(fleet)
    least = agreed.devices_needed
    return page.render("faults.html", fleet=fleet, tab="Faults", faults=found, least=least)


@router.get("/fleets/{fleet}/add")
def show_form(fleet: Name, page: OperatorPage) -> Response:
    """Ask for the name of a device."""
    return _render_form(page, fleet)


@router.post("/fleets/{fleet}/add")
def add_device(fleet: Name, page: OperatorForm, form: FormDep) -> Response:
    """Make an invitation; its token is on this page, and nowhere else."""
    device = form.one("device")
    try:
        hours = _read_device(form)
        token, expires = page.service.invite(fleet, device, HOUR_S * hours, page.caller)
    except EdgemergeError as problem:
        return _render_form(page, fleet, device=device, problem=problem)
    return _render_form(page, fleet, device=device, made={"token": token, "expires": expires})


def _read_device(form: Form) -> int:
    """Check the name, and return for how many hours the invitation is valid."""
    device, hours = form.one("device"), form.one("hours")
    must_be_plain_name("device", device)
    if hours not in VALID_HOURS:
        raise SettingError(f"found hours {hours[:20]!r}, expected {', '.join(VALID_HOURS)}")
    return int(hours)


def _render_form(
    page: Page,
    fleet: str,
    *,
    device: str = "",
    made: dict[str, Any] | None = None,
    problem: EdgemergeError | None = None,
) -> Response:
    values: dict[str, Any] = {"fleet": fleet, "tab": "", "here": server_url(page.request)}
    values |= {"masked": page.service.fleet(fleet).read_mode == MASKED}
    values |= {"device": device, "made": made, "hours": VALID_HOURS, "csrf": page.session.csrf}
    return page.render("add_device.html", problem=problem, **values)


def compare_devices(
    service: Service, fleet: str, devices: Sequence[str], span: TimeSpan
) -> ChartView:
    """Return one chart of several devices, all in the same steps."""
    if span.name == LIVE:  # is what no range means; scores of moments have no steps in common
        span = TimeSpan("day", span.until - COMPARED_S, span.until)
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
            raise UnknownError(
                f"no device {device} in {fleet}: the page of the fleet lists its devices"
            )
    return known, chosen


@router.get("/fleets/{fleet}/compare")
def show_comparison(fleet: Name, page: ViewerPage, span: SpanDep, device: Devices) -> Response:
    """Show the scores of a few devices in one chart, and a form to choose others."""
    known, chosen = _known_devices(page.service, fleet, device)
    chart = compare_devices(page.service, fleet, chosen, span)
    query = "".join(f"device={quote(each)}&" for each in chosen)
    values: dict[str, Any] = {"fleet": fleet, "tab": "", "chart": chart, "query": query}
    values |= {"known": known, "chosen": chosen, "most": MAX_COMPARED}
    return page.render("compare.html", **values)


@router.get("/fleets/{fleet}/compare/scores")
def get_comparison(
    fleet: Name, _session: DataSession, service: ServiceDep, span: SpanDep, device: Devices
) -> dict[str, Any]:
    """Return what the chart shows of a time."""
    _, chosen = _known_devices(service, fleet, device)
    return compare_devices(service, fleet, chosen, span).data
