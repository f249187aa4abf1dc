"""Charts of scores: the time shown, the columns that scripts draw, and a picture for pages without.

A picture is as wide as its place: curves are stretched, texts and strokes are not. Its times are
those of UTC.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from time import gmtime
from typing import Annotated, Any, NamedTuple

from fastapi import Depends, Query

from edgemerge.server.dashboard.formatting import counted, digits, duration, score
from edgemerge.server.episodes import list_between
from edgemerge.server.http import ServiceDep
from edgemerge.server.reports.model import LatestReport, MinuteSummary, ScorePoint
from edgemerge.server.service import Service

DAY_S = 86_400.0
LIVE = "live"
# The times that can be chosen: words and seconds.
RANGES = {
    LIVE: ("10 min", 600.0),
    "hour": ("Hour", 3600.0),
    "day": ("Day", DAY_S),
    "week": ("Week", 7 * DAY_S),
    "month": ("Month", 30 * DAY_S),
    "quarter": ("3 months", 90 * DAY_S),
    "year": ("Year", 365 * DAY_S),
}
MIN_SPAN_S = 60.0
GAP_STEPS = 2.5  # after so many steps without a score, the curve is broken
SCORE_DIGITS = 6

RangeName = Annotated[str, Query(max_length=20, alias="range")]
Moment = Annotated[float | None, Query(ge=0.0, lt=1e11, allow_inf_nan=False)]


class TimeSpan(NamedTuple):
    """The time that a chart shows; `name` is one of `RANGES`, or "" for one chosen freely."""

    name: str
    since: float
    until: float

    @property
    def query(self) -> str:
        """The span as the query of an address."""
        if self.name:
            return f"range={self.name}"
        return f"since={self.since:.0f}&until={self.until:.0f}"

    def moved(self, spans: int) -> TimeSpan:
        """Return the span so many lengths later."""
        by = spans * (self.until - self.since)
        return TimeSpan("", max(0.0, self.since + by), max(MIN_SPAN_S, self.until + by))


def read_span(
    name: str,
    since: float | None,
    until: float | None,
    *,
    now: float,
) -> TimeSpan:
    """Return the time that was asked for: between two moments, or up to now.

    >>> read_span("day", None, None, now=100_000.0)
    TimeSpan(name='day', since=13600.0, until=100000.0)
    >>> read_span("", 500.0, 400.0, now=100_000.0)
    TimeSpan(name='', since=500.0, until=560.0)
    """
    if since is not None:
        end = now if until is None else until
        return TimeSpan("", since, max(end, since + MIN_SPAN_S))
    known = name if name in RANGES else LIVE
    return TimeSpan(known, now - RANGES[known][1], now)


def asked_span(
    service: ServiceDep, name: RangeName = LIVE, since: Moment = None, until: Moment = None
) -> TimeSpan:
    """Read the time that an address asks for."""
    return read_span(name, since, until, now=service.clock())


SpanDep = Annotated[TimeSpan, Depends(asked_span)]


def offered_ranges(kept_days: float, *, live: bool = True) -> dict[str, str]:
    """Return the ranges for which scores are kept, with their words; the first longer one too."""
    found = {}
    for name, (words, span_s) in RANGES.items():
        if name != LIVE or live:
            found[name] = words
        if span_s >= kept_days * DAY_S:
            break
    return found


Column = list[float | None]


class Series(NamedTuple):
    """Scores of one device: times, highest scores, limits, scores in alarm, and means if joined.

    Where nothing was scored for long there is a time without any value, which breaks the curve.
    """

    at: list[float]
    score: Column
    limit: Column
    alarm: Column
    mean: Column | None = None

    @property
    def columns(self) -> list[Any]:
        """What the script draws."""
        return [column for column in self if column is not None]


class Row(NamedTuple):
    """One time of a series."""

    at: float
    score: float
    limit: float | None
    alarm: bool
    mean: float | None = None


def point_series(points: Sequence[ScorePoint]) -> Series:
    """Return points as they were reported."""
    return _series([Row(p.at, p.score, p.threshold, p.alarm) for p in points], None)


def joined_series(found: Sequence[MinuteSummary], step_s: float) -> Series:
    """Return summaries of steps of equal length."""
    rows = [Row(one.at, one.highest, one.threshold, bool(one.alarms), one.mean) for one in found]
    return _series(rows, GAP_STEPS * step_s, joined=True)


def _series(rows: Sequence[Row], longest_s: float | None, *, joined: bool = False) -> Series:
    whole: list[Row | float] = []
    for i, row in enumerate(rows):
        if longest_s is not None and i and row.at - rows[i - 1].at > longest_s:
            whole.append((row.at + rows[i - 1].at) / 2.0)
        whole.append(row)
    found = Series([], [], [], [], [] if joined else None)
    for each in whole:
        gap = isinstance(each, float)
        row = Row(each, 0.0, None, False) if isinstance(each, float) else each  # noqa: FBT003 - of a tuple
        found.at.append(round(row.at, 3))
        found.score.append(None if gap else _rounded(row.score))
        found.limit.append(row.limit)
        found.alarm.append(_rounded(row.score) if row.alarm else None)
        if found.mean is not None:
            found.mean.append(None if gap or row.mean is None else _rounded(row.mean))
    return found


def _rounded(score: float) -> float:
    return float(digits(score, SCORE_DIGITS))


class Band(NamedTuple):
    """The time of an episode; `ended` is None while it is open."""

    number: int
    began: float
    ended: float | None


def episode_bands(latest: LatestReport | None, since: float, until: float) -> list[Band]:
    """Return the episodes that lie in a span, at least in part, as they were reported last."""
    monitor = latest.status.monitor if latest else None
    return [
        Band(each.number, each.began, each.ended)
        for each in (monitor.episodes if monitor else [])
        if each.began < until and (each.ended is None or each.ended > since)
    ]


SINGLE_LINES = (("score", "Score"), ("limit", "Limit"), ("alarm", "Alarm"))
JOINED_LINES = (("score", "Highest"), ("limit", "Limit"), ("alarm", "Alarm"), ("mean", "Mean"))


@dataclass(frozen=True)
class ChartView:
    """A chart of one device, or of several: what pages and scripts show.

    Args:
        span: The time.
        series: The scores of each device, by its name.
        step_s: For how many seconds each score is the highest; 0 as they were reported.
        bands: Episodes.
        ranges: The times that can be chosen, with their words.
        compares: Whether it shows one line for each device, also if there is only one.
    """

    span: TimeSpan
    series: Mapping[str, Series]
    step_s: float
    ranges: Mapping[str, str]
    bands: Sequence[Band] = ()
    compares: bool = False

    @property
    def picture(self) -> Picture | None:
        """The chart as a picture."""
        return draw(list(self.series.items()), self.bands, limit=not self.compares)

    @property
    def words(self) -> str:
        """The chart in words, for those who cannot see it."""
        found = [score for one in self.series.values() for score in one.score if score is not None]
        alarms = sum(v is not None for one in self.series.values() for v in one.alarm)
        if not found:
            return "No score has been reported in this time."
        every = f"Each point is the highest score of {duration(0.0, self.step_s)}. "
        beginning = every if self.step_s else ""
        return (
            f"{beginning}The highest is {score(max(found))}; {counted(alarms, 'point')} in alarm."
        )

    @property
    def query(self) -> str:
        """The time, for addresses."""
        return self.span.query

    @property
    def earlier(self) -> str:
        """The time before, for addresses."""
        return self.span.moved(-1).query

    @property
    def later(self) -> str:
        """The time after, for addresses."""
        return self.span.moved(1).query

    @property
    def data(self) -> dict[str, Any]:
        """What the script gets: columns, what each of them is, and what stands beside the chart."""
        if self.compares:
            lines = [("device", name) for name in self.series]
            columns = _aligned(self.series.values())
        else:
            (only,) = self.series.values()
            lines = list(JOINED_LINES if only.mean is not None else SINGLE_LINES)
            columns = only.columns
        found = {"range": self.span.name, "step_s": self.step_s, "columns": columns, "lines": lines}
        beside = {name: getattr(self, name) for name in ("words", "query", "earlier", "later")}
        return found | beside | {"episodes": [list(band) for band in self.bands]}


def _aligned(some: Iterable[Series]) -> list[Any]:
    """Return the scores of several devices as columns that have their times in common."""
    known = [dict(zip(one.at, one.score, strict=True)) for one in some]
    times = sorted({at for one in known for at in one})
    return [times, *([one.get(at) for at in times] for one in known)]


def device_chart(
    service: Service, fleet: str, device: str, span: TimeSpan, latest: LatestReport | None
) -> ChartView:
    """Return the chart of a device; the live one ends with its newest score."""
    ranges = offered_ranges(service.history.kept_days)
    if span.name == LIVE:
        series = {device: point_series(live_points(latest))}
        return ChartView(span, series, 0.0, ranges, live_bands(latest))
    step_s, found = service.history.scores(fleet, device, since=span.since, until=span.until)
    series = {device: joined_series(found, step_s)}
    with service.database.reading() as tx:
        stored = list_between(tx, fleet, device, span.since, span.until)
    bands = {each.number: Band(each.number, each.began, each.ended) for each in stored}
    for band in episode_bands(latest, span.since, span.until):
        bands.setdefault(band.number, band)  # it will be stored soon
    return ChartView(span, series, step_s, ranges, list(bands.values()))


def live_points(latest: LatestReport | None) -> list[ScorePoint]:
    """Return the scores of the last ten minutes before the newest."""
    points = list(latest.points) if latest else []
    return [point for point in points if point.at >= points[-1].at - RANGES[LIVE][1]]


def live_bands(latest: LatestReport | None) -> list[Band]:
    """Return the episodes that these scores are in."""
    points = live_points(latest)
    return episode_bands(latest, points[0].at, points[-1].at) if points else []


# The picture: a drawing of 1000 by 220 units that is stretched, with texts over it.

WIDTH, HEIGHT = 1000, 220
MIN_SCORE, MAX_SCORE = 0.01, 1e6  # that are drawn
TICKS = 4  # at most, so that they fit on a phone
TICK_STEPS_S = (
    *(1, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 21_600, 43_200),
    *(86_400, 172_800, 604_800, 1_209_600, 2_592_000, 7_776_000, 31_536_000),
)
MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


class Tick(NamedTuple):
    """A mark on an axis: where, in percent or units, its words, and on which side they begin."""

    place: str
    words: str
    anchor: str = "middle"


class Curve(NamedTuple):
    """One device in the picture: paths of its scores and of its alarms."""

    name: str
    line: str
    alarms: str


class Picture(NamedTuple):
    """All that the template draws."""

    curves: list[Curve]
    limit: str
    bands: list[tuple[str, str]]  # their left edge and width
    levels: list[Tick]
    times: list[Tick]
    width: int = WIDTH
    height: int = HEIGHT


def draw(
    named: Sequence[tuple[str, Series]], bands: Sequence[Band] = (), *, limit: bool = True
) -> Picture | None:
    """Draw some series in one picture; None if there is no score.

    Args:
        named: The series, each with a name.
        bands: Episodes, which are marked as far as there are scores.
        limit: Whether to draw the limit of the first.
    """
    times = [
        at
        for _, one in named
        for at, score in zip(one.at, one.score, strict=True)
        if score is not None
    ]
    if not times:
        return None
    first, last = min(times), max(times)
    length = (last - first) or 1.0
    low, high = _score_range(one for _, one in named)

    def x(at: float) -> float:
        return WIDTH * (at - first) / length if last > first else WIDTH / 2.0

    def y(score: float) -> float:
        shown = min(max(score, MIN_SCORE), MAX_SCORE)
        return HEIGHT * (1.0 - (log10(shown) - low) / (high - low))

    def path(at: Sequence[float], values: Column) -> str:
        found, move = [], "M"
        for moment, value in zip(at, values, strict=True):
            if value is None:
                move = "M"
                continue
            found.append(f"{move}{x(moment):.1f} {y(value):.1f}")
            move = "L"
        alone = len(found) == 1
        return "".join(found) + ("h0" if alone else "")

    def dots(at: Sequence[float], values: Column) -> str:
        pairs = zip(at, values, strict=True)
        return "".join(f"M{x(moment):.1f} {y(v):.1f}h0" for moment, v in pairs if v is not None)

    curves = [Curve(name, path(one.at, one.score), dots(one.at, one.alarm)) for name, one in named]
    edges = [
        (x(max(band.began, first)), x(min(last if band.ended is None else band.ended, last)))
        for band in bands
        if band.began <= last and (band.ended is None or band.ended >= first)
    ]
    return Picture(
        curves,
        path(named[0][1].at, named[0][1].limit) if limit else "",
        [(f"{a:.1f}", f"{max(b - a, 3.0):.1f}") for a, b in edges],
        [Tick(f"{y(level):.0f}", digits(level)) for level in _levels(low, high)],
        _time_ticks(first, last),
    )


def _score_range(some: Iterable[Series]) -> tuple[float, float]:
    """Return the exponents of the lowest and highest score shown, in halves."""
    columns = [column for one in some for column in (one.score, one.limit)]
    found = [value for column in columns for value in column if value is not None]
    low, high = min([0.5, *found]), max([10.0, *found])
    shown = [log10(min(max(each, MIN_SCORE), MAX_SCORE)) for each in (low, high)]
    return floor(2.0 * shown[0]) / 2.0, ceil(2.0 * shown[1]) / 2.0


def _levels(low: float, high: float) -> list[float]:
    """Return the scores that are marked: powers of ten, and between few of them 2 and 5 times."""
    powers = range(floor(low), ceil(high) + 1)
    factors = (1.0, 2.0, 5.0) if high - low < 2.5 else (1.0,)
    found = [factor * 10.0**power for power in powers for factor in factors]
    # Their words stand above the line, so the highest needs some room.
    return [level for level in found if low <= log10(level) <= high - 0.08 * (high - low)]


def _time_ticks(first: float, last: float) -> list[Tick]:
    """Return a few round times between the first score and the last one, never outside."""
    if last <= first:
        return [Tick("50%", _clock(first, 1.0))]
    step = next((s for s in TICK_STEPS_S if (last - first) / s <= TICKS), TICK_STEPS_S[-1])
    whole = range(ceil(first / step), floor(last / step) + 1)
    moments = [float(step * k) for k in whole] or [first]
    found = []
    for moment in moments:
        place = 100.0 * (moment - first) / (last - first)
        anchor = "start" if place < 12.0 else "end" if place > 88.0 else "middle"
        found.append(Tick(f"{place:.2f}%", _clock(moment, step), anchor))
    return found


def _clock(at: float, step_s: float) -> str:
    """Write a time of UTC: seconds, minutes, or the day, as fits the distance of two marks.

    >>> _clock(1_763_270_400.0, 1.0), _clock(1_763_270_400.0, 60.0), _clock(1_763_270_400.0, 1e5)
    ('05:20:00', '05:20', '16 Nov')
    """
    year, month, day, hour, minute, second, *_ = gmtime(at)
    if step_s >= 31_536_000:
        return str(year)
    if step_s >= DAY_S:
        return f"{day} {MONTHS[month - 1]}"
    return f"{hour:02}:{minute:02}" + (f":{second:02}" if step_s < 60 else "")
