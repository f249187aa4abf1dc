"""The audit log: append-only, each entry sealed by the hash of the one before.

A chain does not show that its end is missing. So its head, the number and hash of the last entry,
is also kept in a file outside of the database, and must be in the log from then on.

The log is bounded: beyond a number of entries the oldest are deleted, after a checkpoint in the
chain has sealed the number and hash of the last of them.

The command line verifies the chain with this module, so it needs nothing of the extra `server`.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from edgemerge.core.errors import RejectedError, SettingError
from edgemerge.failpoints import failpoint
from edgemerge.files import write_atomically
from edgemerge.server.db.base import DatabaseDamagedError, Transaction

log = logging.getLogger(__name__)

MAX_ENTRIES = 1_000_000  # that are kept, about 400 MB
DELETED_AT_ONCE = 10_000  # entries, so that no transaction takes long
FIRST_HASH = "0" * 64  # `previous` of the first entry
CHECKPOINT = "checkpoint"  # action of an entry that seals the entries that were deleted
HASHED_FIELDS = ("seq", "at", "actor", "action", "fleet", "subject", "detail")
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
    tx: Transaction, at: float, actor: str, action: str, fleet: str, subject: str, **detail: Any
) -> None:
    """Add an entry in the transaction of the change that it records: both happen, or neither.

    It is written just before the commit. All fleets wait for each other there, because the log is
    one chain; so it must be short.
    """
    text = _detail_text(detail)
    tx.at_end(lambda: _seal(tx, Entry(0, at, actor, action, fleet, subject, text, "", "")))


def head(tx: Transaction) -> tuple[int, str]:
    """Return the number and hash of the last entry."""
    seq, sealed = tx.one("select seq, hash from audit order by seq desc limit 1") or (0, FIRST_HASH)
    return int(seq), str(sealed)


def _seal(tx: Transaction, entry: Entry) -> None:
    tx.lock("audit")
    seq, previous = head(tx)
    entry = replace(entry, seq=seq + 1, previous=previous)
    values = (*tuple(asdict(entry).values())[:-1], entry_hash(asdict(entry)))
    failpoint("server-before-audit")
    tx.run(f"insert into audit ({AUDIT_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?, ?)", *values)


def _detail_text(detail: dict[str, Any]) -> str:
    return json.dumps(detail, separators=(",", ":"), sort_keys=True)


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


def note_refusal(
    tx: Transaction,
    most: int,
    at: float,
    actor: str,
    action: str,
    fleet: str,
    subject: str,
    **detail: Any,
) -> None:
    """Add an entry unless it only repeats one, or there are `most` about this subject already."""
    text = _detail_text(detail)
    row = tx.one(
        "select count(*), coalesce(sum(case when detail = ? then 1 else 0 end), 0) from audit"
        " where fleet = ? and subject = ? and action = ?",
        *(text, fleet, subject, action),
    )
    known, same = row or (0, 0)
    if known < most and not same:
        append(tx, at, actor, action, fleet, subject, **detail)


def is_too_long(tx: Transaction, keep: int) -> bool:
    """Return whether the log has a tenth more entries than are kept."""
    first, last = _ends(tx)
    return last - first + 1 > keep + max(keep // 10, 1)


def _ends(tx: Transaction) -> tuple[int, int]:
    row = tx.one("select (select min(seq) from audit), (select max(seq) from audit)")
    return (1, 0) if row is None or row[0] is None else (int(row[0]), int(row[1]))


def delete_oldest(
    tx: Transaction, *, at: float, keep: int = MAX_ENTRIES, before: int | None = None
) -> int:
    """Delete the oldest entries of a log that is too long, and seal them; return how many.

    Nothing is deleted until a tenth too many are there, and not all at once: repeat it.

    Args:
        tx: The transaction to write in.
        at: The time, in Unix seconds.
        keep: How many entries stay.
        before: Keep all entries from this number on; None: those alone that `keep` says.
    """
    tx.lock("audit")
    first, last = _ends(tx)
    if not is_too_long(tx, keep):
        return 0
    through = min(last - keep, first - 1 + DELETED_AT_ONCE)
    through = through if before is None else min(through, before - 1)
    sealed = tx.one("select hash from audit where seq = ?", through)
    if through < first or sealed is None:
        return 0
    append(tx, at, "server", CHECKPOINT, "", "audit log", **checkpoint_detail(through, sealed[0]))
    return tx.run("delete from audit where seq <= ?", through)


def entry_hash(entry: Mapping[str, Any]) -> str:
    """Return the hash that an entry must have."""
    fields = {name: entry.get(name) for name in HASHED_FIELDS}
    text = json.dumps(fields, separators=(",", ":"), sort_keys=True)
    return sha256((str(entry.get("previous")) + text).encode()).hexdigest()


def checkpoint_detail(seq: int, sealed: str) -> dict[str, Any]:
    """Return what a checkpoint says of the last entry that was deleted: its number and hash."""
    return {"through": seq, "hash": sealed}


def verify_chain(chain: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield entries, starting with the first of the log; raise where the chain is broken.

    A log whose oldest entries were deleted starts later. Then an entry of the chain must be the
    checkpoint that seals the last deleted one, which the first one follows.

    >>> entry = dict.fromkeys(HASHED_FIELDS, "") | {"seq": 1, "previous": FIRST_HASH}
    >>> [found["seq"] for found in verify_chain([entry | {"hash": entry_hash(entry)}])]
    [1]
    >>> list(verify_chain([entry | {"hash": FIRST_HASH}]))
    Traceback (most recent call last):
    edgemerge.core.errors.RejectedError: the audit log was changed at entry 1: ...
    """
    previous, seq = FIRST_HASH, 0
    missing: dict[str, Any] | None = None
    for entry in chain:
        if seq == 0 and type(entry.get("seq")) is int and entry["seq"] > 1:
            previous, seq = str(entry.get("previous")), entry["seq"] - 1
            missing = checkpoint_detail(seq, previous)
        if entry.get("seq") != seq + 1:
            raise _chain_error(seq + 1, f"the next one is {entry.get('seq')}")
        if entry.get("previous") != previous:
            raise _chain_error(seq + 1, "it does not follow from the one before")
        if entry.get("hash") != entry_hash(entry):
            raise _chain_error(seq + 1, "its hash does not match its fields")
        previous, seq = entry["hash"], entry["seq"]
        if missing is not None and entry.get("action") == CHECKPOINT:
            missing = None if _detail(entry) == missing else missing
        yield entry
    if missing is not None:
        raise _chain_error(missing["through"], "it is missing, and no checkpoint seals it")


def _detail(entry: Mapping[str, Any]) -> Any:
    try:
        return json.loads(str(entry.get("detail")))
    except ValueError:
        return None


def _chain_error(seq: int, why: str) -> RejectedError:
    return RejectedError(
        f"the audit log was changed at entry {seq}: {why}; compare with a copy of the database"
    )


def verify(tx: Transaction) -> int:
    """Verify the whole chain; return the number of its last entry, or raise where it breaks."""
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


def must_be_writable(path: Path) -> None:
    """Refuse a file for the head of the log that cannot be written, before a server starts."""
    folder = path.absolute().parent
    if not folder.is_dir():
        why = f"the folder {folder} is not there"
    elif not os.access(folder, os.W_OK | os.X_OK):
        why = "this user may not write there"
    else:
        return
    raise SettingError(
        f"the head of the audit log cannot be kept in {path}: {why}; make the folder, or name "
        "another file with --audit-head-file"
    )


class HeadFile:
    """The head of the audit log, kept outside of the database.

    Once the log lacks an entry that it had, the file is left as it is, so that a later look finds
    the same. Restoring a backup writes it anew, and leaves an entry in the log; an operator who
    knows another reason removes it.
    """

    def __init__(self, path: Path | None) -> None:
        """Keep the head in a file; None: nowhere."""
        self._path = path
        self.problem: str | None = None  # what is missing, in words

    @property
    def must_stay(self) -> int | None:
        """The number of the entry that the file names; None if it names none."""
        known = self._read()
        return None if known is None else known[0]

    def follow(self, tx: Transaction) -> None:
        """Compare the log with the head in the file, and write down the new one."""
        if self._path is None:
            return
        last = head(tx)
        known = self._read()
        problem = None if known is None else _missing(tx, *known, length=last[0])
        if problem is not None:
            if self.problem is None:
                log.error("the audit log was cut or rewritten", extra={"values": {"why": problem}})
            self.problem = (
                f"{problem}: if you know why, remove {self._path.name}; `edgemerge restore` "
                "continues it by itself"
            )
            return
        self.problem = None
        if known == last:
            return
        try:
            write_atomically(f"{last[0]} {last[1]}\n".encode(), self._path)
        except OSError as error:  # such as a full disk: what is known stays, and is tried again
            log.warning(
                "the head of the audit log was not written", extra={"values": {"why": error}}
            )

    def _read(self) -> tuple[int, str] | None:
        """Return the head in the file; None if there is none yet."""
        if self._path is None or not self._path.exists():
            return None
        words = self._path.read_text(encoding="ascii", errors="replace").split()
        if len(words) == 2 and words[0].isdecimal():
            return int(words[0]), words[1]
        return -1, ""  # not ours: nothing in the log can match it


def _missing(tx: Transaction, seq: int, sealed: str, *, length: int) -> str | None:
    """Return what is wrong with a log that once had an entry with this number and hash."""
    if seq > length:
        return f"found {length} entries, expected {seq} or more"
    row = (FIRST_HASH,) if seq == 0 else tx.one("select hash from audit where seq = ?", seq)
    if row is None and seq > 0:
        return f"entry {seq} is gone, which no server deletes while this file names it"
    if row is None or row[0] != sealed:
        return f"entry {max(seq, 0)} is not the one that was there before"
    return None
