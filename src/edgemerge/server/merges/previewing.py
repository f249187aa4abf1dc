"""Previews: what telling devices of a selection would do to the level of their own data.

All from sums: own data's fresh loss (M10, M11) under the readout of what is known before and after.
A detector takes in the total of what it is told; a bank adds a told pattern to the one of its own
that it is, or leaves it beside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from time import monotonic

import numpy as np

from edgemerge.core.comparing import ratios
from edgemerge.core.detector import READY
from edgemerge.core.errors import AwayError, DeniedError
from edgemerge.core.foreign import SAME
from edgemerge.core.likeness import Profile
from edgemerge.core.stats import Stats
from edgemerge.core.threshold import fresh_loss
from edgemerge.exchange.protocol import Wish
from edgemerge.server import contributions, kept
from edgemerge.server.choosing import by_part, choose, must_be_enough, told_groups
from edgemerge.server.contributions import Entry
from edgemerge.server.fleets import Fleet
from edgemerge.server.merges.choices import Rules
from edgemerge.server.merges.let_through import Inside, LetThrough
from edgemerge.server.merges.solved import Solved
from edgemerge.server.reports.glimpses import Glimpse
from edgemerge.server.store.database import Transaction
from edgemerge.server.telling import Snapshot

NORMAL = "normal"  # the one pattern of a detector
PATIENCE_S = 30.0


@dataclass(frozen=True)
class Previewed:
    """The fresh loss of one pattern's own data: alone, with what is told now, and afterwards.

    `joined` is how many samples of others would be added to it. With too few samples of its own it
    is not `ready`: it has no level that could shift.
    """

    device: str
    pattern: str
    samples: float
    alone: float
    before: float
    after: float
    joined: float
    ready: bool = True

    @property
    def shift(self) -> float:
        """The factor by which its level would rise."""
        return self.after / self.before if self.ready else 1.0


Judge = Callable[[Sequence[Entry]], bool]
Others = list[Stats]  # what would be added to each pattern of a device


def lives(entries: Sequence[Entry], device: str) -> list[Entry]:
    """Give what a device has seen in its present life; what it saw before is told to it."""
    mine = [entry for entry in entries if entry.device == device and entry.samples > 0]
    newest = max((entry.incarnation for entry in mine), default=0)
    return [entry for entry in mine if entry.incarnation == newest]


def is_bank(own: Sequence[Entry], glimpse: Glimpse | None, *, grouped: bool | None) -> bool:
    """Say whether a device keeps patterns apart; `grouped`: it asked for patterns last, if known.

    Otherwise by their names, in what it contributed or reports: a detector has but one.
    """
    if grouped is not None:
        return bool(grouped)  # a database has numbers for it
    reported = () if glimpse is None else glimpse.status.patterns
    return {entry.pattern for entry in own} | {each.pattern for each in reported} != {NORMAL}


class Previewing:
    """Previews on one state of the database."""

    def __init__(
        self, tx: Transaction, fleet: Fleet, now: Snapshot, solved: Solved, is_bank: Judge
    ) -> None:
        """Have added up nothing yet; `is_bank` judges a device by its contributions."""
        self._tx, self._fleet, self._now, self._solved = tx, fleet, now, solved
        self._is_bank = is_bank
        self._totals = self._sums({0: now.total}, {0: now.entries})

    def is_grouped_for(self, targets: Sequence[str]) -> bool:
        """Say whether patterns are up to date, should one of the targets be told by pattern."""
        owns = (lives(self._now.entries, device) for device in targets)
        if not any(own and self._is_bank(own) for own in owns):
            return True
        some = (entry.samples > 0 and not entry.part for entry in self._placed)
        return not any(some) and not contributions.behind(self._tx, self._fleet.fleet, 1)

    def rows(self, then: Rules, targets: Sequence[str]) -> Iterator[Previewed]:
        """Say what would become of each pattern of each target if the rules were these."""
        end = monotonic() + PATIENCE_S
        for device in targets:
            if monotonic() > end:
                raise AwayError("this takes too long: choose fewer targets at once", retry_s=5.0)
            own = lives(self._now.entries, device)
            if own:
                told = self._by_pattern if self._is_bank(own) else self._in_one
                yield from self._levels(own, told, then)

    def _levels(
        self, own: list[Entry], told: Callable[..., Others], then: Rules
    ) -> Iterator[Previewed]:
        projection = self._fleet.projection
        wish = Wish(device=own[0].device, incarnation=own[0].incarnation)
        profiles = [self._solved.profile(self._tx, entry, projection) for entry in own]
        before, after = (told(wish, rules, profiles) for rules in (self._now.rules, then))
        for entry, mine, old, new in zip(own, profiles, before, after, strict=True):
            yield Previewed(
                device=entry.device,
                pattern=entry.pattern,
                samples=entry.samples,
                alone=fresh_loss(mine.stats, mine.readout),
                before=_level(mine, old),
                after=_level(mine, new),
                joined=new.count,
                ready=entry.samples >= READY * projection.n_hidden,
            )

    def _in_one(self, wish: Wish, rules: Rules, own: Sequence[Profile]) -> Others:
        """Give what a detector would be told; it has one pattern."""
        chosen = choose(wish, self._now.entries, rules)
        try:
            must_be_enough(wish, chosen, self._fleet.least)
        except DeniedError:
            chosen = []
        told = self._totals.stats(0, chosen, rules.sources.get(wish.device or ""))
        return [told for _ in own]

    def _by_pattern(self, wish: Wish, rules: Rules, own: Sequence[Profile]) -> Others:
        """Give what a bank would add to each of its patterns."""
        groups = by_part(choose(wish, self._placed, rules))
        allowed = rules.sources.get(wish.device or "")
        told = [
            self._parts.profile(part, chosen, allowed)
            for part, chosen in told_groups(wish, groups, self._fleet.least).items()
        ]
        return _joined(own, told)

    @cached_property
    def _placed(self) -> list[Entry]:
        """Contributions with the pattern that each is in, which no epoch tells."""
        return contributions.every(self._tx, self._fleet.fleet)

    @cached_property
    def _parts(self) -> LetThrough:
        whole = kept.load(self._tx, self._fleet)
        kept.must_add_up(whole, self._placed)
        return self._sums(whole, by_part(self._placed))

    def _sums(self, whole: kept.Parts, inside: Inside) -> LetThrough:
        read = partial(self._solved.stats, self._tx, projection=self._fleet.projection)
        return LetThrough(self._tx, self._fleet, whole, inside, self._now.rules, read)


def _joined(own: Sequence[Profile], told: Sequence[Profile]) -> Others:
    """Add each told pattern to the one of our own that it is, as a bank does."""
    projection = own[0].stats.projection
    if not told:
        return [Stats.empty(projection) for _ in own]
    apart = np.maximum(ratios(own, told), ratios(told, own).T)
    nearest, same = apart.argmin(0), apart.min(0) <= SAME
    return [
        Stats.total(
            projection, (told[t].stats for t in range(len(told)) if same[t] and nearest[t] == i)
        )
        for i in range(len(own))
    ]


def _level(own: Profile, others: Stats) -> float:
    readout = (own.stats + others).solve() if others.count else own.readout
    return fresh_loss(own.stats, readout)
