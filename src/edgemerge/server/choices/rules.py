"""Operators' choices: stored, undone, audited, and folded into rules per device.

`epoch` is that of the fleet when a choice was made or undone, so the largest one shows whether
anything has changed. An undone choice is left out of the rules, as if it had never been made.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Literal, get_args

from edgemerge.core.errors import SettingError, UnknownError
from edgemerge.core.ledger import Contribution, Key
from edgemerge.core.projection import Projection
from edgemerge.core.stats import Stats
from edgemerge.exchange.client import MAX_DESIRED_BYTES
from edgemerge.server import audit, fleets
from edgemerge.server.auth import Caller
from edgemerge.server.contributions import StoredContribution, find_stored, read_bytes
from edgemerge.server.db.base import BoundedCache, Transaction
from edgemerge.server.fleets import Fleet, must_be_pattern_name, must_be_plain_name
from edgemerge.server.reviews import Review, WaitingReviews, waiting_by_device
from edgemerge.wire.codec import decode

# revoke: exclusions of older servers
ChoiceKind = Literal["adopt", "exclude", "revoke", "approve", "dismiss"]
Decision = Literal["approve", "dismiss"]  # about a contribution that waits, or might
DECISIONS = get_args(Decision)
CHOICE_COLUMNS = "number, at, actor, epoch, undone, body"
MAX_CHOICES = 1000  # choices of a fleet that are in force; as many that were undone are remembered
MAX_DECISIONS = 10_000  # likewise, approvals and dismissals, which are not counted there
MAX_CACHED_FLEETS = 64  # whose rules are remembered

log = logging.getLogger(__name__)


class ChangedError(SettingError):
    """What was decided upon is another one meanwhile."""


@dataclass(frozen=True)
class Choice:
    """One decision: "adopt" has sources and targets, the others the key of a contribution.

    "approve" and "dismiss" also have the revision and digest of what was decided upon.
    """

    number: int
    at: float
    actor: str
    kind: ChoiceKind
    sources: tuple[str, ...] | None = None
    targets: tuple[str, ...] | None = None
    key: Key | None = None
    undone: float | None = None
    epoch: int = 0
    comment: str = ""
    revision: int | None = None
    digest: str | None = None

    @property
    def body(self) -> str:
        """What was decided, as it is stored."""
        said: list[Any] = [self.kind, self.sources, self.targets, self.key]
        if self.is_decision:
            said.append([self.comment, self.revision, self.digest])
        return json.dumps(said, separators=(",", ":"))

    @property
    def is_decision(self) -> bool:
        """Whether it approves or dismisses a contribution."""
        return self.kind in DECISIONS

    @property
    def excludes(self) -> bool:
        """Whether it excludes a contribution."""
        return self.key is not None and not self.is_decision

    def same(self, other: Choice) -> bool:
        """Return whether both decide the same, also when one has the old word for it."""
        return _decided(self) == _decided(other)


def _decided(choice: Choice) -> tuple[Any, ...]:
    kind = "exclude" if choice.excludes else choice.kind
    approved = choice.digest if kind == "approve" else None
    return kind, choice.sources, choice.targets, choice.key, approved


@dataclass(frozen=True)
class Desired:
    """What one device should adopt from others, and act upon; pulls enforce the first.

    Args:
        revision: The epoch of the newest choice about this device or about all, or of the newest
            change of its reviews; 0 without any.
        devices: The other devices whose contributions it adopts; None: those of all.
        excluded: Keys of contributions that no device adopts, also not those of its own past.
        reviews: Reviews that the device has not acted upon, in the order of their numbers.
        settings: The device's settings, as the document has them.
        configuration: The fleet's configuration for it, likewise.
    """

    revision: int
    devices: tuple[str, ...] | None
    excluded: tuple[Key, ...]
    reviews: tuple[Review, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    configuration: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rules:
    """What the choices in force say: from whom a device adopts, and what is excluded.

    Beside them, what was approved and dismissed, and which reviews of each device wait: devices
    hear of all by one revision.

    A device that is not among `sources` adopts from all. What it saw in an earlier incarnation is
    its own, and comes back to it whatever was chosen, unless that was excluded.
    """

    sources: Mapping[str, frozenset[str]] = field(default_factory=dict)
    excluded: frozenset[Key] = frozenset()
    newest: Mapping[str | None, int] = field(default_factory=dict)  # epochs; None: for everybody
    stamp: int = 0
    reviews: Mapping[str, WaitingReviews] = field(default_factory=dict)
    # Epochs of the newest settings and configurations of devices; "": of all devices.
    settings: Mapping[str, int] = field(default_factory=dict)
    approved: Mapping[Key, Choice] = field(default_factory=dict)
    dismissed: frozenset[Key] = frozenset()

    def decided_on(self, key: Key, device: str | None) -> bool:
        """Return whether a device adopts a contribution that waits: its own, or chosen for it."""
        chosen = frozenset() if device is None else self.sources.get(device, frozenset())
        return key[0] == device or (key[0] in chosen and key not in self.dismissed)

    def allows(self, key: Key, device: str | None) -> bool:
        """Return whether a device, or an operator, may pull a contribution."""
        return key not in self.excluded and (key[0] == device or self.allows_source(key[0], device))

    def allows_source(self, source: str, device: str | None) -> bool:
        """Return whether a device adopts from another at all."""
        chosen = None if device is None else self.sources.get(device)
        return chosen is None or source in chosen

    def has_no_rule(self, device: str | None) -> bool:
        """Return whether no choice concerns a device."""
        return not self.excluded and device not in self.sources

    def desired_revision(self, device: str) -> int:
        """Return a number that rises with every choice and review, made or ended, about it."""
        reviewed = self.reviews[device].epoch if device in self.reviews else 0
        changed = max(reviewed, self.settings.get(device, 0), self.settings.get("", 0))
        return max(self.newest.get(device, 0), self.newest.get(None, 0), changed)

    def first_waiting(self, device: str) -> int | None:
        """Return the number of the review that has waited longest for a device."""
        return self.reviews[device].first if device in self.reviews else None

    def desired(self, device: str) -> Desired:
        """Return the desired state of a device."""
        sources = self.sources.get(device)
        return Desired(
            revision=self.desired_revision(device),
            devices=None if sources is None else tuple(sorted(sources - {device})),
            excluded=tuple(sorted(self.excluded)),
        )

    def adopting(self, sources: Iterable[str], targets: Iterable[str]) -> Rules:
        """Return the rules as they would be after one more choice."""
        chosen = frozenset(sources)
        return replace(self, sources={**self.sources, **dict.fromkeys(targets, chosen)})


def rules_from(choices: Iterable[Choice]) -> Rules:
    """Let choices act in their order."""
    sources: dict[str, frozenset[str]] = {}
    excluded: set[Key] = set()
    newest: dict[str | None, int] = {}
    decided: dict[Key, Choice] = {}
    for choice in sorted(choices, key=lambda choice: choice.number):
        for who in choice.targets or (None,):
            newest[who] = max(newest.get(who, 0), choice.epoch)
        if choice.undone is not None:
            continue
        if choice.key is None:
            sources |= dict.fromkeys(choice.targets or (), frozenset(choice.sources or ()))
        elif choice.is_decision:
            decided[choice.key] = choice
        else:
            excluded.add(choice.key)
    return Rules(
        sources,
        frozenset(excluded),
        newest,
        max(newest.values(), default=0),
        approved={key: each for key, each in decided.items() if each.kind == "approve"},
        dismissed=frozenset(key for key, each in decided.items() if each.kind == "dismiss"),
    )


class RulesCache:
    """The rules of fleets, read again only when a choice or review changed, by whomever."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._known = BoundedCache[str, Rules](MAX_CACHED_FLEETS)

    def rules(self, tx: Transaction, fleet: str) -> Rules:
        """Return the rules of a fleet as this transaction sees them."""
        newest = tx.one(
            "select (select coalesce(max(epoch), 0) from choices where fleet = ?),"
            " (select coalesce(max(epoch), 0) from reviews where fleet = ?)",
            *(fleet, fleet),
        )
        changed = fleets.trust_epoch(tx, fleet)
        settings = settings_epochs(tx, fleet)
        stamp = max(changed, *(newest or ()), *settings.values())
        if not stamp:
            return Rules()
        found = self._known.get(fleet)
        if found is None or found.stamp != stamp:
            found = rules_from(choices_of(tx, fleet))
            found = replace(
                found,
                newest={**found.newest, None: max(found.newest.get(None, 0), changed)},
                stamp=stamp,
                reviews=waiting_by_device(tx, fleet),
                settings=settings,
            )
            self._known.put(fleet, found)
        return found


def settings_epochs(tx: Transaction, fleet: str) -> dict[str, int]:
    """Return the epoch of the newest settings or configuration of each device that has some.

    Configurations of all devices are those of the device "".
    """
    found: dict[str, int] = {}
    for table in ("settings", "configurations"):
        sql = f"select device, max(epoch) from {table} where fleet = ? group by device"
        for device, epoch in tx.rows(sql, fleet):
            found[device] = max(epoch, found.get(device, 0))
    return found


def choices_of(tx: Transaction, fleet: str) -> list[Choice]:
    """Return the choices of a fleet, newest first."""
    sql = f"select {CHOICE_COLUMNS} from choices where fleet = ? order by number desc"
    return [_choice_from_row(row) for row in tx.rows(sql, fleet)]


def approved_stats(
    tx: Transaction, fleet: str, choice: Choice, projection: Projection
) -> Stats | None:
    """Return the sums as they were approved; None if they are damaged, and approve nothing then."""
    sql = "select data from approvals where fleet = ? and number = ?"
    row = tx.one(sql, fleet, choice.number)
    data = bytes(row[0]) if row else b""
    if sha256(data).hexdigest() != choice.digest:
        log.error("approved sums are damaged", extra={"values": {"choice": choice.number}})
        return None
    return decode(data, Contribution, limit=len(data), projection=projection).stats


def find_choice(tx: Transaction, fleet: str, number: int) -> Choice:
    """Return a choice that must be there."""
    sql = f"select {CHOICE_COLUMNS} from choices where fleet = ? and number = ?"
    row = tx.one(sql, fleet, number)
    if row is None:
        raise UnknownError(
            f"no choice {number} in {fleet}: `edgemerge fleet choices {fleet} --include-undone` "
            "lists them"
        )
    return _choice_from_row(row)


def highest_number(tx: Transaction, fleet: str) -> int:
    """Return the highest number that a choice has had."""
    row = tx.one("select coalesce(max(number), 0) from choices where fleet = ?", fleet)
    return int(row[0]) if row else 0


def add_choice(tx: Transaction, fleet: str, choice: Choice) -> None:
    """Write a choice down, unless there are too many."""
    rows = tx.rows("select body from choices where fleet = ? and undone is null", fleet)
    decisions = sum(json.loads(body)[0] in DECISIONS for (body,) in rows)
    count, most = len(rows) - decisions, MAX_CHOICES
    if choice.is_decision:
        count, most = decisions, MAX_DECISIONS
    if count >= most:
        raise SettingError(f"{fleet} has {most} choices in force, expected fewer: undo some first")
    tx.run(
        f"insert into choices (fleet, {CHOICE_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?)",
        *(fleet, choice.number, choice.at, choice.actor, choice.epoch, choice.undone, choice.body),
    )


def store_undo(tx: Transaction, fleet: str, choice: Choice) -> None:
    """Write down that a choice is undone; of those that were, the oldest are forgotten.

    Never that with the highest number: fewer others were in force when it was made, and only those
    can have been undone since. So no number is given twice.
    """
    sql = "update choices set undone = ?, epoch = ? where fleet = ? and number = ?"
    tx.run(sql, choice.undone, choice.epoch, fleet, choice.number)
    tx.run("delete from approvals where fleet = ? and number = ?", fleet, choice.number)
    tx.run(
        "delete from choices where fleet = ? and undone is not null and epoch <="
        " (select epoch from choices where fleet = ? and undone is not null"
        " order by epoch desc limit 1 offset ?)",
        *(fleet, fleet, MAX_CHOICES),
    )


def _choice_from_row(row: tuple[Any, ...]) -> Choice:
    number, at, actor, epoch, undone, body = row
    kind, sources, targets, key, *decided = json.loads(body)
    comment, revision, digest = decided[0] if decided else ("", None, None)
    return Choice(
        number,
        at,
        actor,
        kind,
        None if sources is None else tuple(sources),
        None if targets is None else tuple(targets),
        None if key is None else (key[0], key[1], key[2]),
        undone,
        epoch,
        comment,
        revision,
        digest,
    )


MAX_NAMES = 5000  # devices in one choice, as sources or as targets
SHOWN_NAMES = 3  # names that a message, or the subject of an audit entry, has

Change = Callable[[Transaction], Choice]
DeviceNames = tuple[str, ...]


def unique_names(word: str, given: Sequence[str], least: int) -> DeviceNames:
    """Return names in order, each once; refuse too few and too many."""
    found = tuple(sorted(set(given)))
    if not least <= len(found) <= MAX_NAMES:
        raise SettingError(f"found {len(found)} {word}, expected {least} to {MAX_NAMES} devices")
    return found


def must_be_devices(tx: Transaction, fleet: str, *groups: Iterable[str]) -> None:
    """Refuse names that are not devices of the fleet."""
    known = {row[0] for row in tx.rows("select device from devices where fleet = ?", fleet)}
    unknown = sorted({name for group in groups for name in group} - known)
    if unknown:
        raise fleets.unknown_device(fleet, _join_names(unknown))


def adopt_change(
    fleet: str, sources: DeviceNames, targets: DeviceNames, caller: Caller, now: float
) -> Change:
    """Return the change after which targets adopt from these sources only."""

    def change(tx: Transaction) -> Choice:
        agreed = _lock_fleet(tx, fleet)
        must_be_devices(tx, fleet, sources, targets)
        _must_be_readable(sources)
        must_have_enough_sources(agreed, sources, targets)
        made = _new_choice(tx, fleet, "adopt", caller, now)
        made = replace(made, sources=sources, targets=targets)
        newest = [choice for choice in _in_force(tx, fleet) if choice.key is None][:1]
        return _store_new(tx, fleet, made, newest, action="adopt", subject=_join_names(targets))

    return change


def exclude_change(fleet: str, key: Key, caller: Caller, now: float) -> Change:
    """Return the change after which no device adopts a contribution."""

    def change(tx: Transaction) -> Choice:
        _lock_fleet(tx, fleet)
        _must_exist(tx, fleet, key)
        made = replace(_new_choice(tx, fleet, "exclude", caller, now), key=key)
        subject, known = "/".join(map(str, key)), _in_force(tx, fleet)
        return _store_new(tx, fleet, made, known, action="exclude contribution", subject=subject)

    return change


def decide_change(
    fleet: str,
    key: Key,
    decision: Decision,
    caller: Caller,
    now: float,
    *,
    comment: str,
    revision: int | None,
) -> Change:
    """Return the change after which a contribution is approved as it is now, or dismissed.

    With the `revision` that the caller has looked at, a later one is not approved unseen.
    """

    def change(tx: Transaction) -> Choice:
        _lock_fleet(tx, fleet)
        found = _must_exist(tx, fleet, key)
        if revision is not None and revision != found.revision:
            raise ChangedError(
                f"found revision {found.revision} of {'/'.join(map(str, key))}, and {revision} was "
                f"looked at: it has changed meanwhile, look again before you {decision} it"
            )
        made = replace(
            _new_choice(tx, fleet, decision, caller, now),
            key=key,
            comment=comment,
            revision=found.revision,
            digest=found.digest,
        )
        about = [c for c in _in_force(tx, fleet) if c.is_decision and c.key == key][:1]
        subject = "/".join(map(str, key))
        stored = _store_new(
            tx, fleet, made, about, action=f"{decision} contribution", subject=subject
        )
        if stored.number == made.number and decision == "approve":
            tx.run(
                "insert into approvals (fleet, number, digest, data) values (?, ?, ?, ?)",
                *(fleet, stored.number, found.digest, read_bytes(tx, found)),
            )
        return stored

    return change


def undo_change(fleet: str, number: int, caller: Caller, now: float) -> Change:
    """Return the change after which a choice is as if it had never been; twice is once."""

    def change(tx: Transaction) -> Choice:
        _lock_fleet(tx, fleet)
        found = find_choice(tx, fleet, number)
        if found.undone is not None:
            return found
        undone = replace(found, undone=now, epoch=fleets.next_epoch(tx, fleet))
        store_undo(tx, fleet, undone)
        _audit_choice(
            tx, fleet, undone, actor=caller.actor, at=now, action="undo", subject=f"choice {number}"
        )
        return undone

    return change


def _store_new(
    tx: Transaction, fleet: str, choice: Choice, known: Sequence[Choice], **words: str
) -> Choice:
    """Write a choice down, unless one of these is the same."""
    for each in known:
        if each.same(choice):
            return each
    made = replace(choice, epoch=fleets.next_epoch(tx, fleet))
    add_choice(tx, fleet, made)
    _audit_choice(tx, fleet, made, actor=made.actor, at=made.at, **words)
    return made


def _audit_choice(
    tx: Transaction, fleet: str, choice: Choice, *, actor: str, at: float, action: str, subject: str
) -> None:
    detail: dict[str, Any] = {"number": choice.number}
    detail |= {"sources": choice.sources, "targets": choice.targets}
    detail |= {"revision": choice.revision, "digest": choice.digest}
    detail |= {"comment": choice.comment or None}
    detail = {word: value for word, value in detail.items() if value is not None}
    audit.append(tx, at=at, actor=actor, action=action, fleet=fleet, subject=subject, **detail)


def _lock_fleet(tx: Transaction, fleet: str) -> Fleet:
    tx.lock(f"fleet {fleet}")
    return fleets.get(tx, fleet)


def _new_choice(
    tx: Transaction, fleet: str, kind: ChoiceKind, caller: Caller, now: float
) -> Choice:
    return Choice(highest_number(tx, fleet) + 1, now, caller.actor, kind)


def _in_force(tx: Transaction, fleet: str) -> list[Choice]:
    return [choice for choice in choices_of(tx, fleet) if choice.undone is None]


def must_have_enough_sources(fleet: Fleet, sources: DeviceNames, targets: DeviceNames) -> None:
    """Refuse sources that are too few: this fleet gives no sum of them."""
    for device in targets:
        count = len(set(sources) - {device})
        if 0 < count < fleet.min_devices:
            devices = "1 device" if count == 1 else f"{count} devices"
            raise SettingError(
                f"{device} would adopt from {devices}, and {fleet.name} gives no sum of "
                f"fewer than {fleet.min_devices}: choose more sources, or none"
            )


def _must_be_readable(sources: DeviceNames) -> None:
    """Refuse more names than fit into the document that a device reads, beside the rest of it."""
    size, limit = len(json.dumps(sources)), MAX_DESIRED_BYTES - 2048
    if size > limit:
        raise SettingError(
            f"the names of {len(sources)} sources have {size} bytes, expected at most {limit}: "
            "choose fewer sources"
        )


def _must_exist(tx: Transaction, fleet: str, key: Key) -> StoredContribution:
    try:
        must_be_plain_name("device", key[0])  # else a database might not like it
        must_be_pattern_name(key[2])
        found = find_stored(tx, fleet, key)
    except SettingError:
        found = None
    if found is None:
        raise UnknownError(
            f"no contribution {'/'.join(map(str, key))} in {fleet}: see `edgemerge fleet "
            f"contributions {fleet}`"
        )
    return found


def _join_names(names: Sequence[str]) -> str:
    more = len(names) - SHOWN_NAMES
    return ", ".join(names[:SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")
