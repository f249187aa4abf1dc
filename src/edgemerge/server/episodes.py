"""Episodes of a fleet: taken from devices' reports, acknowledged and commented by people.

A device lists its episodes in every report until they are acknowledged. What is new is written at
once, what only grows (peak, samples) now and then. All writes merge with the stored row, so it does
not matter which server took which report, how often, or in which order.

`changed` is the time of the last change that a person wants to hear of, and rises strictly within a
fleet: it is also the mark from which a client reads on.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import groupby
from threading import Lock
from typing import Any, Literal, NamedTuple

import numpy as np

from edgemerge.core.errors import EdgemergeError, UnknownError
from edgemerge.exchange.client import MAX_REPORT_EPISODES
from edgemerge.server import audit, fleets
from edgemerge.server.auth import Caller
from edgemerge.server.db.base import WHERE_DEVICE, Database, SqlRow, Transaction, Writer
from edgemerge.server.reports.model import (
    CLOCK_STEP_S,
    DAY_S,
    LatestReport,
    PointTable,
    pack_points,
    unpack_points,
)
from edgemerge.server.schemas import ReportedEpisode, ReportedMonitor

KEEP_DAYS = 365.0  # for which episodes are kept, by default
MAX_PER_DEVICE = 1000  # episodes; of more, the oldest are deleted
MAX_REMEMBERED = 10_000  # devices whose last report is known, so that it is not written again
SAME_BEGIN_S = 2.0 * CLOCK_STEP_S  # by which the beginning of one episode may move
GROWTH_S = 30.0  # between two writes of an episode that only grows
CURVE_PAD_S = 60.0  # of the curve before and after an episode, at least
CURVE_LATE_S = 600.0  # after the end of a curve, in which it is still drawn
MAX_CURVE_POINTS = 60
CHANGE_STEP_S = 1e-6  # between two changes, at least
SWEEP_S = 3600.0  # between two deletions of what is too old
Section = Literal["open", "ended", "history"]
SECTIONS: dict[Section, str] = {
    "open": "ended is null",
    "ended": "ended is not null and acknowledged is null",
    "history": "ended is not null and acknowledged is not null",
}

OPEN_DEVICES = "select distinct device from episodes where fleet = ? and ended is null"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredEpisode:
    """An episode of a device.

    Args:
        id: Names it on this server.
        device: The device.
        incarnation: Of the device, when it was reported last.
        number: How the device counts it.
        began: When its first odd sample came, by the time of the samples.
        ended: When it ended, or None while it is open.
        peak: Its highest score; 1 is usual.
        threshold: The limit when it was first reported.
        samples: How many samples were in alarm.
        inputs: The inputs that carried the peak, each with its factor; 1 is usual.
        pattern: The pattern that its samples form, if they are enough.
        fault: The known fault that it is most like.
        like: The same in words, or that it is like none.
        acknowledged: When a person had seen it, or None.
        acknowledged_by: Who that was.
        comment: Words of a person, "" if there are none.
        commented: When they were written.
        commented_by: Who wrote them.
        reported: When it was first reported, by the server's clock.
        closed: When its end was first reported, likewise.
        heard: When the newest report came that lists it, likewise.
        changed: When it last changed; no two changes of a fleet have the same time.
    """

    id: int
    device: str
    incarnation: int
    number: int
    began: float
    ended: float | None
    peak: float
    threshold: float | None
    samples: int
    inputs: tuple[tuple[str, float], ...]
    pattern: str | None
    fault: str | None
    like: str | None
    acknowledged: float | None
    acknowledged_by: str
    comment: str
    commented: float | None
    commented_by: str
    reported: float
    closed: float | None
    heard: float
    changed: float

    @property
    def notable(self) -> tuple[object, ...]:
        """What a person wants to hear of when it changes: not the peak, which grows and grows."""
        said = (self.pattern, self.fault, self.like, self.comment)
        return (self.ended is None, self.acknowledged is None, *said)

    @property
    def span(self) -> tuple[float, float]:
        """From when to when it lasted by the server's clock, as far as that is known.

        Samples may have been recorded long ago; then the times of the reports count.
        """
        last = self.heard if self.closed is None else self.closed
        if self.reported - self.began > DAY_S:
            return self.reported, last
        first = min(self.began, self.reported)
        return first, max(first, last if self.ended is None else min(self.ended, last))

    @property
    def curve_span(self) -> tuple[float, float]:
        """From when to when its curve goes: a part of its length before and after it."""
        first, last = self.span
        pad = max(CURVE_PAD_S, 0.25 * (last - first))
        return first - pad, last + pad


COLUMNS = tuple(field.name for field in fields(StoredEpisode))
# "like" is a word of SQL.
COLUMN_SQL = ", ".join("likeness" if name == "like" else name for name in COLUMNS)


def _from_row(row: SqlRow) -> StoredEpisode:
    values = dict(zip(COLUMNS, row, strict=True))
    values["inputs"] = tuple((str(name), float(f)) for name, f in json.loads(values["inputs"]))
    return StoredEpisode(**values)


def _values(episode: StoredEpisode) -> list[Any]:
    values = asdict(episode) | {"inputs": json.dumps(episode.inputs, separators=(",", ":"))}
    del values["id"]
    return list(values.values())


class EpisodeReport(NamedTuple):
    """What one report says of a device's episodes; `heard` is when it came."""

    fleet: str
    device: str
    incarnation: int
    monitor: ReportedMonitor
    heard: float

    @property
    def may_be_cut(self) -> bool:
        """Whether the device may have older episodes than it lists."""
        return len(self.monitor.episodes) >= MAX_REPORT_EPISODES

    @property
    def notable(self) -> tuple[object, ...]:
        """What is written at once when it changes."""
        episodes = self.monitor.episodes
        return (
            self.incarnation,
            *((e.number, e.ended is None, e.pattern, e.fault, e.like) for e in episodes),
            *(e.acknowledged for e in episodes),
        )

    @property
    def growth(self) -> tuple[object, ...]:
        """What is written now and then when it changes."""
        return tuple((each.peak, each.samples) for each in self.monitor.episodes)


# Rows and reports.


def store_report(
    tx: Transaction, said: EpisodeReport, scores: Callable[[float], PointTable]
) -> float | None:
    """Merge a report into the stored episodes of a device.

    Args:
        tx: The transaction to write in.
        said: The report.
        scores: Returns the device's scores since a time, for the curves.

    Returns:
        When the curves of the device should be drawn again, or None if they are complete.
    """
    where = (said.fleet, said.device)
    if tx.one(f"select 1 from devices {WHERE_DEVICE}", *where) is None:
        return None  # its fleet was deleted
    known = _known_rows(tx, said)
    found: list[StoredEpisode] = []
    for episode in said.monitor.episodes:
        row = _find_same(known, said, episode)
        if row is None:
            row = _insert(tx, said, episode)
        else:
            known.remove(row)
            row = _update(tx, said.fleet, row, merge_reported(row, said, episode), said.heard)
        found.append(row)
    found += [_update(tx, said.fleet, row, merge_absent(row, said), said.heard) for row in known]
    _delete_surplus(tx, where)
    return _draw_curves(tx, said, found, scores)


def _known_rows(tx: Transaction, said: EpisodeReport) -> list[StoredEpisode]:
    """Return the rows that a report may be about, or that are not complete without it."""
    first = min((episode.number for episode in said.monitor.episodes), default=2**62)
    sql = f"select {COLUMN_SQL} from episodes {WHERE_DEVICE} and (ended is null"
    rows = tx.rows(
        f"{sql} or acknowledged is null or number >= ? or closed > ?) order by id",
        *(said.fleet, said.device, first, said.heard - DAY_S),
    )
    return [_from_row(row) for row in rows]


def _find_same(
    rows: Iterable[StoredEpisode], said: EpisodeReport, episode: ReportedEpisode
) -> StoredEpisode | None:
    """Return the row of an episode: of its number, and of its beginning or its incarnation.

    A device that goes on with an old copy of its state is a new incarnation with old episodes, or
    counts new ones by numbers that were used before.
    """

    def is_same(row: StoredEpisode) -> bool:
        if row.number != episode.number:
            return False
        near = abs(row.began - episode.began) <= SAME_BEGIN_S
        reopened = row.ended is not None and episode.ended is None and said.heard > row.heard
        return near or (row.incarnation == said.incarnation and not reopened)

    found = [row for row in rows if is_same(row)]
    return max(found, key=lambda row: (row.incarnation == said.incarnation, row.id), default=None)


def merge_reported(
    row: StoredEpisode, said: EpisodeReport, episode: ReportedEpisode
) -> StoredEpisode:
    """Return a row with what a report says of it; the same in any order, and twice is once."""
    newer = said.heard >= row.heard
    if newer:
        row = replace(
            row,
            incarnation=said.incarnation,
            began=_began(row, episode),
            inputs=tuple(episode.inputs) or row.inputs,
            pattern=episode.pattern or row.pattern,
            fault=episode.fault,
            like=episode.like,
        )
    if episode.ended is not None:
        ended = _ended(row.began, episode, said) if newer or row.ended is None else row.ended
        closed = said.heard if row.closed is None else min(row.closed, said.heard)
        row = replace(row, ended=ended, closed=closed)
    elif row.closed is not None and said.heard > row.closed:
        row = replace(row, ended=None, closed=None)  # its state was lost, and it came again
    row = _seen_on_device(row, said) if episode.acknowledged else row
    return replace(
        row,
        peak=max(row.peak, episode.peak),
        samples=max(row.samples, episode.samples),
        reported=min(row.reported, said.heard),
        heard=max(row.heard, said.heard),
    )


def _began(row: StoredEpisode, episode: ReportedEpisode) -> float:
    """Return when an episode began; if the device's clock jumped, as near to its first report."""
    if abs(episode.began - row.began) <= SAME_BEGIN_S:
        return episode.began
    return min(row.began, episode.began, key=lambda at: abs(row.reported - at))


def _ended(began: float, episode: ReportedEpisode, said: EpisodeReport) -> float | None:
    """Return when an episode ended: after it began, and before that was heard, if clocks jump."""
    if episode.ended is None:
        return None
    return max(began, min(episode.ended, said.heard))


def merge_absent(row: StoredEpisode, said: EpisodeReport) -> StoredEpisode:
    """Return a row that a report no longer lists.

    It was acknowledged at the device, or, if it was open, its state is lost: it has ended, and
    a person should see it.
    """
    if said.heard <= row.heard:
        return row  # an older report cannot know it
    if row.ended is None:
        lasted = max(0.0, said.heard - row.reported)
        return replace(row, ended=row.began + lasted, closed=said.heard)
    listed = [episode.number for episode in said.monitor.episodes]
    cut = said.may_be_cut and row.number < min(listed)
    known_there = row.incarnation == said.incarnation and row.number not in listed
    return _seen_on_device(row, said) if known_there and not cut else row


def _seen_on_device(row: StoredEpisode, said: EpisodeReport) -> StoredEpisode:
    if row.acknowledged is not None:
        return row
    by = Caller(said.device, said.fleet).actor
    return replace(row, acknowledged=said.heard, acknowledged_by=by)


def _insert(tx: Transaction, said: EpisodeReport, episode: ReportedEpisode) -> StoredEpisode:
    limit = said.monitor.limit.value
    row = StoredEpisode(
        id=0,
        device=said.device,
        incarnation=said.incarnation,
        number=episode.number,
        began=episode.began,
        ended=episode.ended,
        peak=episode.peak,
        threshold=limit,
        samples=episode.samples,
        inputs=tuple(episode.inputs),
        pattern=episode.pattern,
        fault=episode.fault,
        like=episode.like,
        acknowledged=None,
        acknowledged_by="",
        comment="",
        commented=None,
        commented_by="",
        reported=said.heard,
        closed=None if episode.ended is None else said.heard,
        heard=said.heard,
        changed=_next_change(tx, said.fleet, said.heard),
    )
    row = _seen_on_device(row, said) if episode.acknowledged else row
    columns = COLUMN_SQL.removeprefix("id, ")
    marks = ", ".join("?" * len(COLUMNS))
    found = tx.one(
        f"insert into episodes (fleet, {columns}) values ({marks}) returning id",
        *(said.fleet, *_values(row)),
    )
    return replace(row, id=found[0] if found else 0)


def _update(
    tx: Transaction, fleet: str, before: StoredEpisode, after: StoredEpisode, now: float
) -> StoredEpisode:
    """Write a row that differs; a change that a person wants to hear of gets a new time."""
    if after == before:
        return before
    if after.notable != before.notable:
        after = replace(after, changed=_next_change(tx, fleet, now))
    changes = COLUMN_SQL.removeprefix("id, ").replace(", ", " = ?, ") + " = ?"
    tx.run(f"update episodes set {changes} where id = ?", *_values(after), after.id)
    return after


def last_change(tx: Transaction, fleet: str) -> float:
    """Return the time of the newest change of a fleet's episodes, 0 without any."""
    row = tx.one("select coalesce(max(changed), 0) from episodes where fleet = ?", fleet)
    return float(row[0]) if row else 0.0


def _next_change(tx: Transaction, fleet: str, now: float) -> float:
    """Return a time after every change of the fleet; the writer's lock makes them one by one."""
    return max(now, last_change(tx, fleet) + CHANGE_STEP_S)


def _delete_surplus(tx: Transaction, where: tuple[str, str]) -> None:
    tx.run(
        f"delete from episodes {WHERE_DEVICE} and id <= (select id from episodes {WHERE_DEVICE}"
        f" order by id desc limit 1 offset {MAX_PER_DEVICE})",
        *where,
        *where,
    )


def delete_old(tx: Transaction, before: float) -> int:
    """Delete the episodes of which nothing was heard since a time; return how many."""
    return tx.run("delete from episodes where heard < ? and changed < ?", before, before)


# Curves: the scores around an episode, few enough to be kept as long as the episode.


def _draw_curves(
    tx: Transaction,
    said: EpisodeReport,
    rows: Sequence[StoredEpisode],
    scores: Callable[[float], PointTable],
) -> float | None:
    """Store the curves of episodes that are open or have just ended; return when to do so again."""
    late = said.heard - CURVE_LATE_S
    known = read_curves(tx, [row for row in rows if row.curve_span[1] >= late])
    some = [row for row in rows if row.id in known]  # not those that were one too many
    if not some:
        return None
    table = scores(min(row.curve_span[0] for row in some))
    for row in some:
        curve = pack_points(thin_points(extend_curve(known[row.id], within(table, row.curve_span))))
        tx.run("update episodes set curve = ? where id = ?", curve, row.id)
    due = [row.curve_span[1] for row in some if row.closed is not None]
    return min((at for at in due if at > said.heard), default=None)


def extend_curve(curve: PointTable, more: PointTable) -> PointTable:
    """Return a curve with the points that are newer than its last."""
    if not len(curve):
        return more
    return np.concatenate([curve, more[more[:, 0] > curve[-1, 0]]])


def within(table: PointTable, span: tuple[float, float]) -> PointTable:
    """Return the points of a span of time."""
    first, last = span
    found: PointTable = table[(table[:, 0] >= first) & (table[:, 0] <= last)]
    return found


def thin_points(table: PointTable, most: int = MAX_CURVE_POINTS) -> PointTable:
    """Return at most so many points: of each equal part of the time the highest.

    >>> thin_points(np.array([[0.0, 1, 4, 0], [1, 9, 4, 1], [2, 1, 4, 0], [9, 2, 4, 0]]), 2)[:, 0]
    array([1., 9.])
    """
    if len(table) <= most:
        return table
    at = table[:, 0] - table[0, 0]
    part = np.minimum((most * at / max(at[-1], 1e-9)).astype(int), most - 1)
    order = np.lexsort((table[:, 1], part))
    last_of_its_part = np.append(part[order][1:] != part[order][:-1], True)
    thinned: PointTable = table[order[last_of_its_part]]
    return thinned


def read_curves(tx: Transaction, episodes: Iterable[StoredEpisode]) -> dict[int, PointTable]:
    """Return the stored curve of each of some episodes."""
    ids = [episode.id for episode in episodes]
    if not ids:
        return {}
    marks = ", ".join("?" * len(ids))
    rows = tx.rows(f"select id, curve from episodes where id in ({marks})", *ids)
    return {number: unpack_points(bytes(curve or b"")) for number, curve in rows}


# What people read and write.


class EpisodeCounts(NamedTuple):
    """How many episodes of a fleet are open, and have ended without being acknowledged."""

    open: int
    ended: int


def count_episodes(tx: Transaction, fleet: str) -> EpisodeCounts:
    """Count what a person should look at."""
    counts = (
        tx.one(f"select count(*) from episodes where fleet = ? and {SECTIONS[name]}", fleet)
        for name in ("open", "ended")
    )
    return EpisodeCounts(*(row[0] if row else 0 for row in counts))


def list_changed(
    tx: Transaction,
    fleet: str,
    *,
    since: float,
    limit: int,
    open_only: bool = False,
    device: str | None = None,
) -> list[StoredEpisode]:
    """Return the episodes that changed after a time, in the order of their changes.

    Args:
        tx: The transaction to read in.
        fleet: The fleet.
        since: The time; that of the last one read gives the next ones.
        limit: The most to return.
        open_only: Leave out those that have ended.
        device: Only those of this device.
    """
    more, values = _only(device)
    more += " and ended is null" if open_only else ""
    rows = tx.rows(
        f"select {COLUMN_SQL} from episodes where fleet = ? and changed > ?{more}"
        " order by changed limit ?",
        *(fleet, since, *values, limit),
    )
    return [_from_row(row) for row in rows]


def list_section(
    tx: Transaction,
    fleet: str,
    section: Section,
    *,
    limit: int,
    before: int | None = None,
    device: str | None = None,
) -> list[StoredEpisode]:
    """Return episodes that are open, ended without being acknowledged, or neither, newest first.

    Args:
        tx: The transaction to read in.
        fleet: The fleet.
        section: "open", "ended" (and not acknowledged) or "history".
        limit: The most to return.
        before: Only those that were reported before the one of this id.
        device: Only those of this device.
    """
    more, values = _only(device)
    rows = tx.rows(
        f"select {COLUMN_SQL} from episodes where fleet = ? and id < ? and {SECTIONS[section]}"
        f"{more} order by id desc limit ?",
        *(fleet, 2**62 if before is None else before, *values, limit),
    )
    return [_from_row(row) for row in rows]


def list_between(
    tx: Transaction, fleet: str, device: str, since: float, until: float
) -> list[StoredEpisode]:
    """Return the episodes of a device that lie between two times, at least in part."""
    sql = f"select {COLUMN_SQL} from episodes where fleet = ? and device = ? and began < ?"
    rows = tx.rows(
        f"{sql} and (ended is null or ended > ?) order by began", fleet, device, until, since
    )
    return [_from_row(row) for row in rows]


def _only(device: str | None) -> tuple[str, tuple[str, ...]]:
    return ("", ()) if device is None else (" and device = ?", (device,))


def get_episode(tx: Transaction, fleet: str, number: int) -> StoredEpisode:
    """Return an episode by its id, which must be there."""
    row = tx.one(f"select {COLUMN_SQL} from episodes where fleet = ? and id = ?", fleet, number)
    if row is None:
        raise UnknownError(f"no episode {number} in {fleet}: it may have been deleted meanwhile")
    return _from_row(row)


def acknowledge(
    tx: Transaction,
    fleet: str,
    device: str,
    number: int | None,
    *,
    by: str,
    at: float,
    comment: str = "",
) -> int:
    """Note that a person has seen episodes of a device; return how many had not been seen.

    Args:
        tx: The transaction to write in.
        fleet: The fleet.
        device: The device.
        number: Which one, as the device counts; None: all of them.
        by: Who saw it.
        at: When, in Unix seconds.
        comment: What that person says of it; "" leaves an earlier comment as it is.
    """
    only, values = ("", ()) if number is None else (" and number = ?", (number,))
    rows = tx.rows(
        f"select {COLUMN_SQL} from episodes {WHERE_DEVICE} and acknowledged is null{only}",
        *(fleet, device, *values),
    )
    for row in map(_from_row, rows):
        after = replace(row, acknowledged=at, acknowledged_by=by)
        if comment:
            after = replace(after, comment=comment, commented=at, commented_by=by)
        _update(tx, fleet, row, after, at)
    return len(rows)


class UnseenEpisodes(NamedTuple):
    """Episodes of a device that ended and were not acknowledged; `open` if another one is open."""

    device: str
    numbers: list[int]
    open: bool


def list_unseen(tx: Transaction, fleet: str, until: float) -> list[UnseenEpisodes]:
    """Return what ended and was not acknowledged, of changes up to a time, device by device."""
    rows = tx.rows(
        f"select device, number from episodes where fleet = ? and {SECTIONS['ended']}"
        " and changed <= ? order by device, number",
        *(fleet, until),
    )
    opened = {device for (device,) in tx.rows(OPEN_DEVICES, fleet)}
    devices = groupby(rows, key=lambda row: row[0])
    return [
        UnseenEpisodes(device, [number for _, number in some], device in opened)
        for device, some in devices
    ]


class Remembered(NamedTuple):
    """What was last written of a device, when, and when its curves are to be drawn again."""

    notable: tuple[object, ...]
    growth: tuple[object, ...]
    at: float
    curves_due: float | None


class EpisodeService:
    """Takes episodes in from reports, lists them, and stores comments; any thread may call."""

    def __init__(
        self,
        database: Database,
        writer: Writer,
        *,
        clock: Callable[[], float],
        scores: Callable[[str, str, float], PointTable],
        keep_days: float = KEEP_DAYS,
    ) -> None:
        """Start on a database.

        Args:
            database: Where episodes are stored.
            writer: What commits changes.
            clock: The time, in Unix seconds.
            scores: Returns the scores of a fleet's device since a time.
            keep_days: For how many days an episode is kept after it was last heard of.
        """
        self._database, self._writer, self._clock = database, writer, clock
        self._scores, self._keep_s = scores, keep_days * DAY_S
        self._lock = Lock()
        self._written: OrderedDict[tuple[str, str], Remembered] = OrderedDict()
        self._writing: set[tuple[str, str]] = set()
        self._next: dict[tuple[str, str], EpisodeReport] = {}
        self._swept = clock()

    def take(self, fleet: str, latest: LatestReport | None) -> None:
        """Take in what a device reported; it is written in the background, if it is new."""
        monitor = latest.status.monitor if latest else None
        if latest is None or monitor is None:
            return
        said = EpisodeReport(fleet, latest.device, latest.status.incarnation, monitor, latest.heard)
        with self._lock:
            key = (fleet, latest.device)
            if not self._is_new(self._written.get(key), said):
                return
            if key in self._writing:
                self._next[key] = said
                return
            self._writing.add(key)
        self._write(said)

    def forget(self, fleet: str) -> None:
        """Forget a fleet that was deleted."""
        with self._lock:
            for key in [key for key in self._written if key[0] == fleet]:
                del self._written[key]

    def list_changed(
        self, fleet: str, *, since: float, limit: int, open_only: bool, device: str | None
    ) -> list[StoredEpisode]:
        """Return the episodes of a fleet that changed after a time; see `list_changed`."""
        with self._database.reading() as tx:
            fleets.get(tx, fleet)
            return list_changed(
                tx, fleet, since=since, limit=limit, open_only=open_only, device=device
            )

    def comment(self, fleet: str, number: int, words: str, caller: Caller) -> StoredEpisode:
        """Store a comment on an episode, in place of an earlier one.

        Args:
            fleet: The fleet.
            number: The id of the episode.
            words: The comment; "" removes it.
            caller: Who says so.
        """

        def change(tx: Transaction) -> StoredEpisode:
            tx.lock(f"fleet {fleet}")
            row, now, by = get_episode(tx, fleet, number), self._clock(), caller.actor
            if row.comment == words:
                return row
            said = {"episode": row.number, "comment": words}
            audit.append(tx, now, by, "comment", fleet, row.device, **said)
            after = replace(row, comment=words, commented=now, commented_by=by)
            return _update(tx, fleet, row, after, now)

        return self._writer.write(change, fleet=fleet)

    def _is_new(self, known: Remembered | None, said: EpisodeReport) -> bool:
        if known is None or known.notable != said.notable:
            return True
        drawn = known.curves_due is None or said.heard < known.curves_due
        waits = known.growth == said.growth or said.heard - known.at < GROWTH_S
        return not (drawn and waits)

    def _write(self, said: EpisodeReport) -> None:
        key = (said.fleet, said.device)
        scores = partial(self._scores, *key)

        def change(tx: Transaction) -> float | None:
            self._sweep(tx)
            return store_report(tx, said, scores)

        try:
            self._writer.submit(change, said.fleet).add_done_callback(partial(self._done, said))
        except EdgemergeError:  # the next report brings it again
            self._release(key)

    def _done(self, said: EpisodeReport, written: Future[float | None]) -> None:
        key = (said.fleet, said.device)
        if written.exception() is not None:  # the next report brings it again
            log.warning("episodes were not stored", extra={"values": {"device": said.device}})
            self._release(key)
            return
        with self._lock:
            self._written[key] = Remembered(said.notable, said.growth, said.heard, written.result())
            self._written.move_to_end(key)
            while len(self._written) > MAX_REMEMBERED:
                self._written.popitem(last=False)
            following = self._next.pop(key, None)
            if following is None:
                self._writing.discard(key)
        if following is not None:
            self._write(following)

    def _release(self, key: tuple[str, str]) -> None:
        with self._lock:
            self._next.pop(key, None)
            self._writing.discard(key)

    def _sweep(self, tx: Transaction) -> None:
        """Delete what is too old, now and then."""
        now = self._clock()
        if not 0.0 <= now - self._swept < SWEEP_S:
            self._swept = now
            delete_old(tx, now - self._keep_s)
