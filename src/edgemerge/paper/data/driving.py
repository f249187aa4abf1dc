"""UAH-DriveSet: how six drivers' speed changes when they drive normally, aggressively, drowsily.

The makers do not allow it to be passed on, so it is read from where its user put it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edgemerge.paper.data.about import again, missing
from edgemerge.paper.data.errors import DamagedDataError
from edgemerge.paper.data.gps import CLOCK, SPEED, follows, rows
from edgemerge.paper.data.known import Found
from edgemerge.paper.data.sources import Source
from edgemerge.paper.data.transitions import WINDOW_S, windows
from edgemerge.paper.data.trips import files, must_be_all, pattern_of, sources
from edgemerge.paper.dataset import Array, Dataset, Ints

PATTERNS = ("normal", "aggressive", "drowsy")
MOST = 2**23  # bytes of one trip; the longest has about a fortieth of it


def find(folder: Path) -> Found:
    """Give the readings of all 40 trips; with one missing, say which driver lacks it."""
    source = _source(folder)
    must_be_all(source)
    return _readings(source)


def find_some(folder: Path) -> Found:
    """Give the readings of the trips that are there, by driver and start."""
    source = _source(folder)
    if not files(source):
        must_be_all(source)
    return _readings(source)


def labels(found: Found) -> Ints:
    """Give the place among PATTERNS of each sample's behaviour."""
    return read_all(found).y


def read_all(found: Found) -> Dataset:
    """Give one transition table for each window of each trip; the origin counts the trips."""
    tables = [_tables(found, trip) for trip in found.files]
    sizes = [len(one) for one in tables]
    places = [PATTERNS.index(pattern_of(trip)) for trip in found.files]
    y, origin = np.repeat(places, sizes), np.repeat(np.arange(len(sizes)), sizes)
    X = np.concatenate(tables)
    return Dataset("driving", X, y.astype(np.intp), PATTERNS, origin.astype(np.intp), 0.0, 1.0)


def _source(folder: Path) -> Source:
    for source in sources(folder):
        return source
    raise missing("driving", folder)


def _readings(source: Source) -> Found:
    there = files(source).items()
    return Found(source.where, {trip: source.read(name, most=MOST) for trip, name in there})


def _tables(found: Found, trip: str) -> Array:
    drive = rows(found.files[trip], path=found.where, part=trip)
    if len(drive) < WINDOW_S:
        raise DamagedDataError(
            f"{trip} in {found.where} has {len(drive)} readings, expected {WINDOW_S} or more",
            again("driving"),
            found.where,
        )
    return windows(drive[:, SPEED], follows(drive[:, CLOCK]))
