"""Foreign patterns: what peers tell becomes part of a pattern of ours, or one of its own."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from edgemerge.core.contribution import Contribution
from edgemerge.core.grouping import Group, group
from edgemerge.core.likeness import Profile, explains
from edgemerge.core.patterns import Patterns
from edgemerge.core.stats import Stats

SAME = 1.2  # patterns are one when each explains the other's data within this factor
WIDER = 1.5  # by which that factor grows while a fleet has too many patterns
LONGEST = 190  # characters of a name, which leaves room for a number behind it
MOST = 4  # foreign patterns kept for each that we may have ourselves


def adopt(patterns: Patterns, contributions: Iterable[Contribution]) -> None:
    """Set what peers have told; whatever was told before is forgotten."""
    told = _few(list(contributions), MOST * patterns.most)
    nothing = Stats.empty(patterns.projection)
    for name, instance in list(patterns.instances.items()):
        instance.detector.adopt(nothing)
        if not instance.detector.known.own.count:
            del patterns.instances[name]
    ours = {name: Profile.of(i.detector.own) for name, i in patterns.instances.items()}
    for found in told:
        name = _same(ours, Profile.of(found.stats))
        if not name:
            first = found.members[0]
            name = patterns.free_name(f"{first.device}/{first.pattern}"[:LONGEST])
            patterns.add(name, nothing, np.empty((0, patterns.projection.n_inputs)))
        detector = patterns.instances[name].detector
        detector.adopt(detector.others + found.stats)
    patterns.settled = patterns.settled or bool(told)


def _few(contributions: list[Contribution], most: int) -> list[Group]:
    factor, told = SAME, group(contributions, factor=SAME)
    while len(told) > most:
        factor *= WIDER
        told = group(contributions, factor=factor)
    return told


def _same(ours: dict[str, Profile], theirs: Profile) -> str:
    apart = {
        name: max(explains(profile, theirs), explains(theirs, profile))
        for name, profile in ours.items()
    }
    name = min(apart, key=apart.__getitem__, default="")
    return name if name and apart[name] <= SAME else ""
