"""Exact totals of a fleet, kept up to date and grouped by pattern, and answers to pulls.

Totals are kept in parts: part 0 is not grouped yet, each other part is one pattern; their sum is
the total, whatever the grouping. They can be deleted and summed up again from the contributions.
A fleet may demand that no sum is given of fewer than `min_devices` devices, the caller not counted;
groups that are left out then hide among others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import combinations
from time import monotonic
from typing import TypeVar

from edgemerge.core.errors import CapacityError, DeniedError, FormatError, UnavailableError
from edgemerge.core.faults import Faults
from edgemerge.core.ledger import MAX_PARTS, Key, Merged, MergedPart, Selection
from edgemerge.core.projection import Projection
from edgemerge.core.similarity import SIMILAR_FACTOR, Profile, best_match, nearest_pair
from edgemerge.core.stats import Stats
from edgemerge.failpoints import failpoint
from edgemerge.server import audit, fleets
from edgemerge.server.choices.rules import Rules, RulesCache
from edgemerge.server.contributions import (
    ProfileCache,
    StoredContribution,
    TotalsDamagedError,
    list_stored,
    list_uncounted,
    mark_counted,
    read_counted_stats,
    read_stats,
)
from edgemerge.server.db.base import BoundedCache, Database, DiskFullError, Transaction, Writer
from edgemerge.server.fleets import Fleet
from edgemerge.server.trust import LevelChecks, Refusals, TrustChecks, Waiting
from edgemerge.wire.codec import decode, encode

Parts = dict[int, Stats]

log = logging.getLogger(__name__)


def load_parts(tx: Transaction, fleet: Fleet) -> Parts:
    """Return the parts as they were last written."""
    rows = tx.rows("select part, digest, data from totals where fleet = ?", fleet.name)
    return {part: _decode_part(data, digest, fleet.projection) for part, digest, data in rows}


def store_parts(tx: Transaction, fleet: Fleet, before: Parts, now: Parts) -> None:
    """Write the parts that have changed; delete those that are empty."""
    for part, stats in now.items():
        if stats is before.get(part):
            continue
        if stats.count == 0 and not stats.S.any():
            tx.run("delete from totals where fleet = ? and part = ?", fleet.name, part)
        else:
            data = encode(stats)
            tx.run(
                "insert into totals (fleet, part, digest, data) values (?, ?, ?, ?) on conflict"
                " (fleet, part) do update set digest = excluded.digest, data = excluded.data",
                *(fleet.name, part, sha256(data).hexdigest(), data),
            )


def count_changes(tx: Transaction, fleet: Fleet, limit: int) -> int:
    """Bring the totals up to date with at most `limit` changes; return how many there were."""
    tx.lock(f"fleet {fleet.name}")
    try:
        return _count_changes(tx, fleet, limit)
    except (TotalsDamagedError, CapacityError) as error:
        # What fits at intake fits when added afresh; beside sums that are not replaced yet, some
        # of it may not.
        rebuild_totals(tx, fleet.name, error)
        return _count_changes(tx, fleet, limit)


def _count_changes(tx: Transaction, fleet: Fleet, limit: int) -> int:
    """Read and add up first: when something is damaged, nothing has changed."""
    changes = list_uncounted(tx, fleet.name, limit)
    if changes:
        before = load_parts(tx, fleet)
        now = dict(before)
        count_all(tx, fleet.projection, now, changes)
        for stored in changes:
            mark_counted(tx, fleet.name, stored, 0)
        failpoint("server-in-fold")
        store_parts(tx, fleet, before, now)
    return len(changes)


def count_all(
    tx: Transaction, projection: Projection, parts: Parts, changes: list[StoredContribution]
) -> None:
    """Let the sums hold the newest of each key instead of what they hold of it.

    All old sums are removed before new ones are added: together they may exceed the capacity.
    """
    empty = Stats.empty(projection)
    for stored in changes:
        if stored.counted is not None:
            old = read_counted_stats(tx, stored, projection)
            parts[stored.part] = parts.get(stored.part, empty) - old  # M7
    for stored in changes:
        if stored.body is not None:
            parts[0] = parts.get(0, empty) + read_stats(tx, stored, projection)  # M7


def exact_total(tx: Transaction, fleet: Fleet, contributions: list[StoredContribution]) -> Stats:
    """Return the exact sum of everything, without writing anything."""
    parts = load_parts(tx, fleet)
    count_all(tx, fleet.projection, parts, list_uncounted(tx, fleet.name, 2**31))
    must_match_samples(parts, contributions)
    return Stats.total(fleet.projection, parts.values())


def must_match_samples(parts: Parts, contributions: list[StoredContribution]) -> None:
    """Refuse sums of another number of samples than was contributed."""
    counts = {part: stats.count for part, stats in parts.items()}
    for stored in contributions:
        part = stored.part if stored.body == stored.counted else 0
        counts[part] = counts.get(part, 0.0) - stored.samples
    if any(counts.values()):
        raise TotalsDamagedError("the kept sums do not hold the samples that were contributed")


def rebuild_totals(tx: Transaction, fleet: str, why: Exception) -> None:
    """Delete the totals: from now on every contribution is uncounted, and is added again."""
    values = {"fleet": fleet, "problem": str(why)}
    log.error("kept sums cannot be used: summing up afresh", extra={"values": values})
    tx.lock(f"fleet {fleet}")
    tx.run("delete from totals where fleet = ?", fleet)
    tx.run("delete from contributions where fleet = ? and body is null", fleet)
    tx.run("update contributions set counted = null, part = 0 where fleet = ?", fleet)
    tx.run(
        "delete from bodies where id not in (select body from contributions where body is not null"
        " union select counted from contributions where counted is not null"
        " union select body from released)"
    )


def sum_of(
    tx: Transaction,
    projection: Projection,
    whole: Stats,
    inside: list[StoredContribution],
    chosen: list[StoredContribution],
) -> Stats:
    """Add up the chosen of those inside a known sum, the way that reads fewer of them."""
    wanted = {stored.key for stored in chosen}
    left_out = [stored for stored in inside if stored.key not in wanted and stored.samples > 0]
    if len(left_out) < len(chosen):
        parts = (read_stats(tx, stored, projection) for stored in left_out)
        return whole - Stats.total(projection, parts)  # M7
    return Stats.total(projection, (read_stats(tx, e, projection) for e in chosen))


def _decode_part(data: bytes, digest: str, projection: Projection) -> Stats:
    try:
        if sha256(data).hexdigest() != digest:
            raise FormatError("its digest is another")
        return decode(bytes(data), Stats, limit=len(data), projection=projection)
    except FormatError as error:
        raise TotalsDamagedError(f"a kept sum is damaged: {error}") from error


CHANGES_PER_STEP = 16


def group_changes(tx: Transaction, fleet: Fleet, budget_s: float) -> bool:
    """Group what has changed, for about `budget_s`; return whether all is done."""
    end = monotonic() + budget_s
    while count_changes(tx, fleet, CHANGES_PER_STEP):
        if monotonic() > end:
            return False
    new = [each for each in list_stored(tx, fleet.name) if each.part == 0 and each.samples > 0]
    waiting = sorted(new, key=lambda stored: (-stored.samples, stored.key))
    if waiting:
        before = load_parts(tx, fleet)
        parts = _Grouping(before)
        parts.take(tx, fleet, waiting.pop(0))  # at least one, or slow reading would stop all
        while waiting and monotonic() <= end:
            parts.take(tx, fleet, waiting.pop(0))
        if not waiting:
            parts.join(tx, fleet)
        failpoint("server-in-place")
        store_parts(tx, fleet, before, parts.sums)
    return not waiting


def is_grouped(tx: Transaction, fleet: str) -> bool:
    """Return whether the totals hold every change, each in the part of its pattern."""
    ungrouped = tx.one(
        "select 1 from contributions where fleet = ? and part = 0 and samples > 0"
        " and body is not null limit 1",
        fleet,
    )
    return ungrouped is None and not list_uncounted(tx, fleet, 1)


class _Grouping:
    """The parts while they are changed, and what comparing with them needs."""

    def __init__(self, sums: Parts) -> None:
        self.sums = dict(sums)
        self._profiles: dict[int, Profile] = {}
        self._touched: set[int] = set()

    def take(self, tx: Transaction, fleet: Fleet, stored: StoredContribution) -> None:
        """Move one contribution from part 0 into the pattern that explains it, or a new one."""
        stats = read_stats(tx, stored, fleet.projection)
        known = {part: self._profile(part) for part in self._patterns()}
        best = best_match(known, Profile.of(stats), SIMILAR_FACTOR)
        part = max(self.sums, default=0) + 1 if best is None else best
        self._add(0, stats, -1)
        self._add(part, stats, 1)
        mark_counted(tx, fleet.name, stored, part)

    def join(self, tx: Transaction, fleet: Fleet) -> None:
        """Join patterns that explain each other, nearest first, if one of them has changed."""
        while True:
            every = combinations(reversed(self._patterns()), 2)
            pairs = [pair for pair in every if {*pair} & self._touched]
            known = {part: self._profile(part) for pair in pairs for part in pair}
            nearest = nearest_pair(known, SIMILAR_FACTOR, pairs)
            if nearest is None:
                return
            a, b = nearest
            self._add(b, self.sums[a], 1)
            self._add(a, self.sums[a], -1)
            tx.run(
                "update contributions set part = ? where fleet = ? and part = ?", b, fleet.name, a
            )

    def _patterns(self) -> list[int]:
        return [part for part, stats in sorted(self.sums.items()) if part and stats.count > 0]

    def _profile(self, part: int) -> Profile:
        if part not in self._profiles:
            self._profiles[part] = Profile.of(self.sums[part])
        return self._profiles[part]

    def _add(self, part: int, stats: Stats, sign: int) -> None:
        old = self.sums.get(part, Stats.empty(stats.projection))
        self.sums[part] = old + stats if sign > 0 else old - stats  # M7
        self._profiles.pop(part, None)
        self._touched.add(part)


Groups = dict[int, list[StoredContribution]]


def select(
    selection: Selection, contributions: list[StoredContribution], rules: Rules, waiting: Waiting
) -> list[StoredContribution]:
    """Return the selected contributions that operators' rules allow, in the order of their keys.

    What waits is left out, unless it is the receiver's own or was chosen for it.
    """
    me = selection.receiver
    found = [stored for stored in contributions if stored.samples > 0]
    if not rules.has_no_rule(me):
        found = [stored for stored in found if rules.allows(stored.key, me)]
    if waiting:
        found = [c for c in found if c.key not in waiting or rules.decided_on(c.key, me)]
    return selection(found)


def group_by_part(contributions: list[StoredContribution]) -> Groups:
    """Sort contributions into their patterns, the largest first; of equal ones by their keys."""
    found: Groups = {}
    for stored in contributions:
        if stored.part:
            found.setdefault(stored.part, []).append(stored)

    def order(part: int) -> tuple[float, Key]:
        return -sum(stored.samples for stored in found[part]), min(c.key for c in found[part])

    return {part: found[part] for part in sorted(found, key=order)}


def must_have_enough_devices(
    selection: Selection, chosen: list[StoredContribution], min_devices: int
) -> None:
    """Refuse a sum of so few devices that it would give one of them away."""
    count = len(_other_devices(chosen, selection))
    if 0 < count < min_devices:
        raise DeniedError(
            f"this sum would be of {count} devices beside you; this fleet tells nothing about "
            f"fewer than {min_devices}"
        )


def shareable_groups(selection: Selection, groups: Groups, min_devices: int) -> Groups:
    """Leave out patterns of too few devices, and then so many that those hide among others.

    The caller's own do not matter, so selecting them in another way reveals nothing new. Of what is
    left at most `MAX_PARTS` are given, the largest: a bank compares each with all of its own. Those
    beyond have enough devices themselves, so they can be left out, too.
    """
    others = {part: [c for c in groups[part] if c.device != selection.receiver] for part in groups}
    count = {part: len(_other_devices(others[part], selection)) for part in groups}
    size = {part: sum(stored.samples for stored in others[part]) for part in groups}
    shown = sorted((p for p in groups if count[p] >= min_devices), key=lambda p: (size[p], p))
    while shown:
        hidden = [stored for part in others if part not in shown for stored in others[part]]
        if not 0 < len(_other_devices(hidden, selection)) < min_devices:
            break
        shown.pop(0)  # the smallest
    given = [part for part in groups if part in shown or not count[part]]
    return {part: groups[part] for part in given[:MAX_PARTS]}


def _other_devices(chosen: Iterable[StoredContribution], selection: Selection) -> set[str]:
    return {stored.device for stored in chosen} - {selection.receiver or ""}


def etag_of(fleet: Fleet, groups: Groups) -> str:
    """Return the tag of an answer: it depends on what is in it, and on nothing else."""
    words = sha256(fleet.projection_bytes)
    for chosen in groups.values():
        words.update(b"/")
        words.update(" ".join([stored.identity for stored in chosen]).encode())
    return words.hexdigest()


T = TypeVar("T")
MAX_CACHED = 16  # fleets, and answers, that are remembered
# Changes that a pull adds up by itself; above that the kept sums are brought up to date.
MAX_INLINE_CHANGES = 16
GROUPING_SLICE_S = 0.1  # how long grouping may hold up writing
GROUPING_TIMEOUT_S = 10.0  # how long a pull waits for grouping
LEAVE_OUT = "leave out"  # the action in the audit log
MAX_NOTED_REFUSALS = 100  # of one contribution
MAX_GROUPING_TRIES = 3  # to find all contributions grouped, while devices push


@dataclass(frozen=True)
class PullResult:
    """The bytes of an answer, None if the caller has them, and a tag that changes with them."""

    tag: str
    data: bytes | None


@dataclass(frozen=True)
class FleetSnapshot:
    """A fleet's contributions at one epoch, their total, and the rules for who adopts which."""

    epoch: int
    contributions: list[StoredContribution]
    total: Stats
    rules: Rules


def answer_from(
    cache: BoundedCache[str, bytes],
    tag: str,
    known: str | None,
    make: Callable[[], Merged | Faults],
) -> PullResult:
    """Return an answer; make only what the caller does not know and is not cached."""
    if tag == known:
        return PullResult(tag, None)
    data = cache.get(tag)
    if data is None:
        data = encode(make())
        cache.put(tag, data)
    return PullResult(tag, data)


class PullService:
    """Answers pulls; an unchanged answer costs neither sums nor bytes."""

    def __init__(self, database: Database, writer: Writer, clock: Callable[[], float]) -> None:
        """Start with empty caches."""
        self._database, self._writer, self._clock = database, writer, clock
        self.rules_cache = RulesCache()
        self.checks = LevelChecks()
        self.profiles = ProfileCache()
        self.trust = TrustChecks(self.profiles)
        self._snapshots = BoundedCache[str, FleetSnapshot](MAX_CACHED)
        self._answers = BoundedCache[str, bytes](MAX_CACHED)

    def pull(
        self,
        name: str,
        selection: Selection,
        *,
        min_devices: int = 1,
        known: str | None = None,
        grouped: bool = False,
    ) -> PullResult:
        """Return the sum of the selected contributions, or one sum per pattern.

        Args:
            name: The fleet.
            selection: Which contributions are wanted.
            min_devices: The fewest devices of which a sum is given.
            known: The tag of the answer that the caller has; then no bytes are returned.
            grouped: Whether to return one sum per pattern.
        """
        answer = self._pull_patterns if grouped else self._pull_total
        return self.rebuild_if_damaged(name, lambda: answer(name, selection, min_devices, known))

    def rebuild_if_damaged(self, name: str, read: Callable[[], T]) -> T:
        """Read; if the totals are damaged, sum them up again from the contributions first."""
        try:
            return read()
        except TotalsDamagedError as error:
            why = error
        self._writer.write(lambda tx: rebuild_totals(tx, name, why), fleet=name)
        return read()

    def _pull_total(
        self, name: str, selection: Selection, min_devices: int, known: str | None
    ) -> PullResult:
        self.catch_up(name)
        with self._database.reading() as tx:
            fleet = fleets.get(tx, name)
            now = self.snapshot(tx, fleet)
            waiting = self.trust.waiting(tx, fleet, now.contributions, now.rules)
            chosen = select(selection, now.contributions, now.rules, waiting)
            chosen = self._fitting(
                *(tx, fleet, selection, chosen),
                contributions=now.contributions,
                rules=now.rules,
                apart=False,
            )
            must_have_enough_devices(selection, chosen, min_devices)

            def add_up() -> list[Stats]:
                return [sum_of(tx, fleet.projection, now.total, now.contributions, chosen)]

            return self._encoded(fleet, {0: chosen}, known, add_up)

    def catch_up(self, name: str) -> None:
        """Bring the totals up to date, if that is more than a pull can add up by the way."""
        with self._database.reading() as tx:
            changes = len(list_uncounted(tx, name, MAX_INLINE_CHANGES + 1))
        end = monotonic() + GROUPING_TIMEOUT_S
        with suppress(DiskFullError):  # a full disk makes pulls slow, not impossible
            while changes > MAX_INLINE_CHANGES:
                changes = self._writer.write(
                    lambda tx: count_changes(tx, fleets.get(tx, name), MAX_INLINE_CHANGES + 1),
                    fleet=name,
                )
                if monotonic() > end:
                    raise UnavailableError(
                        f"{name} has many changes to add up: try again", retry_s=2.0
                    )

    def _pull_patterns(
        self, name: str, selection: Selection, min_devices: int, known: str | None
    ) -> PullResult:
        """Answer from a read transaction, so that pulls never hold up the writer."""
        for _ in range(MAX_GROUPING_TRIES):
            with self._database.reading() as tx:
                if is_grouped(tx, name):
                    return self._grouped(tx, name, selection, min_devices, known)
            self.group(name)

        # Devices push faster than a read follows grouping: do both in one write.
        def group_and_answer(tx: Transaction) -> PullResult | None:
            if not group_changes(tx, fleets.get(tx, name), GROUPING_SLICE_S):
                return None
            return self._grouped(tx, name, selection, min_devices, known)

        end = monotonic() + GROUPING_TIMEOUT_S
        while (answer := self._writer.write(group_and_answer, fleet=name)) is None:
            _must_not_be_late(name, end)
        return answer

    def group(self, name: str) -> None:
        """Group what has changed, in slices that let others write in between."""

        def group_slice(tx: Transaction) -> bool:
            return group_changes(tx, fleets.get(tx, name), GROUPING_SLICE_S)

        end = monotonic() + GROUPING_TIMEOUT_S
        while not self._writer.write(group_slice, fleet=name):
            _must_not_be_late(name, end)

    def _grouped(
        self, tx: Transaction, name: str, selection: Selection, min_devices: int, known: str | None
    ) -> PullResult:
        fleet, contributions = fleets.get(tx, name), list_stored(tx, name)
        rules = self.rules_cache.rules(tx, name)
        waiting = self.trust.waiting(tx, fleet, contributions, rules)
        chosen = select(selection, contributions, rules, waiting)
        chosen = self._fitting(
            *(tx, fleet, selection, chosen), contributions=contributions, rules=rules, apart=True
        )
        found = group_by_part(chosen)
        groups = shareable_groups(selection, found, min_devices)

        def add_up() -> list[Stats]:
            if len(groups) == MAX_PARTS < len(found):
                values = {"fleet": name, "patterns": len(found), "given": MAX_PARTS}
                log.warning(
                    "left out patterns: more than one pull returns", extra={"values": values}
                )
            whole, inside = load_parts(tx, fleet), group_by_part(contributions)
            must_match_samples(whole, contributions)
            return [
                sum_of(tx, fleet.projection, whole[part], inside[part], some)
                for part, some in groups.items()
            ]

        return self._encoded(fleet, groups, known, add_up)

    def _fitting(
        self,
        tx: Transaction,
        fleet: Fleet,
        selection: Selection,
        chosen: list[StoredContribution],
        *,
        contributions: list[StoredContribution],
        rules: Rules,
        apart: bool,
    ) -> list[StoredContribution]:
        """Leave out what does not fit the receiver, and write down what is left out anew."""
        receiver = selection.receiver
        trusted = rules.sources.get(receiver or "")
        found, refused = self.checks.fitting(
            tx, fleet, receiver, chosen, contributions, trusted=trusted, apart=apart
        )
        if receiver is not None and (new := self.checks.record(fleet.name, receiver, refused)):
            self.note_refusals(fleet.name, receiver, new)
        return found

    def note_refusals(self, fleet: str, receiver: str, refused: Refusals) -> None:
        """Write into the audit log what is left out from now on, without waiting for it."""
        at = self._clock()

        def note(tx: Transaction) -> None:
            for key, why in refused.items():
                about = at, "server", LEAVE_OUT, fleet, "/".join(map(str, key))
                audit.note_refusal(tx, MAX_NOTED_REFUSALS, *about, receiver=receiver, why=why)

        with suppress(UnavailableError):  # then the page shows it, and the log does not
            self._writer.submit(note, fleet)

    def snapshot(self, tx: Transaction, fleet: Fleet) -> FleetSnapshot:
        """Return a fleet as it is now; while its epoch stays, from memory."""
        found = self._snapshots.get(fleet.name)
        if found is None or found.epoch != fleet.epoch:
            contributions = list_stored(tx, fleet.name)
            total = exact_total(tx, fleet, contributions)
            rules = self.rules_cache.rules(tx, fleet.name)
            found = FleetSnapshot(fleet.epoch, contributions, total, rules)
            self._snapshots.put(fleet.name, found)
        return found

    def _encoded(
        self, fleet: Fleet, groups: Groups, known: str | None, add_up: Callable[[], list[Stats]]
    ) -> PullResult:
        def make() -> Merged:
            parts = (
                MergedPart(stats, tuple(stored.origin for stored in chosen))
                for stats, chosen in zip(add_up(), groups.values(), strict=True)
                if chosen
            )
            return Merged(fleet.projection, tuple(parts))

        return answer_from(self._answers, etag_of(fleet, groups), known, make)


def _must_not_be_late(fleet: str, end: float) -> None:
    if monotonic() > end:
        raise UnavailableError(f"{fleet} has many changes to group: try again", retry_s=5.0)
