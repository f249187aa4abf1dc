"""Sums of what is let through: each set of sources is added up once, and then corrected.

What a device is told of these sources is that sum without its own, and with what it saw in an
earlier life; both are few, so that a hundred devices cost little more than one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from edgemerge.core.likeness import Profile
from edgemerge.core.stats import Stats
from edgemerge.server import kept
from edgemerge.server.contributions import Entry
from edgemerge.server.fleets import Fleet
from edgemerge.server.merges.choices import Rules
from edgemerge.server.store.database import Transaction

Inside = Mapping[int, Sequence[Entry]]
Allowed = frozenset[str] | None  # sources; None: all


@dataclass(frozen=True, eq=False)
class Base:
    """What some sources contributed to one part, unless it was revoked, and its sum."""

    entries: list[Entry]
    stats: Stats


class LetThrough:
    """Sums of contributions inside known sums, whose parts are one total, or patterns."""

    def __init__(
        self,
        tx: Transaction,
        fleet: Fleet,
        whole: kept.Parts,
        inside: Inside,
        rules: Rules,
        read: Callable[[Entry], Stats],
    ) -> None:
        """Have added up nothing yet; `read` gives the sums of one contribution."""
        self._tx, self._projection, self._read = tx, fleet.projection, read
        self._whole, self._inside, self._revoked = whole, inside, rules.revoked
        self._bases: dict[tuple[int, Allowed], Base] = {}
        self._profiles: dict[tuple[int, Allowed], Profile] = {}

    def stats(self, part: int, chosen: Sequence[Entry], allowed: Allowed) -> Stats:
        """Add up the chosen, which are those that `allowed` contributed, but for a few."""
        if not chosen:
            return Stats.empty(self._projection)
        base = self._base(part, allowed)
        known, wanted = ({entry.key for entry in each} for each in (base.entries, chosen))
        stats = base.stats
        for entry in base.entries:
            if entry.key not in wanted:
                stats = stats - self._read(entry)  # M7
        for entry in chosen:
            if entry.key not in known:
                stats = stats + self._read(entry)  # M7
        return stats

    def profile(self, part: int, chosen: Sequence[Entry], allowed: Allowed) -> Profile:
        """Solve the same; where nothing had to be corrected, once."""
        stats = self.stats(part, chosen, allowed)
        if not chosen or stats is not self._base(part, allowed).stats:
            return Profile.of(stats)
        if (part, allowed) not in self._profiles:
            self._profiles[part, allowed] = Profile.of(stats)
        return self._profiles[part, allowed]

    def _base(self, part: int, allowed: Allowed) -> Base:
        if (part, allowed) not in self._bases:
            inside = list(self._inside[part])
            let = [entry for entry in inside if self._lets(entry, allowed)]
            stats = kept.some(self._tx, self._projection, self._whole[part], inside, let)
            self._bases[part, allowed] = Base(let, stats)
        return self._bases[part, allowed]

    def _lets(self, entry: Entry, allowed: Allowed) -> bool:
        chosen = allowed is None or entry.device in allowed
        return entry.samples > 0 and entry.key not in self._revoked and chosen
