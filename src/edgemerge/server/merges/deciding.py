"""Deciding: the changes by which operators choose who is told what, each with its audit entry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from edgemerge.core.contribution import Key
from edgemerge.core.errors import SettingError, UnknownError
from edgemerge.server import audit, contributions, fleets
from edgemerge.server.fleets import Fleet
from edgemerge.server.merges import choices
from edgemerge.server.merges.choices import Choice, Kind
from edgemerge.server.names import must_be_pattern, must_be_plain
from edgemerge.server.store.database import Transaction
from edgemerge.server.tokens import Caller

NAMES = 5000  # devices in one choice, as sources or as targets
FEW = 3  # names that a message, or the subject of an audit entry, has

Change = Callable[[Transaction], Choice]
Names = tuple[str, ...]


def names(word: str, given: Sequence[str], least: int) -> Names:
    """Give names in order, each once; refuse too few and too many."""
    found = tuple(sorted(set(given)))
    if not least <= len(found) <= NAMES:
        raise SettingError(f"found {len(found)} {word}, expected {least} to {NAMES} devices")
    return found


def must_be_devices(tx: Transaction, fleet: str, *groups: Iterable[str]) -> None:
    """Refuse names that are not devices of the fleet."""
    known = {row[0] for row in tx.rows("select device from devices where fleet = ?", fleet)}
    unknown = sorted({name for group in groups for name in group} - known)
    if unknown:
        raise UnknownError(f"no device {_some(unknown)} in {fleet}: its devices are listed")


def adopting(fleet: str, sources: Names, targets: Names, caller: Caller, now: float) -> Change:
    """Give the change after which targets are told of these sources only."""

    def change(tx: Transaction) -> Choice:
        agreed = _locked(tx, fleet)
        must_be_devices(tx, fleet, sources, targets)
        _must_be_enough(agreed, sources, targets)
        made = _next(tx, fleet, "adopt", caller, now)
        made = replace(made, sources=sources, targets=targets)
        newest = [choice for choice in _in_force(tx, fleet) if choice.key is None][:1]
        return _made(tx, fleet, made, newest, action="adopt", subject=_some(targets))

    return change


def revoking(fleet: str, key: Key, caller: Caller, now: float) -> Change:
    """Give the change after which a contribution is told to nobody."""

    def change(tx: Transaction) -> Choice:
        _locked(tx, fleet)
        _must_be_there(tx, fleet, key)
        made = replace(_next(tx, fleet, "revoke", caller, now), key=key)
        subject, known = "/".join(map(str, key)), _in_force(tx, fleet)
        return _made(tx, fleet, made, known, action="revoke contribution", subject=subject)

    return change


def undoing(fleet: str, number: int, caller: Caller, now: float) -> Change:
    """Give the change after which a choice is as if it had never been; twice is once."""

    def change(tx: Transaction) -> Choice:
        _locked(tx, fleet)
        found = choices.find(tx, fleet, number)
        if found.undone is not None:
            return found
        undone = replace(found, undone=now, epoch=fleets.next_epoch(tx, fleet))
        choices.undo(tx, fleet, undone)
        _record(
            tx, fleet, undone, actor=caller.actor, at=now, action="undo", subject=f"choice {number}"
        )
        return undone

    return change


def _made(
    tx: Transaction, fleet: str, choice: Choice, known: Sequence[Choice], **words: str
) -> Choice:
    """Write a choice down, unless one of these is the same."""
    for each in known:
        if each.same(choice):
            return each
    made = replace(choice, epoch=fleets.next_epoch(tx, fleet))
    choices.add(tx, fleet, made)
    _record(tx, fleet, made, actor=made.actor, at=made.at, **words)
    return made


def _record(
    tx: Transaction, fleet: str, choice: Choice, *, actor: str, at: float, action: str, subject: str
) -> None:
    told = {"number": choice.number, "sources": choice.sources, "targets": choice.targets}
    detail = {word: value for word, value in told.items() if value is not None}
    audit.append(tx, at=at, actor=actor, action=action, fleet=fleet, subject=subject, **detail)


def _locked(tx: Transaction, fleet: str) -> Fleet:
    tx.lock(f"fleet {fleet}")
    return fleets.get(tx, fleet)


def _next(tx: Transaction, fleet: str, kind: Kind, caller: Caller, now: float) -> Choice:
    return Choice(choices.newest(tx, fleet) + 1, now, caller.actor, kind)


def _in_force(tx: Transaction, fleet: str) -> list[Choice]:
    return [choice for choice in choices.every(tx, fleet) if choice.undone is None]


def _must_be_enough(fleet: Fleet, sources: Names, targets: Names) -> None:
    """Refuse what would never be told: this fleet tells nothing about too few."""
    for device in targets:
        count = len(set(sources) - {device})
        if 0 < count < fleet.least:
            raise SettingError(
                f"{device} would be told of {count} devices, and {fleet.fleet} tells nothing about "
                f"fewer than {fleet.least}: choose more sources, or none"
            )


def _must_be_there(tx: Transaction, fleet: str, key: Key) -> None:
    try:
        must_be_plain("device", key[0])  # else a database might not like it
        must_be_pattern(key[2])
        found = contributions.find(tx, fleet, key)
    except SettingError:
        found = None
    if found is None:
        raise UnknownError(f"no contribution {key} in {fleet}: its contributions are listed")


def _some(names: Sequence[str]) -> str:
    more = len(names) - FEW
    return ", ".join(names[:FEW]) + (f" and {more} more" if more > 0 else "")
