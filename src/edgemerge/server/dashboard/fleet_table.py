"""The table of a fleet: a row and a sparkline for each device, and totals.

However many pages are open, each change is computed once. A client that was away gets what changed
since; one that saw another run of the server gets everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, log
from secrets import token_hex
from threading import Lock
from typing import Any, NamedTuple, Protocol

from edgemerge.core.errors import UnknownError
from edgemerge.core.monitor import DRIFT_EVENT
from edgemerge.server import fleets
from edgemerge.server.dashboard.formatting import NOTHING, count, score, size, times
from edgemerge.server.db.base import Database
from edgemerge.server.fleets import Fleet
from edgemerge.server.reports.model import (
    DEVICE_STATES,
    LatestReport,
    ScorePoint,
    Traffic,
    device_state,
    last_contact,
    problem_words,
)
from edgemerge.server.settings import labels_of

WIDTH, HEIGHT = 120, 28
STEP = 2  # between two points
MAX_SPARK_POINTS = WIDTH // STEP  # points
MARGIN = 2  # above and below
# Scores at the bottom and at the top: 1, 4 and 50 are well apart.
MIN_SCORE, MAX_SCORE = (0.25, 100.0)
_SCALE = (HEIGHT - 2 * MARGIN) / log(MAX_SCORE / MIN_SCORE)


class Sparkline(NamedTuple):
    """Heights from the top, oldest first; that of the limit; which points are alarms."""

    heights: tuple[int, ...] = ()
    threshold: int | None = None
    alarms: tuple[int, ...] = ()

    @property
    def curve(self) -> str:
        """The curve as a path; it ends at the right."""
        if not self.heights:
            return ""
        steps = (f"{STEP} {now - before}" for before, now in pairwise(self.heights))
        return f"M{self._x(0)} {self.heights[0]}l" + " ".join(["0 0", *steps])

    @property
    def line(self) -> str:
        """The limit as a path."""
        return "" if self.threshold is None else f"M0 {self.threshold}H{WIDTH}"

    @property
    def dots(self) -> str:
        """The alarms as a path of dots."""
        return "".join(f"M{self._x(i)} {self.heights[i]}h0" for i in self.alarms)

    def _x(self, i: int) -> int:
        return WIDTH - MARGIN - STEP * (len(self.heights) - 1 - i)


def sparkline(points: Sequence[ScorePoint]) -> Sparkline:
    """Draw the last points."""
    last = points[-MAX_SPARK_POINTS:]
    if not last:
        return Sparkline()
    threshold = last[-1].threshold
    return Sparkline(
        tuple(score_height(point.score) for point in last),
        None if threshold is None else score_height(threshold),
        tuple(i for i, point in enumerate(last) if point.alarm),
    )


def score_height(score: float) -> int:
    """Return how far below the top a score is drawn.

    >>> [score_height(score) for score in (0.0, 1.0, 4.0, 50.0, 1e300)]
    [26, 20, 15, 5, 2]
    """
    if score <= MIN_SCORE:
        return HEIGHT - MARGIN
    return max(MARGIN, round(HEIGHT - MARGIN - _SCALE * log(score / MIN_SCORE)))


class EnrolledDevice(NamedTuple):
    """A device that was let in, and what the server has of it."""

    device: str
    revoked: float | None
    seen: float | None  # when it pushed last
    shared: float | None  # when the newest of what it contributed came
    revision: int | None
    samples: float
    label: str = ""  # what people call it


def load_enrolled(database: Database, fleet: str) -> tuple[Fleet, list[EnrolledDevice]]:
    """Return a fleet, which must be there, and its devices in order of their names."""
    with database.reading() as tx:
        found = fleets.get(tx, fleet)
        rows = tx.rows(
            "select d.device, d.revoked, d.seen, max(c.received), max(c.revision),"
            " coalesce(sum(c.samples), 0) from devices d left join contributions c"
            " on c.fleet = d.fleet and c.device = d.device and c.body is not null"
            " where d.fleet = ? group by d.device, d.revoked, d.seen order by d.device",
            fleet,
        )
        labels = labels_of(tx, fleet)
    return found, [EnrolledDevice(*row)._replace(label=labels.get(row[0], "")) for row in rows]


MAX_FAULT_CHARS = 40  # of the name of a fault
ALARM_HOLD_S = 60.0  # for which an alarm counts as one of now


class DeviceRow(NamedTuple):
    """What the table shows of a device; None where nothing is known."""

    device: str
    state: str
    alarm: bool  # now
    alarmed: float | None  # when it last was
    pattern: str | None
    learnt: float
    revision: int | None
    shared: float | None
    merged: float | None
    score: float | None
    threshold: float | None
    spark: Sparkline
    unreviewed: int | None = None  # patterns; None without a monitor
    ready: bool | None = None
    drift: float | None = None
    stopped: bool = False  # learning, because of drift
    fault: str | None = None  # the known fault that its open episode is most like
    peak: float | None = None  # of its alarm, while it is in alarm
    problem: str = ""  # names of what is wrong with its data
    label: str = ""  # what people call it

    @property
    def state_words(self) -> str:
        """What the cell of the state shows: the first problem, and how many more there are."""
        if self.state != "problem":
            return self.state
        first, *more = self.problem.split(", ")
        return f"{first} +{len(more)}" if more else first

    @property
    def needs(self) -> list[tuple[str, str]]:
        """What a person should look at: words, and how bad it is."""
        found = []
        if self.fault:
            found.append((f"like {self.fault[:MAX_FAULT_CHARS]}", "bad"))
        if self.unreviewed:
            found.append((f"{self.unreviewed} to review", "warn"))
        if self.ready is False:
            found.append(("not ready", ""))
        if self.drift is not None and (self.drift > DRIFT_EVENT or self.stopped):
            found.append((f"drift {times(self.drift)}", "bad" if self.stopped else "warn"))
        return found

    @property
    def above(self) -> bool:
        """Whether its last score is above the limit."""
        if self.score is None or self.threshold is None:
            return False
        return self.score > self.threshold

    @property
    def shown_score(self) -> float | None:
        """The last score, or the peak of its alarm: a device in alarm shows no harmless number."""
        return self.score if self.peak is None else self.peak

    @property
    def is_marked(self) -> bool:
        """Whether the score that is shown is above the limit, or that of an alarm."""
        return self.above or self.peak is not None

    @property
    def score_words(self) -> str:
        """The same in words."""
        return score(self.score) if self.peak is None else f"peak {score(self.peak)}"

    def event(self) -> list[Any]:
        """Return what the stream sends of it; the page's script knows the order."""
        return [
            *(self.device, self.state, int(self.alarm), self.alarmed, self.pattern),
            *(count(self.learnt), self.learnt),
            *(self.score_words, self.shown_score, score(self.threshold), int(self.is_marked)),
            *(*self.spark, self.unreviewed, self.needs, self.state_words, self.label),
        ]


BLANK_ROW = DeviceRow("", "", False, None, None, 0.0, None, None, None, None, None, Sparkline())  # noqa: FBT003 - of a tuple


def make_row(
    known: EnrolledDevice, latest: LatestReport | None, state: str, *, alarm: bool
) -> DeviceRow:
    """Make the row of a device; one that never reported is known by what it shared."""
    shared = known.shared if known.shared is not None else known.seen
    if latest is None:
        nothing = (None, None, None, Sparkline())
        known_of = (None, None, known.samples, known.revision, shared)
        return DeviceRow(known.device, state, alarm, *known_of, *nothing, label=known.label)
    points, monitor = latest.points, latest.status.monitor
    last = points[-1] if points else None
    silent = state in ("offline", "revoked")  # its episode may have ended, the name be withdrawn
    return DeviceRow(
        device=known.device,
        state=state,
        alarm=alarm,
        alarmed=last_alarm_at(latest),
        pattern=latest.status.pattern,
        learnt=latest.status.learnt,
        revision=latest.status.revision or known.revision,
        shared=shared,
        merged=latest.merge.at if latest.merge else None,
        score=last.score if last else None,
        threshold=last.threshold if last else None,
        spark=sparkline(points),
        unreviewed=monitor.unreviewed if monitor else None,
        ready=monitor.ready if monitor else None,
        drift=monitor.drift if monitor else None,
        stopped=monitor.learning_stopped if monitor else False,
        fault=monitor.open_fault if monitor and not silent else None,
        peak=alarm_peak(latest) if alarm else None,
        problem=problem_words(latest),
        label=known.label,
    )


def alarm_peak(latest: LatestReport) -> float | None:
    """Return the highest score of the episode, or of the last alarm where it is not reported."""
    monitor, number = latest.status.monitor, latest.alarm.episode if latest.alarm else None
    episodes = monitor.episodes if monitor else ()
    peaks = [each.peak for each in episodes if each.ended is None or each.number == number]
    last = [latest.alarm.score] if latest.alarm and not peaks else []
    now = [latest.points[-1].score] if latest.points else []
    return max([*peaks, *last, *now], default=None)


def last_alarm_at(latest: LatestReport | None) -> float | None:
    """Return when a device raised its last alarm."""
    return latest.alarm.at if latest and latest.alarm else None


def is_in_alarm(latest: LatestReport | None, state: str, now: float) -> bool:
    """Return whether an episode is open, or the last alarm is of the last minute or report."""
    last = last_alarm_at(latest)
    if latest is None or state == "revoked":
        return False
    monitor = latest.status.monitor
    if monitor is not None and monitor.open_episodes and state != "offline":
        return True
    if last is None:
        return False
    return now - last <= max(ALARM_HOLD_S, 2.0 * latest.every_s)


SORT_KEYS: dict[str, Callable[[DeviceRow], Any]] = {
    "device": lambda row: row.device,
    "state": lambda row: DEVICE_STATES.index(row.state),
    "alarm": lambda row: row.alarmed,
    "review": lambda row: row.unreviewed,
    "pattern": lambda row: row.pattern,
    "learnt": lambda row: row.learnt,
    "score": lambda row: row.shown_score,
}


def sort_rows(rows: Iterable[DeviceRow], sort: str) -> list[DeviceRow]:
    """Sort by a column, "-" before its name for the largest first; by no column: alarms first.

    Equal ones stand in order of their names, and what is not known comes last.
    """
    by_name = sorted(rows, key=lambda row: row.device)
    key = SORT_KEYS.get(sort.removeprefix("-"))
    if key is None:
        return sorted(by_name, key=lambda row: not row.alarm)
    known = [row for row in by_name if key(row) is not None]
    unknown = [row for row in by_name if key(row) is None]
    return sorted(known, key=key, reverse=sort.startswith("-")) + unknown


def matches(row: DeviceRow, words: str) -> bool:
    """Return whether all words are in the name, label, state, pattern or needs of a device."""
    needs = " ".join(words for words, _ in row.needs)
    alarm = " alarm" if row.alarm else ""
    state = f"{row.state} {row.problem}" if row.state == "problem" else row.state
    text = f"{row.device} {row.label} {state} {row.pattern or ''}{alarm} {needs}".lower()
    return all(word in text for word in words.lower().split())


BYTES_PER_VALUE = 8  # bytes of one value of a raw row


@dataclass(frozen=True)
class FleetTotals:
    """A fleet in a few numbers."""

    states: dict[str, int]
    alarms: int
    samples: float
    merges: int
    rows: float  # bytes that sending every sample as a raw row would have taken
    moved: int  # bytes of contributions and sums that were pushed and pulled
    unreviewed: int  # patterns
    unready: int  # devices
    drifting: int  # devices
    shared: float | None  # when the newest contribution came

    @property
    def devices(self) -> int:
        """How many devices there are, those that were revoked left out."""
        return sum(self.states.values()) - self.states["revoked"]

    @property
    def saved(self) -> float:
        """Bytes that did not travel; below 0 if sharing took more than raw rows would have."""
        return self.rows - self.moved

    def words(self) -> dict[str, str]:
        """Return what the page shows, by the names that its places have."""
        return {
            "devices": count(self.devices),
            "states": self._states(),
            "alarms": count(self.alarms),
            "unreviewed": count(self.unreviewed),
            "unready": self._unready(),
            "samples": count(self.samples),
            "merges": count(self.merges),
            "saved": size(self.saved) if self.moved else NOTHING,
            "counted": self._counted(),
        }

    def _states(self) -> str:
        return ", ".join(f"{count(self.states[s])} {s}" for s in DEVICE_STATES if self.states[s])

    def _unready(self) -> str:
        """Name what is to review, and count devices that are not ready or have drifted."""
        word = "pattern" if self.unreviewed == 1 else "patterns"
        return f"{word}; {self.unready} not ready, {self.drifting} with drift"

    def _counted(self) -> str:
        """Describe how what was saved is counted, also when it is nothing."""
        if not self.moved:
            return "nothing was shared yet"
        words = f"{size(self.rows)} as rows, {size(self.moved)} shared"
        return words if self.saved >= 0 else f"{words}: so far sharing took more"


def fleet_totals(
    rows: Iterable[DeviceRow], inputs: int, traffic: Iterable[Traffic], merges: int
) -> FleetTotals:
    """Add up the rows of a fleet whose samples have so many inputs."""
    listed = list(rows)
    samples = sum(row.learnt for row in listed)
    shares = [row.shared for row in listed if row.shared is not None]
    return FleetTotals(
        states={state: sum(row.state == state for row in listed) for state in DEVICE_STATES},
        alarms=sum(row.alarm for row in listed),
        samples=samples,
        merges=merges,
        rows=samples * inputs * BYTES_PER_VALUE,
        unreviewed=sum(row.unreviewed or 0 for row in listed),
        unready=sum(row.ready is False for row in listed),
        drifting=sum(row.drift is not None and row.drift > DRIFT_EVENT for row in listed),
        moved=sum(each.pushed_bytes + each.pulled_bytes for each in traffic),
        shared=max(shares, default=None),
    )


REPORTS_MAX_AGE_S = 0.4  # how old a look at the reports may be
DATABASE_MAX_AGE_S = 2.0  # how old a look at the database may be


class ReportSource(Protocol):
    """What a fleet reports, as far as the table needs it."""

    def latest_reports(self, fleet: str) -> dict[str, LatestReport]:
        """Return the newest of each device."""
        ...

    def traffic(self, fleet: str) -> dict[str, Traffic]:
        """Return what each device pushed and pulled."""
        ...

    def merged(self, fleet: str) -> int:
        """Count the merges of the fleet."""
        ...


@dataclass(frozen=True)
class TableView:
    """The rows that changed, the totals, and an id to ask for what changes later."""

    event_id: str
    fleet: Fleet
    rows: list[DeviceRow]
    totals: FleetTotals


class FleetTable:
    """The table of one fleet; any thread may look."""

    def __init__(self, fleet: str, database: Database, history: ReportSource) -> None:
        """Know nothing yet."""
        self._name, self._database, self._history = fleet, database, history
        self._run = token_hex(4)
        self._lock = Lock()
        self._number = 0
        self._rows: dict[str, DeviceRow] = {}
        self._numbers: dict[str, int] = {}
        self._made_of: dict[str, object] = {}
        self._looked = self._asked = -inf
        self._fleet: Fleet | None = None
        self._enrolled: list[EnrolledDevice] = []
        self._totals: FleetTotals | None = None

    def look(
        self, now: float, *, since: str = "", database_s: float = DATABASE_MAX_AGE_S
    ) -> TableView:
        """Return the rows that changed since an event id; all for "" or an id of another run."""
        with self._lock:
            fleet = self._ask(now, database_s)
            sums = self._refresh(now, min(REPORTS_MAX_AGE_S, database_s), fleet)
            run, _, number = since.partition("-")
            after = int(number) if run == self._run and number.isdecimal() else -1
            rows = [row for name, row in self._rows.items() if self._numbers[name] > after]
            return TableView(f"{self._run}-{self._number}", fleet, rows, sums)

    def _ask(self, now: float, database_s: float) -> Fleet:
        if self._fleet is None or not 0.0 <= now - self._asked < database_s:
            self._fleet, self._enrolled = load_enrolled(self._database, self._name)
            self._asked = now
            for gone in self._rows.keys() - {known.device for known in self._enrolled}:
                del self._rows[gone], self._numbers[gone], self._made_of[gone]
        return self._fleet

    def _refresh(self, now: float, memory_s: float, fleet: Fleet) -> FleetTotals:
        if self._totals is None or not 0.0 <= now - self._looked < memory_s:
            reports = self._history.latest_reports(self._name)
            traffic = self._history.traffic(self._name)
            for known in self._enrolled:
                seen = last_contact(known.seen, traffic.get(known.device))
                self._see(known, reports.get(known.device), seen, now)
            merges = self._history.merged(self._name)
            inputs = fleet.projection.n_inputs
            self._totals = fleet_totals(self._rows.values(), inputs, traffic.values(), merges)
            self._looked = now
        return self._totals

    def _see(
        self, known: EnrolledDevice, latest: LatestReport | None, seen: float | None, now: float
    ) -> None:
        state = device_state(now, latest=latest, seen=seen, revoked=known.revoked)
        alarm = is_in_alarm(latest, state, now)
        made_of = known, latest and (latest.seq, latest.heard), state, alarm
        if self._made_of.get(known.device) == made_of:
            return
        self._made_of[known.device] = made_of
        row = make_row(known, latest, state, alarm=alarm)
        if row != self._rows.get(known.device):
            self._number += 1
            self._rows[known.device], self._numbers[known.device] = row, self._number


class FleetTables:
    """The tables of all fleets of a server."""

    def __init__(
        self, database: Database, history: ReportSource, clock: Callable[[], float]
    ) -> None:
        """Have none yet."""
        self._database, self._history, self._clock = database, history, clock
        self._tables: dict[str, FleetTable] = {}
        self._lock = Lock()

    def look(
        self, fleet: str, *, since: str = "", database_s: float = DATABASE_MAX_AGE_S
    ) -> TableView:
        """Look at a fleet, which must be there."""
        try:
            return self._of(fleet).look(self._clock(), since=since, database_s=database_s)
        except UnknownError:
            with self._lock:
                self._tables.pop(fleet, None)
            raise

    def _of(self, fleet: str) -> FleetTable:
        with self._lock:
            made = FleetTable(fleet, self._database, self._history)
            return self._tables.setdefault(fleet, made)
