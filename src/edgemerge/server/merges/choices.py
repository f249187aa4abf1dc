"""Choices: what operators decide about who is told what, in the database and folded into rules.

`epoch` is that of the fleet when a choice was made or undone, so the largest one tells whether
anything has changed. What is undone is left out of the rules, as if it had never been.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, Literal

from edgemerge.core.contribution import Key
from edgemerge.core.errors import SettingError, UnknownError
from edgemerge.server.store.database import Transaction

Kind = Literal["adopt", "revoke"]
COLUMNS = "number, at, actor, epoch, undone, body"
MOST = 1000  # choices of a fleet that are in force; as many that were undone are remembered
FLEETS = 64  # whose rules are remembered


@dataclass(frozen=True)
class Choice:
    """One decision: "adopt" has sources and targets, "revoke" the key of a contribution."""

    number: int
    at: float
    actor: str
    kind: Kind
    sources: tuple[str, ...] | None = None
    targets: tuple[str, ...] | None = None
    key: Key | None = None
    undone: float | None = None
    epoch: int = 0

    @property
    def body(self) -> str:
        """What was decided, as it is stored."""
        return json.dumps([self.kind, self.sources, self.targets, self.key], separators=(",", ":"))

    def same(self, other: Choice) -> bool:
        """Say whether both decide the same."""
        return self.body == other.body


@dataclass(frozen=True)
class Rules:
    """What the choices in force say: of whom a device is told, and what is told to nobody.

    A device that is not among `sources` is told of all. What it saw in an earlier life is its own,
    and comes back to it whatever was chosen, unless that was revoked.
    """

    sources: Mapping[str, frozenset[str]] = field(default_factory=dict)
    revoked: frozenset[Key] = frozenset()
    newest: Mapping[str | None, int] = field(default_factory=dict)  # epochs; None: for everybody
    stamp: int = 0

    def let(self, key: Key, device: str | None) -> bool:
        """Say whether a contribution may be told to a device, or to an operator."""
        return key not in self.revoked and (key[0] == device or self.chose(key[0], device))

    def chose(self, source: str, device: str | None) -> bool:
        """Say whether a device is told of another at all."""
        chosen = None if device is None else self.sources.get(device)
        return chosen is None or source in chosen

    def silent(self, device: str | None) -> bool:
        """Say whether no choice matters for a device."""
        return not self.revoked and device not in self.sources

    def newest_for(self, device: str) -> int:
        """Give a number that changes with every choice, made or undone, about this device."""
        return max(self.newest.get(device, 0), self.newest.get(None, 0))

    def adopting(self, sources: Iterable[str], targets: Iterable[str]) -> Rules:
        """Give the rules as they would be after one more choice."""
        chosen = frozenset(sources)
        return replace(self, sources={**self.sources, **dict.fromkeys(targets, chosen)})


def fold(choices: Iterable[Choice]) -> Rules:
    """Let choices act in their order."""
    sources: dict[str, frozenset[str]] = {}
    revoked: set[Key] = set()
    newest: dict[str | None, int] = {}
    for choice in sorted(choices, key=lambda choice: choice.number):
        for who in choice.targets or (None,):
            newest[who] = max(newest.get(who, 0), choice.epoch)
        if choice.undone is None and choice.key is not None:
            revoked.add(choice.key)
        elif choice.undone is None:
            sources |= dict.fromkeys(choice.targets or (), frozenset(choice.sources or ()))
    return Rules(sources, frozenset(revoked), newest, max(newest.values(), default=0))


class Ruling:
    """The rules of fleets, read again only when a choice was made or undone, by whomever."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._known: OrderedDict[str, Rules] = OrderedDict()
        self._lock = Lock()

    def rules(self, tx: Transaction, fleet: str) -> Rules:
        """Give the rules of a fleet as this transaction sees them."""
        row = tx.one("select coalesce(max(epoch), 0) from choices where fleet = ?", fleet)
        stamp = int(row[0]) if row else 0
        if not stamp:
            return Rules()
        with self._lock:
            found = self._known.get(fleet)
        if found is None or found.stamp != stamp:
            found = fold(every(tx, fleet))
            with self._lock:
                self._known[fleet] = found
                self._known.move_to_end(fleet)
                while len(self._known) > FLEETS:
                    self._known.popitem(last=False)
        return found


def every(tx: Transaction, fleet: str) -> list[Choice]:
    """Give the choices of a fleet, newest first."""
    sql = f"select {COLUMNS} from choices where fleet = ? order by number desc"
    return [_choice(row) for row in tx.rows(sql, fleet)]


def find(tx: Transaction, fleet: str, number: int) -> Choice:
    """Give a choice that must be there."""
    row = tx.one(f"select {COLUMNS} from choices where fleet = ? and number = ?", fleet, number)
    if row is None:
        raise UnknownError(f"no choice {number} in {fleet}")
    return _choice(row)


def newest(tx: Transaction, fleet: str) -> int:
    """Give the highest number that a choice has had."""
    row = tx.one("select coalesce(max(number), 0) from choices where fleet = ?", fleet)
    return int(row[0]) if row else 0


def add(tx: Transaction, fleet: str, choice: Choice) -> None:
    """Write a choice down, unless there are too many."""
    row = tx.one("select count(*) from choices where fleet = ? and undone is null", fleet)
    if row and row[0] >= MOST:
        raise SettingError(f"{fleet} has {MOST} choices in force, expected fewer: undo some first")
    tx.run(
        f"insert into choices (fleet, {COLUMNS}) values (?, ?, ?, ?, ?, ?, ?)",
        fleet,
        choice.number,
        choice.at,
        choice.actor,
        choice.epoch,
        choice.undone,
        choice.body,
    )


def undo(tx: Transaction, fleet: str, choice: Choice) -> None:
    """Write down that a choice is undone; of those that were, the oldest are forgotten.

    Never that with the highest number: fewer others were in force when it was made, and only those
    can have been undone since. So no number is given twice.
    """
    sql = "update choices set undone = ?, epoch = ? where fleet = ? and number = ?"
    tx.run(sql, choice.undone, choice.epoch, fleet, choice.number)
    tx.run(
        "delete from choices where fleet = ? and undone is not null and epoch <="
        " (select epoch from choices where fleet = ? and undone is not null"
        " order by epoch desc limit 1 offset ?)",
        fleet,
        fleet,
        MOST,
    )


def _choice(row: tuple[Any, ...]) -> Choice:
    number, at, actor, epoch, undone, body = row
    kind, sources, targets, key = json.loads(body)
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
    )
