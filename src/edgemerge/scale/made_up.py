"""A made-up fleet: each device has stats of its own, made again from its number alone, and exact.

What a device has seen is a sum of a few sums of samples. Rows X are (shelves, base, samples, n).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.contribution import Contribution
from edgemerge.core.splitmix import uniform
from edgemerge.core.stats import Stats
from edgemerge.scale.plan import Plan
from edgemerge.scale.shelves import Numbers

APART = 1  # changes the plan's seed, so that samples are not drawn like weights


class Fleet:
    """Makes what a device would send, at any revision."""

    def __init__(self, plan: Plan) -> None:
        """Draw the samples, and sum them up for each place on each shelf."""
        self.plan, self.projection = plan, plan.projection
        self.rows = drawn(plan)
        self._stats = [
            [Stats.of_rows(self.projection, samples) for samples in shelf] for shelf in self.rows
        ]

    def pieces(self, device: int, revision: int) -> list[Stats]:
        """Give the sums whose sum a device sends."""
        shelves = self.plan.shelves
        later = (shelves.taken_later(device, r) for r in range(2, revision + 1))
        return [
            *(self._stats[digit][place] for digit, place in enumerate(shelves.taken(device))),
            *(self._stats[-1][place] for place in later),
        ]

    def contribution(self, device: int, revision: int) -> Contribution:
        """Give what a device sends."""
        first, *rest = self.pieces(device, revision)
        return Contribution(name(device), sum(rest, first), revision)

    def flat(self, devices: Numbers, newest: Numbers) -> Stats:
        """Add up what devices have at their newest revisions, 0 for none, straight from the shelf.

        No tree, no ledger, no bytes: what the tree's total is held against.
        """
        heard = zip(devices.tolist(), newest.tolist(), strict=True)
        parts = (each for device, last in heard if last for each in self.pieces(device, last))
        return Stats.total(self.projection, parts)


def name(device: int) -> str:
    """Name a device by its number."""
    return f"device-{device:07}"


def drawn(plan: Plan) -> NDArray[np.float64]:
    """Draw the samples of each place on each shelf, in [−1, 1] on the grid."""
    shelves, each = plan.shelves, plan.samples * plan.n_inputs
    values = uniform(plan.seed ^ APART, np.arange(shelves.count, dtype=np.uint64), each)
    rows = plan.projection.grid.rows(values.reshape(-1, plan.n_inputs))
    return rows.reshape(-1, shelves.base, plan.samples, plan.n_inputs)


@lru_cache(maxsize=1)
def fleet_of(plan: Plan) -> Fleet:
    """Give the fleet of a plan; a process makes it once."""
    return Fleet(plan)
