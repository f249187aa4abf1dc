"""Fleets: devices that share one projection, fixed at creation; and allowed names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from edgemerge.core.errors import EdgemergeError, SettingError, UnknownError
from edgemerge.core.ledger import must_be_name
from edgemerge.core.projection import Projection
from edgemerge.server.db.base import Transaction, ValueDamagedError
from edgemerge.wire.codec import decode

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"


def must_be_plain_name(word: str, value: str) -> None:
    """Refuse the name of a fleet or device that is not plain."""
    if not re.fullmatch(NAME_PATTERN, value):
        raise SettingError(
            f"found {word} {value[:120]!r}, expected 1 to 100 letters, digits, '.', '_' or '-', "
            "the first a letter or digit"
        )


def must_be_pattern_name(value: str) -> None:
    """Refuse the name of a pattern that cannot be part of an address."""
    must_be_name("pattern", value)
    if "/" in value or "\\" in value or not value.strip("."):
        raise SettingError(f"found pattern {value!r}, expected one without slashes, not only dots")


FLEET_COLUMNS = "fleet, projection, reads, least, growing, epoch, created"
READ_MODES = ("totals", "contributions")
FLEET_TABLES = (
    *("alarms", "choices", "contributions", "devices", "invitations", "merges", "minutes"),
    *("reports", "rings", "totals", "fleets"),
)
MAX_HEADER_BYTES = 65_536  # bytes of a contribution beside its numbers


class ExistsError(SettingError):
    """A name that is taken."""


@dataclass(frozen=True)
class Fleet:
    """What a fleet has agreed on; `epoch` rises with every change of its contributions."""

    fleet: str
    body: bytes
    reads: str
    least: int
    growing: bool
    epoch: int
    created: float

    @property
    def projection(self) -> Projection:
        """The projection that all its devices share."""
        return _projection(self.body)

    @property
    def numbers(self) -> int:
        """The bytes that the numbers of one contribution take."""
        N, n = self.projection.n_hidden, self.projection.n_inputs
        return 8 * (N * (N + 1) // 2 + N * n + 2 * n)

    @property
    def limit(self) -> int:
        """The bytes that one contribution may have."""
        return self.numbers + len(self.body) + MAX_HEADER_BYTES

    def same(self, other: Fleet) -> bool:
        """Say whether both have agreed on the same."""
        return (self.body, self.reads, self.least, self.growing) == (
            other.body,
            other.reads,
            other.least,
            other.growing,
        )


@lru_cache(maxsize=64)
def _projection(body: bytes) -> Projection:
    found = decode(body)
    if not isinstance(found, Projection):
        raise SettingError(f"found {type(found).__name__}, expected a projection: encode() one")
    return found


def create(tx: Transaction, fleet: Fleet) -> bool:
    """Make a fleet; False if the same is there already."""
    known = find(tx, fleet.fleet)
    if known is None:
        tx.run(  # its epochs come after those of any fleet of that name before
            f"insert into fleets ({FLEET_COLUMNS}) values (?, ?, ?, ?, ?,"
            " (select coalesce(max(seq), 0) from audit), ?)",
            fleet.fleet,
            fleet.body,
            fleet.reads,
            fleet.least,
            int(fleet.growing),
            fleet.created,
        )
        return True
    if not known.same(fleet):
        raise ExistsError(
            f"a fleet {fleet.fleet} is there already and has agreed on something else: "
            "choose another name, or delete it first"
        )
    return False


def find(tx: Transaction, name: str) -> Fleet | None:
    """Give a fleet, or None."""
    row = tx.one(f"select {FLEET_COLUMNS} from fleets where fleet = ?", name)
    return _readable(_fleet_from_row(row)) if row else None


def get(tx: Transaction, name: str) -> Fleet:
    """Give a fleet that must be there."""
    found = find(tx, name)
    if found is None:
        raise UnknownError(f"no fleet {name}: an operator creates it")
    return found


def all_fleets(tx: Transaction) -> list[Fleet]:
    """Give all fleets in order of their names."""
    return [
        _readable(_fleet_from_row(row))
        for row in tx.rows(f"select {FLEET_COLUMNS} from fleets order by fleet")
    ]


def delete(tx: Transaction, name: str) -> None:
    """Remove a fleet and everything in it; the audit log stays."""
    if tx.one("select 1 from fleets where fleet = ?", name) is None:  # a damaged one goes too
        raise UnknownError(f"no fleet {name}: nothing was deleted")
    tx.run(
        "delete from bodies where id in (select body from contributions where fleet = ?"
        " union select counted from contributions where fleet = ?)",
        name,
        name,
    )
    for table in FLEET_TABLES:
        tx.run(f"delete from {table} where fleet = ?", name)


def next_epoch(tx: Transaction, name: str) -> int:
    """Count a change of what a fleet has contributed."""
    tx.run("update fleets set epoch = epoch + 1 where fleet = ?", name)
    row = tx.one("select epoch from fleets where fleet = ?", name)
    if row is None:
        raise UnknownError(f"no fleet {name}")
    return int(row[0])


def _readable(fleet: Fleet) -> Fleet:
    """Give a stored fleet, whose projection must be readable: it was when it was stored."""
    try:
        _ = fleet.projection
    except EdgemergeError as error:
        raise ValueDamagedError(
            f"the projection of {fleet.fleet} is damaged: restore the database from a backup"
        ) from error
    return fleet


def _fleet_from_row(row: tuple[object, ...]) -> Fleet:
    name, body, reads, least, growing, epoch, created = row
    return Fleet(
        str(name),
        bytes(body),  # type: ignore[call-overload]  # a blob
        str(reads),
        int(least),  # type: ignore[call-overload]  # a number
        bool(growing),
        int(epoch),  # type: ignore[call-overload]  # a number
        float(created),  # type: ignore[arg-type]  # a number
    )
