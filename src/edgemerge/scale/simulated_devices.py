"""Simulated devices: what each has seen, and which of its messages arrive, drawn from the seed.

A device's stats are a sum of a few precomputed sums. Samples X are (pools, pool size, samples, n).
Messages arrive in two waves: a site sends its sum after the first, and again after the second if
that changed anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.ledger import Contribution
from edgemerge.core.projection import random_uniform, random_words
from edgemerge.core.stats import Stats
from edgemerge.scale.simulation_plan import IntArray, Plan

SAMPLE_STREAM = 1  # changes the plan's seed, so that samples are not drawn like weights


class SimulatedFleet:
    """Returns the contribution of a device at any revision."""

    def __init__(self, plan: Plan) -> None:
        """Draw the samples, and sum them up for each place in each pool."""
        self.plan, self.projection = plan, plan.projection
        self.rows = draw_samples(plan)
        self._stats = [[Stats.of_rows(self.projection, X) for X in pool] for pool in self.rows]

    def component_stats(self, device: int, revision: int) -> list[Stats]:
        """Return the sums that add up to a device's stats."""
        pools = self.plan.pools
        first = (self._stats[digit][place] for digit, place in enumerate(pools.taken(device)))
        later = (pools.later_index(device, r) for r in range(2, revision + 1))
        return [*first, *(self._stats[-1][place] for place in later)]

    def contribution(self, device: int, revision: int) -> Contribution:
        """Return a device's contribution."""
        first, *rest = self.component_stats(device, revision)
        return Contribution(f"device-{device:07}", sum(rest, first), revision)

    def flat(self, devices: IntArray, newest: IntArray) -> Stats:
        """Add up the stats of devices at their newest revisions, 0 for none.

        Without tree, ledger or bytes: the tree's total is compared with it.
        """
        received = zip(devices.tolist(), newest.tolist(), strict=True)
        parts = (self.component_stats(device, last) for device, last in received if last)
        return Stats.total(self.projection, chain.from_iterable(parts))


def draw_samples(plan: Plan) -> NDArray[np.float64]:
    """Draw the samples of each place in each pool, in [−1, 1] on the grid."""
    places = np.arange(plan.pools.count, dtype=np.uint64)
    values = random_uniform(plan.seed ^ SAMPLE_STREAM, places, plan.samples * plan.n_inputs)
    rows = plan.projection.grid.rows(values.reshape(-1, plan.n_inputs))
    return rows.reshape(-1, plan.pools.base, plan.samples, plan.n_inputs)


@lru_cache(maxsize=1)
def cached_fleet(plan: Plan) -> SimulatedFleet:
    """Return the fleet of a plan; a process builds it once."""
    return SimulatedFleet(plan)


DELIVERY_STREAM = 2  # changes the seed, so that deliveries are not drawn like weights or samples
WAVES = (0, 1)
TRUNCATED = 0  # in place of a revision: the first one, truncated in transit


class Delivery(NamedTuple):
    """The revisions of a device that arrive in each wave, and the newest of them."""

    revisions_by_wave: tuple[tuple[int, ...], tuple[int, ...]]
    newest: int


DELIVERIES = {
    "on time": Delivery(((1,), ()), 1),
    "lost": Delivery(((), ()), 0),
    "cut short": Delivery(((TRUNCATED,), ()), 0),
    "repeated": Delivery(((1,), (1,)), 1),
    "revised": Delivery(((1,), (2,)), 2),
    "late": Delivery(((), (1,)), 1),
    "overtaken": Delivery(((2,), (1,)), 2),
}
NEWEST_REVISIONS = np.array([delivery.newest for delivery in DELIVERIES.values()])


def draw_deliveries(plan: Plan, devices: IntArray) -> IntArray:
    """Draw the delivery of each device, as its index in DELIVERIES."""
    chance = (_random_words(plan, devices)[:, 0] >> np.uint64(11)).astype(np.float64) * 2.0**-53
    dropped, late = plan.drop_out / 2.0, plan.late / 2.0
    ends = np.cumsum([dropped, dropped, plan.repeat, plan.revise, late, late])
    places = np.searchsorted(ends, chance, side="right") + 1
    return np.asarray(np.where(places < len(DELIVERIES), places, 0))


def newest_revisions(plan: Plan, devices: IntArray) -> IntArray:
    """Return the newest revision that arrives from each device, 0 for none."""
    return np.asarray(NEWEST_REVISIONS[draw_deliveries(plan, devices)])


def arrivals(plan: Plan, devices: IntArray, wave: int) -> Iterator[tuple[int, int]]:
    """Yield device and revision of each message of a wave, in random order."""
    every = list(DELIVERIES.values())
    order = np.argsort(_random_words(plan, devices)[:, 1 + wave])
    drawn = draw_deliveries(plan, devices)[order]
    for device, delivery in zip(devices[order].tolist(), drawn, strict=True):
        for revision in every[delivery].revisions_by_wave[wave]:
            yield device, revision


def _random_words(plan: Plan, devices: IntArray) -> NDArray[np.uint64]:
    return random_words(plan.seed ^ DELIVERY_STREAM, devices.astype(np.uint64), 1 + len(WAVES))
