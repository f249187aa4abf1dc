"""Rows of the history: written in small batches, united with what other servers wrote.

A device has a small row, with its newest points, that is written often, and a large one, with all
of them, that is written when the small one has grown. All of it happens in transactions of the
writer, one after the other over all servers, so what is read there cannot change meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from edgemerge.server.reports import minutes
from edgemerge.server.reports.arriving import without_origins
from edgemerge.server.reports.fresh import ALARMS, MERGES, Fresh
from edgemerge.server.reports.glimpses import Glimpse, Minute, Traffic
from edgemerge.server.reports.points import NONE, Table, pack, unite, unpack
from edgemerge.server.reports.report_forms import AlarmAsked, MergeAsked, StatusAsked
from edgemerge.server.store.database import Transaction

TAIL = 120  # points in the small row
SMALL = 4096  # characters of a merge that are kept when there is a newer one
NAMED = "where fleet = ? and device = ?"
TRAFFIC = "pushes, pushed_bytes, pulls, pulled_bytes, last, grouped"
NOTHING = tuple(vars(Traffic()).values())
FIELDS = f"fleet, device, version, at, body, points, {TRAFFIC}, merged"

log = logging.getLogger(__name__)


class Said(BaseModel):
    """What a device said last, as it is stored."""

    model_config = ConfigDict(extra="ignore")

    every_s: float
    left: bool
    status: StatusAsked
    alarm: AlarmAsked | None
    merge: MergeAsked | None


class Sheet(NamedTuple):
    """What is to be written of a device."""

    fleet: str
    device: str
    glimpse: Glimpse | None
    fresh: Fresh


class Written(NamedTuple):
    """The version of a device's row after it was written; None if no such device is enrolled."""

    fleet: str
    device: str
    version: int | None


class Row(NamedTuple):
    """What is stored of a device, without its minutes, alarms and merges."""

    version: int
    glimpse: Glimpse | None
    points: Table
    traffic: Traffic
    merged: int


def write(tx: Transaction, sheets: Sequence[Sheet]) -> list[Written]:
    """Write what is new of some devices."""
    return [Written(sheet.fleet, sheet.device, _write(tx, sheet)) for sheet in sheets]


def _write(tx: Transaction, sheet: Sheet) -> int | None:
    where, fresh = (sheet.fleet, sheet.device), sheet.fresh
    if tx.one(f"select 1 from devices {NAMED}", *where) is None:
        return None  # its fleet was deleted
    version = _write_report(tx, sheet)
    for minute, one in fresh.minutes.items():
        _write_minute(tx, where, minute, one)
    if fresh.alarms:
        _write_alarms(tx, where, fresh.alarms)
    if fresh.merges:
        _write_merges(tx, where, fresh.merges)
    return version


def _write_report(tx: Transaction, sheet: Sheet) -> int:
    where, fresh, glimpse = (sheet.fleet, sheet.device), sheet.fresh, sheet.glimpse
    row = tx.one(
        f"select version, at, body, points, {TRAFFIC}, merged from reports {NAMED}", *where
    )
    version, at, body, known, *traffic, merged = row or (0, 0.0, "", b"", *NOTHING, 0)
    if glimpse is not None and glimpse.heard > at:
        at, body = glimpse.heard, _body(glimpse)
    sums = Traffic(*traffic) + fresh.traffic
    points = pack(_points(tx, where, unite(unpack(known), fresh.points)))
    values = (*where, version + 1, at, body, points, *vars(sums).values())
    values = (*values, merged + fresh.merged)
    _replace(tx, "reports", FIELDS, values)
    return int(version) + 1


def _points(tx: Transaction, where: tuple[str, str], tail: Table) -> Table:
    """Give the points for the small row; if they are many, move them to the large one."""
    if len(tail) <= TAIL:
        return tail
    row = tx.one(f"select points from rings {NAMED}", *where)
    ring = unite(unpack(row[0]) if row else NONE, tail)
    _replace(tx, "rings", "fleet, device, points", (*where, pack(ring)))
    return NONE


def _write_minute(tx: Transaction, where: tuple[str, str], minute: int, more: Minute) -> None:
    known = tx.one(
        f"select scores, mean, highest, threshold, alarms from minutes {NAMED} and minute = ?",
        *where,
        minute,
    )
    one = minutes.add(Minute(more.at, *known), more) if known else more
    fields = "fleet, device, minute, scores, mean, highest, threshold, alarms"
    _replace(tx, "minutes", fields, (*where, minute, *one[1:]), key=3)


def _write_alarms(tx: Transaction, where: tuple[str, str], alarms: Sequence[AlarmAsked]) -> None:
    for alarm in alarms:
        values = (*where, alarm.at, alarm.sample, alarm.model_dump_json())
        _replace(tx, "alarms", "fleet, device, at, sample, body", values, key=4)
    tx.run(
        f"delete from alarms {NAMED} and (at, sample) < (select at, sample from alarms {NAMED}"
        f" order by at desc, sample desc limit 1 offset {ALARMS - 1})",
        *where,
        *where,
    )


def _write_merges(tx: Transaction, where: tuple[str, str], merges: Sequence[MergeAsked]) -> None:
    last = tx.one(f"select body from merges {NAMED} order by at desc limit 1", *where)
    before = [_merge(last[0])] if last else []
    *older, newest = sorted([*before, *merges], key=lambda merge: merge.at)
    for merge in [*map(_shortened, older), newest]:
        values = (*where, merge.at, merge.model_dump_json())
        _replace(tx, "merges", "fleet, device, at, body", values, key=3)
    tx.run(
        f"delete from merges {NAMED} and at < (select at from merges {NAMED}"
        f" order by at desc limit 1 offset {MERGES - 1})",
        *where,
        *where,
    )


def _replace(
    tx: Transaction, table: str, fields: str, values: Sequence[Any], *, key: int = 2
) -> None:
    """Write a row; `key` says how many of its fields name it."""
    names = fields.split(", ")
    marks = ", ".join("?" * len(names))
    changes = ", ".join(f"{name} = excluded.{name}" for name in names[key:])
    tx.run(
        f"insert into {table} ({fields}) values ({marks})"
        f" on conflict ({', '.join(names[:key])}) do update set {changes}",
        *values,
    )


def versions(tx: Transaction) -> dict[tuple[str, str], int]:
    """Give the version of every device's row."""
    rows = tx.rows("select fleet, device, version from reports")
    return {(fleet, device): version for fleet, device, version in rows}


def read(tx: Transaction, fleet: str, device: str) -> Row | None:
    """Give what is stored of a device."""
    where = (fleet, device)
    row = tx.one(
        f"select version, at, body, points, {TRAFFIC}, merged from reports {NAMED}", *where
    )
    if row is None:
        return None
    version, at, body, tail, *traffic, merged = row
    ring = tx.one(f"select points from rings {NAMED}", *where)
    table = unite(unpack(ring[0]) if ring else NONE, unpack(tail))
    return Row(version, _glimpse(device, at, body), table, Traffic(*traffic), merged)


def minutes_of(tx: Transaction, fleet: str, device: str, since: int) -> dict[int, Minute]:
    """Give the minutes of a device from one on."""
    rows = tx.rows(
        f"select minute, scores, mean, highest, threshold, alarms from minutes {NAMED}"
        " and minute >= ? order by minute",
        fleet,
        device,
        since,
    )
    return {row[0]: Minute(row[0] * minutes.MINUTE_S, *row[1:]) for row in rows}


def alarms_of(tx: Transaction, fleet: str, device: str, limit: int) -> list[AlarmAsked]:
    """Give the newest alarms of a device."""
    sql = f"select body from alarms {NAMED} order by at desc, sample desc limit ?"
    return [AlarmAsked.model_validate_json(body) for (body,) in tx.rows(sql, fleet, device, limit)]


def merges_of(tx: Transaction, fleet: str, device: str, limit: int) -> list[MergeAsked]:
    """Give the newest merges of a device."""
    sql = f"select body from merges {NAMED} order by at desc limit ?"
    return [_merge(body) for (body,) in tx.rows(sql, fleet, device, limit)]


def _body(glimpse: Glimpse) -> str:
    return Said(**{name: getattr(glimpse, name) for name in Said.model_fields}).model_dump_json()


def _glimpse(device: str, at: float, body: str) -> Glimpse | None:
    if not body:
        return None  # it has pushed or pulled, and never reported
    try:
        said = Said.model_validate_json(body)
    except ValidationError:
        log.warning("what a device reported is damaged", extra={"values": {"device": device}})
        return None
    return Glimpse(device=device, heard=at, points=(), seq=0, **dict(said))


def _merge(body: str) -> MergeAsked:
    return MergeAsked.model_validate_json(body)


def _shortened(merge: MergeAsked) -> MergeAsked:
    return merge if len(merge.model_dump_json()) <= SMALL else without_origins(merge)
