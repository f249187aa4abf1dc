"""Intake: what happens to a contribution between its arrival and the answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgemerge.core.admission import admit
from edgemerge.core.codec import decode, read
from edgemerge.core.contribution import Contribution, Key
from edgemerge.core.errors import DeniedError, RejectedError
from edgemerge.server import audit, contributions, fleets
from edgemerge.server.contributions import Entry, Parcel
from edgemerge.server.fleets import Fleet
from edgemerge.server.names import must_be_pattern
from edgemerge.server.store.database import Transaction
from edgemerge.server.tokens import Caller

NOTED = 100  # equivocations of one key that are written down


@dataclass(frozen=True)
class Kept:
    """The answer to a contribution: `problem` is empty, "stale" or "equivocation"."""

    new: bool
    revision: int
    epoch: int
    problem: str = ""


def opened(data: bytes, fleet: Fleet, key: Key) -> Parcel:
    """Read and check a contribution; all that needs no database, so any thread can do it."""
    note, form = read(data, limit=fleet.limit, projection=fleet.projection)
    if not isinstance(note, Contribution):
        raise RejectedError(f"found {type(note).__name__}, expected a contribution: share() one")
    if note.key != key:
        raise RejectedError(f"found the contribution {note.key}, expected {key} by the address")
    must_be_pattern(note.pattern)
    admit(note, projection=fleet.projection, form=form)
    parcel = Parcel(note, data, form)
    parcel.digest  # noqa: B018 - here it holds nobody up
    return parcel


def keeping(
    checked: Fleet, parcel: Parcel, caller: Caller, now: float
) -> Callable[[Transaction], Kept]:
    """Give the change that keeps a contribution, unless it is late, repeated or contradicts."""
    fleet = checked.fleet

    def change(tx: Transaction) -> Kept:
        tx.lock(f"fleet {fleet}")
        agreed = fleets.get(tx, fleet)
        if agreed.body != checked.body:
            raise RejectedError(f"{fleet} was made anew meanwhile, with another projection")
        must_be_let_in(tx, caller)
        known = contributions.find(tx, fleet, parcel.note.key)
        if known and parcel.note.revision <= known.revision:
            return _known(tx, fleet, parcel, caller, now, known, agreed.epoch)
        _must_be_sound(tx, agreed, parcel, known)
        epoch = fleets.next_epoch(tx, fleet)
        contributions.write(tx, fleet, parcel, now=now, epoch=epoch)
        _seen(tx, fleet, caller, now)
        _record(tx, "contribute", fleet, parcel, caller, now)
        return Kept(new=True, revision=parcel.note.revision, epoch=epoch)

    return change


def must_be_let_in(tx: Transaction, caller: Caller) -> None:
    """Refuse a device that was revoked while its contribution was on its way."""
    sql = "select revoked from devices where fleet = ? and device = ?"
    if tx.one(sql, caller.fleet, caller.name) != (None,):
        raise DeniedError(f"{caller.name} was revoked")


def _known(
    tx: Transaction,
    fleet: str,
    parcel: Parcel,
    caller: Caller,
    now: float,
    known: Entry,
    epoch: int,
) -> Kept:
    if parcel.note.revision < known.revision:
        contributions.note_of(tx, known, fleets.get(tx, fleet).projection)  # or it is damaged
        return Kept(new=False, revision=known.revision, epoch=epoch, problem="stale")
    if parcel.digest == known.digest:
        _seen(tx, fleet, caller, now)
        return Kept(new=False, revision=known.revision, epoch=epoch)
    if audit.count(tx, fleet=fleet, subject=subject(parcel), action="equivocation") < NOTED:
        _record(tx, "equivocation", fleet, parcel, caller, now)
    return Kept(new=False, revision=known.revision, epoch=epoch, problem="equivocation")


def _must_be_sound(tx: Transaction, fleet: Fleet, parcel: Parcel, known: Entry | None) -> None:
    device = parcel.note.device
    if known is None and contributions.count_of(tx, fleet.fleet, device) >= contributions.MOST:
        raise RejectedError(
            f"{device} has {contributions.MOST} contributions already: an operator can drop them"
        )
    if fleet.growing and known is not None:
        last = decode(contributions.data_of(tx, known), projection=fleet.projection)
        admit(parcel.note, projection=fleet.projection, last=last, form=parcel.form)


def _seen(tx: Transaction, fleet: str, caller: Caller, now: float) -> None:
    sql = "update devices set seen = ? where fleet = ? and device = ?"
    tx.run(sql, now, fleet, caller.name)


def subject(parcel: Parcel) -> str:
    """Name a contribution in the audit log."""
    return "/".join(map(str, parcel.note.key))


def _record(
    tx: Transaction, action: str, fleet: str, parcel: Parcel, caller: Caller, now: float
) -> None:
    note = parcel.note
    audit.append(
        tx,
        at=now,
        actor=caller.actor,
        action=action,
        fleet=fleet,
        subject=subject(parcel),
        revision=note.revision,
        samples=note.stats.count,
        digest=parcel.digest,
    )
