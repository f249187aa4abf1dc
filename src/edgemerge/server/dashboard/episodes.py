"""The page of a fleet's episodes: open ones first, then those to acknowledge, then the others."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import pairwise
from math import isfinite, log, log10, nan
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlencode

import numpy as np
from fastapi import APIRouter, Query
from fastapi.responses import Response

from edgemerge.core.errors import EdgemergeError, SettingError
from edgemerge.delivery import unusual
from edgemerge.server import fleets
from edgemerge.server.dashboard.fleet_table import DeviceRow
from edgemerge.server.dashboard.formatting import duration, score, times, times_usual
from edgemerge.server.dashboard.merge import parse_number
from edgemerge.server.dashboard.pages import TEMPLATES, answer_form
from edgemerge.server.dashboard.review import ReviewView, read_review
from edgemerge.server.dashboard.sign_in import FormDep, OperatorForm, Page, ViewerPage
from edgemerge.server.dashboard.stream import Viewers
from edgemerge.server.episodes import (
    SECTIONS,
    EpisodeCounts,
    Section,
    StoredEpisode,
    count_episodes,
    extend_curve,
    get_episode,
    last_change,
    list_section,
    read_curves,
    thin_points,
    within,
)
from edgemerge.server.fleets import NAME_PATTERN
from edgemerge.server.http import Name, Number, refuse_invalid
from edgemerge.server.reports.model import PointTable
from edgemerge.server.reviews import Review, waiting_in_fleet
from edgemerge.server.schemas import CommentRequest, ReportedMonitor
from edgemerge.server.service import Service

router = APIRouter(include_in_schema=False)
CARDS = {"open": 50, "ended": 25, "history": 10}  # on the first page; of one section, 50
CARDS_PER_PAGE = 50
SHOWN_INPUTS = 3
HEADINGS = {
    "open": "Open now",
    "ended": "Ended, not acknowledged",
    "history": "Acknowledged",
}

# The chart of an episode: an SVG that needs no script.

WIDTH, HEIGHT = 320, 96
LEFT, RIGHT, TOP, BOTTOM = 22, 4, 6, 6
LOWEST, HIGHEST = 0.3, 1e6  # scores that are drawn
GAP = 6.0  # times the usual distance of two points, above which the line is broken


class Label(NamedTuple):
    """A horizontal line at a score, with its number."""

    y: float
    words: str


class EpisodeChart(NamedTuple):
    """Scores around an episode as paths of an SVG; `first` and `last` are its times."""

    curve: str
    alarms: str
    limit: float | None
    labels: list[Label]
    episode: tuple[float, float]  # x and width of the time in which it was open
    first: float
    last: float
    words: str


def draw_chart(curve: PointTable, episode: StoredEpisode) -> EpisodeChart | None:
    """Draw the scores around an episode; None if there are fewer than two."""
    if len(curve) < 2:
        return None
    at, scores = curve[:, 0], np.clip(curve[:, 1], LOWEST, HIGHEST)
    first, last = float(at[0]), float(at[-1])
    limits = curve[:, 2][np.isfinite(curve[:, 2])]
    limit = float(limits[-1]) if len(limits) else episode.threshold
    top = 1.25 * max(float(scores.max()), limit or 0.0, 4.0)
    scale = (HEIGHT - TOP - BOTTOM) / log(top / LOWEST)

    def x(moment: float) -> float:
        inside = min(max(moment, first), last)
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (inside - first) / (last - first), 1)

    def y(value: float) -> float:
        return round(HEIGHT - BOTTOM - scale * log(min(max(value, LOWEST), top) / LOWEST), 1)

    began, ended = episode.span
    ended = last if episode.ended is None else ended
    marks = [10.0**k for k in range(round(log10(HIGHEST)) + 1) if 10.0**k < top]
    highest = score(float(curve[:, 1].max()))
    return EpisodeChart(
        curve=_path([x(each) for each in at], [y(each) for each in scores], _gap(at), at.tolist()),
        alarms="".join(f"M{x(row[0])} {y(row[1])}h0" for row in curve.tolist() if row[3]),
        limit=None if limit is None else y(limit),
        labels=[Label(y(mark), f"{mark:g}") for mark in marks[-2:]],
        episode=(x(began), max(1.0, round(x(ended) - x(began), 1))),
        first=first,
        last=last,
        words=f"Scores around it: highest {highest}, limit {score(limit)}",
    )


def _gap(at: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    return GAP * float(np.median(np.diff(at)))


def _path(xs: Sequence[float], ys: Sequence[float], gap: float, at: Sequence[float]) -> str:
    far = [True, *(after - before > gap for before, after in pairwise(at))]
    steps = zip(far, xs, ys, strict=True)
    return "".join(f"{'M' if jump else 'L'}{x:g} {y:g}" for jump, x, y in steps)


# The cards.


@dataclass(frozen=True)
class EpisodeCard:
    """What the page shows of an episode; `row` is None if its device is gone."""

    episode: StoredEpisode
    row: DeviceRow | None
    monitor: ReportedMonitor | None
    waiting: list[Review]  # reviews that the device has not acted upon
    chart: EpisodeChart | None
    now: float

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.episode.ended is None

    @property
    def peak(self) -> str:
        """How far above the usual it was."""
        return times_usual(self.episode.peak)

    @property
    def lasted(self) -> str:
        """How long it lasted; "" while it is open."""
        ended = self.episode.ended
        return "" if ended is None else duration(self.episode.began, ended)

    @property
    def inputs(self) -> list[tuple[str, str]]:
        """The most unusual inputs, each with its factor."""
        found = unusual(self.episode.inputs)[:SHOWN_INPUTS]
        return [(name or "?", times(factor)) for name, factor in found]

    @property
    def status(self) -> str:
        """What was decided about its pattern: "unreviewed", "normal", ...; "" if it is gone."""
        patterns = self.monitor.patterns if self.monitor else []
        return next((each.status for each in patterns if each.name == self.episode.pattern), "")

    @property
    def awaited(self) -> str:
        """The review of its pattern that waits for the device, in words."""
        view = ReviewView(self.monitor, self.waiting[::-1], self.now)
        found = view.awaited(pattern=self.episode.pattern or "")
        return view.describe(found) if found else ""

    @property
    def silent(self) -> str:
        """The state of its device, if that does not report: what is shown may be old."""
        return "" if self.row is None or self.row.state == "online" else self.row.state


@dataclass(frozen=True)
class Wanted:
    """Which episodes are shown: all sections, or a page of one, of all devices or of one."""

    show: Section | None = None
    before: int | None = None
    device: str | None = None

    @property
    def query(self) -> dict[str, str]:
        """The same as it stands in an address."""
        found = {"show": self.show, "before": self.before, "device": self.device}
        return {name: str(value) for name, value in found.items() if value is not None}

    def address(self, fleet: str, **changed: object) -> str:
        """Return the address of the page, with other values where some are given."""
        query = self.query | {name: str(value) for name, value in changed.items()}
        kept = {name: value for name, value in query.items() if value}
        return f"/ui/fleets/{fleet}/episodes" + (f"?{urlencode(kept)}" if kept else "")


class CardSection(NamedTuple):
    """Cards under a heading; `more` if there are older ones."""

    name: Section
    heading: str
    cards: list[EpisodeCard]
    more: bool


@dataclass(frozen=True)
class EpisodesView:
    """The page."""

    fleet: str
    wanted: Wanted
    counts: EpisodeCounts
    sections: list[CardSection]
    devices: int
    online: int
    with_problem: int  # these report as well
    mark: float  # the time of the newest change that it shows
    now: float


def episodes_view(service: Service, viewers: Viewers, fleet: str, wanted: Wanted) -> EpisodesView:
    """Gather what the page shows of a fleet, which must be there."""
    seen, now = viewers.tables.look(fleet), service.clock()
    rows = {row.device: row for row in seen.rows}
    names: tuple[Section, ...] = (wanted.show,) if wanted.show else tuple(SECTIONS)
    limits = {name: CARDS_PER_PAGE if wanted.show else CARDS[name] for name in names}
    with service.database.reading() as tx:
        fleets.get(tx, fleet)
        counts, mark = count_episodes(tx, fleet), last_change(tx, fleet)
        found = {
            name: list_section(
                tx,
                fleet,
                name,
                limit=limits[name] + 1,
                before=wanted.before,
                device=wanted.device,
            )
            for name in names
        }
        shown = {name: found[name][: limits[name]] for name in names}
        curves = read_curves(tx, [each for some in shown.values() for each in some])
        waiting = waiting_in_fleet(tx, fleet)

    def card(episode: StoredEpisode) -> EpisodeCard:
        latest = service.history.latest(fleet, episode.device)
        curve = curves.get(episode.id, np.empty((0, 4)))
        if episode.ended is None:  # the stored curve lags behind
            fresh = service.history.recent_scores(fleet, episode.device, now)
            curve = thin_points(extend_curve(curve, within(fresh, (episode.curve_span[0], now))))
        return EpisodeCard(
            episode=episode,
            row=rows.get(episode.device),
            monitor=latest.status.monitor if latest else None,
            waiting=waiting.get(episode.device, []),
            chart=draw_chart(curve, episode),
            now=now,
        )

    sections = [
        CardSection(
            name,
            HEADINGS[name],
            [card(episode) for episode in shown[name]],
            len(found[name]) > limits[name],
        )
        for name in names
    ]
    states = seen.totals.states
    return EpisodesView(
        fleet=fleet,
        wanted=wanted,
        counts=counts,
        sections=sections,
        devices=seen.totals.devices,
        online=states["online"],
        with_problem=states["problem"],
        mark=mark,
        now=now,
    )


def render_cards(view: EpisodesView, csrf: str) -> dict[str, dict[str, str]]:
    """Render the cards of each section by their ids; equal as long as nothing in them changes."""
    template = TEMPLATES.get_template("_episode.html")
    return {
        section.name: {
            str(card.episode.id): template.render(card=card, view=view, csrf=csrf)
            for card in section.cards
        }
        for section in view.sections
    }


def cards_digest(cards: dict[str, dict[str, str]]) -> str:
    """Return what tells whether a page shows these cards, in these sections and this order."""
    return sha256(repr(cards).encode()).hexdigest()[:32]


# The routes.

Before = Annotated[str, Query(max_length=20)]
DeviceName = Annotated[str, Query(max_length=100)]


def _wanted(show: str, before: str, device: str) -> Wanted:
    """Read an address; what cannot be read is left out."""
    section = next((name for name in SECTIONS if name == show), None)
    named = device if re.fullmatch(NAME_PATTERN, device) else None
    return Wanted(section, (parse_number(before) or None) if section else None, named)


@router.get("/fleets/{fleet}/episodes")
def show_episodes(
    fleet: Name,
    page: ViewerPage,
    show: DeviceName = "",
    before: Before = "",
    device: DeviceName = "",
) -> Response:
    """Show the episodes of a fleet, or older ones of one section."""
    return _render(page, fleet, _wanted(show, before, device))


def _render(
    page: Page, fleet: str, wanted: Wanted, problem: EdgemergeError | None = None
) -> Response:
    view = episodes_view(page.service, page.viewers, fleet, wanted)
    cards = render_cards(view, page.session.form_csrf)
    values: dict[str, Any] = {"fleet": fleet, "tab": "Episodes", "view": view}
    values |= {"cards": cards, "shown": cards_digest(cards)}
    return page.render("episodes.html", problem=problem, **values)


@router.post("/fleets/{fleet}/episodes")
def acknowledge_all(fleet: Name, page: OperatorForm, form: FormDep) -> Response:
    """Acknowledge all episodes that had ended when the page was made."""

    def change() -> None:
        until = _moment(form.one("seen"))
        page.service.reviews.acknowledge_ended(fleet, page.caller, until=until)

    return _change(page, fleet, Wanted(), change)


def _moment(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = nan
    if not isfinite(found):
        raise SettingError(f"found {text[:40]!r}, expected a time: load the page again")
    return found


@router.post("/fleets/{fleet}/episodes/{number}")
def decide_episode(fleet: Name, number: Number, page: OperatorForm, form: FormDep) -> Response:
    """Store a comment or a decision, and show the page again; or show there why it was not made."""
    wanted = _wanted(form.one("show"), form.one("before"), form.one("device"))
    service = page.service

    def change() -> None:
        if form.one("decision") == "comment":
            with refuse_invalid():
                words = CommentRequest(comment=form.one("comment")).comment
            service.episodes.comment(fleet, number, words, page.caller)
            return
        with service.database.reading() as tx:
            device = get_episode(tx, fleet, number).device
        service.reviews.add(fleet, device, read_review(form, service.clock()), page.caller)

    return _change(page, fleet, wanted, change, f"#e{number}")


def _change(
    page: Page, fleet: str, wanted: Wanted, change: Callable[[], None], anchor: str = ""
) -> Response:
    return answer_form(
        change, wanted.address(fleet) + anchor, partial(_render, page, fleet, wanted)
    )
