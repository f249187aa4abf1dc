"""The merge page: compare, preview, adopt, exclude, undo, trust, approve and dismiss."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from math import isfinite, log
from typing import Any, Protocol
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from edgemerge.core.errors import EdgemergeError, SettingError, UnknownError
from edgemerge.core.ledger import Key
from edgemerge.core.trust import DISMISSED, Trust
from edgemerge.server.auth import Caller
from edgemerge.server.choices.operator import MAX_TARGETS
from edgemerge.server.choices.preview import DeviceSimilarity, PatternPreview
from edgemerge.server.choices.rules import DECISIONS, Choice
from edgemerge.server.contributions import StoredContribution
from edgemerge.server.dashboard.formatting import counted, factor, join_names
from edgemerge.server.dashboard.pages import render_page
from edgemerge.server.dashboard.sign_in import (
    AdminForm,
    DataSession,
    FormDep,
    OperatorForm,
    Page,
    ViewerPage,
)
from edgemerge.server.http import HeavyLimiter, Name, ServiceDep, run_in_thread
from edgemerge.server.releases import EVERY_DEVICE
from edgemerge.server.reports.model import LatestReport
from edgemerge.server.service import Service
from edgemerge.server.trust import Refusals, Waiting, WaitingContribution

TARGET_OPTIONS = ("selected", "all")
MAX_SEARCH_CHARS = 200  # characters of what is searched for


class QueryParams(Protocol):
    """Names with their values, as they stand in an address."""

    def get(self, key: str, default: str) -> str:
        """Return one value."""
        ...

    def getlist(self, key: str) -> Sequence[str]:
        """Return all values."""
        ...


@dataclass(frozen=True)
class MergeQuery:
    """The selection, and which part of the page is looked at."""

    sources: tuple[str, ...] = ()
    to: str = "selected"
    find: str = ""
    page: int = 1
    done: int = 0
    previewing: bool = False
    at_once: bool = False  # the matrix in the page itself, for browsers without scripts
    trust_changed: bool = False

    @classmethod
    def of(cls, query: QueryParams) -> MergeQuery:
        """Read an address."""
        sources = tuple(dict.fromkeys(query.getlist("source")))
        to, only = query.get("to", ""), query.get("only", "")
        return cls(
            sources=sources,
            to=to if to in TARGET_OPTIONS else TARGET_OPTIONS[0],
            find=search_text(query.get("find", "")),
            page=parse_number(query.get("page", "")) or 1,
            done=parse_number(query.get("done", "")),
            previewing=bool(sources) and to in TARGET_OPTIONS and only != "matrix",
            at_once=query.get("matrix", "") == "now",
            trust_changed=query.get("done", "") == "trust",
        )

    @property
    def search(self) -> str:
        """Return what leads back to this selection."""
        asked = [("source", source) for source in self.sources]
        return urlencode(asked + [("find", self.find)] * bool(self.find))


def search_text(text: str) -> str:
    """Return a text to search for, without what no name can have."""
    return "".join(letter for letter in text if letter.isprintable())[:MAX_SEARCH_CHARS].strip()


def parse_number(text: str) -> int:
    """Return a number that may stand in an address; 0 if it is none.

    >>> parse_number("12"), parse_number("-1"), parse_number("٣"), parse_number("9" * 40)
    (12, 0, 0, 0)
    """
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        return 0
    return int(text)


def parse_key(text: str) -> Key:
    """Read device/incarnation/pattern.

    >>> parse_key("pump-1/0/full load")
    ('pump-1', 0, 'full load')
    """
    device, _, rest = text.partition("/")
    incarnation, _, pattern = rest.partition("/")
    if not (device and pattern and (parse_number(incarnation) or incarnation == "0")):
        raise UnknownError(
            f"found {search_text(text)!r}, expected device/incarnation/pattern: "
            "take it from the table"
        )
    return device, parse_number(incarnation), pattern


FOLLOW_UP_S = 3600.0  # for which it is said who has followed an undoing

LatestReports = Mapping[str, LatestReport]


@dataclass(frozen=True)
class ChoiceView:
    """A choice in words; `state` is "in force", "replaced" or "undone"."""

    choice: Choice
    words: str
    state: str
    following: str


def choice_views(
    choices: Sequence[Choice], latest_reports: LatestReports, devices: Sequence[str], now: float
) -> list[ChoiceView]:
    """Describe choices, newest first as they come; `devices` are those of the fleet."""
    replaced: set[str] = set()  # devices for which a newer choice counts
    views = []
    for choice in choices:
        if choice.key is None:
            concerned = [name for name in choice.targets or () if name not in replaced]
        else:
            concerned = [name for name in devices if name != choice.key[0]]
        state = "in force" if concerned or choice.key is not None else "replaced"
        since = choice.at
        if choice.undone is not None:
            state, since = "undone", choice.undone
        following = ""
        if concerned and (state == "in force" or now - since < FOLLOW_UP_S):
            reports = [latest_reports.get(device) for device in concerned]
            following = describe_followers(choice.epoch, since, reports)
        views.append(ChoiceView(choice, describe_choice(choice), state, following))
        if choice.undone is None:
            replaced |= set(choice.targets or ())
    return views


def describe_choice(choice: Choice) -> str:
    """Describe what was chosen."""
    if choice.key is not None:
        past = {"approve": "approved", "dismiss": "dismissed"}.get(choice.kind, "excluded")
        return f"{describe_key(choice.key)} is {past}"
    sources, targets = list(choice.sources or ()), list(choice.targets or ())
    verb = "adopts" if len(targets) == 1 else "adopt"
    if not sources or sources == targets == sources[:1]:
        return f"{join_names(targets)} {verb} nothing from others"
    if set(sources) == set(targets):
        return f"{join_names(sources)} adopt only each other's sums"
    return f"{join_names(targets)} {verb} only the sums of {join_names(sources)}"


def describe_key(key: tuple[str, int, str]) -> str:
    """Name a contribution; the incarnation only if it is not the first.

    >>> describe_key(("pump-1", 0, "normal")), describe_key(("pump-1", 2, "normal"))
    ('what pump-1 saw of normal', 'what pump-1 saw of normal (incarnation 2)')
    """
    device, incarnation, pattern = key
    return f"what {device} saw of {pattern}" + (f" (incarnation {incarnation})" * (incarnation > 0))


def describe_followers(revision: int, since: float, reports: Sequence[LatestReport | None]) -> str:
    """Return how many of the devices concerned follow a choice, as far as they report."""
    heard = [report for report in reports if report is not None and report.heard > since]
    follow = sum(_follows(report, revision, since) for report in heard)
    others, silent = len(heard) - follow, len(reports) - len(heard)
    verb = "follows" if follow == 1 else "follow"
    words = [f"{follow:,} of {counted(len(reports), 'device')} {verb} it"]
    if others:
        words.append(f"{others:,} reported since and {'does' if others == 1 else 'do'} not yet")
    if silent:
        words.append(f"{silent:,} {'has' if silent == 1 else 'have'} not reported since")
    return "; ".join(words)


def _follows(report: LatestReport, revision: int, since: float) -> bool:
    """Return whether a device says so; older agents do not, so a merge since counts as yes."""
    if report.status.desired is not None:
        return report.status.desired >= revision
    return report.merge is not None and report.merge.at > since


# Twelve steps of colour.
COLOUR_STEPS = (1.1, 1.3, 1.6, 2.0, 2.5, 4.0, 6.0, 10.0, 25.0, 60.0, 150.0)
MAX_DEVICES_WITH_TEXT = 24  # devices up to which a cell has room for its number
UNKNOWN = "–"


@dataclass(frozen=True)
class MatrixCell:
    """How well one explains the other; `first`: a group begins here."""

    step: str
    text: str
    first: bool
    own: bool


@dataclass(frozen=True)
class MatrixRow:
    """A device: how well its readout explains the data of each."""

    device: str
    samples: float
    cells: tuple[MatrixCell, ...]


@dataclass(frozen=True)
class MatrixGroup:
    """Devices that explain each other's data."""

    number: int
    rows: tuple[MatrixRow, ...]

    @property
    def devices(self) -> list[str]:
        """Return them."""
        return [row.device for row in self.rows]

    @property
    def words(self) -> str:
        """Return how many there are."""
        count = len(self.rows)
        return f"group {self.number}: {count} device{'s' if count > 1 else ''}"


@dataclass(frozen=True)
class Matrix:
    """Devices × devices, like ones beside each other."""

    groups: tuple[MatrixGroup, ...]
    left_out: int

    @property
    def devices(self) -> list[str]:
        """Return the devices in the order of rows and columns."""
        return [row.device for group in self.groups for row in group.rows]

    @property
    def is_small(self) -> bool:
        """Whether there is room for a number in each cell."""
        return len(self.devices) <= MAX_DEVICES_WITH_TEXT

    @property
    def legend(self) -> list[tuple[str, str]]:
        """Return each step of colour and what it stands for."""
        words = [f"≤ {edge:g}" for edge in COLOUR_STEPS] + [f"> {COLOUR_STEPS[-1]:g}"]
        return [(f"m{step}", word) for step, word in enumerate(words)]


def make_matrix(similarity: DeviceSimilarity, *, left_out: int) -> Matrix:
    """Prepare what is shown; the groups are numbered in the order in which they appear."""
    owners, places = similarity.groups, range(len(similarity.devices))
    firsts = {k for k in places if k and owners[k] != owners[k - 1]}  # where another group begins
    rows = []
    for place in places:
        cells = (
            MatrixCell(colour_class(ratio), short_ratio(ratio), column in firsts, column == place)
            for column, ratio in enumerate(map(float, similarity.ratios[place]))
        )
        row = MatrixRow(similarity.devices[place], similarity.samples[place], tuple(cells))
        rows.append(row)
    groups = (
        MatrixGroup(number, tuple(rows[place] for place in run))
        for number, (_, run) in enumerate(groupby(places, key=lambda k: owners[k]), 1)
    )
    return Matrix(tuple(groups), left_out)


def colour_class(ratio: float) -> str:
    """Return the class of colour of a ratio.

    >>> colour_class(0.98), colour_class(2.4), colour_class(1e6), colour_class(float("nan"))
    ('m0', 'm4', 'm11', 'none')
    """
    return f"m{bisect_left(COLOUR_STEPS, ratio)}" if ratio == ratio else "none"  # noqa: PLR0124 - NaN


def short_ratio(ratio: float) -> str:
    """Write a ratio in at most five characters.

    >>> [short_ratio(ratio) for ratio in (0.984, 1.0, 12.34, 345.6, 45_678.0, 3e9, float("inf"))]
    ['0.98', '1.00', '12.3', '346', '46k', '> 1M', '> 1M']
    """
    if ratio != ratio:  # noqa: PLR0124 - NaN
        return UNKNOWN
    if not isfinite(ratio) or ratio >= 999_500:
        return "> 1M"
    if ratio >= 999.5:
        return f"{ratio / 1000:.{0 if ratio >= 9950 else 1}f}k"
    return f"{ratio:.{2 if ratio < 9.995 else 1 if ratio < 99.95 else 0}f}"


# Shifts up to which nothing is said, and above which devices refuse.
MAX_CALM_SHIFT, MAX_ACCEPTED_SHIFT = (1.2, 2.0)
FULL_BAR_SHIFT = 8.0  # the shift at which a bar is full
MAX_PREVIEW_ROWS = 200  # rows of a preview; those that rise most come first
SHIFT_WORDS = {
    "good": "hardly changes",
    "warn": "rises",
    "bad": "the device will refuse it unless sync.max_shift allows it",
    "none": "has no level of its own yet",
}


@dataclass(frozen=True)
class PreviewRow:
    """What adopting does to one pattern of one device, and of which kind that is."""

    preview: PatternPreview
    kind: str

    @property
    def words(self) -> str:
        """What the shift means."""
        falls = self.kind == "good" and self.preview.shift < 1.0 / MAX_CALM_SHIFT
        return "falls: it is explained better" if falls else SHIFT_WORDS[self.kind]

    @property
    def bar(self) -> int:
        """The length of its bar in percent: 0 at no change."""
        shift = self.preview.shift
        part = log(shift) / log(FULL_BAR_SHIFT) if shift > 1.0 else 0.0
        return round(100 * min(part, 1.0))


@dataclass(frozen=True)
class PreviewView:
    """A preview: what would happen, in words and in rows."""

    sources: list[str]
    to: str
    happens: str
    summary: str
    worst: str
    rows: list[PreviewRow]
    more: int  # rows that are not shown
    unseen: int  # devices that were not looked at


def make_preview_view(
    found: Sequence[PatternPreview], *, sources: list[str], targets: list[str], to: str, looked: int
) -> PreviewView:
    """Prepare what is shown, what rises most first; `looked` is how many targets it is about."""
    rows = [PreviewRow(each, shift_kind(each.shift, ready=each.ready)) for each in found]
    rows.sort(key=lambda r: (-r.preview.shift if r.kind != "none" else 0.0, r.preview.device))
    return PreviewView(
        sources=sources,
        to=to,
        happens=describe_adoption(sources, targets, to),
        summary=_summary(rows),
        worst=rows[0].kind if rows else "none",
        rows=rows[:MAX_PREVIEW_ROWS],
        more=max(len(rows) - MAX_PREVIEW_ROWS, 0),
        unseen=len(targets) - looked,
    )


def shift_kind(shift: float, *, ready: bool = True) -> str:
    """Sort a shift: "good", "warn", "bad", or "none" if there is no level that could rise.

    >>> shift_kind(1.2), shift_kind(2.0), shift_kind(2.1), shift_kind(1.0, ready=False)
    ('good', 'warn', 'bad', 'none')
    """
    if not ready or not isfinite(shift):
        return "none"
    return "good" if shift <= MAX_CALM_SHIFT else "warn" if shift <= MAX_ACCEPTED_SHIFT else "bad"


def describe_adoption(sources: Sequence[str], targets: Sequence[str], to: str) -> str:
    """Describe what adopting means, before and after it is done.

    >>> describe_adoption(["a", "b"], ["a", "b"], "selected")
    "a and b will adopt only each other's sums"
    """
    if to == "all":
        whom = f"{'all ' if len(targets) > 1 else ''}{counted(len(targets), 'device')}"
        return f"{whom} will adopt only the sums of {join_names(sources)}"
    if len(sources) == 1:
        return f"{sources[0]} will adopt nothing from others"
    return f"{join_names(sources)} will adopt only each other's sums"


def _summary(rows: Sequence[PreviewRow]) -> str:
    levels = [row for row in rows if row.kind != "none"]
    if not levels:
        return "None of them has a level of its own yet that could change."
    kind, top = levels[0].kind, levels[0].preview
    most = f"{top.device}, {top.pattern}, {factor(top.shift)}."
    refused = sorted({row.preview.device for row in levels if row.kind == "bad"})
    if refused:
        devices = counted(len({row.preview.device for row in rows}), "device")
        share = f"{len(refused):,} of {devices}"
        return f"{share} would refuse it: {join_names(refused)}. The most: {most}"
    if top.shift < 1.0 / MAX_CALM_SHIFT:
        return f"Every level falls: all are explained better than now. The least: {most}"
    calm = "No level rises above ×1.2" if kind == "good" else "Some levels rise, none above ×2"
    return f"{calm}. The most: {most}"


MATRIX_DEVICES = 60  # devices in a matrix
CONTRIBUTIONS_PER_PAGE = 50  # contributions on a page
SHOWN_CHOICES = 50  # newest choices on the page
SHOWN_WAITING = 50  # contributions that wait longest


@dataclass(frozen=True)
class ContributionView:
    """A contribution; `excluded` is the number of the choice that excludes it, or 0.

    `state` is "included", "excluded", "waiting", "dismissed", or "left out" of the sums for some
    devices, since it does not fit them; `why` says why it waits, or who leaves it out and why.
    """

    stored: StoredContribution
    excluded: int
    state: str = "included"
    why: str = ""


@dataclass(frozen=True)
class MergeView:
    """All of the page but the matrix and the preview, which take longer."""

    devices: list[str]  # that are not revoked
    contributing: list[str]
    contributions: list[ContributionView]  # of one page
    found: int
    pages: int
    choices: list[ChoiceView]
    older: int
    notice: str
    trust: Trust
    waiting: list[WaitingContribution]  # the first
    waiting_count: int


def merge_view(service: Service, fleet: str, caller: Caller, wanted: MergeQuery) -> MergeView:
    """Gather what is shown."""
    devices = active_devices(service, fleet)
    _, contributions = service.contributions(fleet, caller)
    choices = service.choices.list_choices(fleet)
    excluded = _excluded(choices)
    reasons, trust = service.choices.waiting(fleet), Trust.parse(service.fleet(fleet).trust)
    sought = wanted.find.lower()
    found = [c for c in contributions if sought in f"{c.device} {c.pattern}".lower()]
    pages = max(1, -(-len(found) // CONTRIBUTIONS_PER_PAGE))
    start = CONTRIBUTIONS_PER_PAGE * (min(wanted.page, pages) - 1)
    refusals_of = partial(service.pull_service.checks.refusals_of, fleet)
    shown = [
        _contribution_view(each, excluded, reasons, refusals_of(each.device))
        for each in found[start : start + CONTRIBUTIONS_PER_PAGE]
    ]
    reports = service.history.latest_reports(fleet)
    views = choice_views(choices[:SHOWN_CHOICES], reports, devices, service.clock())
    return MergeView(
        devices=devices,
        contributing=by_samples(contributions),
        contributions=shown,
        found=len(found),
        pages=pages,
        choices=views,
        older=max(len(choices) - SHOWN_CHOICES, 0),
        notice=trust_notice(trust) if wanted.trust_changed else notice_of(choices, wanted.done),
        trust=trust,
        waiting=service.choices.list_waiting(fleet, SHOWN_WAITING),
        waiting_count=count_waiting(reasons),
    )


def trust_notice(trust: Trust) -> str:
    """Describe a rule that was chosen."""
    words = {
        "members": "contributions of every enrolled device are adopted at once",
        "quorum": f"a contribution is adopted when {trust.quorum} devices have similar patterns",
        "person": "a contribution is adopted when an operator has approved it",
    }[trust.rule]
    return f"The trust of this fleet is {trust}: {words}. Devices learn of it when they report."


def count_waiting(reasons: Waiting) -> int:
    """Count what waits for a person to look; what was dismissed does not."""
    return sum(why != DISMISSED for why in reasons.values())


def _contribution_view(
    stored: StoredContribution,
    excluded: Mapping[Key, int],
    reasons: Waiting,
    refused: Mapping[str, Refusals],
) -> ContributionView:
    number, why = excluded.get(stored.key, 0), reasons.get(stored.key, "")
    state = "excluded" if number else "included"
    if why and not number:
        state = "dismissed" if why == DISMISSED else "waiting"
    by = {who: found[stored.key] for who, found in refused.items() if stored.key in found}
    if by and state == "included":
        who = EVERY_DEVICE if EVERY_DEVICE in by else counted(len(by), "device")
        state, why = "left out", f"by {who}: {next(iter(by.values()))}"
    return ContributionView(stored, number, state, why)


def active_devices(service: Service, fleet: str) -> list[str]:
    """Return the names of devices that are not revoked."""
    return [device.device for device in service.devices(fleet) if device.revoked is None]


def matrix_view(service: Service, fleet: str, caller: Caller, wanted: MergeQuery) -> Matrix:
    """Compute the matrix of the devices that are looked for, of many those with most samples."""
    _, contributions = service.contributions(fleet, caller)
    known = by_samples(contributions)
    fitting = [name for name in known if wanted.find.lower() in name.lower()]
    similarity = service.choices.similarity(fleet, fitting[:MATRIX_DEVICES])
    return make_matrix(similarity, left_out=len(fitting) - len(similarity.devices))


def preview_view(service: Service, fleet: str, wanted: MergeQuery) -> PreviewView:
    """Compute what adopting the selection would do."""
    sources = list(wanted.sources)
    targets = looked = targets_of(service, fleet, sources, wanted.to)
    if len(targets) > MAX_TARGETS:  # those with most samples
        samples = {device.device: device.samples for device in service.devices(fleet)}
        most_first = sorted(targets, key=lambda name: (-samples.get(name, 0.0), name))
        looked = most_first[:MAX_TARGETS]
    found = service.choices.preview(fleet, sources, looked)
    return make_preview_view(
        found, sources=sources, targets=targets, to=wanted.to, looked=len(looked)
    )


def targets_of(service: Service, fleet: str, sources: list[str], to: str) -> list[str]:
    """Return the devices that would adopt: the selected themselves, or all."""
    return active_devices(service, fleet) if to == "all" else sources


def contribution_view(service: Service, fleet: str, key: Key, caller: Caller) -> ContributionView:
    """Return one contribution that must be there."""
    _, contributions = service.contributions(fleet, caller)
    found = next((stored for stored in contributions if stored.key == key), None)
    if found is None:
        raise UnknownError(f"no contribution {'/'.join(map(str, key))} in {fleet}: it was dropped")
    return ContributionView(found, _excluded(service.choices.list_choices(fleet)).get(key, 0))


def by_samples(contributions: Sequence[StoredContribution]) -> list[str]:
    """Return the devices that have contributed samples, those with most first."""
    sums: dict[str, float] = {}
    for stored in contributions:
        sums[stored.device] = sums.get(stored.device, 0.0) + stored.samples
    return sorted((name for name in sums if sums[name] > 0), key=lambda name: (-sums[name], name))


def notice_of(choices: Sequence[Choice], number: int) -> str:
    """Describe what became of a choice; nothing if there is none of this number."""
    choice = next((choice for choice in choices if choice.number == number), None)
    if choice is None:
        return ""
    if choice.undone is not None:
        return f"Choice {number} is undone: it is as if it had never been."
    return (
        f"Choice {number} is in force: {describe_choice(choice)}. Devices learn of it "
        "when they report."
    )


def _excluded(choices: Sequence[Choice]) -> dict[Key, int]:
    """Return the keys that are excluded now, with the numbers of the choices."""
    return {c.key: c.number for c in choices if c.key and c.excludes and c.undone is None}


router = APIRouter(include_in_schema=False)


@router.get("/fleets/{fleet}/merge")
async def show_merge(fleet: Name, page: ViewerPage) -> Response:
    """Show similarity, choices and contributions; with a selection, what adopting it would do."""
    query = page.request.query_params
    exclude = query.get("exclude", query.get("revoke"))  # revoke: the old word
    if exclude is not None:
        page.caller.must_be("operator")
        return await run_in_thread(lambda: _confirm(page, fleet, exclude))
    return await merge_page(page, fleet, MergeQuery.of(query))


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
    page: Page, fleet: str, wanted: MergeQuery, problem: EdgemergeError | None = None
) -> Response:
    """Render the page; an error is shown on it, in its own words."""
    service, heavy_limiter = page.service, page.request.app.state.heavy_limiter
    values: dict[str, Any] = {"tab": "Merge", "fleet": fleet, "wanted": wanted}
    values |= {"preview": None, "matrix": None}
    if wanted.previewing and problem is None:
        look = partial(preview_view, service, fleet, wanted)
        try:
            values["preview"] = await run_in_thread(look, heavy_limiter)
        except EdgemergeError as error:
            problem = error
    if wanted.at_once:
        compare = partial(matrix_view, service, fleet, page.caller, wanted)
        values["matrix"] = await run_in_thread(compare, heavy_limiter)

    def work() -> Response:
        values["view"] = merge_view(service, fleet, page.caller, wanted)
        return page.render("merge.html", problem=problem, **values)

    return await run_in_thread(work)


def _confirm(page: Page, fleet: str, exclude: str) -> Response:
    key = parse_key(exclude)
    found = contribution_view(page.service, fleet, key, page.caller)
    words = describe_key(key)
    return page.render("exclude.html", tab="Merge", fleet=fleet, words=words, found=found)


@router.post("/fleets/{fleet}/merge/adopt")
async def adopt(fleet: Name, page: OperatorForm, form: FormDep) -> Response:
    """Let the selected devices, or all, adopt from the selected ones only."""
    sources, to = list(dict.fromkeys(form.every("source"))), form.one("to")

    def choose() -> Choice:
        if to not in TARGET_OPTIONS:
            raise SettingError(
                f"found {to[:20]!r}, expected one of {', '.join(TARGET_OPTIONS)} as targets"
            )
        if not sources:
            raise SettingError("found no device selected, expected at least one: tick its box")
        targets = targets_of(page.service, fleet, sources, to)
        return page.service.choices.adopt(fleet, sources, targets, page.caller)

    return await _choose(page, fleet, choose)


@router.post("/fleets/{fleet}/merge/exclude")
@router.post("/fleets/{fleet}/merge/revoke")  # the old word
async def exclude(fleet: Name, page: OperatorForm, form: FormDep) -> Response:
    """Exclude a contribution."""
    text, act = form.one("exclude") or form.one("revoke"), page.service.choices.exclude
    return await _choose(page, fleet, lambda: act(fleet, parse_key(text), page.caller))


@router.post("/fleets/{fleet}/merge/decide")
async def decide(fleet: Name, page: OperatorForm, form: FormDep) -> Response:
    """Approve or dismiss a contribution, if it is still the one that was looked at."""
    decision, text = form.one("decision"), form.one("contribution")
    revision, comment = parse_number(form.one("revision")), form.one("comment").strip()

    def choose() -> Choice:
        if decision not in DECISIONS:
            raise SettingError(f"found {decision[:20]!r}, expected one of {', '.join(DECISIONS)}")
        said: Any = decision  # one of the two
        about = fleet, parse_key(text), said, page.caller
        return page.service.choices.decide(*about, comment=comment, revision=revision)

    return await _choose(page, fleet, choose)


@router.post("/fleets/{fleet}/merge/trust")
async def set_trust(fleet: Name, page: AdminForm, form: FormDep) -> Response:
    """Change which contributions are adopted at once."""
    rule, act = form.one("rule"), page.service.choices.set_trust
    text = f"quorum:{form.one('quorum').strip()}" if rule == "quorum" else rule
    return await _choose(page, fleet, lambda: act(fleet, Trust.parse(text), page.caller))


@router.post("/fleets/{fleet}/merge/undo")
async def undo(fleet: Name, page: OperatorForm, form: FormDep) -> Response:
    """Undo a choice."""
    number, act = parse_number(form.one("number")), page.service.choices.undo
    return await _choose(page, fleet, lambda: act(fleet, number, page.caller))


async def _choose(page: Page, fleet: str, choose: Callable[[], object]) -> Response:
    """Redirect to the page, which shows what was chosen; or show there why it was not."""
    try:
        choice = await run_in_thread(choose)
    except EdgemergeError as problem:
        return await merge_page(page, fleet, MergeQuery(), problem)
    done = choice.number if isinstance(choice, Choice) else "trust"
    return RedirectResponse(f"/ui/fleets/{fleet}/merge?done={done}", 303)
