"""The trips of UAH-DriveSet: which there should be, and which a folder or archive holds.

A trip is a folder START-LENGTHkm-DRIVER-BEHAVIOUR-ROAD with a RAW_GPS.txt, in its driver's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from edgemerge.paper.data.about import again
from edgemerge.paper.data.errors import IncompleteDataError
from edgemerge.paper.data.sources import OnDisk, Source, Zipped

EXPECTED = {"D1": 7, "D2": 7, "D3": 7, "D4": 7, "D5": 7, "D6": 5}
GPS = "RAW_GPS.txt"
NAME = re.compile(
    r"\d+-\d+km-(?P<driver>D[1-6])-(?P<pattern>NORMAL|AGGRESSIVE|DROWSY)\d*-(MOTORWAY|SECONDARY)"
)
ON_DISK = "D[1-6]/*-*km-D[1-6]-*-*"
ARCHIVES = ("*UAH*.zip", "*uah*.zip", "*[Dd]rive[Ss]et*.zip", "*DRIVESET*.zip")
DEPTHS = ("", "*/", "*/*/", "*/*/*/")


def pattern_of(trip: str) -> str:
    """Tell how the driver behaved.

    >>> pattern_of("20151110175712-16km-D1-NORMAL1-SECONDARY")
    'normal'
    """
    return str(_match(trip)["pattern"]).lower()


def sources(folder: Path) -> Iterator[Source]:
    """Give the folders, then the archives that hold trips, the least deep first."""
    for depth in DEPTHS:
        for root in sorted({path.parent.parent for path in folder.glob(depth + ON_DISK)}):
            yield OnDisk(root)
    for depth, archive in product(DEPTHS, ARCHIVES):
        for path in sorted(folder.glob(depth + archive)):
            if folders(source := Zipped(path)):
                yield source


def folders(source: Source) -> set[str]:
    """Give the names of all trips that a source mentions."""
    parts = {part for name in source.names() for part in name.split("/")}
    return {part for part in parts if NAME.fullmatch(part)}


def files(source: Source) -> dict[str, str]:
    """Tell for each trip that has one what its RAW_GPS.txt is called, by driver and start."""
    split = [name.split("/") for name in source.names() if name.endswith(f"/{GPS}")]
    there = {parts[-2]: "/".join(parts) for parts in split if NAME.fullmatch(parts[-2])}
    return dict(sorted(there.items(), key=lambda item: (_match(item[0])["driver"], item[0])))


def must_be_all(source: Source) -> None:
    """Refuse a source with another number of trips than its makers published."""
    there = files(source)
    count = Counter(str(_match(trip)["driver"]) for trip in there)
    odd = [f"{who} has {count[who]} of {n}" for who, n in EXPECTED.items() if count[who] != n]
    if not odd:
        return
    bare = sorted(folders(source) - there.keys())
    odd += [f"{trip} has no {GPS}" for trip in bare]
    raise IncompleteDataError(
        f"driving in {source.where} has {len(there)} trips, expected {sum(EXPECTED.values())} "
        f"({'; '.join(odd)})",
        f"{again('driving')}; in Python, load('driving', folder, partial=True) makes do with it",
        source.where,
    )


def _match(trip: str) -> re.Match[str]:
    found = NAME.fullmatch(trip)
    if found is None:
        raise ValueError(f"found {trip}, expected START-LENGTHkm-DRIVER-BEHAVIOUR-ROAD")
    return found
