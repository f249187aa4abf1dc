"""UAH-DriveSet: how six drivers' speed changes when they drive normally, aggressively, drowsily.

A trip is a folder START-LENGTHkm-DRIVER-BEHAVIOUR-ROAD with a RAW_GPS.txt: twelve numbers a line,
about one line a second. A window of 120 readings gives the paper's 225 inputs, a table of 15 × 15
probabilities row by row: of the seconds at speed level a, the share that was followed by level b; a
level that was not left has a row of zeros. The makers do not allow copies to be passed on, so it is
read from where its user put it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import product
from math import isfinite
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgemerge.paper.data.catalog import (
    DamagedDataError,
    IncompleteDataError,
    fetch_advice,
    missing_error,
)
from edgemerge.paper.data.verified_files import FolderSource, Source, VerifiedFiles, ZipSource
from edgemerge.paper.dataset import Array, Dataset, Ints

GPS_COLUMNS = 12
CLOCK_COLUMN, SPEED_COLUMN = 0, 1  # s since the start, km/h
SECOND_RANGE_S = (0.5, 1.5)  # a step between these is one of about a second


def parse_gps(text: bytes, *, path: Path, part: str = "") -> Array:
    """Read the lines, (k, 12), without exact duplicates.

    >>> parse_gps(b"0.5 31.2 " + b"0 " * 10, path=Path("RAW_GPS.txt"))[:, :2]
    array([[ 0.5, 31.2]])
    """
    lines = enumerate(text.split(b"\n"), start=1)
    where = f"{part} in {path}" if part else f"{path}"
    found = [_parse_line(line, f"{where}, line {at}", path) for at, line in lines if line.strip()]
    table = np.array(found, dtype=np.float64).reshape(-1, GPS_COLUMNS)
    first = np.unique(table, axis=0, return_index=True)[1]
    return table[np.sort(first)]


def is_next_second(clock: Array) -> NDArray[np.bool_]:
    """Return for each reading but the first whether it is about a second after the one before.

    >>> is_next_second(np.array([0.0, 1.0, 11.1, 12.0, 4.0]))
    array([ True, False,  True, False])
    """
    step = np.diff(clock)
    return (step > SECOND_RANGE_S[0]) & (step < SECOND_RANGE_S[1])


def _parse_line(line: bytes, where: str, path: Path) -> list[float]:
    words = line.decode("ascii", "replace").split()
    try:
        row = [float(word) for word in words]
        for word, value in zip(words, row, strict=True):
            if "_" in word or not isfinite(value):  # Python would take 1_0 for ten
                raise ValueError(f"the word {word}")
    except ValueError as error:
        raise _gps_error(where, str(error), f"{GPS_COLUMNS} numbers", path) from error
    if len(row) != GPS_COLUMNS:
        raise _gps_error(where, f"{len(row)} columns", f"{GPS_COLUMNS}", path)
    if row[SPEED_COLUMN] < 0:
        raise _gps_error(where, f"a speed of {row[SPEED_COLUMN]:g} km/h", "0 or more", path)
    return row


def _gps_error(where: str, found: str, expected: str, path: Path) -> DamagedDataError:
    return DamagedDataError(
        f"{where}: found {found}, expected {expected}", fetch_advice("driving"), path
    )


LEVELS = 15
LEVEL_WIDTH_KMH = 10.0
WINDOW_S = 120  # readings in a window: there is one a second
STEP_S = 10  # from the start of a window to the start of the next


def speed_levels(speed: Array) -> Ints:
    """Return the level of each speed in km/h; faster speeds count as the top level.

    >>> speed_levels(np.array([0.0, 9.9, 10.0, 148.8, 210.0]))
    array([ 0,  0,  1, 14, 14])
    """
    return np.minimum(speed // LEVEL_WIDTH_KMH, LEVELS - 1).astype(np.intp)


def transition_table(level: Ints, follows: NDArray[np.bool_]) -> Array:
    """Count the steps that `follows` admits, and divide by the times each level was left, (225,).

    >>> T = transition_table(np.array([0, 0, 1, 0]), np.array([True, True, False])).reshape(15, 15)
    >>> T[:2, :2]
    array([[0.5, 0.5],
           [0. , 0. ]])
    """
    pairs = (level[:-1] * LEVELS + level[1:])[follows]
    counts = np.bincount(pairs, minlength=LEVELS**2).reshape(LEVELS, LEVELS)
    return np.asarray((counts / np.maximum(counts.sum(1, keepdims=True), 1)).reshape(-1))


def transition_windows(speed: Array, follows: NDArray[np.bool_]) -> Array:
    """Return the tables of all whole windows of a drive, (k, 225).

    A window may hold a gap in the readings, but the step across it is not counted.
    """
    level = speed_levels(speed)
    spans = [(s, s + WINDOW_S) for s in range(0, len(level) - WINDOW_S + 1, STEP_S)]
    found = [transition_table(level[s:end], follows[s : end - 1]) for s, end in spans]
    return np.array(found, dtype=np.float64).reshape(-1, LEVELS**2)


TRIPS_PER_DRIVER = {"D1": 7, "D2": 7, "D3": 7, "D4": 7, "D5": 7, "D6": 5}
GPS_FILE = "RAW_GPS.txt"
TRIP_NAME = re.compile(
    r"\d+-\d+km-(?P<driver>D[1-6])-(?P<pattern>NORMAL|AGGRESSIVE|DROWSY)\d*-(MOTORWAY|SECONDARY)"
)
TRIP_GLOB = "D[1-6]/*-*km-D[1-6]-*-*"
ARCHIVES = ("*UAH*.zip", "*uah*.zip", "*[Dd]rive[Ss]et*.zip", "*DRIVESET*.zip")
DEPTHS = ("", "*/", "*/*/", "*/*/*/")


def pattern_of(trip: str) -> str:
    """Return the driver's behaviour, from the name of a trip.

    >>> pattern_of("20151110175712-16km-D1-NORMAL1-SECONDARY")
    'normal'
    """
    return str(_match(trip)["pattern"]).lower()


def find_sources(folder: Path) -> Iterator[Source]:
    """Yield the folders, then the archives that hold trips, the least deep first."""
    for depth in DEPTHS:
        for root in sorted({path.parent.parent for path in folder.glob(depth + TRIP_GLOB)}):
            yield FolderSource(root)
    for depth, archive in product(DEPTHS, ARCHIVES):
        for path in sorted(folder.glob(depth + archive)):
            if trip_names(source := ZipSource(path)):
                yield source


def trip_names(source: Source) -> set[str]:
    """Return the names of all trips in a source, with or without readings."""
    parts = {part for name in source.names() for part in name.split("/")}
    return {part for part in parts if TRIP_NAME.fullmatch(part)}


def gps_files(source: Source) -> dict[str, str]:
    """Return the path of each trip's RAW_GPS.txt, sorted by driver and start."""
    split = [name.split("/") for name in source.names() if name.endswith(f"/{GPS_FILE}")]
    there = {parts[-2]: "/".join(parts) for parts in split if TRIP_NAME.fullmatch(parts[-2])}
    return dict(sorted(there.items(), key=lambda item: (_match(item[0])["driver"], item[0])))


def check_complete(source: Source) -> None:
    """Refuse a source with another number of trips than its makers published."""
    there = gps_files(source)
    count = Counter(str(_match(trip)["driver"]) for trip in there)
    published = TRIPS_PER_DRIVER.items()
    wrong = [f"{who} has {count[who]} of {n}" for who, n in published if count[who] != n]
    if not wrong:
        return
    wrong += [f"{trip} has no {GPS_FILE}" for trip in sorted(trip_names(source) - there.keys())]
    raise IncompleteDataError(
        f"driving in {source.where} has {len(there)} trips, expected "
        f"{sum(TRIPS_PER_DRIVER.values())} ({'; '.join(wrong)})",
        f"{fetch_advice('driving')}; in Python, load('driving', folder, "
        "partial=True) makes do with it",
        source.where,
    )


def _match(trip: str) -> re.Match[str]:
    found = TRIP_NAME.fullmatch(trip)
    if found is None:
        raise ValueError(f"found {trip}, expected START-LENGTHkm-DRIVER-BEHAVIOUR-ROAD")
    return found


PATTERNS = ("normal", "aggressive", "drowsy")
MAX_TRIP_BYTES = 2**23  # bytes of one trip; the longest has about a fortieth of it


def find(folder: Path) -> VerifiedFiles:
    """Return the readings of all 40 trips; raise if one is missing."""
    source = _source(folder)
    check_complete(source)
    return _readings(source)


def find_some(folder: Path) -> VerifiedFiles:
    """Return the readings of the trips that are there, by driver and start."""
    source = _source(folder)
    if not gps_files(source):
        check_complete(source)
    return _readings(source)


def labels(found: VerifiedFiles) -> Ints:
    """Return the index in PATTERNS of each sample's behaviour."""
    return read_all(found).y


def read_all(found: VerifiedFiles) -> Dataset:
    """Return a transition table for each window of each trip; the origin is the trip's number."""
    tables = [_tables(found, trip) for trip in found.files]
    sizes = [len(one) for one in tables]
    places = [PATTERNS.index(pattern_of(trip)) for trip in found.files]
    y, origin = np.repeat(places, sizes), np.repeat(np.arange(len(sizes)), sizes)
    X = np.concatenate(tables)
    return Dataset("driving", X, y.astype(np.intp), PATTERNS, origin.astype(np.intp), 0.0, 1.0)


def _source(folder: Path) -> Source:
    for source in find_sources(folder):
        return source
    raise missing_error("driving", folder)


def _readings(source: Source) -> VerifiedFiles:
    there = gps_files(source).items()
    return VerifiedFiles(
        source.where, {trip: source.read(name, most=MAX_TRIP_BYTES) for trip, name in there}
    )


def _tables(found: VerifiedFiles, trip: str) -> Array:
    drive = parse_gps(found.files[trip], path=found.where, part=trip)
    if len(drive) < WINDOW_S:
        raise DamagedDataError(
            f"{trip} in {found.where} has {len(drive)} readings, expected {WINDOW_S} or more",
            fetch_advice("driving"),
            found.where,
        )
    return transition_windows(drive[:, SPEED_COLUMN], is_next_second(drive[:, CLOCK_COLUMN]))
