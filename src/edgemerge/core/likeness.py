"""Likeness: whether two sets of sums are of the same kind of data, told without one sample.

a explains b when the mean loss of b's data under a's readout is near what is usual for b.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgemerge.core.level import Level
from edgemerge.core.readout import Readout
from edgemerge.core.stats import Stats

FACTOR = 2.5  # HAR, 30 subjects: moving, still and lying never mix; see decision 0010
ENOUGH = 1.3  # samples for each parameter that they pin down, from which on their level is known


@dataclass(frozen=True, eq=False)
class Profile:
    """Sums with their readout and their level: what comparing them needs, solved once."""

    stats: Stats
    readout: Readout
    level: Level

    @classmethod
    def of(cls, stats: Stats | Profile) -> Profile:
        """Solve what is to be compared several times."""
        if isinstance(stats, Profile):
            return stats
        readout = stats.solve()
        return cls(stats, readout, level_of(stats, readout))

    @property
    def usual(self) -> float:
        """The loss that fresh samples of this kind have."""
        return float(self.level.usual)

    @property
    def known(self) -> bool:
        """Whether there are samples enough for that level to mean something."""
        return bool(self.stats.count >= ENOUGH * self.level.freedom)


def level_of(stats: Stats, readout: Readout) -> Level:
    """Give the level of sums under their own readout."""
    freedom = len(stats.U) - readout.ridge * float(np.trace(readout.P))  # M11
    count = max(stats.count, stats.projection.quantum)
    losses = stats.mean_loss(readout) * count  # M10
    return Level(losses, freedom, count, count, stats.projection.quantum / 12.0)


def explains(a: Stats | Profile, b: Stats | Profile) -> float:
    """Give the mean loss of b's data under a's readout, as a multiple of what is usual for b.

    When b has too few samples to have a level of its own, a's level takes its place.

    >>> from edgemerge.core.projection import Projection
    >>> shared = Projection(n_inputs=2, n_hidden=2, activation="identity")
    >>> line = [[k / 50, k / 50] for k in range(-50, 50)]
    >>> cross = [[k / 50, -k / 50] for k in range(-50, 50)]
    >>> explains(Stats.of(shared, line), Stats.of(shared, line[::2])) < 3
    True
    >>> explains(Stats.of(shared, line), Stats.of(shared, cross)) > 3
    True
    """
    mine, theirs = Profile.of(a), Profile.of(b)
    level = theirs.usual if theirs.known else mine.usual
    return theirs.stats.mean_loss(mine.readout) / level  # M10


def alike(a: Stats | Profile, b: Stats | Profile, factor: float = FACTOR) -> bool:
    """Say whether each explains the other's data, within a factor of what is usual."""
    mine, theirs = Profile.of(a), Profile.of(b)
    return explains(mine, theirs) <= factor and explains(theirs, mine) <= factor
