"""The page of a device: scores, alarms, patterns, settings, what it shared and received."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from math import inf
from typing import Any, NamedTuple

from fastapi import APIRouter
from fastapi.responses import Response

from edgemerge.core.errors import EdgemergeError, SettingError, UnknownError
from edgemerge.core.ledger import Key
from edgemerge.delivery import unusual
from edgemerge.exchange.configuration import table_lines, without_addresses
from edgemerge.server import fleets
from edgemerge.server.contributions import StoredContribution, list_stored
from edgemerge.server.dashboard.chart import (
    LIVE,
    Band,
    SpanDep,
    TimeSpan,
    device_chart,
    live_bands,
    live_points,
    read_span,
)
from edgemerge.server.dashboard.fleet_table import DeviceRow, FleetTables
from edgemerge.server.dashboard.formatting import counted, score, share, times
from edgemerge.server.dashboard.pages import answer_form
from edgemerge.server.dashboard.review import ReviewView, read_review, whole_number
from edgemerge.server.dashboard.sign_in import (
    DataSession,
    Form,
    FormDep,
    OperatorForm,
    OperatorPage,
    Page,
    ViewerPage,
    server_url,
)
from edgemerge.server.http import Name, ServiceDep, refuse_invalid, scores_csv
from edgemerge.server.releases import current_revisions
from edgemerge.server.reports.model import LatestReport, ScorePoint
from edgemerge.server.reviews import Review, reviews_of
from edgemerge.server.schemas import (
    ReportedAlarm,
    ReportedMerge,
    ReportedOrigin,
    ReportedSettings,
    SettingsRequest,
)
from edgemerge.server.service import Service
from edgemerge.server.settings import (
    DeviceSettings,
    SettingsState,
    configuration_for,
    configuration_state,
    settings_state,
    versions_of,
)
from edgemerge.server.trust import Refusals

SHOWN_VERSIONS = 5


def describe_settings(one: DeviceSettings) -> str:
    """Describe what was set.

    >>> describe_settings(DeviceSettings(1, label="Pump of hall B", limit=5.0))
    'label “Pump of hall B”, limit 5'
    >>> describe_settings(DeviceSettings(2, false_alarms="1 per week"))
    'false alarms: 1 per week'
    """
    words = [f"label “{one.label}”"] if one.label else []
    if one.limit is not None:
        words.append(f"limit {score(one.limit)}")
    if one.false_alarms is not None:
        words.append(f"false alarms: {one.false_alarms}")
    return ", ".join(words) or "as the device's own file says"


@dataclass(frozen=True)
class SettingsView:
    """The settings of a device; `reported` is what it said of them last."""

    versions: list[DeviceSettings]  # newest first
    reported: ReportedSettings | None

    @property
    def now(self) -> DeviceSettings:
        """Those in force."""
        return self.versions[0] if self.versions else DeviceSettings()

    @property
    def state(self) -> SettingsState:
        """What became of them."""
        return settings_state(self.versions, self.reported)[0]

    @property
    def why(self) -> str:
        """Why the device refused them."""
        return settings_state(self.versions, self.reported)[1]

    @property
    def kind(self) -> str:
        """Which limit is chosen: "own", "limit" or "false_alarms"."""
        if self.now.limit is not None:
            return "limit"
        return "own" if self.now.false_alarms is None else "false_alarms"

    @property
    def shown(self) -> list[tuple[DeviceSettings, str]]:
        """The last versions, each with its words."""
        return [(each, describe_settings(each)) for each in self.versions[:SHOWN_VERSIONS]]


def read_settings(form: Form) -> SettingsRequest:
    """Read settings from the form of the page; of the limits, the one that was chosen."""
    asked: dict[str, Any] = {"label": form.one("label"), "comment": form.one("comment")}
    kind = form.one("kind")
    if kind == "limit":
        asked["limit"] = _number(form.one("limit"))
    elif kind == "false_alarms":
        asked["false_alarms"] = form.one("false_alarms")
    elif kind != "own":
        raise SettingError(f"found kind {kind[:20]!r}, expected own, limit or false_alarms")
    with refuse_invalid():
        return SettingsRequest(**asked)


def _number(text: str) -> float:
    try:
        return float(text.replace(",", "."))
    except ValueError:
        raise SettingError(f"found limit {text[:20]!r}, expected a number such as 4.5") from None


NEWEST, OLDER, EXCLUDED, DROPPED = "newest", "older", "excluded", "dropped"


class HeldContribution(NamedTuple):
    """A contribution that a device holds, and what the server has of it now."""

    pattern: str
    incarnation: int
    revision: int
    newest: int | None
    standing: str


class SourceDevice(NamedTuple):
    """A device whose contributions another holds; `known` if it has enrolled here."""

    device: str
    contributions: list[HeldContribution]
    known: bool


def source_devices(
    merge: ReportedMerge | None,
    revisions: Mapping[Key, int],
    excluded: Collection[Key],
    devices: Collection[str],
) -> list[SourceDevice]:
    """Group what a merge is made of by devices, in order of their names."""
    origins = sorted(merge.origins if merge else (), key=_origin_key)
    groups = groupby(origins, key=lambda origin: origin.device)
    return [
        SourceDevice(
            name, [_held_contribution(o, revisions, excluded) for o in some], name in devices
        )
        for name, some in groups
    ]


def describe_provenance(sources: Iterable[SourceDevice]) -> str:
    """Describe what has changed since a merge."""
    found = Counter(held.standing for source in sources for held in source.contributions)
    older, taken = found[OLDER], found[EXCLUDED] + found[DROPPED]
    words = [f"the server has newer revisions of {counted(older, 'contribution')}"] * bool(older)
    if taken:
        verb = "was" if taken == 1 else "were"
        words.append(f"{counted(taken, 'contribution')} {verb} excluded or dropped since")
    return "; ".join(words) or "all are the newest that the server has"


def _origin_key(origin: ReportedOrigin) -> Key:
    return origin.device, origin.incarnation, origin.pattern


def _held_contribution(
    origin: ReportedOrigin, revisions: Mapping[Key, int], excluded: Collection[Key]
) -> HeldContribution:
    key = _origin_key(origin)
    newest = revisions.get(key)
    if newest is None:
        standing = DROPPED
    elif key in excluded:
        standing = EXCLUDED
    else:
        standing = OLDER if newest > origin.revision else NEWEST
    return HeldContribution(origin.pattern, origin.incarnation, origin.revision, newest, standing)


SHOWN_ALARMS, SHOWN_MERGES = 100, 10  # that the page shows


class Bar(NamedTuple):
    """A length beside a name; `width` is in percent of the longest."""

    name: str
    words: str
    width: str


class PatternView(NamedTuple):
    """A pattern: how many of the last samples belonged to it, and how many are behind it."""

    name: str
    used: Bar
    own: float
    others: float
    current: bool


class RecentScores(NamedTuple):
    """The last ten minutes in words."""

    latest: ScorePoint | None
    highest: ScorePoint | None
    alarms: int


class ConfigurationView(NamedTuple):
    """The version that a device should have and the one it has, what became of it, and its keys."""

    version: int
    in_force: int
    state: SettingsState
    why: str
    keys: list[str]


@dataclass(frozen=True)
class DeviceView:
    """Everything that is known of a device; `latest` is None if it never reported."""

    fleet: str
    row: DeviceRow
    latest: LatestReport | None
    alarms: list[ReportedAlarm]
    merges: list[ReportedMerge]
    shared: list[StoredContribution]
    sources: list[SourceDevice]
    excluded: frozenset[Key]
    desired: int
    reviews: list[Review]
    versions: list[DeviceSettings]
    wanted: Mapping[str, Any]
    left_out: Refusals
    left_out_by: Mapping[str, Refusals]
    now: float

    @property
    def review(self) -> ReviewView:
        """What a person should look at."""
        monitor = self.latest.status.monitor if self.latest else None
        return ReviewView(monitor, self.reviews, self.now)

    @property
    def settings(self) -> SettingsView:
        """What operators set."""
        return SettingsView(self.versions, self.latest.status.settings if self.latest else None)

    @property
    def configuration(self) -> ConfigurationView:
        """The fleet's configuration for the device, and what became of it."""
        reported = self.latest.status.configuration if self.latest else None
        state, why = configuration_state(self.wanted["version"], reported)
        in_force = reported.version if reported else 0
        keys = table_lines(without_addresses(self.wanted["tables"]))
        return ConfigurationView(self.wanted["version"], in_force, state, why, keys)

    @property
    def reasons(self) -> list[Bar]:
        """The unusual inputs of the last alarm, the strongest first."""
        last = self.latest.alarm if self.latest else None
        why = unusual((each.input, each.factor) for each in (last.why if last else ()))
        why.sort(key=lambda reason: -reason[1])
        return [
            Bar(name, f"{times(factor)} of usual", _width(factor, why[0][1]))
            for name, factor in why
        ]

    @property
    def standing(self) -> str:
        """Whether what it holds of others is what the server has."""
        return describe_provenance(self.sources)

    @property
    def following(self) -> str:
        """Which revision of its desired state the device follows."""
        followed = self.latest.status.desired if self.latest else None
        if not self.desired:
            return "nothing chosen for it"
        if followed is None:
            return f"revision {self.desired}; it does not say whether it follows"
        if followed >= self.desired:
            return f"revision {self.desired}, followed"
        return f"revision {self.desired}; it still follows {followed}"

    @property
    def patterns(self) -> list[PatternView]:
        """The patterns of the device, the most used first."""
        status = self.latest.status if self.latest else None
        found = sorted(status.patterns if status else (), key=lambda one: -one.used)
        whole = sum(one.used for one in found)
        return [
            PatternView(
                one.pattern,
                Bar(one.pattern, share(one.used, whole), _width(one.used, whole)),
                one.own,
                one.told,
                current=status is not None and one.pattern == status.pattern,
            )
            for one in found
        ]

    @property
    def points(self) -> list[ScorePoint]:
        """The scores of the last ten minutes before the newest."""
        return live_points(self.latest)

    @property
    def bands(self) -> list[Band]:
        """The episodes of the last ten minutes."""
        return live_bands(self.latest)

    @property
    def lately(self) -> RecentScores:
        """The last ten minutes in words."""
        points = self.points
        highest = max(points, key=lambda point: point.score, default=None)
        return RecentScores(points[-1] if points else None, highest, sum(p.alarm for p in points))


def device_view(service: Service, tables: FleetTables, fleet: str, device: str) -> DeviceView:
    """Gather what is known of a device, which must have enrolled."""
    seen = tables.look(fleet, database_s=0.0)
    rows = {row.device: row for row in seen.rows}
    if device not in rows:
        raise UnknownError(f"no device {device} in {fleet}: it has not enrolled")
    with service.database.reading() as tx:
        contributions = list_stored(tx, fleet)
        reviews = reviews_of(tx, fleet, device)
        versions = versions_of(tx, fleet, device)
        released = current_revisions(tx, fleets.get(tx, fleet))
        wanted = configuration_for(tx, fleet, device)
    excluded = service.choices.excluded(fleet)
    merges = service.history.merges(fleet, device, limit=SHOWN_MERGES)
    revisions = {stored.key: stored.revision for stored in contributions} | released
    own = [stored for stored in contributions if stored.device == device]
    return DeviceView(
        fleet=fleet,
        row=rows[device],
        latest=service.history.latest(fleet, device),
        alarms=service.history.alarms(fleet, device, limit=SHOWN_ALARMS),
        merges=merges,
        shared=sorted(own, key=lambda stored: -stored.received),
        sources=source_devices(merges[0] if merges else None, revisions, excluded, rows.keys()),
        excluded=excluded,
        desired=service.choices.desired_revision(fleet, device),
        reviews=reviews,
        versions=versions,
        wanted=wanted,
        left_out=service.pull_service.checks.refusals_for(fleet, device),
        left_out_by=service.pull_service.checks.refusals_of(fleet, device),
        now=service.clock(),
    )


def _width(part: float, whole: float) -> str:
    return f"{max(1.0, 100.0 * part / whole) if whole > 0 else 0:.0f}%"


def event_id(points: list[ScorePoint], run: str) -> str:
    """Return the id of an event with these points."""
    return f"{run}-{points[-1].at if points else -inf}"


router = APIRouter(include_in_schema=False)


@router.get("/fleets/{fleet}/devices/{device}")
def show_device(fleet: Name, device: Name, page: ViewerPage, span: SpanDep) -> Response:
    """Show a device: its scores, alarms, patterns, contributions and merges."""
    return _render(page, fleet, device, span=span)


def _render(
    page: Page,
    fleet: str,
    device: str,
    *,
    span: TimeSpan | None = None,
    problem: EdgemergeError | None = None,
) -> Response:
    view = device_view(page.service, page.viewers.tables, fleet, device)
    time = span or read_span(LIVE, None, None, now=view.now)
    values: dict[str, Any] = {"fleet": fleet, "view": view, "here": server_url(page.request)}
    values |= {"chart": device_chart(page.service, fleet, device, time, view.latest)}
    values |= {"tab": "", "csrf": page.session.form_csrf}
    values |= {"event_id": event_id(view.points, page.viewers.run)}
    return page.render("device.html", problem=problem, **values)


@router.get("/fleets/{fleet}/devices/{device}/relearn")
def confirm_relearn(fleet: Name, device: Name, page: OperatorPage) -> Response:
    """Ask before a device learns from the beginning."""
    view = device_view(page.service, page.viewers.tables, fleet, device)
    return page.render("relearn.html", fleet=fleet, view=view, tab="")


@router.post("/fleets/{fleet}/devices/{device}/reviews")
def add_review(fleet: Name, device: Name, page: OperatorForm, form: FormDep) -> Response:
    """Store a decision, and show the page again; or show there why it was not made."""

    def change() -> None:
        asked = read_review(form, page.service.clock())
        page.service.reviews.add(fleet, device, asked, page.caller)

    return _change(page, fleet, device, change, "review")


@router.post("/fleets/{fleet}/devices/{device}/settings")
def change_settings(fleet: Name, device: Name, page: OperatorForm, form: FormDep) -> Response:
    """Store other settings, and show the page again; or show there why not."""

    def change() -> None:
        page.service.settings.change(fleet, device, read_settings(form), page.caller)

    return _change(page, fleet, device, change, "settings")


@router.post("/fleets/{fleet}/devices/{device}/settings/undo")
def undo_settings(fleet: Name, device: Name, page: OperatorForm, form: FormDep) -> Response:
    """Go back to the settings before, and show the page again; or show there why not."""

    def change() -> None:
        version = whole_number("version", form.one("version"))
        page.service.settings.undo(fleet, device, version, page.caller)

    return _change(page, fleet, device, change, "settings")


def _change(
    page: Page, fleet: str, device: str, change: Callable[[], None], section: str
) -> Response:
    address = f"/ui/fleets/{fleet}/devices/{device}#{section}"
    return answer_form(change, address, partial(_render, page, fleet, device))


@router.get("/fleets/{fleet}/devices/{device}/scores")
def get_scores(
    fleet: Name, device: Name, _session: DataSession, service: ServiceDep, span: SpanDep
) -> dict[str, Any]:
    """Return what the chart shows of a time."""
    latest = service.history.latest(fleet, device)
    return device_chart(service, fleet, device, span, latest).data


@router.get("/fleets/{fleet}/devices/{device}/scores.csv")
def download_scores(fleet: Name, device: Name, page: ViewerPage, span: SpanDep) -> Response:
    """Return the scores of a time as a file for spreadsheets."""
    return scores_csv(page.service, fleet, device, since=span.since, until=span.until)
