"""Contributions in the database: checked on arrival, the newest of each key kept.

`body` is the newest, `counted` what the totals hold of this key, in their part `part`; where the
two differ the totals are behind. A dropped contribution has no body; its row goes once the totals
no longer hold it. Both have a digest, so that damage on disk is never added up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

from edgemerge.core.errors import DeniedError, FormatError, RejectedError
from edgemerge.core.ledger import Contribution, Freshness, Key, Ledger, Origin
from edgemerge.core.projection import Projection
from edgemerge.core.stats import Stats
from edgemerge.failpoints import failpoint
from edgemerge.server import audit, fleets
from edgemerge.server.auth import Caller
from edgemerge.server.db.base import Transaction, ValueDamagedError
from edgemerge.server.fleets import Fleet, must_be_pattern_name
from edgemerge.wire.admission import admit
from edgemerge.wire.codec import decode, decode_with_form

CONTRIBUTION_COLUMNS = (
    "device, incarnation, pattern, revision, samples, bytes, digest, form, received,"
    " body, counted, counted_digest, part"
)
WHERE_KEY = "fleet = ? and device = ? and incarnation = ? and pattern = ?"
IS_UNCOUNTED = "(body is null or counted is null or body <> counted)"
MAX_PER_DEVICE = 256  # contributions of one device, over all its patterns and incarnations


class TotalsDamagedError(ValueDamagedError):
    """The kept sums, or what they hold, are damaged: they can be summed up afresh."""


@dataclass(frozen=True)
class StoredContribution:
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

    @property
    def content(self) -> str:
        """What `Ledger.check` compares: the digest of the bytes."""
        return self.digest

    @cached_property
    def mark(self) -> str:
        """Tell it from any other contribution, and from its own other revisions."""
        return f"{self.device}/{self.incarnation}/{self.pattern}/{self.revision}/{self.digest}"

    @property
    def origin(self) -> Origin:
        """How it is named in a sum."""
        return Origin(*self.key, self.revision)


@dataclass(frozen=True)
class ReceivedContribution:
    """A contribution as it came, and the same decoded."""

    note: Contribution
    data: bytes
    form: str

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the bytes."""
        return sha256(self.data).hexdigest()

    @property
    def revision(self) -> int:
        """The revision of the contribution."""
        return self.note.revision

    @property
    def content(self) -> str:
        """What `Ledger.check` compares: the digest of the bytes."""
        return self.digest


def find_stored(tx: Transaction, fleet: str, key: Key) -> StoredContribution | None:
    """Give what is known of a key; a dropped one is not known."""
    row = tx.one(
        f"select {CONTRIBUTION_COLUMNS} from contributions where {WHERE_KEY} and body is not null",
        fleet,
        *key,
    )
    return StoredContribution(*row) if row else None


def list_stored(tx: Transaction, fleet: str, device: str | None = None) -> list[StoredContribution]:
    """Give all, or those of one device, in the order of their keys."""
    only, values = ("", ()) if device is None else (" and device = ?", (device,))
    rows = tx.rows(
        f"select {CONTRIBUTION_COLUMNS} from contributions where fleet = ? and "
        f"body is not null{only}",
        fleet,
        *values,
    )
    return sorted((StoredContribution(*row) for row in rows), key=lambda entry: entry.key)


def list_uncounted(tx: Transaction, fleet: str, limit: int) -> list[StoredContribution]:
    """Give contributions that the kept sums do not hold as they are now, dropped ones first."""
    rows = tx.rows(
        f"select {CONTRIBUTION_COLUMNS} from contributions where fleet = ? and {IS_UNCOUNTED}"
        " order by case when body is null then 0 else 1 end limit ?",
        fleet,
        limit,
    )
    return [StoredContribution(*row) for row in rows]


def count_of_device(tx: Transaction, fleet: str, device: str) -> int:
    """Count the contributions of a device."""
    sql = "select count(*) from contributions where fleet = ? and device = ? and body is not null"
    row = tx.one(sql, fleet, device)
    return int(row[0]) if row else 0


def store(
    tx: Transaction, fleet: str, parcel: ReceivedContribution, *, now: float, epoch: int
) -> None:
    """Keep a contribution as the newest of its key."""
    key, note = parcel.note.key, parcel.note
    old = tx.one(f"select body, counted from contributions where {WHERE_KEY}", fleet, *key)
    if old and old[0] is not None and old[0] != old[1]:  # in no sum: nobody will ask for it again
        tx.run("delete from bodies where id = ?", old[0])
    made = tx.rows("insert into bodies (data) values (?) returning id", parcel.data)
    failpoint("server-in-put")
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


def drop_device(tx: Transaction, fleet: str, device: str) -> int:
    """Forget all that a device contributed; give how many there were."""
    where = "where fleet = ? and device = ? and body is not null"
    found = count_of_device(tx, fleet, device)
    tx.run(
        f"delete from bodies where id in (select body from contributions {where}"
        " and (counted is null or counted <> body))",
        fleet,
        device,
    )
    failpoint("server-in-drop")
    tx.run(f"update contributions set body = null {where}", fleet, device)
    tx.run("delete from contributions where fleet = ? and body is null and counted is null", fleet)
    return found


def mark_counted(tx: Transaction, fleet: str, entry: StoredContribution, part: int) -> None:
    """Write down that the kept sums now hold the newest of this key, in this part."""
    if entry.counted is not None and entry.counted != entry.body:
        tx.run("delete from bodies where id = ?", entry.counted)
    if entry.body is None:
        tx.run(f"delete from contributions where {WHERE_KEY}", fleet, *entry.key)
    else:
        sql = (
            f"update contributions set counted = ?, counted_digest = ?, part = ? where {WHERE_KEY}"
        )
        tx.run(sql, entry.body, entry.digest, part, fleet, *entry.key)


def read_bytes(tx: Transaction, entry: StoredContribution) -> bytes:
    """Give the bytes of a contribution, which must be those that came."""
    data = _read_body(tx, entry.body, entry.digest)
    if data is None:
        raise ValueDamagedError(
            f"the stored contribution of {entry.device}, {entry.pattern} is damaged: drop the "
            "device, or restore the database from a backup; its next push mends it too"
        )
    return data


def read_contribution(
    tx: Transaction, entry: StoredContribution, projection: Projection
) -> Contribution:
    """Give a contribution, which must be what is known of it."""
    data = read_bytes(tx, entry)
    try:
        note = decode(data, Contribution, limit=len(data), projection=projection)
    except FormatError as error:
        raise ValueDamagedError(f"a stored contribution cannot be read: {error}") from error
    if (note.key, note.revision, note.stats.count) != (entry.key, entry.revision, entry.samples):
        raise ValueDamagedError(
            f"what is known of the contribution of {entry.device}, {entry.pattern} is damaged: "
            "drop the device, or restore the database from a backup"
        )
    return note


def read_stats(tx: Transaction, entry: StoredContribution, projection: Projection) -> Stats:
    """Give the sums of a contribution."""
    return read_contribution(tx, entry, projection).stats


def read_counted_stats(tx: Transaction, entry: StoredContribution, projection: Projection) -> Stats:
    """Give the sums that the kept sums hold of this key."""
    data = _read_body(tx, entry.counted, entry.counted_digest)
    if data is None:
        raise TotalsDamagedError(f"what the kept sums hold of {entry.device} is damaged")
    note = decode(data, Contribution, limit=len(data), projection=projection)
    return note.stats


def _read_body(tx: Transaction, number: int | None, digest: str | None) -> bytes | None:
    row = tx.one("select data from bodies where id = ?", number)
    return bytes(row[0]) if row and sha256(row[0]).hexdigest() == digest else None


MAX_NOTED_CONTRADICTIONS = 100  # equivocations of one key that are written down


@dataclass(frozen=True)
class PutResult:
    """The answer to a contribution: `problem` is empty, "stale" or "equivocation"."""

    new: bool
    revision: int
    epoch: int
    problem: str = ""


def decode_and_check(data: bytes, fleet: Fleet, key: Key) -> ReceivedContribution:
    """Read and check a contribution; all that needs no database, so any thread can do it."""
    note, form = decode_with_form(data, limit=fleet.limit, projection=fleet.projection)
    if not isinstance(note, Contribution):
        raise RejectedError(f"found {type(note).__name__}, expected a contribution: share() one")
    if note.key != key:
        raise RejectedError(f"found the contribution {note.key}, expected {key} by the address")
    must_be_pattern_name(note.pattern)
    admit(note, projection=fleet.projection, form=form)
    parcel = ReceivedContribution(note, data, form)
    parcel.digest  # noqa: B018 - here it holds nobody up
    return parcel


def put_change(
    checked: Fleet, parcel: ReceivedContribution, caller: Caller, now: float
) -> Callable[[Transaction], PutResult]:
    """Give the change that keeps a contribution, unless it is late, repeated or contradicts."""
    fleet = checked.fleet

    def change(tx: Transaction) -> PutResult:
        tx.lock(f"fleet {fleet}")
        agreed = fleets.get(tx, fleet)
        if agreed.body != checked.body:
            raise RejectedError(f"{fleet} was made anew meanwhile, with another projection")
        must_be_enrolled(tx, caller)
        known = find_stored(tx, fleet, parcel.note.key)
        freshness = Ledger.check(parcel, known)
        if known is not None and freshness != "newer":
            return _result_for_known(tx, fleet, parcel, caller, now, known, agreed.epoch, freshness)
        _must_be_admissible(tx, agreed, parcel, known)
        epoch = fleets.next_epoch(tx, fleet)
        store(tx, fleet, parcel, now=now, epoch=epoch)
        _touch_device(tx, fleet, caller, now)
        _audit(tx, "contribute", fleet, parcel, caller, now)
        return PutResult(new=True, revision=parcel.note.revision, epoch=epoch)

    return change


def must_be_enrolled(tx: Transaction, caller: Caller) -> None:
    """Refuse a device that was revoked while its contribution was on its way."""
    sql = "select revoked from devices where fleet = ? and device = ?"
    if tx.one(sql, caller.fleet, caller.name) != (None,):
        raise DeniedError(f"{caller.name} was revoked")


def _result_for_known(
    tx: Transaction,
    fleet: str,
    parcel: ReceivedContribution,
    caller: Caller,
    now: float,
    known: StoredContribution,
    epoch: int,
    freshness: Freshness,
) -> PutResult:
    if freshness == "stale":
        read_contribution(tx, known, fleets.get(tx, fleet).projection)  # or it is damaged
        return PutResult(new=False, revision=known.revision, epoch=epoch, problem="stale")
    if freshness == "same":
        _touch_device(tx, fleet, caller, now)
        return PutResult(new=False, revision=known.revision, epoch=epoch)
    if (
        audit.count_entries(tx, fleet=fleet, subject=audit_subject(parcel), action="equivocation")
        < MAX_NOTED_CONTRADICTIONS
    ):
        _audit(tx, "equivocation", fleet, parcel, caller, now)
    return PutResult(new=False, revision=known.revision, epoch=epoch, problem="equivocation")


def _must_be_admissible(
    tx: Transaction, fleet: Fleet, parcel: ReceivedContribution, known: StoredContribution | None
) -> None:
    device = parcel.note.device
    if known is None and count_of_device(tx, fleet.fleet, device) >= MAX_PER_DEVICE:
        raise RejectedError(
            f"{device} has {MAX_PER_DEVICE} contributions already: an operator can drop them"
        )
    if fleet.growing and known is not None:
        last = decode(read_bytes(tx, known), Contribution, projection=fleet.projection)
        admit(parcel.note, projection=fleet.projection, last=last, form=parcel.form)


def _touch_device(tx: Transaction, fleet: str, caller: Caller, now: float) -> None:
    sql = "update devices set seen = ? where fleet = ? and device = ?"
    tx.run(sql, now, fleet, caller.name)


def audit_subject(parcel: ReceivedContribution) -> str:
    """Name a contribution in the audit log."""
    return "/".join(map(str, parcel.note.key))


def _audit(
    tx: Transaction,
    action: str,
    fleet: str,
    parcel: ReceivedContribution,
    caller: Caller,
    now: float,
) -> None:
    note = parcel.note
    audit.append(
        tx,
        at=now,
        actor=caller.actor,
        action=action,
        fleet=fleet,
        subject=audit_subject(parcel),
        revision=note.revision,
        samples=note.stats.count,
        digest=parcel.digest,
    )
