"""Exact totals of a fleet, kept up to date and grouped by pattern, and answers to pulls.

Totals are kept in parts: part 0 is not grouped yet, each other part is one pattern; their sum is
the total, whatever the grouping. They can be thrown away and summed up again from the
contributions. A fleet may demand that no sum is given of fewer than `least` devices, the caller not
counted; groups that are left out then hide among others.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import combinations
from threading import Lock
from time import monotonic
from typing import TypeVar

from edgemerge.core.errors import DeniedError, FormatError, UnavailableError
from edgemerge.core.ledger import Merged, MergedPart, Selection
from edgemerge.core.projection import Projection
from edgemerge.core.similarity import SIMILAR_FACTOR, Profile, best_match, nearest_pair
from edgemerge.core.stats import Stats
from edgemerge.failpoints import failpoint
from edgemerge.server import contributions, fleets
from edgemerge.server.choices.rules import Rules, RulesCache
from edgemerge.server.contributions import StoredContribution, TotalsDamagedError
from edgemerge.server.db.base import Database, DiskFullError, Transaction
from edgemerge.server.db.writer import Writer
from edgemerge.server.fleets import Fleet
from edgemerge.wire.codec import decode, encode

Parts = dict[int, Stats]

log = logging.getLogger(__name__)


def load_parts(tx: Transaction, fleet: Fleet) -> Parts:
    """Give the parts as they were last written."""
    rows = tx.rows("select part, digest, data from totals where fleet = ?", fleet.fleet)
    return {part: _read_part(data, digest, fleet.projection) for part, digest, data in rows}


def store_parts(tx: Transaction, fleet: Fleet, before: Parts, now: Parts) -> None:
    """Write the parts that have changed; one that is empty is removed."""
    for part, stats in now.items():
        if stats is not before.get(part):
            if stats.count == 0 and not stats.S.any():
                tx.run("delete from totals where fleet = ? and part = ?", fleet.fleet, part)
            else:
                _write_part(tx, fleet.fleet, part, encode(stats))


def count_changes(tx: Transaction, fleet: Fleet, limit: int) -> int:
    """Bring the kept sums up to date with at most so many changes; give how many there were."""
    tx.lock(f"fleet {fleet.fleet}")
    try:
        return _count_changes(tx, fleet, limit)
    except TotalsDamagedError as error:
        rebuild_totals(tx, fleet.fleet, error)
        return _count_changes(tx, fleet, limit)


def _count_changes(tx: Transaction, fleet: Fleet, limit: int) -> int:
    """Read and add up first: when something is damaged, nothing has changed."""
    changes = contributions.list_uncounted(tx, fleet.fleet, limit)
    if changes:
        before = load_parts(tx, fleet)
        now = dict(before)
        for entry in changes:
            count_one(tx, fleet.projection, now, entry)
        for entry in changes:
            contributions.mark_counted(tx, fleet.fleet, entry, 0)
        failpoint("server-in-fold")
        store_parts(tx, fleet, before, now)
    return len(changes)


def count_one(
    tx: Transaction, projection: Projection, parts: Parts, entry: StoredContribution
) -> None:
    """Let the sums hold the newest of one key instead of what they hold of it."""
    empty = Stats.empty(projection)
    if entry.counted is not None:
        old = contributions.read_counted_stats(tx, entry, projection)
        parts[entry.part] = parts.get(entry.part, empty) - old  # M7
    if entry.body is not None:
        parts[0] = parts.get(0, empty) + contributions.read_stats(tx, entry, projection)  # M7


def exact_total(tx: Transaction, fleet: Fleet, entries: list[StoredContribution]) -> Stats:
    """Give the exact sum of everything, without writing anything."""
    parts = load_parts(tx, fleet)
    for entry in contributions.list_uncounted(tx, fleet.fleet, 2**31):
        count_one(tx, fleet.projection, parts, entry)
    must_match_samples(parts, entries)
    return Stats.total(fleet.projection, parts.values())


def must_match_samples(parts: Parts, entries: list[StoredContribution]) -> None:
    """Refuse sums of another number of samples than was contributed."""
    counts = {part: stats.count for part, stats in parts.items()}
    for entry in entries:
        part = entry.part if entry.body == entry.counted else 0
        counts[part] = counts.get(part, 0.0) - entry.samples
    if any(counts.values()):
        raise TotalsDamagedError("the kept sums do not hold the samples that were contributed")


def rebuild_totals(tx: Transaction, fleet: str, why: Exception) -> None:
    """Forget the sums: from now on everything counts as new, and is summed up as such."""
    values = {"fleet": fleet, "problem": str(why)}
    log.error("kept sums were damaged: summing up afresh", extra={"values": values})
    tx.lock(f"fleet {fleet}")
    tx.run("delete from totals where fleet = ?", fleet)
    tx.run("delete from contributions where fleet = ? and body is null", fleet)
    tx.run("update contributions set counted = null, part = 0 where fleet = ?", fleet)
    tx.run(
        "delete from bodies where id not in (select body from contributions where body is not null"
        " union select counted from contributions where counted is not null)"
    )


def sum_of(
    tx: Transaction,
    projection: Projection,
    whole: Stats,
    inside: list[StoredContribution],
    chosen: list[StoredContribution],
) -> Stats:
    """Add up the chosen of those inside a known sum, the way that reads fewer of them."""
    wanted = {entry.key for entry in chosen}
    left_out = [entry for entry in inside if entry.key not in wanted and entry.samples > 0]
    if len(left_out) < len(chosen):
        parts = (contributions.read_stats(tx, entry, projection) for entry in left_out)
        return whole - Stats.total(projection, parts)  # M7
    return Stats.total(projection, (contributions.read_stats(tx, e, projection) for e in chosen))


def _write_part(tx: Transaction, fleet: str, part: int, data: bytes) -> None:
    tx.run(
        "insert into totals (fleet, part, digest, data) values (?, ?, ?, ?)"
        " on conflict (fleet, part) do update set digest = excluded.digest, data = excluded.data",
        fleet,
        part,
        sha256(data).hexdigest(),
        data,
    )


def _read_part(data: bytes, digest: str, projection: Projection) -> Stats:
    try:
        if sha256(data).hexdigest() != digest:
            raise FormatError("its digest is another")
        stats = decode(bytes(data), Stats, limit=len(data), projection=projection)
    except FormatError as error:
        raise TotalsDamagedError(f"a kept sum is damaged: {error}") from error
    return stats


CHANGES_PER_STEP = 16


def group_changes(tx: Transaction, fleet: Fleet, budget_s: float) -> bool:
    """Group what has changed, for about as long as the budget; True when all is done."""
    end = monotonic() + budget_s
    while count_changes(tx, fleet, CHANGES_PER_STEP):
        if monotonic() > end:
            return False
    waiting = _ungrouped(tx, fleet)
    if waiting:
        before = load_parts(tx, fleet)
        parts = _Grouping(before)
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
    return ungrouped is None and not contributions.list_uncounted(tx, fleet, 1)


def _ungrouped(tx: Transaction, fleet: Fleet) -> list[StoredContribution]:
    """What is in no pattern yet, largest first, equal ones in the order of their keys."""
    found = [entry for entry in contributions.list_stored(tx, fleet.fleet) if entry.part == 0]
    some = [entry for entry in found if entry.samples > 0]
    return sorted(some, key=lambda entry: (-entry.samples, entry.key))


class _Grouping:
    """The parts while they are changed, and what comparing with them needs."""

    def __init__(self, sums: Parts) -> None:
        self.sums = dict(sums)
        self._profiles: dict[int, Profile] = {}
        self._touched: set[int] = set()

    def take(self, tx: Transaction, fleet: Fleet, entry: StoredContribution) -> None:
        """Move one contribution from part 0 into the pattern that explains it, or a new one."""
        stats = contributions.read_stats(tx, entry, fleet.projection)
        known = {part: self._profile(part) for part in self._patterns()}
        best = best_match(known, Profile.of(stats), SIMILAR_FACTOR)
        part = max(self.sums, default=0) + 1 if best is None else best
        self._add(0, stats, -1)
        self._add(part, stats, 1)
        contributions.mark_counted(tx, fleet.fleet, entry, part)

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
                "update contributions set part = ? where fleet = ? and part = ?", b, fleet.fleet, a
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
    selection: Selection, entries: list[StoredContribution], rules: Rules
) -> list[StoredContribution]:
    """Return the selected entries that operators' rules allow, in the order of their keys."""
    me = selection.receiver
    found = [entry for entry in entries if entry.samples > 0]
    if not rules.silent(me):
        found = [entry for entry in found if rules.allows(entry.key, me)]
    return selection(found)


def group_by_part(entries: list[StoredContribution]) -> Groups:
    """Sort contributions into their patterns, the largest first."""
    found: Groups = {}
    for entry in entries:
        if entry.part:
            found.setdefault(entry.part, []).append(entry)
    sizes = {part: sum(entry.samples for entry in inside) for part, inside in found.items()}
    return {part: found[part] for part in sorted(found, key=lambda part: (-sizes[part], part))}


def must_have_enough_devices(
    selection: Selection, chosen: list[StoredContribution], least: int
) -> None:
    """Refuse a sum of so few devices that it would give one of them away."""
    count = len(other_devices(chosen, selection)) if least > 1 else least
    if 0 < count < least:
        raise DeniedError(
            f"this sum would be of {count} devices beside you; this fleet tells nothing about "
            f"fewer than {least}"
        )


def shareable_groups(selection: Selection, groups: Groups, least: int) -> Groups:
    """Leave out patterns of too few devices, and then so many that those hide among others.

    The asker's own do not matter, so asking in another way about them tells nothing new.
    """
    others = {part: [e for e in groups[part] if e.device != selection.receiver] for part in groups}
    count = {part: len(other_devices(others[part], selection)) for part in groups}
    size = {part: sum(entry.samples for entry in others[part]) for part in groups}
    told = sorted((part for part in groups if count[part] >= least), key=lambda p: (size[p], p))
    while told and 0 < len(_hidden_devices(selection, others, told)) < least:
        told.pop(0)  # the smallest
    return {part: groups[part] for part in groups if part in told or not count[part]}


def _hidden_devices(selection: Selection, others: Groups, told: list[int]) -> set[str]:
    return other_devices(
        (e for part in others if part not in told for e in others[part]), selection
    )


def other_devices(entries: Iterable[StoredContribution], selection: Selection) -> set[str]:
    """Name the devices, but not the one that asks."""
    return {entry.device for entry in entries} - {selection.receiver or ""}


def etag_of(fleet: Fleet, groups: Groups) -> str:
    """Give the tag of an answer: it depends on what is in it, and on nothing else."""
    words = sha256(fleet.body)
    for chosen in groups.values():
        words.update(b"/")
        words.update(" ".join([entry.mark for entry in chosen]).encode())
    return words.hexdigest()


T = TypeVar("T")
MAX_CACHED = 16  # fleets, and answers, that are remembered
# Changes that a pull adds up by itself; above that the kept sums are brought up to date.
MAX_INLINE_CHANGES = 16
GROUPING_SLICE_S = 0.25  # how long grouping may hold up writing
GROUPING_TIMEOUT_S = 10.0  # how long a pull waits for grouping
MAX_GROUPING_TRIES = 3  # to find all contributions grouped, while devices push


@dataclass(frozen=True)
class PullResult:
    """What is told, as bytes, and the tag that stays the same while it would be the same."""

    tag: str
    data: bytes | None


@dataclass(frozen=True)
class FleetSnapshot:
    """A fleet's contributions at one epoch, their total, and who may be told which of them."""

    epoch: int
    entries: list[StoredContribution]
    total: Stats
    rules: Rules


class PullService:
    """Answers pulls; an unchanged answer costs neither sums nor bytes."""

    def __init__(self, database: Database, writer: Writer) -> None:
        """Remember nothing yet."""
        self._database, self._writer = database, writer
        self.rules_cache = RulesCache()
        self._snapshots: OrderedDict[str, FleetSnapshot] = OrderedDict()
        self._answers: OrderedDict[str, bytes] = OrderedDict()
        self._lock = Lock()

    def total(self, name: str, selection: Selection, least: int, known: str | None) -> PullResult:
        """Give the sum of what is wanted; `known` is the tag that the asker has already."""
        return self.rebuild_if_damaged(name, lambda: self._total(name, selection, least, known))

    def patterns(
        self, name: str, selection: Selection, least: int, known: str | None
    ) -> PullResult:
        """Give a sum for each pattern of what is wanted."""
        return self.rebuild_if_damaged(name, lambda: self._patterns(name, selection, least, known))

    def rebuild_if_damaged(self, name: str, tell: Callable[[], T]) -> T:
        """Tell; if the kept sums are damaged, they are summed up afresh from the contributions."""
        try:
            return tell()
        except TotalsDamagedError as error:
            why = error
        self._writer.write(lambda tx: rebuild_totals(tx, name, why))
        return tell()

    def _total(self, name: str, selection: Selection, least: int, known: str | None) -> PullResult:
        self.catch_up(name)
        with self._database.reading() as tx:
            fleet = fleets.get(tx, name)
            now = self.snapshot(tx, fleet)
            chosen = select(selection, now.entries, now.rules)
            must_have_enough_devices(selection, chosen, least)
            tag = etag_of(fleet, {0: chosen})
            data = self._remembered(tag, known)
            if data is None and tag != known:
                stats = sum_of(tx, fleet.projection, now.total, now.entries, chosen)
                data = self._encoded(tag, fleet, [(stats, chosen)])
        return PullResult(tag, data)

    def catch_up(self, name: str) -> None:
        """Bring the kept sums up to date, if that is more than a pull can add up by the way."""
        with self._database.reading() as tx:
            some = len(contributions.list_uncounted(tx, name, MAX_INLINE_CHANGES + 1))
        end = monotonic() + GROUPING_TIMEOUT_S
        with suppress(DiskFullError):  # a full disk makes pulls slow, not impossible
            while some > MAX_INLINE_CHANGES:
                some = self._writer.write(
                    lambda tx: count_changes(tx, fleets.get(tx, name), MAX_INLINE_CHANGES + 1)
                )
                if monotonic() > end:
                    raise UnavailableError(
                        f"{name} has many changes to add up: try again", retry_s=2.0
                    )

    def _patterns(
        self, name: str, selection: Selection, least: int, known: str | None
    ) -> PullResult:
        """Answer from a read transaction, so that pulls never hold up the writer."""
        for _ in range(MAX_GROUPING_TRIES):
            with self._database.reading() as tx:
                if is_grouped(tx, name):
                    return self._grouped(tx, name, selection, least, known)
            self.group(name)

        # Devices push faster than a read follows grouping: do both in one write.
        def group_and_answer(tx: Transaction) -> PullResult:
            group_changes(tx, fleets.get(tx, name), GROUPING_TIMEOUT_S)
            return self._grouped(tx, name, selection, least, known)

        return self._writer.write(group_and_answer)

    def group(self, name: str) -> None:
        """Group what has changed, in slices that let others write in between."""

        def group_slice(tx: Transaction) -> bool:
            return group_changes(tx, fleets.get(tx, name), GROUPING_SLICE_S)

        end = monotonic() + GROUPING_TIMEOUT_S
        while not self._writer.write(group_slice):
            if monotonic() > end:
                raise UnavailableError(f"{name} has many changes to group: try again", retry_s=5.0)

    def _grouped(
        self, tx: Transaction, name: str, selection: Selection, least: int, known: str | None
    ) -> PullResult:
        fleet, entries = fleets.get(tx, name), contributions.list_stored(tx, name)
        chosen = select(selection, entries, self.rules_cache.rules(tx, name))
        groups = shareable_groups(selection, group_by_part(chosen), least)
        tag = etag_of(fleet, groups)
        data = self._remembered(tag, known)
        if data is None and tag != known:
            sums, inside = load_parts(tx, fleet), group_by_part(entries)
            must_match_samples(sums, entries)
            data = self._encoded(
                tag,
                fleet,
                [
                    (sum_of(tx, fleet.projection, sums[part], inside[part], chosen), chosen)
                    for part, chosen in groups.items()
                ],
            )
        return PullResult(tag, data)

    def snapshot(self, tx: Transaction, fleet: Fleet) -> FleetSnapshot:
        """Give a fleet as it is now; while its epoch stays, from memory."""
        with self._lock:
            found = self._snapshots.get(fleet.fleet)
        if found is None or found.epoch != fleet.epoch:
            entries = contributions.list_stored(tx, fleet.fleet)
            rules = self.rules_cache.rules(tx, fleet.fleet)
            found = FleetSnapshot(fleet.epoch, entries, exact_total(tx, fleet, entries), rules)
            with self._lock:
                self._snapshots[fleet.fleet] = found
                while len(self._snapshots) > MAX_CACHED:
                    self._snapshots.popitem(last=False)
        return found

    def _remembered(self, tag: str, known: str | None) -> bytes | None:
        with self._lock:
            return None if tag == known else self._answers.get(tag)

    def _encoded(
        self, tag: str, fleet: Fleet, sums: list[tuple[Stats, list[StoredContribution]]]
    ) -> bytes:
        parts = (
            MergedPart(stats, tuple(entry.origin for entry in chosen))
            for stats, chosen in sums
            if chosen
        )
        data = encode(Merged(fleet.projection, tuple(parts)))
        with self._lock:
            self._answers[tag] = data
            while len(self._answers) > MAX_CACHED:
                self._answers.popitem(last=False)
        return data
