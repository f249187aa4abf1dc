"""The faults of a fleet: stored apart from contributions, merged by likeness, told to devices.

A fault is in no total: it has a table of its own. A withdrawn one stays as an empty row, so that
an older revision cannot come back. Grouping compares all faults of a fleet, so its outcome is kept
until one of them changes; each device is told the sums of the groups without its own.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256

from edgemerge.core.errors import DeniedError, FormatError, RejectedError
from edgemerge.core.faults import MAX_PER_DEVICE, Faults, KnownFault
from edgemerge.core.ledger import Contribution, Key, Ledger, Selection
from edgemerge.core.projection import Projection
from edgemerge.core.stats import Stats
from edgemerge.server import fleets, releases
from edgemerge.server.auth import Caller
from edgemerge.server.choices.rules import Rules, RulesCache
from edgemerge.server.contributions import (
    WHERE_KEY,
    PutResult,
    ReceivedContribution,
    StoredContribution,
    lock_fleet,
    read_contribution,
    record_put,
    refuse_put,
)
from edgemerge.server.db.base import (
    BoundedCache,
    Database,
    DiskFullError,
    Transaction,
    ValueDamagedError,
    Writer,
    upsert,
)
from edgemerge.server.fleets import Fleet
from edgemerge.server.totals import MAX_CACHED, PullResult, answer_from
from edgemerge.wire.codec import decode

STORED_COLUMNS = "device, incarnation, pattern, revision, samples, bytes, digest, 'exact', received"
FAULT_COLUMNS = (
    "fleet, device, incarnation, pattern, revision, samples, bytes, digest, received, first, data"
)
MAX_ROWS_PER_DEVICE = 256  # with those that were withdrawn


def list_faults(tx: Transaction, fleet: str, device: str | None = None) -> list[StoredContribution]:
    """Return all faults, or those of one device, in the order of their keys."""
    only, values = ("", ()) if device is None else (" and device = ?", (device,))
    sql = f"select {STORED_COLUMNS} from faults where fleet = ?{only}"
    rows = tx.rows(sql, fleet, *values)
    return sorted((StoredContribution(*row) for row in rows), key=lambda stored: stored.key)


def read_fault(
    tx: Transaction, fleet: str, stored: StoredContribution, shared: Projection
) -> Contribution:
    """Return a stored fault, whose bytes must be those that came."""
    row = tx.one(f"select data from faults where {WHERE_KEY}", fleet, *stored.key)
    data = bytes(row[0]) if row else b""
    try:
        if sha256(data).hexdigest() != stored.digest:
            raise FormatError("its digest is another")
        return decode(data, Contribution, limit=len(data), projection=shared)
    except FormatError as error:
        raise ValueDamagedError(
            f"the stored fault {stored.pattern} of {stored.device} is damaged ({error}): drop the "
            "device, or restore the database from a backup; its next push mends it too"
        ) from error


def put_fault(
    tx: Transaction, checked: Fleet, received: ReceivedContribution, caller: Caller, now: float
) -> PutResult:
    """Store a fault unless it is stale, repeated or contradicts what is stored.

    Args:
        tx: The transaction to write in.
        checked: The fleet for which the fault was checked.
        received: The fault; without samples it withdraws an earlier one.
        caller: The device that sent it.
        now: The time to store, in Unix seconds.
    """
    name, new = checked.name, received.contribution
    fleet = lock_fleet(tx, checked, caller)
    mine = {stored.key: stored for stored in list_faults(tx, name, new.device)}
    known = mine.get(new.key)
    freshness = Ledger.check(received, known)
    if known is not None and freshness != "newer":
        return refuse_put(tx, fleet, received, known, caller, now)
    _must_have_a_place(new, list(mine.values()), known)
    what = (new.revision, new.samples, len(received.data), received.digest)
    values = (name, *new.key, *what, now, new.first, received.data)
    upsert(tx, "faults", FAULT_COLUMNS, values, key=4)
    action = "share fault" if new.samples else "withdraw fault"
    record_put(tx, action, name, received, caller, now)
    return PutResult(new=True, revision=new.revision, epoch=fleet.epoch)


def _must_have_a_place(
    new: Contribution, mine: list[StoredContribution], known: StoredContribution | None
) -> None:
    """Refuse one fault too many; withdrawn ones take no place."""
    if known is None and len(mine) >= MAX_ROWS_PER_DEVICE:
        raise RejectedError(
            f"found the fault {new.pattern!r} of {new.device}, which has named "
            f"{MAX_ROWS_PER_DEVICE} before: an operator can drop what the device shared"
        )
    others = sum(each.samples > 0 for each in mine if each.key != new.key)
    if new.samples > 0 and others >= MAX_PER_DEVICE:
        raise RejectedError(
            f"found the fault {new.pattern!r} of {new.device}, which has {others} already, "
            f"expected at most {MAX_PER_DEVICE}: undo the review of one that matters less"
        )


def drop_faults(tx: Transaction, fleet: str, device: str, incarnation: int | None = None) -> int:
    """Drop the faults of a device, of all or of one incarnation; return how many."""
    only, values = ("", ()) if incarnation is None else (" and incarnation = ?", (incarnation,))
    return tx.run(
        f"delete from faults where fleet = ? and device = ?{only}", fleet, device, *values
    )


def allowed(
    stored: Collection[StoredContribution], receiver: str | None, rules: Rules
) -> list[Key]:
    """Return the faults that a receiver may know, by operators' choices.

    A device of which an operator excluded a contribution is not believed when it names faults.
    """
    excluded = {device for device, _, _ in rules.excluded}
    return [
        each.key
        for each in stored
        if each.device not in excluded and rules.allows_source(each.device, receiver)
    ]


class FaultService:
    """Answers pulls of faults, and lists a fleet's known faults; any thread may call."""

    def __init__(self, database: Database, writer: Writer, rules: RulesCache) -> None:
        """Start with empty caches."""
        self._database, self._writer, self._rules = database, writer, rules
        self._groups = BoundedCache[str, tuple[str, list[list[Contribution]]]](MAX_CACHED)
        self._answers = BoundedCache[str, bytes](MAX_CACHED)
        self._new = releases.NewDevices()

    def pull(self, name: str, selection: Selection, caller: Caller, tag: str | None) -> PullResult:
        """Return the faults that a caller may know, without its own; no bytes if it has them.

        Args:
            name: The fleet.
            selection: Whose faults are wanted.
            caller: The device or person that asks.
            tag: The tag of the answer that the caller has.

        Raises:
            DeniedError: The fleet tells only totals, and the caller wants those of some devices.
        """
        with self._database.reading() as tx:
            fleet = fleets.get(tx, name)
        picks = selection.devices is not None or bool(selection.without)
        if picks and not caller.is_person and fleet.read_mode == "totals":
            raise DeniedError(
                f"{name} serves only totals: choosing devices would reveal single ones"
            )
        if fleet.releases_totals and not caller.is_person:
            return self._pull_released(name, selection.receiver, tag)
        with self._database.reading() as tx:
            stored = list_faults(tx, name)
            rules = self._rules.rules(tx, name)
            keys = set(allowed(selection.matching(stored), selection.receiver, rules))
            chosen = [each.key in keys for each in stored]
            least = 1 if caller.is_person else fleet.min_devices
            words = [fleet.name, fleet.projection.fingerprint, str(least), str(chosen)]
            found = sha256("\n".join([*words, _digest(stored)]).encode()).hexdigest()
            make = partial(self._merged, tx, fleet, stored, keys, least)
            return answer_from(self._answers, found, tag, make)

    def _pull_released(self, name: str, receiver: str | None, tag: str | None) -> PullResult:
        """Answer from released faults alone, as `server.releases` does for what is normal."""
        with self._database.reading() as tx:
            pending = bool(self._changes(tx, fleets.get(tx, name)))
        if pending:
            with suppress(DiskFullError):  # then nothing new is told
                self._writer.write(lambda tx: self._release(tx, name), fleet=name)
        with self._database.reading() as tx:
            fleet, rules = fleets.get(tx, name), self._rules.rules(tx, name)
            gone = self._changes(tx, fleet).withdrawn
            held = releases.load_releases(tx, name, "fault")
            held = [each for each in held if each.number not in gone]
            given = releases.given_releases(held, rules, receiver, grouped=True)
            words = [fleet.name, fleet.projection.fingerprint, "released"]
            words += [_digest(each.others(receiver)) for each in given]
            found = sha256("\n".join(words).encode()).hexdigest()

            def make() -> Faults:
                groups = (
                    [read_contribution(tx, one, fleet.projection) for one in each.others(receiver)]
                    for each in given
                )
                return Faults.of_groups(groups, fleet.projection)

            return answer_from(self._answers, found, tag, make)

    def _changes(self, tx: Transaction, fleet: Fleet) -> releases.Changes:
        """Decide which released faults to withdraw, and which groups to release."""
        stored = list_faults(tx, fleet.name)
        keys = set(allowed(stored, None, self._rules.rules(tx, fleet.name)))
        rows = {each.key: each for each in stored if each.key in keys}
        held = releases.load_releases(tx, fleet.name, "fault")
        gone = releases.find_withdrawn(held, rows, Rules())
        known = releases.released_revisions(tx, fleet.name, "fault")
        read = partial(_read_sums, tx, fleet)
        made = []
        for group in self._grouped(tx, fleet, stored):
            members = [rows[fault.key] for fault in group if fault.key in rows]
            if len(self._new.of(members, known, read)) >= fleet.devices_needed:
                made.append((False, members))
        return releases.Changes(frozenset(gone), tuple(made))

    def _release(self, tx: Transaction, name: str) -> None:
        tx.lock(f"fleet {name}")
        fleet = fleets.get(tx, name)
        changes = self._changes(tx, fleet)
        releases.withdraw(tx, name, changes.withdrawn, "fault")
        number = max((e.number for e in releases.load_releases(tx, name, "fault")), default=0)
        for _, members in changes.made:
            number += 1
            found = [read_fault(tx, name, each, fleet.projection) for each in members]
            kept = [replace(each, body=_copy_body(tx, name, each)) for each in members]
            made = releases.Release(number, fleet.epoch, pooled=False, members=tuple(kept))
            stats = Stats.total(fleet.projection, (fault.stats for fault in found))
            content = partial(self._new.content, read=partial(_read_sums, tx, fleet))
            releases.store_release(tx, name, made, stats, content, "fault")

    def known(self, name: str) -> tuple[Fleet, list[KnownFault]]:
        """Return a fleet and all its known faults, as an operator may see them."""
        with self._database.reading() as tx:
            fleet, stored = fleets.get(tx, name), list_faults(tx, name)
            keys = set(allowed(stored, None, self._rules.rules(tx, name)))
            return fleet, list(self._merged(tx, fleet, stored, keys, 1))

    def _merged(
        self,
        tx: Transaction,
        fleet: Fleet,
        stored: list[StoredContribution],
        keys: Collection[Key],
        least: int,
    ) -> Faults:
        groups = self._grouped(tx, fleet, stored)
        some = ([fault for fault in group if fault.key in keys] for group in groups)
        return Faults.of_groups(some, fleet.projection, min_devices=least)

    def _grouped(
        self, tx: Transaction, fleet: Fleet, stored: list[StoredContribution]
    ) -> list[list[Contribution]]:
        digest = f"{fleet.projection.fingerprint} {_digest(stored)}"
        known, groups = self._groups.get(fleet.name) or ("", [])
        if known != digest:
            found = [
                read_fault(tx, fleet.name, each, fleet.projection)
                for each in stored
                if each.samples > 0
            ]
            groups = Faults.groups_of(found)
            self._groups.put(fleet.name, (digest, groups))
        return groups


def _read_sums(tx: Transaction, fleet: Fleet, stored: StoredContribution) -> Stats:
    return read_fault(tx, fleet.name, stored, fleet.projection).stats


def _copy_body(tx: Transaction, fleet: str, stored: StoredContribution) -> int:
    """Keep the bytes of a fault beside those of contributions: its next revision replaces them."""
    row = tx.one(f"select data from faults where {WHERE_KEY}", fleet, *stored.key)
    made = tx.rows("insert into bodies (data) values (?) returning id", row[0] if row else b"")
    return int(made[0][0])


def _digest(stored: Collection[StoredContribution]) -> str:
    return sha256("\n".join(each.identity for each in stored).encode()).hexdigest()
