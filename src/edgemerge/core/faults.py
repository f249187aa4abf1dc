"""Known faults: patterns that people named on some devices, merged by likeness, to name others by.

A fault that a person has named is shared as a contribution of the kind "fault". Those that explain
each other's data are one `KnownFault`, with the names that it was given; `Faults` is what a pull of
faults returns. A device holds them beside its learner, and compares its unreviewed patterns with
them: `Faults.compare`. Nothing here is ever added to what is normal.

The ratio between a pattern and a known fault is `loss_ratio`: the mean loss of the pattern's data
under the fault's readout, as a multiple of what is usual for these data (M10); 1 is the same. The
shift is `centroid_shift`: how far their means are apart, times the root of what the readout leaves
unexplained, since a ratio sees the less of a shift the more is unexplained anyway. A pattern gets
the name of the nearest fault only if it has 2N samples that can be explained at all, ratio and
shift are small, and the ratio of the next fault of another name is clearly larger: a wrong name is
worse than none.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import sqrt
from operator import attrgetter
from typing import Any, NamedTuple, Self

from edgemerge.core.ledger import Contribution, Key, Selection, must_be_of_kind
from edgemerge.core.projection import Projection
from edgemerge.core.similarity import SAME_FACTOR, Profile, centroid_shift, group, loss_ratio
from edgemerge.core.stats import Stats

MAX_PER_DEVICE = 16  # faults of one device
MAX_GROUPED = 256  # contributions that are compared with each other
MAX_FAULTS = 64  # known faults in one answer to a pull: each pattern is compared with all of them
MAX_RANKED = 3  # of the nearest faults that are told
# Chosen so that hardly any fault of another kind gets a name: decision 0035.
MAX_RATIO = 2.5  # of a pattern to the fault that names it
MAX_SHIFT = 0.4  # between their means
SAME_RATIO, SAME_MAX_SHIFT = 1.1, 1.2  # likewise; up to this ratio a larger shift is accepted
MAX_UNEXPLAINED = 2.0  # of a pattern's variance, by its own readout
MIN_MARGIN = 1.1  # between the ratios of the nearest fault and of the next that has another name
NAMING_SAMPLES_PER_HIDDEN = 2.0  # samples of a pattern from which it is compared


def fault_name(pattern: str) -> str:
    """Return what a fault is called; of several patterns of one fault the others have a number.

    Args:
        pattern: The name of the pattern.

    >>> fault_name("bearing"), fault_name("bearing (2)")
    ('bearing', 'bearing')
    """
    return re.sub(r"(?<=.) \(\d+\)$", "", pattern)


class FaultOrigin(NamedTuple):
    """Which contribution is in a known fault.

    Args:
        device: The device on which it was named.
        incarnation: Its incarnation, 0 for faults.
        name: What it is called there.
        revision: Its revision.
        first: When it was first seen, in Unix seconds, or None.
    """

    device: str
    incarnation: int
    name: str
    revision: int
    first: float | None

    @classmethod
    def of(cls, contribution: Contribution) -> FaultOrigin:
        """Return the origin of a contribution.

        Args:
            contribution: A fault that a device named, with its revision.
        """
        return cls(*contribution.key, contribution.revision, contribution.first)

    @property
    def key(self) -> Key:
        """Device, incarnation and name."""
        return self.device, self.incarnation, self.name

    @property
    def age(self) -> tuple[bool, float, Key]:
        """What to sort by, so that the one that was seen first comes first."""
        return self.first is None, self.first or 0.0, self.key


@dataclass(frozen=True, eq=False)
class KnownFault:
    """Similar faults of some devices: their exact sum, and how each was called.

    Args:
        stats: The sum.
        origins: The contributions in it, in the order of their keys.
    """

    stats: Stats
    origins: tuple[FaultOrigin, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Its names: the most frequent first, of equals the one that was given first."""
        found = sorted(self.origins, key=lambda origin: origin.age)
        given = dict.fromkeys((each.device, fault_name(each.name)) for each in found)
        return tuple(name for name, _ in Counter(name for _, name in given).most_common())

    @property
    def name(self) -> str:
        """The most frequent name."""
        return self.names[0]

    @property
    def earliest(self) -> FaultOrigin:
        """Where and when it was first seen."""
        return min(self.origins, key=lambda origin: origin.age)

    @property
    def devices(self) -> list[str]:
        """The names of the devices in it, sorted."""
        return sorted({origin.device for origin in self.origins})

    @cached_property
    def profile(self) -> Profile:
        """Its sums with their readout, solved once."""
        return Profile.of(self.stats)

    def plain(self) -> dict[str, Any]:
        """Return what a person may see of it, as plain JSON: no sums."""
        first = self.earliest
        return {
            "name": self.name,
            "names": list(self.names),
            "device": first.device,
            "first": first.first,
            "devices": self.devices,
            "samples": self.stats.count,
        }

    def __repr__(self) -> str:
        """Show name and size."""
        return f"KnownFault({self.name}, {len(self.origins)} contributions, {self.stats.count:g})"


class Likeness(NamedTuple):
    """How like a pattern is to a known fault.

    Args:
        name: What the fault is called.
        device: Where it was first seen.
        first: When, in Unix seconds, or None.
        ratio: The mean loss of the pattern's data under the fault's readout, as a multiple of what
            is usual for these data; 1 is the same.
        shift: How far their means are apart, where the ratio does not show it; 0 (the default) is
            the same.
    """

    name: str
    device: str
    first: float | None
    ratio: float
    shift: float = 0.0

    @property
    def is_near(self) -> bool:
        """Whether the pattern may have the name of the fault."""
        most = SAME_MAX_SHIFT if self.ratio <= SAME_RATIO else MAX_SHIFT
        return self.ratio <= MAX_RATIO and self.shift <= most

    @property
    def words(self) -> str:
        """The fault with the ratio, and with the shift if that is what is too large."""
        found = f"{self.name} of {self.device}, {self.ratio:.3g}"
        moved = self.ratio <= MAX_RATIO and not self.is_near
        return f"{found} with means {self.shift:.2g} apart" if moved else found


@dataclass(frozen=True)
class FaultName:
    """What known faults say of a pattern: the one that it is most like, or that it is like none.

    Args:
        name: The name of the fault, or None if it is like none of them.
        ranked: The nearest faults, the most alike first; none if a person named the pattern itself.
        known: The number of faults that it was compared with.
    """

    name: str | None
    ranked: tuple[Likeness, ...]
    known: int

    @property
    def words(self) -> str:
        """The answer in words, with the ratios of the nearest faults.

        >>> ranked = Likeness("bearing", "pump-3", 0.0, 1.04), Likeness("leak", "pump-1", 0.0, 8.2)
        >>> FaultName("bearing", ranked, 2).words
        'most like bearing, first seen on pump-3, ratio 1.04; then leak of pump-1, 8.2'
        >>> FaultName(None, ranked[1:], 1).words
        'unlike the only known fault; nearest: leak of pump-1, 8.2'
        >>> FaultName("bearing", (), 0).words
        'most like bearing, named on this device'
        """
        ranked = [each.words for each in self.ranked]
        if self.name is None:
            words = (
                "unlike the only known fault"
                if self.known == 1
                else f"like none of the {self.known} known faults"
            )
            return "; ".join([words, *([f"nearest: {ranked[0]}"] if ranked else [])])
        if not ranked:
            return f"most like {self.name}, named on this device"
        best = self.ranked[0]
        words = f"most like {self.name}, first seen on {best.device}, ratio {best.ratio:.3g}"
        return "; then ".join([words, *ranked[1:]])

    def plain(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        ranked = [each._asdict() for each in self.ranked]
        return {"name": self.name, "ranked": ranked, "known": self.known, "words": self.words}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> FaultName:
        """Return what `plain` was made of.

        Args:
            plain: What `plain` returned.
        """
        ranked = (Likeness(**each) for each in plain["ranked"])
        return cls(plain["name"], tuple(ranked), plain["known"])


@dataclass(frozen=True, eq=False)
class Faults:
    """The faults that a fleet knows: what a pull of faults returns.

    Args:
        projection: What all devices share.
        known: The faults, the largest first; none by default.

    >>> shared = Projection(n_inputs=2, n_hidden=2, activation="identity")
    >>> line = Stats.of(shared, [[k / 50, k / 50] for k in range(-50, 50)])
    >>> cross = Stats.of(shared, [[k / 50, -k / 50] for k in range(-50, 50)])
    >>> bearing = Contribution("pump-3", line, 1, "bearing", kind="fault")
    >>> faults = Faults.of([bearing], shared)
    >>> faults.compare(line).words
    'most like bearing, first seen on pump-3, ratio 0.96'
    >>> faults.compare(cross).name is None
    True
    """

    projection: Projection
    known: tuple[KnownFault, ...] = ()
    encoded: bytes | None = field(default=None, init=False, repr=False)

    @classmethod
    def of(
        cls,
        contributions: Iterable[Contribution],
        projection: Projection,
        selection: Selection | None = None,
    ) -> Faults:
        """Merge contributions by likeness; then leave out those that are not selected.

        Args:
            contributions: Faults, each at its newest revision; empty ones were withdrawn.
            projection: What all devices share.
            selection: Whose faults are wanted; None (the default): all.

        Raises:
            RejectedError: One of them is not a fault.
        """
        return cls.of_groups(cls.groups_of(contributions), projection, selection)

    @staticmethod
    def groups_of(contributions: Iterable[Contribution]) -> list[list[Contribution]]:
        """Group faults that are alike; the largest group comes first.

        Those of one name are alike if they explain each other's data within a factor of 2.5, those
        of two names within 1.2.

        Args:
            contributions: Faults; of more than 256, the largest of each device come first.

        Raises:
            RejectedError: One of them is not a fault.
        """
        by_name: dict[str, list[Contribution]] = {}
        faults = list(contributions)
        for fault in faults:
            must_be_of_kind(fault, "fault")
        for fault in _fair_share([each for each in faults if each.samples]):
            by_name.setdefault(fault_name(fault.pattern), []).append(fault)
        named = [found for name in sorted(by_name) for found in group(by_name[name])]
        # Two people may have given one fault two names: only the same numbers tell.
        sums = [Contribution(f"{i:09}", found.stats, 0) for i, found in enumerate(named)]
        return [
            [fault for each in found.members for fault in named[int(each.device)].members]
            for found in group(sums, factor=SAME_FACTOR)
        ]

    @classmethod
    def of_groups(
        cls,
        groups: Iterable[Iterable[Contribution]],
        projection: Projection,
        selection: Selection | None = None,
        *,
        min_devices: int = 1,
    ) -> Faults:
        """Sum up the selected contributions of each group.

        Args:
            groups: Contributions that are alike.
            projection: What all devices share.
            selection: Whose faults are wanted; None (the default): all.
            min_devices: The fewest devices of which a sum is told; 1 by default.
        """
        chosen = (sorted((selection or Selection()).matching(g), key=_key) for g in groups)
        known = [
            KnownFault(
                Stats.total(projection, (each.stats for each in faults)),
                tuple(map(FaultOrigin.of, faults)),
            )
            for faults in chosen
            if faults and len({each.device for each in faults}) >= min_devices
        ]
        known.sort(key=lambda fault: (-fault.stats.count, fault.origins[0].key))
        return cls(projection, tuple(known[:MAX_FAULTS]))

    def compare(self, data: Stats) -> FaultName:
        """Return which known fault a pattern is most like, or that it is like none.

        Args:
            data: The sums of the pattern; of fewer than 2N samples the answer is not reliable.

        Raises:
            MismatchError: The sums are of another projection.
        """
        data.must_be_compatible(self.projection, self.projection.n_inputs)
        one = Profile.of(data)
        found = [_likeness(fault, one) for fault in self.known]
        ranked = sorted(found, key=lambda each: (each.ratio, each.name))
        name = _name(ranked) if one.unexplained <= MAX_UNEXPLAINED else None
        return FaultName(name, tuple(ranked[:MAX_RANKED]), len(ranked))

    def solve(self, checkpoint: Callable[[], object] = bool) -> Self:
        """Solve the readouts now, such as in a background thread; return itself.

        Args:
            checkpoint: Called between two of them; it may pause the work, or raise to end it. By
                default it does nothing.
        """
        for fault in self.known:
            checkpoint()
            _ = fault.profile.squared_readout, fault.profile.usual_loss
        return self

    def keep_encoded(self, data: bytes) -> Self:
        """Keep the bytes that this was read from, so that `encode` returns them again.

        Args:
            data: The bytes; they are not checked.
        """
        object.__setattr__(self, "encoded", data)
        return self

    @property
    def origins(self) -> tuple[FaultOrigin, ...]:
        """The contributions in all faults, in the order of their keys."""
        found = (origin for fault in self.known for origin in fault.origins)
        return tuple(sorted(found, key=lambda origin: origin.key))

    def __eq__(self, other: object) -> bool:
        """Compare origins and sums, bit for bit."""
        return (
            isinstance(other, Faults)
            and self.projection == other.projection
            and [each.origins for each in self.known] == [each.origins for each in other.known]
            and all(a.stats == b.stats for a, b in zip(self.known, other.known, strict=True))
        )

    __hash__ = None  # type: ignore[assignment]  # holds arrays

    def __iter__(self) -> Iterator[KnownFault]:
        """Iterate over the faults, the largest first."""
        return iter(self.known)

    def __len__(self) -> int:
        """Count the faults."""
        return len(self.known)

    def __repr__(self) -> str:
        """Show the names."""
        return f"Faults({', '.join(each.name for each in self.known) or 'none'})"


_key = attrgetter("key")


def _fair_share(faults: list[Contribution]) -> list[Contribution]:
    """Keep at most so many: the largest of each device, then the second of each, and so on."""
    if len(faults) <= MAX_GROUPED:
        return faults
    sent: Counter[str] = Counter()
    places: dict[Key, int] = {}
    for fault in sorted(faults, key=lambda each: (-each.samples, each.key)):
        places[fault.key] = sent[fault.device]
        sent[fault.device] += 1
    return sorted(faults, key=lambda each: (places[each.key], each.key))[:MAX_GROUPED]


def can_compare(samples: float, projection: Projection) -> bool:
    """Return whether a pattern with so many samples can be compared with known faults.

    Args:
        samples: The number of samples.
        projection: What all devices share.
    """
    return samples >= NAMING_SAMPLES_PER_HIDDEN * projection.n_hidden


def _likeness(fault: KnownFault, one: Profile) -> Likeness:
    first, other = fault.earliest, fault.profile
    hidden = sqrt(min(other.unexplained, 1.0))  # the part of a shift that the ratio does not show
    measures = loss_ratio(other, one), hidden * centroid_shift(other, one)  # M10
    return Likeness(fault.name, first.device, first.first, *(float(f"{m:.6g}") for m in measures))


def _name(ranked: list[Likeness]) -> str | None:
    """Return the name of the nearest, unless it is too far or another one is nearly as near."""
    if not ranked or not ranked[0].is_near:
        return None
    best = ranked[0]
    others = [each.ratio for each in ranked if each.name != best.name]
    return best.name if not others or min(others) >= MIN_MARGIN * best.ratio else None
