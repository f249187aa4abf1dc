"""Parting: one pattern becomes two when two readouts explain its samples better."""

from __future__ import annotations

from math import sqrt

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.instance import Instance
from edgemerge.core.likeness import Profile
from edgemerge.core.patterns import Patterns
from edgemerge.core.projection import Projection
from edgemerge.core.split import halves
from edgemerge.core.stats import Stats

Array = NDArray[np.float64]

GAIN = 0.02  # two readouts must lower the noise by this share at least
SURE = 3.0  # and by this many standard errors of the noise itself
LEAST = 1.0  # rows for each hidden value, in each part


def part(patterns: Patterns, name: str, instance: Instance) -> None:
    """Part a pattern whose last rows two readouts explain better, and its parts likewise.

    Half of the room is left to patterns that are really new.
    """
    if len(patterns.instances) >= (patterns.most + 1) // 2:
        return
    parts = _better_parts(patterns.projection, instance.ring.rows())
    if parts is None:
        return
    child = patterns.free_name(name)
    _divide(patterns, name, child, *parts)
    patterns.tell("split", name, child)
    for each in (name, child):
        part(patterns, each, patterns.instances[each])


def noise(projection: Projection, rows: Array) -> tuple[float, float]:
    """Give the loss that no readout of this size explains, and how many residuals tell it."""
    level = Profile.of(Stats.of_rows(projection, rows)).level
    return float(level.loss / level.spare), float(level.count * level.spare) * rows.shape[1]


def _better_parts(projection: Projection, rows: Array) -> tuple[Array, Array] | None:
    least = LEAST * projection.n_hidden
    if len(rows) < 2 * least:
        return None
    second = halves(rows)
    first, other = rows[~second], rows[second]
    if min(len(first), len(other)) < least:
        return None
    whole, residuals = noise(projection, rows)
    sure = SURE * sqrt(2.0 / residuals)  # the standard error of a variance
    gain = 1.0 - (noise(projection, first)[0] + noise(projection, other)[0]) / whole
    return (first, other) if gain > max(GAIN, sure) else None


def _divide(patterns: Patterns, name: str, child: str, stays: Array, goes: Array) -> None:
    old = patterns.instances[name]
    moved = Stats.of_rows(patterns.projection, goes)
    exact = old.detector.forgetting == 1.0  # then the rows can be taken back to the last bit
    rest = old.detector.own - moved if exact else Stats.of_rows(patterns.projection, stays)
    patterns.add(name, rest, stays).detector.adopt(old.detector.others)
    patterns.add(child, moved, goes)
