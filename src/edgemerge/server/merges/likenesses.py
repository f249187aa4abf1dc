"""Likeness of devices: how well each one's readout explains another's data, from sums alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.comparing import arrange, of_owners, ratios
from edgemerge.core.errors import SettingError
from edgemerge.core.likeness import Profile
from edgemerge.server.contributions import Entry
from edgemerge.server.merges.solved import ROOM

MANY = 60  # devices that are compared unless they are named
MOST = 200  # devices that can be named
PATTERNS = 8  # of one device, the largest; fewer if all together would not find room

ByDevice = dict[str, list[Entry]]


@dataclass(frozen=True, eq=False)
class Likeness:
    """Devices in an order that shows groups, and how well they explain each other's data.

    `ratios` (D, D) has a row for whose readout and a column for whose data; 1 is as well as its
    own. `groups` is a number for each device; `left_out` says how many more have contributed.
    """

    devices: tuple[str, ...]
    ratios: NDArray[np.float64]
    groups: tuple[int, ...]
    samples: tuple[float, ...]
    left_out: int = 0


@dataclass(frozen=True)
class Selection:
    """What is to be compared: the largest patterns of each device, and its samples in all."""

    patterns: ByDevice
    samples: dict[str, float]
    left_out: int

    @property
    def entries(self) -> list[Entry]:
        """All of it, one device after the other."""
        return [entry for inside in self.patterns.values() for entry in inside]


def selected(entries: Sequence[Entry], named: Sequence[str] | None, size: int) -> Selection:
    """Select the devices with most samples, or those named; a profile takes `size` bytes."""
    names = None if named is None else set(named)
    if names is not None and len(names) > MOST:
        raise SettingError(f"found {len(names)} devices, expected at most {MOST} to compare")
    found: ByDevice = {}
    for entry in sorted(entries, key=lambda entry: (-entry.samples, entry.key)):
        if entry.samples > 0:
            found.setdefault(entry.device, []).append(entry)
    samples = {device: _samples(inside) for device, inside in found.items()}
    order = sorted(found, key=lambda device: (-samples[device], device))
    shown = order[:MANY] if names is None else [device for device in order if device in names]
    most = max(1, min(PATTERNS, ROOM // size // max(1, len(shown))))  # all find room at once
    patterns = {device: found[device][:most] for device in shown}
    return Selection(patterns, samples, len(found) - len(shown))


def compared(selection: Selection, profiles: Sequence[Profile]) -> Likeness:
    """Compare devices by the profiles of what was selected, in that order."""
    names = list(selection.patterns)
    if not names:
        return Likeness((), np.empty((0, 0)), (), (), selection.left_out)
    sizes = [len(inside) for inside in selection.patterns.values()]
    counts = [profile.stats.count for profile in profiles]
    R = of_owners(ratios(profiles, profiles), sizes, counts)
    order, groups = arrange(R)
    return Likeness(
        devices=tuple(names[i] for i in order),
        ratios=R[np.ix_(order, order)],
        groups=tuple(groups),
        samples=tuple(selection.samples[names[i]] for i in order),
        left_out=selection.left_out,
    )


def _samples(entries: Sequence[Entry]) -> float:
    return float(sum(entry.samples for entry in entries))
