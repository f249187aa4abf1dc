"""The audit log: append-only, each entry sealed by the hash of the one before."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from edgemerge.core.errors import RejectedError
from edgemerge.exchange.audit import FIRST_HASH, entry_hash, verify_chain
from edgemerge.failpoints import failpoint
from edgemerge.server.db.base import DatabaseDamagedError, Transaction

AUDIT_COLUMNS = "seq, at, actor, action, fleet, subject, detail, previous, hash"


@dataclass(frozen=True)
class Entry:
    """Who did what to what, and when."""

    seq: int
    at: float
    actor: str
    action: str
    fleet: str
    subject: str
    detail: str
    previous: str
    hash: str


def append(
    tx: Transaction, *, at: float, actor: str, action: str, fleet: str, subject: str, **detail: Any
) -> None:
    """Add an entry in the transaction of the change that it records: both happen, or neither."""
    tx.lock("audit")
    last = tx.one("select seq, hash from audit order by seq desc limit 1") or (0, FIRST_HASH)
    text = json.dumps(detail, separators=(",", ":"), sort_keys=True)
    entry = Entry(last[0] + 1, at, actor, action, fleet, subject, text, last[1], "")
    values = (*tuple(asdict(entry).values())[:-1], entry_hash(asdict(entry)))
    failpoint("server-before-audit")
    tx.run(f"insert into audit ({AUDIT_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?, ?)", *values)


def entries(tx: Transaction, *, fleet: str | None, after: int, limit: int) -> list[Entry]:
    """Return entries in their order; of one fleet only, the chain has gaps."""
    where, values = ("", ()) if fleet is None else (" and fleet = ?", (fleet,))
    rows = tx.rows(
        f"select {AUDIT_COLUMNS} from audit where seq > ?{where} order by seq limit ?",
        *(after, *values, limit),
    )
    return [Entry(*row) for row in rows]


def latest_entries(
    tx: Transaction, *, fleet: str, before: int, limit: int, action: str, subject: str
) -> list[Entry]:
    """Return entries of a fleet, newest first; `action` "" is any, "-name" all but that."""
    values: list[str | int] = [before, fleet]
    where = "seq < ? and coalesce(fleet, '') = ?"  # so that they are found by seq: no sorting
    if action:
        where += " and action <> ?" if action.startswith("-") else " and action = ?"
        values.append(action.removeprefix("-"))
    if subject:
        where += " and (subject like ? escape '!' or lower(subject) like ? escape '!')"
        sought = "%" + re.sub("([!%_])", r"!\1", subject) + "%"
        values += [sought, sought.lower()]  # SQLite knows the lower case of ASCII only
    sql = f"select {AUDIT_COLUMNS} from audit where {where} order by seq desc limit ?"
    return [Entry(*row) for row in tx.rows(sql, *values, limit)]


def count_entries(tx: Transaction, *, fleet: str, subject: str, action: str) -> int:
    """Count the entries about a subject."""
    sql = "select count(*) from audit where fleet = ? and subject = ? and action = ?"
    row = tx.one(sql, fleet, subject, action)
    return int(row[0]) if row else 0


def verify(tx: Transaction) -> int:
    """Verify the whole chain; return its length, or raise where it is broken."""
    length = 0
    try:
        for entry in verify_chain(_all_entries(tx)):
            length = entry["seq"]
    except RejectedError as error:
        raise DatabaseDamagedError(str(error)) from error
    return length


def _all_entries(tx: Transaction) -> Iterator[dict[str, Any]]:
    seq = 0
    while found := entries(tx, fleet=None, after=seq, limit=1000):
        yield from map(asdict, found)
        seq = found[-1].seq
