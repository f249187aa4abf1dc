"""Fleets: devices that share one projection, fixed at creation; and allowed names."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import lru_cache

from edgemerge.core.errors import DeniedError, EdgemergeError, SettingError, UnknownError
from edgemerge.core.ledger import must_be_name
from edgemerge.core.projection import Projection
from edgemerge.core.trust import Trust
from edgemerge.exchange.configuration import PLAIN_NAME
from edgemerge.privacy.noise import NoiseSettings
from edgemerge.server.db.base import SqlRow, Transaction, ValueDamagedError
from edgemerge.wire.codec import decode

MASKED = "masked"  # read mode of a fleet whose server sees only totals
NAME_PATTERN = f"^{PLAIN_NAME}$"


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


FLEET_COLUMNS = "fleet, projection, reads, least, growing, epoch, created, trust, noise"
FLEET_TABLES = (
    *(
        "accounts",  # wall links
        "alarms",
        "approvals",
        "choices",
        "cohort_totals",
        "cohorts",
        "configurations",
        "contributions",
        "devices",
        "episodes",
        "epoch_boxes",
        "epoch_messages",
        "epochs",
        "faults",
        "invitations",
        "masked_keys",
        "merges",
        "minutes",
    ),
    *("notices", "quarters", "receivers", "released", "released_revisions", "releases", "reports"),
    *("reviews", "rings", "settings", "told", "totals", "fleets"),
)
MAX_HEADER_BYTES = 65_536  # bytes of a contribution beside its numbers


def default_min_devices(read_mode: str) -> int:
    """Return `min_devices` of a new fleet; single contributions need no protection in sums."""
    return 3 if read_mode == "totals" else 1


class ExistsError(SettingError):
    """A name that is taken."""


@dataclass(frozen=True)
class Fleet:
    """What a fleet has agreed on.

    Args:
        name: The name of the fleet.
        projection_bytes: The projection that all its devices share, encoded.
        read_mode: What a device may pull: "totals", or single "contributions", too; "masked":
            totals that the server cannot open for single devices (`server.masked_epochs`).
        min_devices: The fewest devices of which a sum, or the difference of two sums, is given,
            the caller not counted.
        growing_only: Whether a new revision must have learnt at least what the last one had.
        epoch: Rises with every change of contributions or choices.
        created: When the fleet was created, in Unix seconds.
        trust: Which contributions enter others' sums at once, see `core.trust`; it can be changed.
        noise: The noise in what devices of a masked fleet send; None (the default): none.
    """

    name: str
    projection_bytes: bytes
    read_mode: str
    min_devices: int
    growing_only: bool
    epoch: int
    created: float
    trust: str = "members"
    noise: NoiseSettings | None = None

    @property
    def projection(self) -> Projection:
        """The projection that all its devices share."""
        return _projection(self.projection_bytes)

    @property
    def releases_totals(self) -> bool:
        """Whether devices are given only totals that were released, see `server.releases`."""
        return self.read_mode == "totals" and self.min_devices > 1

    @property
    def devices_needed(self) -> int:
        """Of how many devices a sum must be; of a release, one of them may be the caller."""
        return self.min_devices + self.releases_totals

    @property
    def max_contribution_bytes(self) -> int:
        """The most bytes that one contribution may have: U, V, C, S, the projection, a header."""
        N, n = self.projection.n_hidden, self.projection.n_inputs
        numbers = 8 * (N * (N + 1) // 2 + N * n + 2 * n)
        return numbers + len(self.projection_bytes) + MAX_HEADER_BYTES


@lru_cache(maxsize=64)
def _projection(data: bytes) -> Projection:
    found = decode(data)
    if not isinstance(found, Projection):
        raise SettingError(f"found {type(found).__name__}, expected a projection: encode() one")
    return found


def create(
    tx: Transaction, fleet: Fleet, *, any_trust: bool = False, any_min_devices: bool = False
) -> bool:
    """Create a fleet; return False if the same one exists already.

    Args:
        tx: The transaction to write in.
        fleet: What it agrees on.
        any_trust: Whether one that exists may have another trust.
        any_min_devices: Whether it may have another `min_devices`: the default was once 1.
    """
    Trust.parse(fleet.trust)
    if fleet.noise is not None and fleet.read_mode != MASKED:
        raise SettingError(
            f"found noise for reads={fleet.read_mode}, expected masked: only there it is added "
            "before anything leaves a device"
        )
    known = find(tx, fleet.name)
    if known is None:
        tx.run(  # its epochs come after those of any fleet of that name before
            f"insert into fleets ({FLEET_COLUMNS}) values (?, ?, ?, ?, ?,"
            " (select coalesce(max(seq), 0) from audit) + ?, ?, ?, ?)",
            *(fleet.name, fleet.projection_bytes, fleet.read_mode, fleet.min_devices),
            *(int(fleet.growing_only), tx.steps_at_end, fleet.created, fleet.trust),
            None if fleet.noise is None else json.dumps(fleet.noise.plain()),
        )
        return True
    trust = fleet.trust if any_trust else known.trust  # it is no agreement, and can be changed
    least = fleet.min_devices if any_min_devices else known.min_devices
    same = replace(known, epoch=fleet.epoch, created=fleet.created, trust=trust, min_devices=least)
    if same != fleet:
        raise ExistsError(
            f"a fleet {fleet.name} exists with other settings: "
            "choose another name, or delete it first; its trust can be changed"
        )
    return False


SEE_FLEETS = "`edgemerge fleet list` lists them"


def find(tx: Transaction, name: str) -> Fleet | None:
    """Return a fleet, or None."""
    row = tx.one(f"select {FLEET_COLUMNS} from fleets where fleet = ?", name)
    return _fleet_from_row(row) if row else None


def get(tx: Transaction, name: str) -> Fleet:
    """Return a fleet that must exist."""
    found = find(tx, name)
    if found is None:
        raise UnknownError(f"no fleet {name}: {SEE_FLEETS}, and an admin creates one")
    return found


def unknown_device(fleet: str, device: str) -> UnknownError:
    """Return the error for a device, or several in one text, that a fleet does not have."""
    return UnknownError(
        f"no device {device} in {fleet}: `edgemerge fleet devices {fleet}` lists its devices"
    )


def all_fleets(tx: Transaction) -> list[Fleet]:
    """Return all fleets in order of their names."""
    rows = tx.rows(f"select {FLEET_COLUMNS} from fleets order by fleet")
    return [_fleet_from_row(row) for row in rows]


def delete(tx: Transaction, name: str) -> None:
    """Delete a fleet and everything in it; the audit log stays."""
    if tx.one("select 1 from fleets where fleet = ?", name) is None:  # a damaged one goes too
        raise UnknownError(f"no fleet {name}, so nothing was deleted: {SEE_FLEETS}")
    bodies = "from contributions where fleet = ?"
    ids = f"select body {bodies} union select counted {bodies}"
    ids += " union select body from released where fleet = ?"
    tx.run(f"delete from bodies where id in ({ids})", name, name, name)
    for table in FLEET_TABLES:
        tx.run(f"delete from {table} where fleet = ?", name)


def store_trust(tx: Transaction, name: str, trust: Trust) -> None:
    """Change which contributions enter others' sums at once; devices hear of it by the epoch."""
    sql = "update fleets set trust = ?, trust_epoch = ? where fleet = ?"
    tx.run(sql, str(trust), next_epoch(tx, name), name)


def trust_epoch(tx: Transaction, name: str) -> int:
    """Return the epoch at which the trust was changed, 0 if it never was."""
    row = tx.one("select trust_epoch from fleets where fleet = ?", name)
    return int(row[0]) if row else 0


def is_by_pattern(tx: Transaction, name: str) -> bool:
    """Return whether totals are released by pattern: whether a device ever asked for patterns."""
    row = tx.one("select by_pattern from fleets where fleet = ?", name)
    return bool(row and row[0])


def store_by_pattern(tx: Transaction, name: str) -> None:
    """Release totals by pattern from now on."""
    tx.run("update fleets set by_pattern = 1 where fleet = ?", name)


def next_epoch(tx: Transaction, name: str) -> int:
    """Count a change of a fleet's contributions or choices; return the new epoch."""
    tx.run("update fleets set epoch = epoch + 1 where fleet = ?", name)
    row = tx.one("select epoch from fleets where fleet = ?", name)
    if row is None:
        raise UnknownError(f"no fleet {name}")
    return int(row[0])


def _fleet_from_row(row: SqlRow) -> Fleet:
    """Return a stored fleet, whose projection must be readable: it was when it was stored."""
    name, data, read_mode, min_devices, growing_only, epoch, created, trust, noise = row
    grows = bool(growing_only)
    fleet = Fleet(name, bytes(data), read_mode, min_devices, grows, epoch, created, trust)
    try:
        _ = fleet.projection
        if noise is not None:
            fleet = replace(fleet, noise=NoiseSettings.parse(json.loads(noise)))
    except EdgemergeError as error:
        raise ValueDamagedError(
            f"the projection or the noise of {name} is damaged: restore the database from a backup"
        ) from error
    return fleet


def must_be_masked(fleet: Fleet) -> None:
    """Refuse keys, cohorts and epochs in another fleet.

    Args:
        fleet: The fleet.
    """
    if fleet.read_mode != MASKED:
        raise SettingError(
            f"{fleet.name} is not a masked fleet: edgemerge fleet create --reads masked makes one"
        )


def must_not_be_masked(fleet: Fleet) -> None:
    """Refuse open contributions and pulls in a masked fleet.

    Args:
        fleet: The fleet.
    """
    if fleet.read_mode == MASKED:
        raise DeniedError(
            f'{fleet.name} is masked: set privacy = "masked" in [exchange] of the agent'
        )
