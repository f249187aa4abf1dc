"""Exactness: what must be equal, to the last bit, whatever way the sums have gone."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from edgemerge.core.codec import encode
from edgemerge.core.contribution import Contribution
from edgemerge.core.stats import Stats
from edgemerge.scale.fates import newest
from edgemerge.scale.made_up import Fleet
from edgemerge.scale.spreading import Path, Spreading
from edgemerge.scale.whole_numbers import Seen, equal, whole_sums


class Check(NamedTuple):
    """Something that must hold, and whether it does."""

    words: str
    holds: bool


def whole(total: Stats, fleet: Fleet, seen: Seen) -> Check:
    """Hold the total against the raw samples."""
    holds = equal(total, whole_sums(fleet, seen))
    return Check("the total is that of all raw samples, counted in whole numbers", holds)


def flat(total: Stats, again: Stats) -> Check:
    """Hold the total against a sum without the tree."""
    return Check("the total is the flat sum, in another order and grouping", total == again)


def take_back(fleet: Fleet, site: int, path: Path) -> list[Check]:
    """Take one site out of its region, and put it in again."""
    total, note = path.top.own, path.region.note(path.site.name)
    devices = np.array(fleet.plan.devices_of(site))
    its = fleet.flat(devices, newest(fleet.plan, devices))
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


def changed(
    old: Contribution, new: Contribution, before: Stats, after: Stats, spreading: Spreading
) -> list[Check]:
    """Hold the total after a change against the one before, and what the device learns of it."""
    expected = before - old.stats + new.stats  # M7
    return [
        Check("after a change the total is − old + new", after == expected),
        Check(
            f"what {new.device} is told, and its own, are the total", spreading.known == expected
        ),
    ]
