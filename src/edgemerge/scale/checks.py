"""Exactness checks: the total against integer arithmetic, a flat sum, a removal and a change.

The integer sums are an independent path: no tree, no ledger, no codec and no float64 addition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.ledger import Contribution
from edgemerge.core.stats import Stats
from edgemerge.scale.simulated_devices import SimulatedFleet, newest_revisions
from edgemerge.scale.simulation_plan import IntArray, Plan
from edgemerge.scale.sum_tree import Propagation, TreePath
from edgemerge.wire.codec import encode

DEVICES_AT_A_TIME = 2**16


@dataclass(frozen=True)
class DrawCounts:
    """The number of devices in the total, and how often each place in each pool was drawn."""

    devices: int
    times: NDArray[np.int64]

    @classmethod
    def of(cls, plan: Plan, devices: int) -> DrawCounts:
        """Count the draws of the first `devices` devices."""
        pools, received = plan.pools, 0
        times = np.zeros((pools.digits + 1, pools.base), np.int64)
        for start in range(0, devices, DEVICES_AT_A_TIME):
            numbers = np.arange(start, min(start + DEVICES_AT_A_TIME, devices))
            last = newest_revisions(plan, numbers)
            received += int((last > 0).sum())
            drawn = [*pools.taken(numbers[last > 0]), pools.later_index(numbers[last > 1], 2)]
            times += np.stack([np.bincount(places, minlength=pools.base) for places in drawn])
        return cls(received, times)


def integer_sums(fleet: SimulatedFleet, seen: DrawCounts) -> tuple[IntArray, ...]:
    """Return U, V, C, S in quanta, and count, as integers."""
    X = fleet.rows.reshape(-1, fleet.plan.n_inputs)
    H = fleet.projection.project(X)
    times = seen.times.ravel().repeat(fleet.plan.samples)[:, None]
    x, h = (np.rint(a / fleet.projection.step).astype(np.int64) for a in (X, H))
    per_step = round(1.0 / fleet.projection.step)
    return (
        (h * times).T @ h,  # M2
        (h * times).T @ x,
        (x * times).sum(0) * per_step,  # M10
        (x * x * times).sum(0),
        times.sum(),
    )


def equal_to_integers(total: Stats, sums: tuple[IntArray, ...]) -> bool:
    """Return whether all sums of the stats equal these integers."""
    *arrays, count = sums
    quantum = total.projection.quantum
    pairs = zip(total.arrays, arrays, strict=True)
    same = (np.array_equal(floats, whole * quantum) for floats, whole in pairs)
    return all(same) and total.count == int(count)


class Check(NamedTuple):
    """A statement that must hold, and whether it does."""

    words: str
    holds: bool


def check_integers(total: Stats, fleet: SimulatedFleet, seen: DrawCounts) -> Check:
    """Compare the total with integer sums of the raw samples."""
    holds = equal_to_integers(total, integer_sums(fleet, seen))
    return Check("the total is that of all raw samples, counted in whole numbers", holds)


def check_flat_sum(total: Stats, again: Stats) -> Check:
    """Compare the total with a sum without the tree."""
    return Check("the total is the flat sum, in another order and grouping", total == again)


def check_removal(fleet: SimulatedFleet, site: int, path: TreePath) -> list[Check]:
    """Remove one site from its region, and add it again."""
    name, total = path.site.name, path.top.own
    contribution = path.region.contribution(name)
    devices = np.array(fleet.plan.devices_of(site))
    of_site = fleet.flat(devices, newest_revisions(fleet.plan, devices))
    path.region.drop(name)
    path.top.receive(path.region.share())
    without = path.top.own
    path.region.receive(encode(contribution))
    path.top.receive(path.region.share())
    same = path.top.own.digest == total.digest
    return [
        Check(f"without {name} the total is that of the others", without == total - of_site),
        Check(f"with {name} again it is the same, bit for bit", same),
    ]


def check_change(
    old: Contribution, new: Contribution, before: Stats, after: Stats, spreading: Propagation
) -> list[Check]:
    """Compare the total after a change with the one before, and with what the device adopted."""
    expected = before - old.stats + new.stats  # M7
    adopted = f"what {new.device} receives, and its own, are the total"
    return [
        Check("after a change the total is − old + new", after == expected),
        Check(adopted, spreading.known == expected),
    ]
