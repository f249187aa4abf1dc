"""Simulated devices: what each has seen, and which of its messages arrive, drawn from the seed.

A device's stats are a sum of a few precomputed sums. Samples X are (pools, pool size, samples, n).
Messages arrive in two waves: a site sends its sum after the first, and again after the second if
that changed anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.ledger import Contribution
from edgemerge.core.projection import random_uniform, random_words
from edgemerge.core.stats import Stats
from edgemerge.scale.simulation_plan import IntArray, Plan

SAMPLE_STREAM = 1  # changes the plan's seed, so that samples are not drawn like weights


class SimulatedFleet:
    """Makes what a device would send, at any revision."""

    def __init__(self, plan: Plan) -> None:
        """Draw the samples, and sum them up for each place on each shelf."""
        self.plan, self.projection = plan, plan.projection
        self.rows = draw_samples(plan)
        self._stats = [
            [Stats.of_rows(self.projection, samples) for samples in shelf] for shelf in self.rows
        ]

    def component_stats(self, device: int, revision: int) -> list[Stats]:
        """Give the sums whose sum a device sends."""
        shelves = self.plan.pools
        later = (shelves.later_index(device, r) for r in range(2, revision + 1))
        return [
            *(self._stats[digit][place] for digit, place in enumerate(shelves.taken(device))),
            *(self._stats[-1][place] for place in later),
        ]

    def contribution(self, device: int, revision: int) -> Contribution:
        """Give what a device sends."""
        first, *rest = self.component_stats(device, revision)
        return Contribution(device_name(device), sum(rest, first), revision)

    def flat(self, devices: IntArray, newest: IntArray) -> Stats:
        """Add up what devices have at their newest revisions, 0 for none, straight from the shelf.

        No tree, no ledger, no bytes: what the tree's total is held against.
        """
        heard = zip(devices.tolist(), newest.tolist(), strict=True)
        parts = (
            each for device, last in heard if last for each in self.component_stats(device, last)
        )
        return Stats.total(self.projection, parts)


def device_name(device: int) -> str:
    """Name a device by its number."""
    return f"device-{device:07}"


def draw_samples(plan: Plan) -> NDArray[np.float64]:
    """Draw the samples of each place on each shelf, in [−1, 1] on the grid."""
    shelves, each = plan.pools, plan.samples * plan.n_inputs
    values = random_uniform(
        plan.seed ^ SAMPLE_STREAM, np.arange(shelves.count, dtype=np.uint64), each
    )
    rows = plan.projection.grid.rows(values.reshape(-1, plan.n_inputs))
    return rows.reshape(-1, shelves.base, plan.samples, plan.n_inputs)


@lru_cache(maxsize=1)
def cached_fleet(plan: Plan) -> SimulatedFleet:
    """Give the fleet of a plan; a process makes it once."""
    return SimulatedFleet(plan)


DELIVERY_STREAM = 2  # changes the plan's seed, so that fates are not drawn like weights or samples
WAVES = (0, 1)
TRUNCATED = 0  # in the place of a revision: the first one, cut short on its way


class Delivery(NamedTuple):
    """What becomes of a device: the revisions that arrive in each wave, and the newest of them."""

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
NEWEST_REVISIONS = np.array([fate.newest for fate in DELIVERIES.values()])


def draw_deliveries(plan: Plan, devices: IntArray) -> IntArray:
    """Draw the fate of each device, as its place in FATES."""
    chance = (_random_words(plan, devices)[:, 0] >> np.uint64(11)).astype(np.float64) * 2.0**-53
    halves = (plan.drop_out / 2.0, plan.late / 2.0)
    ends = np.cumsum([halves[0], halves[0], plan.repeat, plan.revise, halves[1], halves[1]])
    places = np.searchsorted(ends, chance, side="right") + 1
    return np.asarray(np.where(places < len(DELIVERIES), places, 0))


def newest_revisions(plan: Plan, devices: IntArray) -> IntArray:
    """Give the newest revision that arrives of each device, 0 for none."""
    return np.asarray(NEWEST_REVISIONS[draw_deliveries(plan, devices)])


def arrivals(plan: Plan, devices: IntArray, wave: int) -> Iterator[tuple[int, int]]:
    """Give device and revision of each message of a wave, in an order of chance."""
    every = list(DELIVERIES.values())
    order = np.argsort(_random_words(plan, devices)[:, 1 + wave])
    for device, fate in zip(
        devices[order].tolist(), draw_deliveries(plan, devices)[order], strict=True
    ):
        for revision in every[fate].revisions_by_wave[wave]:
            yield device, revision


def _random_words(
    plan: Plan, devices: IntArray
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    return random_words(plan.seed ^ DELIVERY_STREAM, devices.astype(np.uint64), 1 + len(WAVES))
