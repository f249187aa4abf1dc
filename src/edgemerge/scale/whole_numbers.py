"""The total in whole numbers: every raw sample times how often it was seen, without one float.

A foreign path to the same sums: no tree, no ledger, no codec and no float64 addition.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.stats import Stats
from edgemerge.scale.fates import newest
from edgemerge.scale.made_up import Fleet
from edgemerge.scale.plan import Plan
from edgemerge.scale.shelves import Numbers

BLOCK = 2**16  # devices counted at a time


@dataclass(frozen=True)
class Seen:
    """How many devices were heard, and how often each place on each shelf was taken."""

    devices: int
    times: NDArray[np.int64]

    @classmethod
    def of(cls, plan: Plan, devices: int) -> Seen:
        """Count for the first so many devices."""
        times, heard = np.zeros((plan.shelves.digits + 1, plan.shelves.base), np.int64), 0
        for start in range(0, devices, BLOCK):
            numbers = np.arange(start, min(start + BLOCK, devices))
            last = newest(plan, numbers)
            heard += int((last > 0).sum())
            times += _times(plan, numbers[last > 0], last[last > 0])
        return cls(heard, times)


def whole_sums(fleet: Fleet, seen: Seen) -> tuple[Numbers, ...]:
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


def equal(total: Stats, sums: tuple[Numbers, ...]) -> bool:
    """Say whether stats are these whole numbers, every one of them."""
    *arrays, count = sums
    quantum = total.projection.quantum
    pairs = zip(total.arrays, arrays, strict=True)
    same = (np.array_equal(floats, whole * quantum) for floats, whole in pairs)
    return all(same) and total.count == int(count)


def _times(plan: Plan, devices: Numbers, last: Numbers) -> Numbers:
    shelves = plan.shelves
    revised = devices[last > 1]
    taken = [*shelves.taken(devices), shelves.taken_later(revised, 2)]
    return np.stack([np.bincount(places, minlength=shelves.base) for places in taken])
