"""Reports in memory, bounded, and the thread that writes them to the database."""

from __future__ import annotations

import heapq
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from math import inf
from threading import Event, Lock, Thread
from time import gmtime, monotonic, strftime
from typing import NamedTuple, TypeVar

import numpy as np

from edgemerge.core.errors import EdgemergeError
from edgemerge.server.db.base import Database, Transaction, Writer
from edgemerge.server.reports import storage
from edgemerge.server.reports.model import (
    KEPT_DAYS,
    MAX_STORED_ALARMS,
    MAX_STORED_MERGES,
    MINUTE_DAYS,
    MINUTE_S,
    NO_POINTS,
    QUARTER_MINUTES,
    LatestReport,
    MinuteSummary,
    PendingHistory,
    PointSequence,
    PointTable,
    Traffic,
    chart_step_s,
    device_state,
    drop_future,
    is_reporting,
    join_summaries,
    last_contact,
    merge_minutes,
    merge_points,
    minute_of,
    new_points,
    to_server_clock,
    without_origins,
)
from edgemerge.server.reports.storage import DeviceUpdate, StoredReport, WriteResult
from edgemerge.server.schemas import (
    MAX_MOMENT,
    ReportedAlarm,
    ReportedMerge,
    ReportedStatus,
    ReportRequest,
)

MAX_RECORDS = 10_000  # devices
TARGET_REPORTS_PER_S = 50.0  # reports of all devices together
MAX_CHART_POINTS = 750  # of one device in a chart
RATE_MAX_AGE_S = 1.0  # for which a count of those that report holds


class DeviceId(NamedTuple):
    """A device and its fleet."""

    fleet: str
    device: str


@dataclass
class DeviceRecord:
    """What is remembered of a device; of that, `fresh` waits and `in_flight` is being written."""

    points: PointTable = field(default_factory=lambda: NO_POINTS)
    latest: LatestReport | None = None
    traffic: Traffic = field(default_factory=Traffic)
    merged: int = 0
    version: int = 0  # of its row, if all that is in there is known here
    fresh: PendingHistory | None = None
    in_flight: PendingHistory | None = None

    @property
    def last_events(self) -> tuple[ReportedAlarm | None, ReportedMerge | None]:
        """The newest alarm and the newest merge, as far as there are any."""
        return (self.latest.alarm, self.latest.merge) if self.latest else (None, None)

    @property
    def unwritten(self) -> list[PendingHistory]:
        """What the database may not have yet, oldest first."""
        return [fresh for fresh in (self.in_flight, self.fresh) if fresh is not None]

    def is_due(self, minute: int) -> bool:
        """Return whether something can be written before this minute is over."""
        return self.in_flight is None and self.fresh is not None and self.fresh.is_due(minute)


class DeviceRecords:
    """The records of all devices; any thread may call, and none is held up for long."""

    def __init__(self, most: int = MAX_RECORDS) -> None:
        """Start with none."""
        # The longest unheard first.
        self._records: OrderedDict[DeviceId, DeviceRecord] = OrderedDict()
        self._waiting: dict[DeviceId, None] = {}
        self._lock, self._most = Lock(), most
        self._every, self._counted = 1.0, -inf
        self.seq = 0

    def __len__(self) -> int:
        return len(self._records)

    def take(self, name: DeviceId, report: ReportRequest, now: float) -> None:
        """Remember what a device reports."""
        received = to_server_clock(report, now)
        with self._lock:
            record = self._record(name)
            record.points = drop_future(record.points, now)
            last_alarm, last_merge = record.last_events
            merge = received.merge
            if merge is not None and last_merge is not None and last_merge.digest == merge.digest:
                merge = None  # devices repeat the last merge when they start
            unknown = new_points(record.points, received.points)
            self._wait(name, record, PendingHistory.of(received, unknown, merge))
            record.points = merge_points(record.points, received.points)
            record.merged += merge is not None
            seen = LatestReport(
                device=name.device,
                heard=now,
                every_s=self._every_s(now),
                left=received.left,
                status=received.status,
                points=(),
                alarm=max(received.alarms, key=lambda alarm: alarm.at, default=last_alarm),
                merge=without_origins(merge) if merge else last_merge,
                seq=0,
            )
            self._show(record, seen)

    def count(self, name: DeviceId, traffic: Traffic) -> None:
        """Count what a device pushed or pulled."""
        with self._lock:
            record = self._record(name)
            record.traffic += traffic
            self._wait(name, record, PendingHistory(since=traffic.last, traffic=traffic))

    def every_s(self, now: float) -> float:
        """Return how often each device may report, so that all together are not too many."""
        with self._lock:
            return self._every_s(now)

    def find(self, name: DeviceId) -> DeviceRecord:
        """Return a copy of what is remembered of a device: nothing, if it is not known."""
        with self._lock:
            return replace(self._records.get(name) or DeviceRecord())

    def every(self) -> dict[DeviceId, DeviceRecord]:
        """Return all records, to be read only."""
        with self._lock:
            return dict(self._records)

    def of(self, fleet: str) -> dict[str, DeviceRecord]:
        """Return the records of a fleet, to be read only."""
        with self._lock:
            return {name.device: one for name, one in self._records.items() if name.fleet == fleet}

    def collect(self, limit: int, now: float, *, over: bool = False) -> list[DeviceUpdate]:
        """Return what some devices have to be written; with `over`, as if this minute were."""
        minute = minute_of(now) + over
        with self._lock:
            due = (name for name in self._waiting if self._records[name].is_due(minute))
            return [self._part(name, minute, now) for name in sorted(islice(due, limit))]

    def written(self, results: Iterable[WriteResult]) -> None:
        """Remember what is in the database, and forget devices that are unknown there."""
        with self._lock:
            for done in results:
                name = DeviceId(done.fleet, done.device)
                record = self._records.get(name)
                if record is None:
                    continue
                if done.version is None:
                    self._drop(name)
                record.in_flight = None
                if done.version == record.version + 1:  # else another server wrote meanwhile
                    record.version = done.version

    def restore_pending(self, updates: Iterable[DeviceUpdate]) -> None:
        """Keep what could not be written for later, as far as the bounds allow."""
        with self._lock:
            for update in updates:
                name = DeviceId(update.fleet, update.device)
                record = self._records.get(name)
                if record is not None and record.in_flight is update.fresh:
                    record.in_flight = None
                    record.fresh = update.fresh + record.fresh if record.fresh else update.fresh
                    self._waiting[name] = None

    def learn(self, name: DeviceId, row: StoredReport) -> None:
        """Take in what is in the database; there may be more in it than fits here."""
        with self._lock:
            if name not in self._records and len(self._records) >= self._most:
                return
            record = self._record(name)
            record.traffic = sum((fresh.traffic for fresh in record.unwritten), row.traffic)
            record.merged = row.merged + sum(fresh.merged for fresh in record.unwritten)
            record.points, record.version = merge_points(record.points, row.points), row.version
            found = [one for one in (row.latest, record.latest) if one is not None]
            if found:
                self._show(record, max(found, key=lambda one: one.heard))

    def versions(self) -> dict[DeviceId, int]:
        """Return the version of each row as far as it is known here."""
        with self._lock:
            return {name: record.version for name, record in self._records.items()}

    def forget(self, fleet: str) -> None:
        """Forget all devices of a fleet."""
        with self._lock:
            for name in [name for name in self._records if name.fleet == fleet]:
                self._drop(name)

    def oldest(self) -> float | None:
        """Return since when something waits to be written."""
        with self._lock:
            waiting = (fresh for one in self._records.values() for fresh in one.unwritten)
            return min((fresh.since for fresh in waiting), default=None)

    def _record(self, name: DeviceId) -> DeviceRecord:
        record = self._records.get(name)
        if record is None:
            if len(self._records) >= self._most:
                self._drop(next(iter(self._records)))
            record = self._records[name] = DeviceRecord()
        self._records.move_to_end(name)
        return record

    def _drop(self, name: DeviceId) -> None:
        del self._records[name]
        self._waiting.pop(name, None)

    def _wait(self, name: DeviceId, record: DeviceRecord, fresh: PendingHistory) -> None:
        record.fresh = record.fresh + fresh if record.fresh else fresh
        self._waiting[name] = None

    def _part(self, name: DeviceId, minute: int, now: float) -> DeviceUpdate:
        record = self._records[name]
        assert record.fresh is not None  # noqa: S101 - it is due
        record.in_flight, record.fresh = record.fresh.parted(minute, now)
        if record.fresh is None:
            del self._waiting[name]
        return DeviceUpdate(name.fleet, name.device, record.latest, record.in_flight)

    def _show(self, record: DeviceRecord, latest: LatestReport) -> None:
        self.seq += 1
        record.latest = replace(latest, points=PointSequence(record.points), seq=self.seq)

    def _every_s(self, now: float) -> float:
        if not 0.0 <= now - self._counted < RATE_MAX_AGE_S:
            some = sum(is_reporting(record.latest, now) for record in self._records.values())
            self._every, self._counted = max(1.0, some / TARGET_REPORTS_PER_S), now
        return self._every


# The history writer: a thread that writes the history down while the writer is idle.
#
# On the way it reads what other servers on the same database wrote, and deletes what is too old.

SHARED_INTERVAL_S = 5.0  # where several servers share a database and read what the others wrote
SINGLE_INTERVAL_S = 60.0  # where one has it for itself: a disk should not be worn out for pictures
DEVICES_PER_WRITE = 32  # devices in one change
MAX_WAIT_S = 10.0  # after which one change is made although others wait
QUEUE_POLL_S = 0.02  # how often to check whether another write waits
DISK_FULL_PAUSE_S = 60.0  # for which nothing is written after the disk was full
CLOSE_TIMEOUT_S = 5.0
FIRST_KEY = ("", "")

T = TypeVar("T")
log = logging.getLogger(__name__)


class HistoryWriter:
    """Brings records and database together, every few seconds."""

    def __init__(
        self,
        records: DeviceRecords,
        database: Database,
        writer: Writer,
        *,
        clock: Callable[[], float],
        every_s: float = SHARED_INTERVAL_S,
        kept_days: float = KEPT_DAYS,
    ) -> None:
        """Read what is there, and start the thread; older than `kept_days` is deleted."""
        self._records, self._database, self._writer, self._clock = records, database, writer, clock
        self._fleets: dict[str, float] = {}
        self._swept, self._every_s = FIRST_KEY, every_s
        self._kept_days = kept_days
        self._troubled = False
        self._stopping, self._turn = Event(), Lock()
        self._guarded(self.read)
        self._thread = Thread(target=self._work, name="history-writer", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write what is left, within a bounded time, and stop."""
        self._stopping.set()
        self._thread.join(timeout=CLOSE_TIMEOUT_S)
        if not self._thread.is_alive():
            self._guarded(self.flush)

    def forget(self, fleet: str) -> None:
        """Forget a fleet that was deleted here."""
        self._fleets.pop(fleet, None)  # one of the same name that is made now is another
        self._records.forget(fleet)

    def flush(self) -> None:
        """Write all that waits now, also the minute that has only begun."""
        end = monotonic() + CLOSE_TIMEOUT_S
        while monotonic() < end and self._written(over=True, timeout_s=CLOSE_TIMEOUT_S):
            pass

    def write(self) -> None:
        """Write what waits, in small changes; each when no other change waits, if it can be."""
        while self._may_write() and self._written(over=False):
            pass

    def read(self) -> None:
        """Take in what other servers wrote, and forget fleets that are gone."""
        with self._database.reading() as tx:
            found: dict[str, float] = dict(tx.rows("select fleet, created from fleets"))
            for fleet, created in self._fleets.items():
                if found.get(fleet) != created:  # deleted by another server, or made anew
                    self._records.forget(fleet)
            self._fleets = found
            known = self._records.versions()
            for key, version in storage.report_versions(tx).items():
                name = DeviceId(*key)
                row = None if known.get(name) == version else storage.read_report(tx, *name)
                if row is not None:
                    self._records.learn(name, row)

    def sweep(self) -> None:
        """Join minutes of the next few devices to quarters of an hour, and delete old ones.

        Also of devices that are silent.
        """
        now = self._clock()
        oldest = first_kept(now, self._kept_days)
        detailed = max(oldest, first_kept(now, MINUTE_DAYS))
        with self._database.reading() as tx:
            sql = "select fleet, device from reports where (fleet, device) > (?, ?)"
            some = tx.rows(f"{sql} order by fleet, device limit {DEVICES_PER_WRITE}", *self._swept)
            joined = [key for key in some if storage.has_older(tx, key, detailed, "minutes")]
            old = [key for key in some if storage.has_older(tx, key, oldest, "quarters")]
        self._swept = some[-1] if some else FIRST_KEY
        if not (joined or old) or not self._may_write():
            return

        def change(tx: Transaction, fleet: str) -> None:
            for where in joined:
                if where[0] == fleet:
                    storage.roll_up(tx, where, detailed)
            for where in {*joined, *old}:
                if where[0] == fleet:
                    storage.drop_quarters(tx, where, oldest)

        for fleet in sorted({key[0] for key in (*joined, *old)}):
            self._change(partial(change, fleet=fleet), fleet)

    def pause_s(self) -> float:
        """Return how long to wait: a large fleet reports once, so rows side by side go together."""
        reporting = self._records.every_s(self._clock())
        return reporting if reporting > max(SHARED_INTERVAL_S, self._every_s) else self._every_s

    def _work(self) -> None:
        while not self._stopping.wait(self.pause_s()):
            for step in (self.write, self.read, self.sweep):
                self._guarded(step)

    def _guarded(self, step: Callable[[], None]) -> None:
        """Do a step; trouble with the database is logged when it begins and when it is over."""
        try:
            step()
        except EdgemergeError as error:
            if not self._troubled:
                log.warning("history stays in memory", extra={"values": {"problem": str(error)}})
            self._troubled = True
        except Exception:
            log.exception("history could not be kept")

    def _may_write(self) -> bool:
        """Wait for a moment in which no other change waits, but not for ever."""
        if monotonic() - self._writer.disk_full_at < DISK_FULL_PAUSE_S:
            return False
        end = monotonic() + MAX_WAIT_S
        while self._writer.waiting and monotonic() < end:
            if self._stopping.wait(QUEUE_POLL_S):
                return False
        return not self._stopping.is_set()

    def _written(self, *, over: bool, timeout_s: float = 30.0) -> bool:
        """Write what some devices have; False if there was nothing."""
        with self._turn:
            updates = self._records.collect(DEVICES_PER_WRITE, self._clock(), over=over)
            try:
                for fleet in sorted({update.fleet for update in updates}):
                    some = [update for update in updates if update.fleet == fleet]
                    write = partial(storage.write_updates, updates=some)
                    self._records.written(self._change(write, fleet, timeout_s))
            finally:
                self._records.restore_pending(updates)  # of what was written nothing is left
        return bool(updates)

    def _change(self, change: Callable[[Transaction], T], fleet: str, timeout_s: float = 30.0) -> T:
        found = self._writer.write(change, timeout_s, fleet=fleet)
        if self._troubled:
            log.info("history is written again")
        self._troubled = False
        return found


CSV_COLUMNS = ("device", "time_utc", "scores", "mean", "highest", "limit", "alarms")


def csv_line(device: str, one: MinuteSummary) -> str:
    r"""Return a line for spreadsheets: no cell can be taken for a formula.

    >>> csv_line("pump-1", MinuteSummary(0.0, 60, 1.0, 4.5, None, 2))
    'pump-1,1970-01-01 00:00:00,60,1,4.5,,2\r\n'
    >>> csv_line("=1+1", MinuteSummary(0.0, 1, 1.0, 1e300, 4.0, 0)).partition(",")[0]
    "'=1+1"
    """
    name = device if device[:1].isalnum() else f"'{device}"
    at = strftime("%Y-%m-%d %H:%M:%S", gmtime(one.at))
    limit = "" if one.threshold is None else f"{one.threshold:.6g}"
    figures = f"{one.scores},{one.mean:.6g},{one.highest:.6g},{limit},{one.alarms}"
    return f"{name},{at},{figures}\r\n"


def first_kept(now: float, days: float) -> int:
    """Return the first minute of the last so many days, at the beginning of a quarter."""
    return minute_of(now - 86_400.0 * days) // QUARTER_MINUTES * QUARTER_MINUTES


class History:
    """The newest of each device in memory, and its past in the database; any thread may call."""

    def __init__(
        self,
        database: Database,
        writer: Writer,
        *,
        clock: Callable[[], float],
        every_s: float | None = None,
        kept_days: float = KEPT_DAYS,
    ) -> None:
        """Start with what is in the database.

        Args:
            database: Where the past is stored.
            writer: What commits changes.
            clock: The time in Unix seconds.
            every_s: How often to write, in seconds; None (the default): as suits the database.
            kept_days: For how many days scores are kept.
        """
        often = SHARED_INTERVAL_S if database.is_shared else SINGLE_INTERVAL_S
        self._database, self._clock, self.kept_days = database, clock, kept_days
        self._records = DeviceRecords()
        self._history_writer = HistoryWriter(
            self._records,
            database,
            writer,
            clock=clock,
            every_s=every_s or often,
            kept_days=kept_days,
        )

    def close(self) -> None:
        """Write what is left."""
        self._history_writer.close()

    def take(self, fleet: str, device: str, report: ReportRequest, now: float) -> None:
        """Take a report in; nothing is waited for."""
        self._records.take(DeviceId(fleet, device), report, now)

    def every_s(self, now: float) -> float:
        """Return how often each device may report, so that all together are not too many."""
        return self._records.every_s(now)

    @property
    def seq(self) -> int:
        """The number of the newest change."""
        return self._records.seq

    def latest_reports(self, fleet: str) -> dict[str, LatestReport]:
        """Return the newest of every device of a fleet that has ever reported."""
        records = self._records.of(fleet)
        return {name: one.latest for name, one in records.items() if one.latest is not None}

    def latest(self, fleet: str, device: str) -> LatestReport | None:
        """Return the newest of a device."""
        return self._records.find(DeviceId(fleet, device)).latest

    def minutes(
        self, fleet: str, device: str, *, since: float, until: float = MAX_MOMENT, step: int = 1
    ) -> list[MinuteSummary]:
        """Return the minutes of a device, oldest first; those of some days ago in quarters.

        A minute that is being written at this very moment may be missing, or be counted twice.

        Args:
            fleet: The fleet.
            device: The device.
            since: From the minute of this time on, in Unix seconds, as far as it is kept.
            until: Those that begin before this time.
            step: How many minutes are joined to one.
        """
        where, now = (fleet, device), self._clock()
        first = max(minute_of(since), first_kept(now, self.kept_days))
        end = -minute_of(-until)  # the minute in which it lies, unless it begins then, counts

        def read(tx: Transaction) -> tuple[dict[int, MinuteSummary], dict[int, MinuteSummary]]:
            begin = first // QUARTER_MINUTES * QUARTER_MINUTES
            older = storage.read_minutes(tx, where, begin, end, table="quarters", step=step)
            return older, storage.read_minutes(tx, where, first, end, step=step)

        older, stored = self._stored(read) or ({}, {})
        for fresh in self._unwritten(fleet, device):
            some = {minute: one for minute, one in fresh.minutes.items() if first <= minute < end}
            joined = join_summaries((some[minute] for minute in sorted(some)), step * MINUTE_S)
            stored = merge_minutes(stored, ((minute_of(one.at), one) for one in joined))
        found = [stored[minute] for minute in sorted(stored)]
        return list(heapq.merge(older.values(), found, key=lambda one: one.at))

    def scores(
        self, fleet: str, device: str, *, since: float, until: float, most: int = MAX_CHART_POINTS
    ) -> tuple[float, list[MinuteSummary]]:
        """Return a step in seconds, and what was scored in each step that has scores.

        Args:
            fleet: The fleet.
            device: The device.
            since: The beginning, in Unix seconds; what is no longer kept is left out.
            until: The end.
            most: The most steps; the step is chosen so that there are no more. In each, the highest
                score stays the highest.
        """
        now = self._clock()
        since, until = max(since, now - 86_400.0 * self.kept_days), min(until, now + MINUTE_S)
        step_s = chart_step_s(max(until - since, MINUTE_S), most - 1)  # the first may begin earlier
        if minute_of(since) < first_kept(now, min(MINUTE_DAYS, self.kept_days)):
            step_s = max(step_s, QUARTER_MINUTES * MINUTE_S)
        begin, step = since // step_s * step_s, round(step_s / MINUTE_S)
        found = self.minutes(fleet, device, since=begin, until=until, step=step)
        return step_s, join_summaries(found, step_s)

    def recent_scores(self, fleet: str, device: str, since: float) -> PointTable:
        """Return the scores of a device since a time: the newest one by one, older by minutes."""
        points = self._records.find(DeviceId(fleet, device)).points
        first = points[0, 0] if len(points) else inf
        rows = [
            (one.at + MINUTE_S / 2, one.highest, one.threshold, one.alarms > 0)
            for one in (self.minutes(fleet, device, since=since) if since < first else ())
            if one.at + MINUTE_S <= first
        ]
        return np.concatenate([np.array(rows, np.float64).reshape(-1, 4), points])

    def csv(self, fleet: str, device: str, *, since: float, until: float) -> Iterator[str]:
        """Return the minutes of a device as lines of CSV, a day at a time; nothing is held open.

        Args:
            fleet: The fleet.
            device: The device.
            since: The beginning, in Unix seconds; what is no longer kept is left out.
            until: The end.
        """
        yield f"{','.join(CSV_COLUMNS)}\r\n"
        now = self._clock()
        begin, end = first_kept(now, self.kept_days) * MINUTE_S, min(until, now + MINUTE_S)
        begin = max(begin, since // MINUTE_S * MINUTE_S)
        while begin < end:
            after = min(begin + 86_400.0, end)
            found = self.minutes(fleet, device, since=begin, until=after)
            # A quarter that began before is of the day before.
            kept = [one for one in found if one.at >= begin]
            yield "".join(csv_line(device, one) for one in kept)
            begin = after

    def alarms(
        self, fleet: str, device: str, *, limit: int = MAX_STORED_ALARMS
    ) -> list[ReportedAlarm]:
        """Return the newest alarms of a device, newest first."""
        fresh = [alarm for some in self._unwritten(fleet, device) for alarm in some.alarms]
        stored = self._stored(lambda tx: storage.read_alarms(tx, fleet, device, limit)) or []
        both = {(alarm.at, alarm.sample): alarm for alarm in [*stored, *fresh]}
        return [both[key] for key in sorted(both, reverse=True)][: min(limit, MAX_STORED_ALARMS)]

    def merges(
        self, fleet: str, device: str, *, limit: int = MAX_STORED_MERGES
    ) -> list[ReportedMerge]:
        """Return the newest merges of a device, newest first; that one has all its origins.

        Of those before it a long list of origins is left out.
        """
        fresh = [merge for some in self._unwritten(fleet, device) for merge in some.merges]
        stored = self._stored(lambda tx: storage.read_merges(tx, fleet, device, limit)) or []
        both = {merge.at: merge for merge in [*fresh, *stored]}
        return [both[at] for at in sorted(both, reverse=True)][: min(limit, MAX_STORED_MERGES)]

    def pushed(self, fleet: str, device: str, size: int) -> None:
        """Count a contribution that was kept, and its bytes."""
        traffic = Traffic(pushes=1, pushed_bytes=size, last=self._clock())
        self._records.count(DeviceId(fleet, device), traffic)

    def pulled(self, fleet: str, device: str, size: int, *, grouped: bool) -> None:
        """Count sums that were pulled, and their bytes: 0 if the device had them already."""
        traffic = Traffic(pulls=1, pulled_bytes=size, last=self._clock(), grouped=grouped)
        self._records.count(DeviceId(fleet, device), traffic)

    def last_pull_was_grouped(self, fleet: str, device: str) -> bool | None:
        """Return whether a device asked for patterns last: a bank does, a detector does not."""
        return self._records.find(DeviceId(fleet, device)).traffic.grouped

    def traffic(self, fleet: str) -> dict[str, Traffic]:
        """Return what every device of a fleet has pushed and pulled."""
        return {name: one.traffic for name, one in self._records.of(fleet).items()}

    def merged(self, fleet: str) -> int:
        """Count the merges that a fleet has reported, ever."""
        return sum(one.merged for one in self._records.of(fleet).values())

    def forget(self, fleet: str) -> None:
        """Forget a fleet that was deleted."""
        self._history_writer.forget(fleet)

    def all_records(self) -> dict[DeviceId, DeviceRecord]:
        """Return what is remembered of all devices of all fleets, to be read only."""
        return self._records.every()

    def flush(self) -> None:
        """Write all that waits now."""
        self._history_writer.flush()

    def refresh(self) -> None:
        """Take in now what other servers on the same database wrote."""
        self._history_writer.read()

    def oldest_unwritten_s(self) -> float:
        """Return for how long the oldest that is not in the database has waited."""
        oldest = self._records.oldest()
        return 0.0 if oldest is None else max(0.0, self._clock() - oldest)

    def _unwritten(self, fleet: str, device: str) -> list[PendingHistory]:
        return self._records.find(DeviceId(fleet, device)).unwritten

    def _stored(self, read: Callable[[Transaction], T]) -> T | None:
        """Read what is stored; if the database is broken, there is what is in memory."""
        try:
            with self._database.reading() as tx:
                return read(tx)
        except EdgemergeError as error:
            log.warning("history cannot be read", extra={"values": {"problem": str(error)}})
            return None


def count_device_states(tx: Transaction, history: History, now: float) -> Counter[str]:
    """Count the devices of all fleets by their state."""
    found: Counter[str] = Counter()
    records, unknown = history.all_records(), DeviceRecord()
    for fleet, device, seen, revoked in tx.rows("select fleet, device, seen, revoked from devices"):
        record = records.get(DeviceId(fleet, device), unknown)
        last = last_contact(seen, record.traffic)
        found[device_state(now, latest=record.latest, seen=last, revoked=revoked)] += 1
    return found


def reported_statuses(tx: Transaction, history: History) -> list[ReportedStatus]:
    """Return the last status of all devices, those that were revoked or have left left out."""
    enrolled = set(tx.rows("select fleet, device from devices where revoked is null"))
    records = history.all_records().items()
    latest = (one.latest for name, one in records if tuple(name) in enrolled)
    return [one.status for one in latest if one is not None]


class DeviceCondition(NamedTuple):
    """How one device is, for metrics: whether it is in alarm, is online, and its problems."""

    fleet: str
    device: str
    alarm: bool
    online: bool
    problems: int


def device_conditions(tx: Transaction, history: History, now: float) -> list[DeviceCondition]:
    """Return how each device is that was not revoked."""
    records, unknown = history.all_records(), DeviceRecord()
    sql = "select fleet, device from devices where revoked is null"
    found = []
    for fleet, device in tx.rows(sql):
        latest = records.get(DeviceId(fleet, device), unknown).latest
        status = latest.status if latest else None
        monitor = status.monitor if status else None
        online = device_state(now, latest=latest, seen=None, revoked=None) == "online"
        found.append(
            DeviceCondition(
                fleet,
                device,
                alarm=bool(monitor and monitor.open_episodes),
                online=online,
                problems=len(status.problems) if status else 0,
            )
        )
    return found
