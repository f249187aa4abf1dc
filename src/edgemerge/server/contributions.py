"""Contributions in the database: the newest of each key, and what the kept sums still hold.

`body` is the newest, `counted` what the kept sums hold of this key, in their part `part`; when the
two differ the sums are behind. A dropped contribution has no body; its row goes once the sums have
let go of it. Both have a digest, so that damage on disk is never added up.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

from edgemerge.core.codec import decode
from edgemerge.core.contribution import Contribution, Key
from edgemerge.core.errors import FormatError
from edgemerge.core.projection import Projection
from edgemerge.core.stats import Stats
from edgemerge.core.told import Origin
from edgemerge.failpoints import passing
from edgemerge.server.store.database import DamagedError, Transaction

COLUMNS = (
    "device, incarnation, pattern, revision, samples, bytes, digest, form, received,"
    " body, counted, counted_digest, part"
)
KEY = "fleet = ? and device = ? and incarnation = ? and pattern = ?"
BEHIND = "(body is null or counted is null or body <> counted)"
MOST = 256  # contributions of one device, over all its patterns and incarnations


class SumsError(DamagedError):
    """The kept sums, or what they hold, are damaged: they can be summed up afresh."""


@dataclass(frozen=True)
class Entry:
    """All that is known of a contribution without its numbers."""

    device: str
    incarnation: int
    pattern: str
    revision: int
    samples: float
    bytes: int
    digest: str
    form: str
    received: float
    body: int | None = None
    counted: int | None = None
    counted_digest: str | None = None
    part: int = 0

    @property
    def key(self) -> Key:
        """Device, incarnation and pattern."""
        return self.device, self.incarnation, self.pattern

    @cached_property
    def mark(self) -> str:
        """Tell it from any other contribution, and from its own other revisions."""
        return f"{self.device}/{self.incarnation}/{self.pattern}/{self.revision}/{self.digest}"

    @property
    def origin(self) -> Origin:
        """How it is named in a sum."""
        return Origin(*self.key, self.revision)


@dataclass(frozen=True)
class Parcel:
    """A contribution as it came, and the same decoded."""

    note: Contribution
    data: bytes
    form: str

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the bytes."""
        return sha256(self.data).hexdigest()


def find(tx: Transaction, fleet: str, key: Key) -> Entry | None:
    """Give what is known of a key; a dropped one is not known."""
    row = tx.one(
        f"select {COLUMNS} from contributions where {KEY} and body is not null", fleet, *key
    )
    return Entry(*row) if row else None


def every(tx: Transaction, fleet: str, device: str | None = None) -> list[Entry]:
    """Give all, or those of one device, in the order of their keys."""
    only, values = ("", ()) if device is None else (" and device = ?", (device,))
    rows = tx.rows(
        f"select {COLUMNS} from contributions where fleet = ? and body is not null{only}",
        fleet,
        *values,
    )
    return sorted((Entry(*row) for row in rows), key=lambda entry: entry.key)


def behind(tx: Transaction, fleet: str, limit: int) -> list[Entry]:
    """Give contributions that the kept sums do not hold as they are now, dropped ones first."""
    rows = tx.rows(
        f"select {COLUMNS} from contributions where fleet = ? and {BEHIND}"
        " order by case when body is null then 0 else 1 end limit ?",
        fleet,
        limit,
    )
    return [Entry(*row) for row in rows]


def count_of(tx: Transaction, fleet: str, device: str) -> int:
    """Count the contributions of a device."""
    sql = "select count(*) from contributions where fleet = ? and device = ? and body is not null"
    row = tx.one(sql, fleet, device)
    return int(row[0]) if row else 0


def write(tx: Transaction, fleet: str, parcel: Parcel, *, now: float, epoch: int) -> None:
    """Keep a contribution as the newest of its key."""
    key, note = parcel.note.key, parcel.note
    old = tx.one(f"select body, counted from contributions where {KEY}", fleet, *key)
    if old and old[0] is not None and old[0] != old[1]:  # in no sum: nobody will ask for it again
        tx.run("delete from bodies where id = ?", old[0])
    made = tx.rows("insert into bodies (data) values (?) returning id", parcel.data)
    passing("server-in-put")
    tx.run(
        "insert into contributions (fleet, device, incarnation, pattern, revision, samples, bytes,"
        " digest, form, received, epoch, body, part) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)"
        " on conflict (fleet, device, incarnation, pattern) do update set"
        " revision = excluded.revision, samples = excluded.samples, bytes = excluded.bytes,"
        " digest = excluded.digest, form = excluded.form, received = excluded.received,"
        " epoch = excluded.epoch, body = excluded.body",
        fleet,
        *key,
        note.revision,
        note.stats.count,
        len(parcel.data),
        parcel.digest,
        parcel.form,
        now,
        epoch,
        made[0][0],
    )


def drop(tx: Transaction, fleet: str, device: str) -> int:
    """Forget all that a device contributed; give how many there were."""
    where = "where fleet = ? and device = ? and body is not null"
    found = count_of(tx, fleet, device)
    tx.run(
        f"delete from bodies where id in (select body from contributions {where}"
        " and (counted is null or counted <> body))",
        fleet,
        device,
    )
    passing("server-in-drop")
    tx.run(f"update contributions set body = null {where}", fleet, device)
    tx.run("delete from contributions where fleet = ? and body is null and counted is null", fleet)
    return found


def settle(tx: Transaction, fleet: str, entry: Entry, part: int) -> None:
    """Write down that the kept sums now hold the newest of this key, in this part."""
    if entry.counted is not None and entry.counted != entry.body:
        tx.run("delete from bodies where id = ?", entry.counted)
    if entry.body is None:
        tx.run(f"delete from contributions where {KEY}", fleet, *entry.key)
    else:
        sql = f"update contributions set counted = ?, counted_digest = ?, part = ? where {KEY}"
        tx.run(sql, entry.body, entry.digest, part, fleet, *entry.key)


def data_of(tx: Transaction, entry: Entry) -> bytes:
    """Give the bytes of a contribution, which must be those that came."""
    data = _body(tx, entry.body, entry.digest)
    if data is None:
        raise DamagedError(
            f"the stored contribution of {entry.device}, {entry.pattern} is damaged: drop the "
            "device, or restore the database from a backup; its next push mends it too"
        )
    return data


def note_of(tx: Transaction, entry: Entry, projection: Projection) -> Contribution:
    """Give a contribution, which must be what is known of it."""
    data = data_of(tx, entry)
    try:
        note: Contribution = decode(data, limit=len(data), projection=projection)
    except FormatError as error:
        raise DamagedError(f"a stored contribution cannot be read: {error}") from error
    if (note.key, note.revision, note.stats.count) != (entry.key, entry.revision, entry.samples):
        raise DamagedError(
            f"what is known of the contribution of {entry.device}, {entry.pattern} is damaged: "
            "drop the device, or restore the database from a backup"
        )
    return note


def stats_of(tx: Transaction, entry: Entry, projection: Projection) -> Stats:
    """Give the sums of a contribution."""
    return note_of(tx, entry, projection).stats


def counted_stats(tx: Transaction, entry: Entry, projection: Projection) -> Stats:
    """Give the sums that the kept sums hold of this key."""
    data = _body(tx, entry.counted, entry.counted_digest)
    if data is None:
        raise SumsError(f"what the kept sums hold of {entry.device} is damaged")
    note: Contribution = decode(data, limit=len(data), projection=projection)
    return note.stats


def _body(tx: Transaction, number: int | None, digest: str | None) -> bytes | None:
    row = tx.one("select data from bodies where id = ?", number)
    return bytes(row[0]) if row and sha256(row[0]).hexdigest() == digest else None
