"""Kept sums: what a fleet has contributed, added up once and then kept up with the changes.

A fleet's sums are kept in parts: part 0 has not been looked at, each other part is one pattern.
Their sum is the total, whatever the grouping. They can be thrown away and summed up afresh.
"""

from __future__ import annotations

import logging
from hashlib import sha256

from edgemerge.core.codec import decode, encode
from edgemerge.core.errors import FormatError
from edgemerge.core.projection import Projection
from edgemerge.core.stats import Stats
from edgemerge.failpoints import passing
from edgemerge.server import contributions
from edgemerge.server.contributions import Entry, SumsError
from edgemerge.server.fleets import Fleet
from edgemerge.server.store.database import Transaction

Parts = dict[int, Stats]

log = logging.getLogger(__name__)


def load(tx: Transaction, fleet: Fleet) -> Parts:
    """Give the parts as they were last written."""
    rows = tx.rows("select part, digest, data from totals where fleet = ?", fleet.fleet)
    return {part: _stats(data, digest, fleet.projection) for part, digest, data in rows}


def store(tx: Transaction, fleet: Fleet, before: Parts, now: Parts) -> None:
    """Write the parts that have changed; one that is empty is removed."""
    for part, stats in now.items():
        if stats is not before.get(part):
            if stats.count == 0 and not stats.S.any():
                tx.run("delete from totals where fleet = ? and part = ?", fleet.fleet, part)
            else:
                _write(tx, fleet.fleet, part, encode(stats))


def fold(tx: Transaction, fleet: Fleet, limit: int) -> int:
    """Bring the kept sums up to date with at most so many changes; give how many there were."""
    tx.lock(f"fleet {fleet.fleet}")
    try:
        return _fold(tx, fleet, limit)
    except SumsError as error:
        rebuild(tx, fleet.fleet, error)
        return _fold(tx, fleet, limit)


def _fold(tx: Transaction, fleet: Fleet, limit: int) -> int:
    """Read and add up first: when something is damaged, nothing has changed."""
    changes = contributions.behind(tx, fleet.fleet, limit)
    if changes:
        before = load(tx, fleet)
        now = dict(before)
        for entry in changes:
            apply(tx, fleet.projection, now, entry)
        for entry in changes:
            contributions.settle(tx, fleet.fleet, entry, 0)
        passing("server-in-fold")
        store(tx, fleet, before, now)
    return len(changes)


def apply(tx: Transaction, projection: Projection, parts: Parts, entry: Entry) -> None:
    """Let the sums hold the newest of one key instead of what they hold of it."""
    empty = Stats.empty(projection)
    if entry.counted is not None:
        old = contributions.counted_stats(tx, entry, projection)
        parts[entry.part] = parts.get(entry.part, empty) - old  # M7
    if entry.body is not None:
        parts[0] = parts.get(0, empty) + contributions.stats_of(tx, entry, projection)  # M7


def total(tx: Transaction, fleet: Fleet, entries: list[Entry]) -> Stats:
    """Give the exact sum of everything, without writing anything."""
    parts = load(tx, fleet)
    for entry in contributions.behind(tx, fleet.fleet, 2**31):
        apply(tx, fleet.projection, parts, entry)
    must_add_up(parts, entries)
    return Stats.total(fleet.projection, parts.values())


def must_add_up(parts: Parts, entries: list[Entry]) -> None:
    """Refuse sums of another number of samples than was contributed."""
    counts = {part: stats.count for part, stats in parts.items()}
    for entry in entries:
        part = entry.part if entry.body == entry.counted else 0
        counts[part] = counts.get(part, 0.0) - entry.samples
    if any(counts.values()):
        raise SumsError("the kept sums do not hold the samples that were contributed")


def rebuild(tx: Transaction, fleet: str, why: Exception) -> None:
    """Forget the sums: from now on everything counts as new, and is summed up as such."""
    values = {"fleet": fleet, "problem": str(why)}
    log.error("kept sums were damaged: summing up afresh", extra={"values": values})
    tx.lock(f"fleet {fleet}")
    tx.run("delete from totals where fleet = ?", fleet)
    tx.run("delete from contributions where fleet = ? and body is null", fleet)
    tx.run("update contributions set counted = null, part = 0 where fleet = ?", fleet)
    tx.run(
        "delete from bodies where id not in (select body from contributions where body is not null"
        " union select counted from contributions where counted is not null)"
    )


def some(
    tx: Transaction, projection: Projection, whole: Stats, inside: list[Entry], chosen: list[Entry]
) -> Stats:
    """Add up the chosen of those inside a known sum, the way that reads fewer of them."""
    wanted = {entry.key for entry in chosen}
    left_out = [entry for entry in inside if entry.key not in wanted and entry.samples > 0]
    if len(left_out) < len(chosen):
        parts = (contributions.stats_of(tx, entry, projection) for entry in left_out)
        return whole - Stats.total(projection, parts)  # M7
    return Stats.total(projection, (contributions.stats_of(tx, e, projection) for e in chosen))


def _write(tx: Transaction, fleet: str, part: int, data: bytes) -> None:
    tx.run(
        "insert into totals (fleet, part, digest, data) values (?, ?, ?, ?)"
        " on conflict (fleet, part) do update set digest = excluded.digest, data = excluded.data",
        fleet,
        part,
        sha256(data).hexdigest(),
        data,
    )


def _stats(data: bytes, digest: str, projection: Projection) -> Stats:
    try:
        if sha256(data).hexdigest() != digest:
            raise FormatError("its digest is another")
        stats: Stats = decode(bytes(data), limit=len(data), projection=projection)
    except FormatError as error:
        raise SumsError(f"a kept sum is damaged: {error}") from error
    return stats
