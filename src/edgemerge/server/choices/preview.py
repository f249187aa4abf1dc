"""Previews from sums alone: what a choice would do to each device's level.

A level is the fresh loss of a device's own data (M10, M11) under the readout before and after. A
detector adopts the total of what it pulls; a bank adds a pulled pattern to the own one that it
matches, or leaves it beside. `ratios` (D, D) has a row for each readout and a column for each
device's data; 1 is as well as its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.detector import READY_SAMPLES_PER_HIDDEN
from edgemerge.core.errors import DeniedError, SettingError, UnavailableError
from edgemerge.core.ledger import Selection
from edgemerge.core.similarity import (
    SAME_FACTOR,
    Profile,
    cluster_order,
    fresh_loss,
    loss_ratios,
    loss_ratios_by_owner,
)
from edgemerge.core.stats import Stats
from edgemerge.server import totals
from edgemerge.server.choices.rules import Rules
from edgemerge.server.contributions import (
    PROFILES_BYTES,
    ProfileCache,
    StoredContribution,
    current_contributions,
    list_stored,
)
from edgemerge.server.db.base import Transaction
from edgemerge.server.fleets import Fleet
from edgemerge.server.releases import (
    Release,
    given_releases,
    load_releases,
    own_past,
    sum_for,
)
from edgemerge.server.reports.model import LatestReport
from edgemerge.server.totals import (
    FleetSnapshot,
    group_by_part,
    must_have_enough_devices,
    select,
    shareable_groups,
)
from edgemerge.server.trust import LevelChecks, Waiting

ContributionsByPart = Mapping[int, Sequence[StoredContribution]]
Sources = frozenset[str] | None  # sources; None: all


@dataclass(frozen=True, eq=False)
class SourceSum:
    """What some sources contributed to one part, unless it is excluded, and its sum."""

    contributions: list[StoredContribution]
    stats: Stats


class SourceSums:
    """Sums of contributions inside known sums, whose parts are one total, or patterns."""

    def __init__(
        self,
        tx: Transaction,
        fleet: Fleet,
        whole: totals.Parts,
        inside: ContributionsByPart,
        rules: Rules,
        read: Callable[[StoredContribution], Stats],
    ) -> None:
        """Have added up nothing yet; `read` gives the sums of one contribution."""
        self._tx, self._projection, self._read = tx, fleet.projection, read
        self._whole, self._inside, self._excluded = whole, inside, rules.excluded
        self._bases: dict[tuple[int, Sources], SourceSum] = {}
        self._profiles: dict[tuple[int, Sources], Profile] = {}

    def stats(self, part: int, chosen: Sequence[StoredContribution], allowed: Sources) -> Stats:
        """Add up the chosen, which are those that `allowed` contributed, but for a few."""
        if not chosen:
            return Stats.empty(self._projection)
        base = self._base(part, allowed)
        known, wanted = ({stored.key for stored in each} for each in (base.contributions, chosen))
        stats = base.stats
        for stored in base.contributions:
            if stored.key not in wanted:
                stats = stats - self._read(stored)  # M7
        for stored in chosen:
            if stored.key not in known:
                stats = stats + self._read(stored)  # M7
        return stats

    def profile(self, part: int, chosen: Sequence[StoredContribution], allowed: Sources) -> Profile:
        """Solve the same; where nothing had to be corrected, once."""
        stats = self.stats(part, chosen, allowed)
        if not chosen or stats is not self._base(part, allowed).stats:
            return Profile.of(stats)
        if (part, allowed) not in self._profiles:
            self._profiles[part, allowed] = Profile.of(stats)
        return self._profiles[part, allowed]

    def _base(self, part: int, allowed: Sources) -> SourceSum:
        if (part, allowed) not in self._bases:
            inside = list(self._inside[part])
            let = [stored for stored in inside if self._lets(stored, allowed)]
            stats = totals.sum_of(self._tx, self._projection, self._whole[part], inside, let)
            self._bases[part, allowed] = SourceSum(let, stats)
        return self._bases[part, allowed]

    def _lets(self, stored: StoredContribution, allowed: Sources) -> bool:
        chosen = allowed is None or stored.device in allowed
        return stored.samples > 0 and stored.key not in self._excluded and chosen


DETECTOR_PATTERN = "normal"  # the one pattern of a detector
PREVIEW_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class PatternPreview:
    """The fresh loss of one pattern's own data: alone, with what is merged now, and afterwards.

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
        """The factor by which its level would be above that of its own samples alone."""
        return self.after / self.alone if self.ready else 1.0


IsBank = Callable[[Sequence[StoredContribution]], bool]
AddedStats = list[Stats]  # what would be added to each pattern of a device


def is_bank(
    own: Sequence[StoredContribution], latest: LatestReport | None, *, grouped: bool | None
) -> bool:
    """Return whether a device keeps patterns apart: whether it pulled patterns last (`grouped`).

    If that is unknown, by the names that it contributed or reports: a detector has but one.
    """
    if grouped is not None:
        return bool(grouped)  # a database has numbers for it
    reported = () if latest is None else latest.status.patterns
    return {stored.pattern for stored in own} | {each.pattern for each in reported} != {
        DETECTOR_PATTERN
    }


class Preview:
    """Previews on one state of the database."""

    def __init__(
        self,
        tx: Transaction,
        fleet: Fleet,
        now: FleetSnapshot,
        solved: ProfileCache,
        is_bank: IsBank,
        checks: LevelChecks,
        waiting: Waiting,
    ) -> None:
        """Have added up nothing yet; `is_bank` judges a device by its contributions."""
        self._waiting = waiting
        self._tx, self._fleet, self._now, self._solved = tx, fleet, now, solved
        self._is_bank, self._checks = is_bank, checks
        self._totals = self._sums({0: now.total}, {0: now.contributions})

    def is_grouping_current(self, targets: Sequence[str]) -> bool:
        """Return whether patterns are up to date, or not needed for these targets."""
        owns = (current_contributions(self._now.contributions, device) for device in targets)
        if self._fleet.releases_totals or not any(own and self._is_bank(own) for own in owns):
            return True
        return totals.is_grouped(self._tx, self._fleet.name)

    def rows(self, then: Rules, targets: Sequence[str]) -> Iterator[PatternPreview]:
        """Describe what would become of each pattern of each target if the rules were these."""
        end = monotonic() + PREVIEW_TIMEOUT_S
        for device in targets:
            if monotonic() > end:
                raise UnavailableError(
                    "this takes too long: choose fewer targets at once", retry_s=5.0
                )
            own = current_contributions(self._now.contributions, device)
            if own:
                added = self._added_to_bank if self._is_bank(own) else self._added_to_detector
                yield from self._levels(own, added, then)

    def _levels(
        self, own: list[StoredContribution], added: Callable[..., AddedStats], then: Rules
    ) -> Iterator[PatternPreview]:
        projection = self._fleet.projection
        selection = Selection(receiver=own[0].device, incarnation=own[0].incarnation)
        profiles = [self._solved.profile(self._tx, stored, projection) for stored in own]
        before, after = (added(selection, rules, profiles) for rules in (self._now.rules, then))
        for stored, mine, old, new in zip(own, profiles, before, after, strict=True):
            yield PatternPreview(
                device=stored.device,
                pattern=stored.pattern,
                samples=stored.samples,
                alone=fresh_loss(mine.stats, mine.readout),
                before=_level(mine, old),
                after=_level(mine, new),
                joined=new.count,
                ready=stored.samples >= READY_SAMPLES_PER_HIDDEN * projection.n_hidden,
            )

    def _added_to_detector(
        self, selection: Selection, rules: Rules, own: Sequence[Profile]
    ) -> AddedStats:
        """Return what a detector would add; it has one pattern."""
        if self._fleet.releases_totals:
            stats = Stats.total(
                self._fleet.projection, self._released_sums(selection, rules, grouped=False)
            )
            return [stats] * len(own)
        chosen = self._fitting(selection, self._now.contributions, rules, apart=False)
        try:
            must_have_enough_devices(selection, chosen, self._fleet.min_devices)
        except DeniedError:
            chosen = []
        stats = self._totals.stats(0, chosen, rules.sources.get(selection.receiver or ""))
        return [stats] * len(own)

    def _added_to_bank(
        self, selection: Selection, rules: Rules, own: Sequence[Profile]
    ) -> AddedStats:
        """Return what a bank would add to each of its patterns."""
        if self._fleet.releases_totals:
            found = self._released_sums(selection, rules, grouped=True)
            return _joined_stats(own, [Profile.of(stats) for stats in found])
        groups = group_by_part(self._fitting(selection, self._placed, rules, apart=True))
        allowed = rules.sources.get(selection.receiver or "")
        pulled = [
            self._parts.profile(part, chosen, allowed)
            for part, chosen in shareable_groups(selection, groups, self._fleet.min_devices).items()
        ]
        return _joined_stats(own, pulled)

    def _released_sums(
        self, selection: Selection, rules: Rules, *, grouped: bool
    ) -> Iterator[Stats]:
        """Return what a pull would give of what is released."""
        me = selection.receiver
        for each in given_releases(self._releases, rules, me, grouped=grouped):
            yield sum_for(self._tx, self._fleet, each, me)
        for stored in own_past(self._tx, self._fleet.name, selection, rules):
            yield self._solved.stats(self._tx, stored, self._fleet.projection)

    @cached_property
    def _releases(self) -> list[Release]:
        return load_releases(self._tx, self._fleet.name)

    def _fitting(
        self,
        selection: Selection,
        contributions: list[StoredContribution],
        rules: Rules,
        *,
        apart: bool,
    ) -> list[StoredContribution]:
        """Return what a pull would give under these rules."""
        me = selection.receiver
        chosen = select(selection, contributions, rules, self._waiting)
        found, _ = self._checks.fitting(
            *(self._tx, self._fleet, me, chosen, contributions),
            trusted=rules.sources.get(me or ""),
            apart=apart,
        )
        return found

    @cached_property
    def _placed(self) -> list[StoredContribution]:
        """Contributions with the pattern that each is in, which the epoch does not cover."""
        return list_stored(self._tx, self._fleet.name)

    @cached_property
    def _parts(self) -> SourceSums:
        whole = totals.load_parts(self._tx, self._fleet)
        totals.must_match_samples(whole, self._placed)
        return self._sums(whole, group_by_part(self._placed))

    def _sums(self, whole: totals.Parts, inside: ContributionsByPart) -> SourceSums:
        read = partial(self._solved.stats, self._tx, projection=self._fleet.projection)
        return SourceSums(self._tx, self._fleet, whole, inside, self._now.rules, read)


def _joined_stats(own: Sequence[Profile], pulled: Sequence[Profile]) -> AddedStats:
    """Add each pulled pattern to the own one that it is the same as, as a bank does."""
    projection = own[0].stats.projection
    if not pulled:
        return [Stats.empty(projection) for _ in own]
    apart = np.maximum(loss_ratios(own, pulled), loss_ratios(pulled, own).T)
    nearest, same = apart.argmin(0), apart.min(0) <= SAME_FACTOR
    return [
        Stats.total(
            projection, (pulled[t].stats for t in range(len(pulled)) if same[t] and nearest[t] == i)
        )
        for i in range(len(own))
    ]


def _level(own: Profile, others: Stats) -> float:
    if not others.count:
        return fresh_loss(own.stats, own.readout)
    enough = READY_SAMPLES_PER_HIDDEN * own.stats.projection.n_hidden
    ridge = own.readout.ridge if own.stats.count >= enough else None  # as a detector chooses it
    return fresh_loss(own.stats, (own.stats + others).solve(ridge))


DEFAULT_DEVICES = 60  # devices that are compared unless they are named
MAX_DEVICES = 200  # devices that can be named
MAX_PATTERNS = 8  # of one device, the largest; fewer if all together would not find room

ByDevice = dict[str, list[StoredContribution]]


@dataclass(frozen=True, eq=False)
class DeviceSimilarity:
    """Devices in an order that shows groups, and how well they explain each other's data.

    `ratios` (D, D) has a row for each readout and a column for each device's data; 1 is as well as
    its own. `groups` is a number for each device; `left_out` says how many more have contributed.
    """

    devices: tuple[str, ...]
    ratios: NDArray[np.float64]
    groups: tuple[int, ...]
    samples: tuple[float, ...]
    left_out: int = 0


@dataclass(frozen=True)
class ComparedPatterns:
    """What is to be compared: the largest patterns of each device, and its samples in all."""

    patterns: ByDevice
    samples: dict[str, float]
    left_out: int

    @property
    def contributions(self) -> list[StoredContribution]:
        """All of it, one device after the other."""
        return [stored for inside in self.patterns.values() for stored in inside]


def select_patterns(
    contributions: Sequence[StoredContribution], named: Sequence[str] | None, size: int
) -> ComparedPatterns:
    """Select the devices with most samples, or those named; a profile takes `size` bytes."""
    names = None if named is None else set(named)
    if names is not None and len(names) > MAX_DEVICES:
        raise SettingError(f"found {len(names)} devices, expected at most {MAX_DEVICES} to compare")
    found: ByDevice = {}
    for stored in sorted(contributions, key=lambda stored: (-stored.samples, stored.key)):
        if stored.samples > 0:
            found.setdefault(stored.device, []).append(stored)
    samples = {device: sum(each.samples for each in inside) for device, inside in found.items()}
    order = sorted(found, key=lambda device: (-samples[device], device))
    shown = (
        order[:DEFAULT_DEVICES]
        if names is None
        else [device for device in order if device in names]
    )
    most = max(
        1, min(MAX_PATTERNS, PROFILES_BYTES // size // max(1, len(shown)))
    )  # all find room at once
    patterns = {device: found[device][:most] for device in shown}
    return ComparedPatterns(patterns, samples, len(found) - len(shown))


def compare_devices(selection: ComparedPatterns, profiles: Sequence[Profile]) -> DeviceSimilarity:
    """Compare devices by the profiles of what was selected, in that order."""
    names = list(selection.patterns)
    if not names:
        return DeviceSimilarity((), np.empty((0, 0)), (), (), selection.left_out)
    sizes = [len(inside) for inside in selection.patterns.values()]
    counts = [profile.stats.count for profile in profiles]
    R = loss_ratios_by_owner(loss_ratios(profiles, profiles), sizes, counts)
    order, groups = cluster_order(R)
    return DeviceSimilarity(
        devices=tuple(names[i] for i in order),
        ratios=R[np.ix_(order, order)],
        groups=tuple(groups),
        samples=tuple(selection.samples[names[i]] for i in order),
        left_out=selection.left_out,
    )
