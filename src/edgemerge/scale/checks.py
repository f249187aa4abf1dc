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

DEVICES_AT_A_TIME = 2**16  # devices counted at a time


@dataclass(frozen=True)
class DrawCounts:
    """How many devices were heard, and how often each place on each shelf was taken."""

    devices: int
    times: NDArray[np.int64]

    @classmethod
    def of(cls, plan: Plan, devices: int) -> DrawCounts:
        """Count for the first so many devices."""
        times, heard = np.zeros((plan.pools.digits + 1, plan.pools.base), np.int64), 0
        for start in range(0, devices, DEVICES_AT_A_TIME):
            numbers = np.arange(start, min(start + DEVICES_AT_A_TIME, devices))
            last = newest_revisions(plan, numbers)
            heard += int((last > 0).sum())
            times += _draw_counts(plan, numbers[last > 0], last[last > 0])
        return cls(heard, times)


def integer_sums(fleet: SimulatedFleet, seen: DrawCounts) -> tuple[IntArray, ...]:
    """Give U, V, C, S in quanta, and count, as whole numbers."""
    X = np.concatenate([shelf.reshape(-1, fleet.plan.n_inputs) for shelf in fleet.rows])
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
    """Say whether stats are these whole numbers, every one of them."""
    *arrays, count = sums
    quantum = total.projection.quantum
    pairs = zip(total.arrays, arrays, strict=True)
    same = (np.array_equal(floats, whole * quantum) for floats, whole in pairs)
    return all(same) and total.count == int(count)


def _draw_counts(plan: Plan, devices: IntArray, last: IntArray) -> IntArray:
    shelves = plan.pools
    revised = devices[last > 1]
    taken = [*shelves.taken(devices), shelves.later_index(revised, 2)]
    return np.stack([np.bincount(places, minlength=shelves.base) for places in taken])


class Check(NamedTuple):
    """Something that must hold, and whether it does."""

    words: str
    holds: bool


def check_integers(total: Stats, fleet: SimulatedFleet, seen: DrawCounts) -> Check:
    """Hold the total against the raw samples."""
    holds = equal_to_integers(total, integer_sums(fleet, seen))
    return Check("the total is that of all raw samples, counted in whole numbers", holds)


def check_flat_sum(total: Stats, again: Stats) -> Check:
    """Hold the total against a sum without the tree."""
    return Check("the total is the flat sum, in another order and grouping", total == again)


def check_removal(fleet: SimulatedFleet, site: int, path: TreePath) -> list[Check]:
    """Take one site out of its region, and put it in again."""
    total, note = path.top.own, path.region.note(path.site.name)
    devices = np.array(fleet.plan.devices_of(site))
    its = fleet.flat(devices, newest_revisions(fleet.plan, devices))
    path.region.drop(note.device)
    path.top.hear(path.region.share())
    without = path.top.own
    path.region.hear(encode(note))
    path.top.hear(path.region.share())
    again = path.top.own
    return [
        Check(f"without {note.device} the total is that of the others", without == total - its),
        Check(
            f"with {note.device} again it is the same, bit for bit", again.digest == total.digest
        ),
    ]


def check_change(
    old: Contribution, new: Contribution, before: Stats, after: Stats, spreading: Propagation
) -> list[Check]:
    """Hold the total after a change against the one before, and what the device learns of it."""
    expected = before - old.stats + new.stats  # M7
    return [
        Check("after a change the total is − old + new", after == expected),
        Check(
            f"what {new.device} is told, and its own, are the total", spreading.known == expected
        ),
    ]
