"""Reports in the database: written in small batches, merged with what other servers wrote.

Each device has a small row with its newest points, written often, and a large one with all of them,
written when the small one has grown. All writes happen in transactions of the writer, so what is
read there cannot change meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from edgemerge.server.db.base import WHERE_DEVICE, Transaction, upsert
from edgemerge.server.reports import model
from edgemerge.server.reports.model import (
    MAX_STORED_ALARMS,
    MAX_STORED_MERGES,
    NO_POINTS,
    LatestReport,
    MinuteSummary,
    PendingHistory,
    PointTable,
    Traffic,
    merge_points,
    pack_points,
    unpack_points,
    without_origins,
)
from edgemerge.server.schemas import ReportedAlarm, ReportedMerge, ReportedStatus

MAX_TAIL_POINTS = 120  # points in the small row
MAX_OLD_MERGE_CHARS = 4096  # characters of a merge that are kept when there is a newer one
SUMMARY_COLUMNS = "scores, mean, highest, threshold, alarms"
JOINED_COLUMNS = (
    "minute / {step} * {step}, cast(sum(scores) as bigint), sum(mean * scores) / sum(scores),"
    " max(highest), max(threshold), cast(sum(alarms) as bigint)"
)
NO_LIMIT = 2**31 - 1  # rows
MAX_ROLLED_UP = 2880  # minutes of a device at a time
TRAFFIC_COLUMNS = "pushes, pushed_bytes, pulls, pulled_bytes, last, grouped"
NO_TRAFFIC = tuple(vars(Traffic()).values())
REPORT_COLUMNS = f"fleet, device, version, at, body, points, {TRAFFIC_COLUMNS}, merged"

SELECT_REPORT = (
    f"select version, at, body, points, {TRAFFIC_COLUMNS}, merged from reports {WHERE_DEVICE}"
)

log = logging.getLogger(__name__)


class StoredStatus(BaseModel):
    """What a device said last, as it is stored."""

    model_config = ConfigDict(extra="ignore")

    every_s: float
    left: bool
    status: ReportedStatus
    alarm: ReportedAlarm | None
    merge: ReportedMerge | None


class DeviceUpdate(NamedTuple):
    """What is to be written of a device."""

    fleet: str
    device: str
    latest: LatestReport | None
    fresh: PendingHistory


class WriteResult(NamedTuple):
    """The version of a device's row after it was written; None if no such device is enrolled."""

    fleet: str
    device: str
    version: int | None


class StoredReport(NamedTuple):
    """What is stored of a device, without its minutes, alarms and merges."""

    version: int
    latest: LatestReport | None
    points: PointTable
    traffic: Traffic
    merged: int


def write_updates(tx: Transaction, updates: Sequence[DeviceUpdate]) -> list[WriteResult]:
    """Write what is new of some devices."""
    return [
        WriteResult(update.fleet, update.device, _write_device(tx, update)) for update in updates
    ]


def _write_device(tx: Transaction, update: DeviceUpdate) -> int | None:
    where, fresh = (update.fleet, update.device), update.fresh
    if tx.one(f"select 1 from devices {WHERE_DEVICE}", *where) is None:
        return None  # its fleet was deleted
    version = _write_report(tx, update)
    for minute, one in fresh.minutes.items():
        _write_minute(tx, where, minute, one)
    if fresh.alarms:
        _write_alarms(tx, where, fresh.alarms)
    if fresh.merges:
        _write_merges(tx, where, fresh.merges)
    return version


def _write_report(tx: Transaction, update: DeviceUpdate) -> int:
    where, fresh, latest = (update.fleet, update.device), update.fresh, update.latest
    row = tx.one(SELECT_REPORT, *where)
    version, at, body, known, *traffic, merged = row or (0, 0.0, "", b"", *NO_TRAFFIC, 0)
    if latest is not None and latest.heard > at:
        at, body = latest.heard, _status_json(latest)
    sums = Traffic(*traffic) + fresh.traffic
    points = pack_points(_tail_points(tx, where, merge_points(unpack_points(known), fresh.points)))
    totals = (*vars(sums).values(), merged + fresh.merged)
    values = (*where, version + 1, at, body, points, *totals)
    upsert(tx, "reports", REPORT_COLUMNS, values)
    return int(version) + 1


def _tail_points(tx: Transaction, where: tuple[str, str], tail: PointTable) -> PointTable:
    """Return the points for the small row; if they are many, move them to the large one."""
    if len(tail) <= MAX_TAIL_POINTS:
        return tail
    row = tx.one(f"select points from rings {WHERE_DEVICE}", *where)
    ring = merge_points(unpack_points(row[0]) if row else NO_POINTS, tail)
    upsert(tx, "rings", "fleet, device, points", (*where, pack_points(ring)))
    return NO_POINTS


def _write_minute(
    tx: Transaction,
    where: tuple[str, str],
    minute: int,
    more: MinuteSummary,
    *,
    table: str = "minutes",
) -> None:
    sql = f"select {SUMMARY_COLUMNS} from {table} {WHERE_DEVICE} and minute = ?"
    known = tx.one(sql, *where, minute)
    one = model.add_summaries(MinuteSummary(more.at, *known), more) if known else more
    fields = f"fleet, device, minute, {SUMMARY_COLUMNS}"
    upsert(tx, table, fields, (*where, minute, *one[1:]), key=3)


def _write_alarms(tx: Transaction, where: tuple[str, str], alarms: Sequence[ReportedAlarm]) -> None:
    for alarm in alarms:
        values = (*where, alarm.at, alarm.sample, alarm.model_dump_json())
        upsert(tx, "alarms", "fleet, device, at, sample, body", values, key=4)
    tx.run(
        f"delete from alarms {WHERE_DEVICE} and (at, sample) < (select at, sample "
        f"from alarms {WHERE_DEVICE}"
        f" order by at desc, sample desc limit 1 offset {MAX_STORED_ALARMS - 1})",
        *where,
        *where,
    )


def _write_merges(tx: Transaction, where: tuple[str, str], merges: Sequence[ReportedMerge]) -> None:
    last = tx.one(f"select body from merges {WHERE_DEVICE} order by at desc limit 1", *where)
    before = [ReportedMerge.model_validate_json(last[0])] if last else []
    *older, newest = sorted([*before, *merges], key=lambda merge: merge.at)
    for merge in [*map(_shortened, older), newest]:
        values = (*where, merge.at, merge.model_dump_json())
        upsert(tx, "merges", "fleet, device, at, body", values, key=3)
    tx.run(
        f"delete from merges {WHERE_DEVICE} and at < (select at from merges {WHERE_DEVICE}"
        f" order by at desc limit 1 offset {MAX_STORED_MERGES - 1})",
        *where,
        *where,
    )


def report_versions(tx: Transaction) -> dict[tuple[str, str], int]:
    """Return the version of every device's row."""
    rows = tx.rows("select fleet, device, version from reports")
    return {(fleet, device): version for fleet, device, version in rows}


def read_report(tx: Transaction, fleet: str, device: str) -> StoredReport | None:
    """Return what is stored of a device."""
    where = (fleet, device)
    row = tx.one(SELECT_REPORT, *where)
    if row is None:
        return None
    version, at, body, tail, *traffic, merged = row
    ring = tx.one(f"select points from rings {WHERE_DEVICE}", *where)
    table = merge_points(unpack_points(ring[0]) if ring else NO_POINTS, unpack_points(tail))
    return StoredReport(version, _latest_report(device, at, body), table, Traffic(*traffic), merged)


def read_minutes(
    tx: Transaction,
    where: tuple[str, str],
    since: int,
    until: int,
    *,
    table: str = "minutes",
    step: int = 1,
    limit: int = NO_LIMIT,
) -> dict[int, MinuteSummary]:
    """Return the minutes of a device, in order, by their numbers.

    Args:
        tx: A transaction.
        where: The fleet and the device.
        since: The first minute.
        until: The minute after the last.
        table: "minutes", or "quarters" of an hour: these have the number of their first minute.
        step: How many minutes are joined to one, which has the number of the first; the limit
            is the highest then.
        limit: The most that are returned, the oldest.
    """
    columns = f"minute, {SUMMARY_COLUMNS}" if step == 1 else JOINED_COLUMNS.format(step=step)
    rows = tx.rows(
        f"select {columns} from {table} {WHERE_DEVICE} and minute >= ? and minute < ?"
        f"{'' if step == 1 else ' group by 1'} order by 1 limit ?",
        *(*where, since, until, limit),
    )
    return {row[0]: MinuteSummary(row[0] * model.MINUTE_S, *row[1:]) for row in rows}


def has_older(tx: Transaction, where: tuple[str, str], before: int, table: str) -> bool:
    """Return whether there is a minute, or a quarter of an hour, before one."""
    sql = f"select 1 from {table} {WHERE_DEVICE} and minute < ? limit 1"
    return tx.one(sql, *where, before) is not None


def roll_up(tx: Transaction, where: tuple[str, str], before: int) -> None:
    """Add minutes before one to their quarters of an hour, and delete them; at most a few days."""
    found = read_minutes(tx, where, 0, before, limit=MAX_ROLLED_UP)
    step_s = model.QUARTER_MINUTES * model.MINUTE_S
    for each in model.join_summaries(found.values(), step_s):
        _write_minute(tx, where, model.minute_of(each.at), each, table="quarters")
    if found:
        last = max(found)
        tx.run(f"delete from minutes {WHERE_DEVICE} and minute <= ?", *where, last)


def drop_quarters(tx: Transaction, where: tuple[str, str], before: int) -> None:
    """Delete quarters of an hour before a minute."""
    tx.run(f"delete from quarters {WHERE_DEVICE} and minute < ?", *where, before)


def read_alarms(tx: Transaction, fleet: str, device: str, limit: int) -> list[ReportedAlarm]:
    """Return the newest alarms of a device."""
    sql = f"select body from alarms {WHERE_DEVICE} order by at desc, sample desc limit ?"
    return [
        ReportedAlarm.model_validate_json(body) for (body,) in tx.rows(sql, fleet, device, limit)
    ]


def read_merges(tx: Transaction, fleet: str, device: str, limit: int) -> list[ReportedMerge]:
    """Return the newest merges of a device."""
    sql = f"select body from merges {WHERE_DEVICE} order by at desc limit ?"
    return [
        ReportedMerge.model_validate_json(body) for (body,) in tx.rows(sql, fleet, device, limit)
    ]


def _status_json(latest: LatestReport) -> str:
    return StoredStatus(
        **{name: getattr(latest, name) for name in StoredStatus.model_fields}
    ).model_dump_json()


def _latest_report(device: str, at: float, body: str) -> LatestReport | None:
    if not body:
        return None  # it has pushed or pulled, and never reported
    try:
        stored = StoredStatus.model_validate_json(body)
    except ValidationError:
        log.warning("what a device reported is damaged", extra={"values": {"device": device}})
        return None
    return LatestReport(device=device, heard=at, points=(), seq=0, **dict(stored))


def _shortened(merge: ReportedMerge) -> ReportedMerge:
    return merge if len(merge.model_dump_json()) <= MAX_OLD_MERGE_CHARS else without_origins(merge)
