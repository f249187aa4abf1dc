"""Patterns of a fleet: contributions that explain each other's data are kept in one sum.

What has changed is placed anew, largest first, into the part that explains it best, or starts one;
parts that explain each other are joined. So the parts follow the fleet at the cost of its changes.
"""

from __future__ import annotations

from itertools import combinations
from time import monotonic

from edgemerge.core.likeness import FACTOR, Profile, explains
from edgemerge.core.stats import Stats
from edgemerge.failpoints import passing
from edgemerge.server import contributions, kept
from edgemerge.server.contributions import Entry
from edgemerge.server.fleets import Fleet
from edgemerge.server.kept import Parts
from edgemerge.server.store.database import Transaction

AT_ONCE = 16


def place(tx: Transaction, fleet: Fleet, budget_s: float) -> bool:
    """Group what has changed, for about as long as the budget; True when all is done."""
    end = monotonic() + budget_s
    while kept.fold(tx, fleet, AT_ONCE):
        if monotonic() > end:
            return False
    waiting = _waiting(tx, fleet)
    if waiting:
        before = kept.load(tx, fleet)
        parts = _Parts(before)
        while waiting and monotonic() <= end:
            parts.take(tx, fleet, waiting.pop(0))
        if not waiting:
            parts.join(tx, fleet)
        passing("server-in-place")
        kept.store(tx, fleet, before, parts.sums)
    return not waiting


def _waiting(tx: Transaction, fleet: Fleet) -> list[Entry]:
    """What is in no pattern yet, largest first, equal ones in the order of their keys."""
    found = [entry for entry in contributions.every(tx, fleet.fleet) if entry.part == 0]
    some = [entry for entry in found if entry.samples > 0]
    return sorted(some, key=lambda entry: (-entry.samples, entry.key))


class _Parts:
    """The parts while they are changed, and what comparing with them needs."""

    def __init__(self, sums: Parts) -> None:
        self.sums = dict(sums)
        self._profiles: dict[int, Profile] = {}
        self._touched: set[int] = set()

    def take(self, tx: Transaction, fleet: Fleet, entry: Entry) -> None:
        """Move one contribution from part 0 into the pattern that it is."""
        stats = contributions.stats_of(tx, entry, fleet.projection)
        one = Profile.of(stats)
        ratios = {part: explains(self._profile(part), one) for part in self._patterns()}
        best = min(ratios, key=ratios.__getitem__, default=0)
        part = best if best and ratios[best] <= FACTOR else max(self.sums, default=0) + 1
        self._add(0, stats, -1)
        self._add(part, stats, 1)
        contributions.settle(tx, fleet.fleet, entry, part)

    def join(self, tx: Transaction, fleet: Fleet) -> None:
        """Join patterns that explain each other, nearest first; those that did not change don't."""
        while True:
            pairs = combinations(reversed(self._patterns()), 2)
            apart = {(a, b): self._apart(a, b) for a, b in pairs if {a, b} & self._touched}
            a, b = min(apart, key=apart.__getitem__, default=(0, 0))
            if not a or apart[a, b] > FACTOR:
                return
            self._add(b, self.sums[a], 1)
            self._add(a, self.sums[a], -1)
            tx.run(
                "update contributions set part = ? where fleet = ? and part = ?", b, fleet.fleet, a
            )

    def _patterns(self) -> list[int]:
        return [part for part, stats in sorted(self.sums.items()) if part and stats.count > 0]

    def _apart(self, a: int, b: int) -> float:
        one, two = self._profile(a), self._profile(b)
        return max(explains(one, two), explains(two, one))

    def _profile(self, part: int) -> Profile:
        if part not in self._profiles:
            self._profiles[part] = Profile.of(self.sums[part])
        return self._profiles[part]

    def _add(self, part: int, stats: Stats, sign: int) -> None:
        old = self.sums.get(part, Stats.empty(stats.projection))
        self.sums[part] = old + stats if sign > 0 else old - stats  # M7
        self._profiles.pop(part, None)
        self._touched.add(part)
