"""Upkeep: patterns appear, part, join and retire while samples stream by."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.detector import READY
from edgemerge.core.instance import Instance
from edgemerge.core.likeness import Profile, explains
from edgemerge.core.parting import part
from edgemerge.core.patterns import Patterns
from edgemerge.core.stats import Stats
from edgemerge.core.tails import within

Array = NDArray[np.float64]

BETTER = 0.5  # a new pattern must halve the loss of the samples that nothing explained
JOIN = 1.2  # patterns are one when each explains the other's data within this factor
ROUND = 2048  # samples between two looks for patterns that have become one
MOVED, BACK = 0.5, 0.25  # drift at which a pattern has moved, and at which it is back
GONE = 100  # samples for each hidden value, after which an unused pattern is gone


def upkeep(patterns: Patterns) -> None:
    """Look after all patterns; called after each block."""
    _settle(patterns)
    for name, instance in list(patterns.instances.items()):
        if instance.ring.seen - instance.considered >= instance.ring.capacity:
            instance.considered = instance.ring.seen
            part(patterns, name, instance)
    _find(patterns)
    if patterns.clock - patterns.compared >= ROUND:
        patterns.compared = patterns.clock
        _join(patterns)
    for name, instance in patterns.instances.items():
        _watch(patterns, name, instance)


def _settle(patterns: Patterns) -> None:
    """Leave out the first samples that lie far out, as soon as there are enough to tell.

    It is done twice, for ranks among more samples tell more; nothing was parted until then.
    """
    if patterns.sifted:
        return
    name, first = next(iter(patterns.instances.items()))
    enough = first.ring.seen >= READY * patterns.projection.n_hidden
    if first.ring.full or (enough and not patterns.settled):
        patterns.settled, patterns.sifted = True, first.ring.full
        rows = first.ring.rows()
        kept = within(rows) if patterns.reject_above < np.inf else np.ones(len(rows), bool)
        out = Stats.of_rows(patterns.projection, rows[~kept])
        own = first.detector.own - out if first.detector.forgetting == 1.0 else first.detector.own
        cleaned = patterns.add(name, own, rows[kept])
        cleaned.detector.adopt(first.detector.others)
        cleaned.considered = first.considered
        patterns.rejected += int((~kept).sum())


def _find(patterns: Patterns) -> None:
    """Add a pattern when most of the last samples are odd, but consistent with each other."""
    odd = sum(patterns.odd)
    if odd < READY * patterns.projection.n_hidden or 2 * odd < len(patterns.odd):
        return
    rows = patterns.outsiders.rows()[-odd:]
    H = patterns.projection.project(rows)
    losses = np.min([i.loss(rows, H) for i in patterns.instances.values()], axis=0)
    usual = Profile.of(Stats.of_rows(patterns.projection, rows)).usual
    if usual >= BETTER * losses.mean() or not _room(patterns):
        return
    name = patterns.free_name("normal")
    patterns.add(name, Stats.of_rows(patterns.projection, rows), rows)
    patterns.tell("new", name)
    patterns.odd.clear()
    patterns.outsiders.clear()


def _room(patterns: Patterns) -> bool:
    """Make room: join what has become one, retire what is gone, or join the two most alike."""
    if _is_full(patterns):
        _join(patterns)
    if _is_full(patterns):
        _retire(patterns)
    if _is_full(patterns):
        _join(patterns, np.inf)
    return not _is_full(patterns)


def _is_full(patterns: Patterns) -> bool:
    return len(patterns.instances) >= patterns.most


def _join(patterns: Patterns, limit: float = JOIN) -> None:
    """Add the two patterns most alike into one, if each explains the other's data well enough."""
    profiles = {name: Profile.of(i.total) for name, i in patterns.instances.items()}
    apart = {
        (a, b): max(explains(profiles[a], profiles[b]), explains(profiles[b], profiles[a]))
        for a, b in combinations(profiles, 2)
    }
    (a, b), least = min(apart.items(), key=lambda item: item[1], default=(("", ""), np.inf))
    if a and least <= limit:
        kept, gone = patterns.instances[a], patterns.instances.pop(b)
        rows = np.vstack([gone.ring.rows(), kept.ring.rows()])
        both = patterns.add(a, kept.detector.own + gone.detector.own, rows)
        both.detector.adopt(kept.detector.others + gone.detector.others)
        both.considered = both.ring.seen
        patterns.tell("joined", a, b)


def _retire(patterns: Patterns) -> None:
    """Drop the pattern that was not seen for longest, if it is gone."""
    name, oldest = min(patterns.instances.items(), key=lambda item: item[1].used_at)
    if oldest.gone:
        del patterns.instances[name]
        patterns.tell("retired", name)


def _watch(patterns: Patterns, name: str, instance: Instance) -> None:
    if not instance.moved and instance.drift > MOVED:
        instance.moved = True
        patterns.tell("moved", name)
    elif instance.drift < BACK:
        instance.moved = False
    idle = patterns.clock - instance.used_at
    if not instance.gone and idle > GONE * patterns.projection.n_hidden:
        instance.gone = True
        patterns.tell("gone", name)
