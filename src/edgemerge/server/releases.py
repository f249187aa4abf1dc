"""Released totals: the only sums that devices get of a fleet with level `totals`.

A release is one sum, with the contributions that are in it. It is made when at least one device
more than `min_devices` has something in it that was in no release before, and it stays as it is
until the next one of the same contributions, or until it is withdrawn. All devices get the same
releases, each without its own part.

Why nobody is isolated: take any sums that a device can get, each times any factor, added up. The
newest release among them has new contributions of `min_devices` other devices or more, which are in
no older sum and in no other of its time, so nothing cancels them. Leaving releases out gives no new
sums. So trust, exclusions, checks and choices of operators can only decide what a release is made
of, or leave out whole ones.

Contributions of one pattern are a release of their own if they have enough devices. All others are
pooled into one, which is no pattern: only the total of all releases holds it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256

from edgemerge.core.errors import FormatError
from edgemerge.core.ledger import (
    KINDS,
    MAX_PARTS,
    Key,
    Kind,
    Merged,
    MergedPart,
    Origin,
    Selection,
)
from edgemerge.core.projection import Projection
from edgemerge.core.similarity import can_check
from edgemerge.core.stats import Stats
from edgemerge.failpoints import failpoint
from edgemerge.server import fleets, totals
from edgemerge.server.choices.rules import Rules
from edgemerge.server.contributions import (
    IS_NOT_RELEASED,
    StoredContribution,
    current_contributions,
    list_stored,
    read_stats,
)
from edgemerge.server.db.base import BoundedCache, Database, DiskFullError, Transaction, Writer
from edgemerge.server.fleets import Fleet
from edgemerge.server.totals import MAX_CACHED, MAX_GROUPING_TRIES, PullResult, PullService
from edgemerge.server.trust import NOT_COMPARED
from edgemerge.wire.codec import decode, encode

MAX_CONTENTS = 10_000  # digests of sums
MAX_JUDGES = 15  # devices whose samples a contribution must fit, those with most
MIN_JUDGES = 3
EVERY_DEVICE = "every device"  # the receiver in the audit log
WHOLE = "total"  # the pattern of origins in the sum of all releases

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Release:
    """A sum that devices may have, each without its own part.

    Args:
        number: Differs from that of any other release of this fleet at the same time.
        epoch: The fleet's epoch when it was made.
        pooled: Whether it holds what is in no pattern of enough devices.
        members: The contributions in it, in the order of their keys.
    """

    number: int
    epoch: int
    pooled: bool
    members: tuple[StoredContribution, ...]

    @property
    def devices(self) -> frozenset[str]:
        """The devices in it."""
        return frozenset(member.device for member in self.members)

    @property
    def samples(self) -> float:
        """The samples in it."""
        return sum(member.samples for member in self.members)

    def others(self, device: str | None) -> tuple[StoredContribution, ...]:
        """Return the contributions of all but one device."""
        return tuple(member for member in self.members if member.device != device)

    def name(self, min_devices: int) -> str:
        """Return what most devices call it; a number if that would tell of too few of them."""
        calls = Counter(pattern for _, pattern in {(m.device, m.pattern) for m in self.members})
        name, count = min(calls.items(), key=lambda item: (-item[1], item[0]))
        return name if count >= min_devices else f"pattern-{self.number}"


def load_releases(tx: Transaction, fleet: str, kind: Kind = "normal") -> list[Release]:
    """Return the releases of a fleet as they were last made."""
    members: dict[int, list[StoredContribution]] = {}
    for number, *row in tx.rows(
        "select number, device, incarnation, pattern, revision, samples, 0, digest, 'exact', 0.0,"
        " body from released where fleet = ? and kind = ?",
        *(fleet, kind),
    ):
        members.setdefault(number, []).append(StoredContribution(*row))
    sql = "select number, epoch, pooled from releases where fleet = ? and kind = ? order by number"
    return [
        Release(number, epoch, bool(pooled), tuple(sorted(members[number], key=lambda m: m.key)))
        for number, epoch, pooled in tx.rows(sql, fleet, kind)
    ]


def released_revisions(
    tx: Transaction, fleet: str, kind: Kind = "normal"
) -> dict[Key, tuple[int, str]]:
    """Return of each key the last revision that was in a release, and the digest of its sums."""
    sql = "select device, incarnation, pattern, revision, content from released_revisions"
    rows = tx.rows(f"{sql} where fleet = ? and kind = ?", fleet, kind)
    return {(d, i, p): (revision, content) for d, i, p, revision, content in rows}


class NewDevices:
    """Finds devices of which something is new; digests of sums are computed once."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._contents = BoundedCache[str, str](MAX_CONTENTS)

    def of(
        self,
        members: Iterable[StoredContribution],
        released: Mapping[Key, tuple[int, str]],
        read: Callable[[StoredContribution], Stats],
    ) -> set[str]:
        """Return the devices that have sums among these which were in no release before.

        A later revision of the same sums is not new: in a difference of totals it is nothing.

        Args:
            members: What would be released.
            released: What `released_revisions` returned.
            read: Returns the sums of a contribution.
        """
        found: set[str] = set()
        for member in members:
            revision, content = released.get(member.key, (-1, ""))
            later = member.revision > revision and member.device not in found
            if later and (not content or self.content(member, read) != content):
                found.add(member.device)
        return found

    def content(
        self, stored: StoredContribution, read: Callable[[StoredContribution], Stats]
    ) -> str:
        """Return the digest of the sums alone, without their revision."""
        found = self._contents.get(stored.digest)
        if found is None:
            found = sha256(encode(read(stored))).hexdigest()
            self._contents.put(stored.digest, found)
        return found


def candidates(
    contributions: Sequence[StoredContribution], needed: int
) -> list[tuple[bool, list[StoredContribution]]]:
    """Share contributions out among possible releases: patterns of enough devices, and the pool.

    Args:
        contributions: What may be released, each with the pattern (`part`) that it is in.
        needed: The devices that a release needs.
    """
    groups: dict[int, list[StoredContribution]] = {}
    for stored in contributions:
        groups.setdefault(stored.part, []).append(stored)
    large = {p for p in groups if p and len({c.device for c in groups[p]}) >= needed}
    pool = [stored for stored in contributions if stored.part not in large]
    return [(False, groups[part]) for part in sorted(large)] + [(True, pool)] * bool(pool)


def find_withdrawn(
    releases: Iterable[Release], current: Mapping[Key, StoredContribution], rules: Rules
) -> set[int]:
    """Return the releases with something that was dropped, emptied, excluded or dismissed."""

    def holds(key: Key) -> bool:
        now = current.get(key)
        gone = key in rules.excluded or key in rules.dismissed
        return now is not None and now.samples > 0 and not gone

    return {each.number for each in releases if not all(holds(m.key) for m in each.members)}


def withdraw(tx: Transaction, fleet: str, numbers: Iterable[int], kind: Kind = "normal") -> None:
    """Delete releases, and the sums that only they needed."""
    for number in numbers:
        where = "fleet = ? and kind = ? and number = ?"
        bodies = tx.rows(f"select body from released where {where}", fleet, kind, number)
        tx.run(f"delete from released where {where}", fleet, kind, number)
        tx.run(f"delete from releases where {where}", fleet, kind, number)
        needed = "select 1 from contributions where fleet = ? and (body = ? or counted = ?)"
        for (body,) in bodies:
            if tx.one(f"{needed} limit 1", fleet, body, body) is None:
                tx.run(f"delete from bodies where id = ? and {IS_NOT_RELEASED}", body)


def withdraw_device(
    tx: Transaction, fleet: str, device: str, incarnation: int | None = None
) -> None:
    """Withdraw every release with something of a device, of all or of one incarnation."""
    only, values = ("", ()) if incarnation is None else (" and incarnation = ?", (incarnation,))
    sql = f"select distinct number from released where fleet = ? and kind = ? and device = ?{only}"
    for kind in KINDS:
        numbers = [number for (number,) in tx.rows(sql, fleet, kind, device, *values)]
        withdraw(tx, fleet, numbers, kind)


def store_release(
    tx: Transaction,
    fleet: str,
    release: Release,
    stats: Stats,
    content: Callable[[StoredContribution], str],
    kind: Kind = "normal",
) -> None:
    """Write a release; what holds one of its contributions is withdrawn: none counts twice.

    Args:
        tx: The transaction to write in.
        fleet: The fleet.
        release: Its members have their sums among the stored bodies.
        stats: Their sum.
        content: Returns the digest of the sums of a member.
        kind: What it is a sum of.
    """
    keys = {member.key for member in release.members}
    old = load_releases(tx, fleet, kind)
    withdraw(tx, fleet, [e.number for e in old if keys & {m.key for m in e.members}], kind)
    data = encode(stats)
    tx.run(
        "insert into releases (fleet, kind, number, epoch, pooled, digest, data)"
        " values (?, ?, ?, ?, ?, ?, ?)",
        *(fleet, kind, release.number, release.epoch, int(release.pooled)),
        *(sha256(data).hexdigest(), data),
    )
    for member in release.members:
        tx.run(
            "insert into released (fleet, kind, device, incarnation, pattern, revision, samples,"
            " digest, number, body) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            *(fleet, kind, *member.key, member.revision, member.samples, member.digest),
            *(release.number, member.body),
        )
        tx.run(
            "insert into released_revisions (fleet, kind, device, incarnation, pattern, revision,"
            " content) values (?, ?, ?, ?, ?, ?, ?)"
            " on conflict (fleet, kind, device, incarnation, pattern) do update set"
            " revision = excluded.revision, content = excluded.content"
            " where excluded.revision > released_revisions.revision",
            *(fleet, kind, *member.key, member.revision, content(member)),
        )


def read_sum(tx: Transaction, fleet: Fleet, release: Release) -> Stats:
    """Return the sum of a release; if what is stored is damaged, add it up again."""
    sql = "select digest, data from releases where fleet = ? and kind = 'normal' and number = ?"
    digest, data = tx.one(sql, fleet.name, release.number) or ("", b"")
    try:
        if sha256(data).hexdigest() != digest:
            raise FormatError("its digest is another")
        return decode(bytes(data), Stats, limit=len(data), projection=fleet.projection)
    except FormatError as error:
        values = {"fleet": fleet.name, "problem": str(error)}
        log.error("a released sum is damaged: adding it up again", extra={"values": values})
        return _added_up(tx, release.members, fleet.projection)


def sum_for(tx: Transaction, fleet: Fleet, release: Release, device: str | None) -> Stats:
    """Return the sum of a release without what it holds of one device."""
    own = [member for member in release.members if member.device == device]
    whole = read_sum(tx, fleet, release)
    return whole - _added_up(tx, own, fleet.projection) if own else whole  # M7


def _added_up(
    tx: Transaction, members: Iterable[StoredContribution], projection: Projection
) -> Stats:
    return Stats.total(projection, (read_stats(tx, each, projection) for each in members))


def allowed_releases(
    releases: Iterable[Release], rules: Rules, device: str | None
) -> list[Release]:
    """Return the releases that are wholly of devices from which a device adopts."""
    return [
        each
        for each in releases
        if all(who == device or rules.allows_source(who, device) for who in each.devices)
    ]


def given_releases(
    releases: Iterable[Release], rules: Rules, device: str | None, *, grouped: bool
) -> list[Release]:
    """Return the releases that make up a device's answer, the largest first.

    The pool is no pattern. Each release is of enough devices besides this one.
    """
    found = [e for e in allowed_releases(releases, rules, device) if not (grouped and e.pooled)]
    return sorted(found, key=lambda each: (-each.samples, each.number))


def origins_of(
    releases: Sequence[Release], fleet: Fleet, device: str | None, *, grouped: bool
) -> list[tuple[Origin, ...]]:
    """Return the origins of each part of an answer: all devices in the answer, for each part.

    They do not tell which device has which pattern, nor which of them have changed.
    """
    devices = sorted({who for each in releases for who in each.devices} - {device})
    if not grouped:
        newest = max((each.epoch for each in releases), default=0)
        return [tuple(Origin(who, 0, WHOLE, newest) for who in devices)] * bool(devices)
    names = [each.name(fleet.min_devices) for each in releases]
    unique = [
        name if names.count(name) == 1 else f"{name}-{each.number}"
        for name, each in zip(names, releases, strict=True)
    ]
    return [
        tuple(Origin(who, 0, name, each.epoch) for who in devices)
        for name, each in zip(unique, releases, strict=True)
    ]


def current_revisions(tx: Transaction, fleet: Fleet) -> dict[Key, int]:
    """Return the newest revision of every origin that an answer can have."""
    found = load_releases(tx, fleet.name) if fleet.releases_totals else []
    forms = (origins_of(found, fleet, None, grouped=grouped) for grouped in (False, True))
    return {origin.key: origin.revision for form in forms for part in form for origin in part}


def describe(tx: Transaction, fleet: Fleet) -> str:
    """Say what is released, and what the next release needs."""
    if not fleet.releases_totals:
        return "every change at once"
    sql = "select count(distinct device) from released where fleet = ? and kind = 'normal'"
    ((devices,),) = tx.rows(sql, fleet.name)
    ((new,),) = tx.rows(
        "select count(distinct c.device) from contributions c left join released_revisions r"
        " on r.fleet = c.fleet and r.kind = 'normal' and r.device = c.device"
        " and r.incarnation = c.incarnation and r.pattern = c.pattern"
        " where c.fleet = ? and c.body is not null and c.samples > 0"
        " and (r.revision is null or r.revision < c.revision)",
        fleet.name,
    )
    held, needed = f"a total of {devices} devices" if devices else "nothing", fleet.devices_needed
    return f"{held}; the next release needs something new of {needed} devices, and {new} have that"


class ReleaseService:
    """Makes releases when there is enough new, and answers pulls of devices from them."""

    def __init__(self, database: Database, writer: Writer, pull_service: PullService) -> None:
        """Start with empty caches; rules, trust and checks are those of `pull_service`."""
        self._database, self._writer, self._pulls = database, writer, pull_service
        self._refreshed: dict[str, tuple[int, bool]] = {}  # by fleet: its epoch, and by pattern
        self._loaded = BoundedCache[str, tuple[int, list[Release]]](MAX_CACHED)
        self._answers = BoundedCache[str, bytes](MAX_CACHED)
        self._new = NewDevices()

    def pull(
        self, name: str, selection: Selection, *, known: str | None = None, grouped: bool = False
    ) -> PullResult:
        """Return the sum of all releases, or each pattern's, without the receiver's own part.

        Args:
            name: The fleet.
            selection: The receiver and its incarnation: what it saw in others comes back to it.
            known: The tag of the answer that the caller has; then no bytes are returned.
            grouped: Whether to return one sum per pattern.
        """
        if grouped:
            self._release_by_pattern(name)
        self.refresh(name)
        me = selection.receiver
        with self._database.reading() as tx:
            fleet = fleets.get(tx, name)
            rules = self._pulls.rules_cache.rules(tx, name)
            given = given_releases(self._valid(tx, fleet, rules), rules, me, grouped=grouped)
            past = own_past(tx, name, selection, rules)
            given = given[: MAX_PARTS - len(past)] if grouped else given
            tag = _tag(fleet, given, past, me, grouped=grouped)
            make = partial(_merged, tx, fleet, given, past, me, grouped=grouped)
            return totals.answer_from(self._answers, tag, known, make)

    def refresh(self, name: str) -> None:
        """Withdraw what must not be given any more, and release what may be."""
        self._pulls.rebuild_if_damaged(name, lambda: self._refresh(name))

    def _refresh(self, name: str) -> None:
        for _ in range(MAX_GROUPING_TRIES):
            with self._database.reading() as tx:
                state = fleets.get(tx, name).epoch, fleets.is_by_pattern(tx, name)
                if self._refreshed.get(name) == state:
                    return
                grouped = not state[1] or totals.is_grouped(tx, name)
            with suppress(DiskFullError):  # then what is released is given, and nothing new
                self._pulls.catch_up(name)
                if not grouped:
                    self._pulls.group(name)
                if self._look_and_release(name, *state):
                    return
        with suppress(DiskFullError):  # changes come too fast to look at them first
            self._writer.write(lambda tx: self._release_in_one_write(tx, name), fleet=name)

    def _look_and_release(self, name: str, epoch: int, by_pattern: bool) -> bool:  # noqa: FBT001 - private
        """Look in a read transaction, so that others can write meanwhile; False: look again."""
        with self._database.reading() as tx:
            fleet = fleets.get(tx, name)
            if fleet.epoch != epoch:
                return False
            keys, complete = self._eligible(tx, fleet)
            pending = bool(self._changes(tx, fleet, keys))
        after: int | None = epoch
        if pending:
            after = self._writer.write(lambda tx: self._release(tx, fleet, keys), fleet=name)
        if after is not None and complete:
            self._refreshed[name] = after, by_pattern
        return after is not None

    def _rules(self, tx: Transaction, name: str) -> Rules:
        return self._pulls.rules_cache.rules(tx, name)

    def _release_in_one_write(self, tx: Transaction, name: str) -> None:
        totals.group_changes(tx, fleets.get(tx, name), totals.GROUPING_TIMEOUT_S)
        fleet = fleets.get(tx, name)
        self._release(tx, fleet, self._eligible(tx, fleet)[0])

    def _release(self, tx: Transaction, looked_at: Fleet, keys: frozenset[Key]) -> int | None:
        """Make the releases, unless the fleet has changed since it was looked at.

        Return the epoch afterwards, None if nothing was done.
        """
        tx.lock(f"fleet {looked_at.name}")
        fleet = fleets.get(tx, looked_at.name)
        if fleet.epoch != looked_at.epoch:
            return None
        name = fleet.name
        if fleets.is_by_pattern(tx, name) and not totals.is_grouped(tx, name):
            return None
        totals.count_changes(tx, fleet, 2**31)
        changes = self._changes(tx, fleet, keys)
        if not changes:
            return fleet.epoch
        epoch = fleets.next_epoch(tx, name)
        withdraw(tx, name, changes.withdrawn)
        whole, contributions = totals.load_parts(tx, fleet), list_stored(tx, name)
        totals.must_match_samples(whole, contributions)
        inside: dict[int, list[StoredContribution]] = {}
        for stored in contributions:
            inside.setdefault(stored.part, []).append(stored)
        number = max((each.number for each in load_releases(tx, name)), default=0)
        rows = {stored.key: stored for stored in contributions}
        for pooled, chosen in changes.made:
            number += 1
            members = [rows[stored.key] for stored in chosen]  # with the parts that sums have
            parts = {stored.part for stored in members}
            sums = (
                totals.sum_of(
                    *(tx, fleet.projection, whole[part], inside[part]),
                    [stored for stored in members if stored.part == part],
                )
                for part in sorted(parts)
            )
            stats = Stats.total(fleet.projection, sums)
            made = Release(number, epoch, pooled, tuple(sorted(members, key=lambda m: m.key)))
            content = partial(self._new.content, read=_reader(tx, fleet))
            store_release(tx, name, made, stats, content)
        failpoint("server-in-release")
        return epoch

    def _changes(self, tx: Transaction, fleet: Fleet, keys: frozenset[Key]) -> Changes:
        """Decide what to withdraw, and what of these contributions to release."""
        stored, released = list_stored(tx, fleet.name), released_revisions(tx, fleet.name)
        current, rules = {each.key: each for each in stored}, self._rules(tx, fleet.name)
        gone = find_withdrawn(load_releases(tx, fleet.name), current, rules)
        if not fleets.is_by_pattern(tx, fleet.name):
            stored = [replace(each, part=0) for each in stored]
        needed, read = fleet.devices_needed, _reader(tx, fleet)
        made = [
            (pooled, members)
            for pooled, members in candidates([c for c in stored if c.key in keys], needed)
            if len(self._new.of(members, released, read)) >= needed
        ]
        return Changes(frozenset(gone), tuple(made))

    def _eligible(self, tx: Transaction, fleet: Fleet) -> tuple[frozenset[Key], bool]:
        """Return what may be released, and whether everything was compared for that."""
        contributions, rules = list_stored(tx, fleet.name), self._rules(tx, fleet.name)
        waiting = self._pulls.trust.waiting(tx, fleet, contributions, rules)
        found = [
            stored
            for stored in contributions
            if stored.samples > 0 and stored.key not in rules.excluded and stored.key not in waiting
        ]
        complete = not any(why.endswith(NOT_COMPARED) for why in waiting.values())
        keys = frozenset(each.key for each in found)
        if self._changes(tx, fleet, keys).made:  # else there is no need to check
            keys -= self._misfits(tx, fleet, found, contributions, rules)
        return keys, complete

    def _misfits(
        self,
        tx: Transaction,
        fleet: Fleet,
        eligible: list[StoredContribution],
        contributions: list[StoredContribution],
        rules: Rules,
    ) -> frozenset[Key]:
        """Return what most judges would refuse: other devices, those with most samples.

        A check for each receiver, as where devices get every change at once, would give each its
        own sum, and their differences isolate what is left out.
        """
        samples = Counter[str]()
        for stored in current_of_all(eligible):
            samples[stored.device] += int(stored.samples)
        able = [who for who, count in samples.items() if can_check(count, fleet.projection)]
        judges = sorted(able, key=lambda who: (-samples[who], who))[:MAX_JUDGES]
        refused: dict[Key, list[str]] = {}
        apart = fleets.is_by_pattern(tx, fleet.name)
        found_by = self._pulls.checks.refusals(
            tx, fleet, judges, eligible, contributions, apart=apart
        )
        for reasons in found_by:
            for key, why in reasons.items():
                refused.setdefault(key, []).append(why)
        approved = {each.key for each in eligible if _is_approved(each, rules)}
        found = {
            key: why[0]
            for key, why in refused.items()
            if key not in approved and is_majority(len(why), judges, key[0])
        }
        if new := self._pulls.checks.record(fleet.name, EVERY_DEVICE, found):
            self._pulls.note_refusals(fleet.name, EVERY_DEVICE, new)
        return frozenset(found)

    def _valid(self, tx: Transaction, fleet: Fleet, rules: Rules) -> list[Release]:
        """Return the releases that hold; while the epoch stays, from memory."""
        epoch, found = self._loaded.get(fleet.name) or (-1, [])
        if epoch != fleet.epoch:
            found = load_releases(tx, fleet.name)
            current = {stored.key: stored for stored in list_stored(tx, fleet.name)}
            gone = find_withdrawn(found, current, rules)
            found = [each for each in found if each.number not in gone]
            self._loaded.put(fleet.name, (fleet.epoch, found))
        return found

    def _release_by_pattern(self, name: str) -> None:
        """Remember that devices of this fleet keep patterns apart, from the first that asks on."""
        with self._database.reading() as tx:
            known = fleets.is_by_pattern(tx, name)
        if not known:
            with suppress(DiskFullError):  # then the next one that asks is remembered
                self._writer.write(lambda tx: fleets.store_by_pattern(tx, name), fleet=name)


@dataclass(frozen=True)
class Changes:
    """What is withdrawn, and what is released anew: whether it is the pool, and its members."""

    withdrawn: frozenset[int] = frozenset()
    made: tuple[tuple[bool, list[StoredContribution]], ...] = ()

    def __bool__(self) -> bool:
        """Return whether anything changes."""
        return bool(self.withdrawn or self.made)


def _reader(tx: Transaction, fleet: Fleet) -> Callable[[StoredContribution], Stats]:
    return partial(read_stats, tx, projection=fleet.projection)


def current_of_all(contributions: Sequence[StoredContribution]) -> list[StoredContribution]:
    """Return the contributions of each device's newest incarnation."""
    devices = {stored.device for stored in contributions}
    return [each for who in sorted(devices) for each in current_contributions(contributions, who)]


def _is_approved(stored: StoredContribution, rules: Rules) -> bool:
    choice = rules.approved.get(stored.key)
    return choice is not None and choice.digest == stored.digest


def is_majority(refusing: int, judges: Sequence[str], device: str) -> bool:
    """Return whether most refuse; a judge does not refuse its own, and of two halves none wins."""
    asked = sum(judge != device for judge in judges)
    return asked >= MIN_JUDGES and refusing > len(judges) / 2


def own_past(
    tx: Transaction, fleet: str, selection: Selection, rules: Rules
) -> list[StoredContribution]:
    """Return what the receiver saw in other incarnations, as it is now."""
    if selection.receiver is None or selection.incarnation is None:
        return []
    mine = [c for c in list_stored(tx, fleet, selection.receiver) if c.samples > 0]
    return [c for c in selection(mine) if rules.allows(c.key, selection.receiver)][:MAX_PARTS]


def _tag(
    fleet: Fleet,
    given: Sequence[Release],
    past: Sequence[StoredContribution],
    me: str | None,
    *,
    grouped: bool,
) -> str:
    """Return the tag of an answer: it depends on what is in it, and on nothing else."""
    words = [fleet.projection.fingerprint, "patterns" if grouped else "total"]
    for each in given:
        words += [f"release {each.epoch}", *(m.identity for m in each.others(me))]
    words += ["past", *(stored.identity for stored in past)]
    return sha256("\n".join(words).encode()).hexdigest()


def _merged(
    tx: Transaction,
    fleet: Fleet,
    given: Sequence[Release],
    past: Sequence[StoredContribution],
    me: str | None,
    *,
    grouped: bool,
) -> Merged:
    """Add up an answer."""
    shared = fleet.projection
    sums = [sum_for(tx, fleet, each, me) for each in given]
    origins = origins_of(given, fleet, me, grouped=grouped)
    own = [MergedPart(read_stats(tx, each, shared), (each.origin,)) for each in past]
    if grouped:
        parts = [MergedPart(*pair) for pair in zip(sums, origins, strict=True)]
        return Merged(shared, (*parts, *own))
    named = sorted([*(o for part in origins for o in part), *(each.origin for each in past)])
    total = Stats.total(shared, (*sums, *(part.stats for part in own)))
    return Merged(shared, (MergedPart(total, tuple(named)),) if named else ())
