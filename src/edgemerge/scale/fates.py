"""Fates: which of a device's messages arrive at its site, in what order, drawn from the seed.

Messages come in two waves: a site tells its sum after the first, and again after the second if
that has changed anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from edgemerge.core.splitmix import words
from edgemerge.scale.plan import Plan
from edgemerge.scale.shelves import Numbers

APART = 2  # changes the plan's seed, so that fates are not drawn like weights or samples
WAVES = (0, 1)
CUT = 0  # in the place of a revision: the first one, cut short on its way


class Fate(NamedTuple):
    """What becomes of a device: the revisions that arrive in each wave, and the newest of them."""

    arriving: tuple[tuple[int, ...], tuple[int, ...]]
    newest: int


FATES = {
    "on time": Fate(((1,), ()), 1),
    "lost": Fate(((), ()), 0),
    "cut short": Fate(((CUT,), ()), 0),
    "repeated": Fate(((1,), (1,)), 1),
    "revised": Fate(((1,), (2,)), 2),
    "late": Fate(((), (1,)), 1),
    "overtaken": Fate(((2,), (1,)), 2),
}
NEWEST = np.array([fate.newest for fate in FATES.values()])


def fates(plan: Plan, devices: Numbers) -> Numbers:
    """Draw the fate of each device, as its place in FATES."""
    chance = (_words(plan, devices)[:, 0] >> np.uint64(11)).astype(np.float64) * 2.0**-53
    halves = (plan.drop_out / 2.0, plan.late / 2.0)
    ends = np.cumsum([halves[0], halves[0], plan.repeat, plan.revise, halves[1], halves[1]])
    places = np.searchsorted(ends, chance, side="right") + 1
    return np.asarray(np.where(places < len(FATES), places, 0))


def newest(plan: Plan, devices: Numbers) -> Numbers:
    """Give the newest revision that arrives of each device, 0 for none."""
    return np.asarray(NEWEST[fates(plan, devices)])


def arrivals(plan: Plan, devices: Numbers, wave: int) -> Iterator[tuple[int, int]]:
    """Give device and revision of each message of a wave, in an order of chance."""
    every = list(FATES.values())
    order = np.argsort(_words(plan, devices)[:, 1 + wave])
    for device, fate in zip(devices[order].tolist(), fates(plan, devices)[order], strict=True):
        for revision in every[fate].arriving[wave]:
            yield device, revision


def _words(plan: Plan, devices: Numbers) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    return words(plan.seed ^ APART, devices.astype(np.uint64), 1 + len(WAVES))
