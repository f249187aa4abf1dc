"""The outcome of a simulation: what passed through the tree, how fast, and whether it is exact."""

from __future__ import annotations

from dataclasses import dataclass

from edgemerge.core.stats import Stats
from edgemerge.scale.exactness import Check
from edgemerge.scale.plan import Plan
from edgemerge.scale.spreading import Spreading
from edgemerge.scale.tally import Tally


@dataclass(frozen=True)
class Speed:
    """What was measured of the machine, by one thread: sums, and bytes of memory, in a second."""

    sums_per_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class Gathered:
    """What went up: the tallies of the three tiers, places heard, time and memory."""

    total: Stats
    up: tuple[Tally, Tally, Tally]  # from devices, from sites, from regions
    places: tuple[int, int, int]  # devices, sites, regions that are in the total
    seconds: float
    cpu_s: float  # of the sites alone, all workers together
    peak_bytes: int  # of all processes together


@dataclass(frozen=True)
class Outcome:
    """All of it; once it is `stopped`, sites or checks are missing; the rest holds."""

    plan: Plan
    workers: int
    stopped: bool
    gathered: Gathered
    checks: list[Check]
    spreading: Spreading | None
    speed: Speed | None

    @property
    def exact(self) -> bool:
        """Whether every check holds."""
        return all(check.holds for check in self.checks)
