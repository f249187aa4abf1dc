"""A trip's RAW_GPS.txt: twelve numbers a line, about one line a second."""

from __future__ import annotations

from math import isfinite
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgemerge.paper.data.about import again
from edgemerge.paper.data.errors import DamagedDataError

Array = NDArray[np.float64]
COLUMNS = 12
CLOCK, SPEED = 0, 1  # s since the start, km/h
SECOND = (0.5, 1.5)  # a step between these is one of about a second


def rows(text: bytes, *, path: Path, part: str = "") -> Array:
    """Read the lines, (k, 12), without those that repeat an earlier one in every column.

    >>> rows(b"0.5 31.2 " + b"0 " * 10, path=Path("RAW_GPS.txt"))[:, :2]
    array([[ 0.5, 31.2]])
    """
    lines = enumerate(text.split(b"\n"), start=1)
    where = f"{part} in {path}" if part else f"{path}"
    found = [_row(line, f"{where}, line {at}", path) for at, line in lines if line.strip()]
    table = np.array(found, dtype=np.float64).reshape(-1, COLUMNS)
    first = np.unique(table, axis=0, return_index=True)[1]
    return table[np.sort(first)]


def follows(clock: Array) -> NDArray[np.bool_]:
    """Tell for each reading but the first whether it came about a second after the one before.

    >>> follows(np.array([0.0, 1.0, 11.1, 12.0, 4.0]))
    array([ True, False,  True, False])
    """
    step = np.diff(clock)
    return (step > SECOND[0]) & (step < SECOND[1])


def _row(line: bytes, where: str, path: Path) -> list[float]:
    try:
        row = _numbers(line)
    except ValueError as error:
        raise _odd(where, str(error), f"{COLUMNS} numbers", path) from error
    if len(row) != COLUMNS:
        raise _odd(where, f"{len(row)} columns", f"{COLUMNS}", path)
    if row[SPEED] < 0:
        raise _odd(where, f"a speed of {row[SPEED]:g} km/h", "0 or more", path)
    return row


def _numbers(line: bytes) -> list[float]:
    words = line.decode("ascii", "replace").split()
    for word in words:
        if "_" in word or not isfinite(float(word)):  # Python would take 1_0 for ten
            raise ValueError(f"the word {word}")
    return [float(word) for word in words]


def _odd(where: str, found: str, expected: str, path: Path) -> DamagedDataError:
    return DamagedDataError(f"{where}: found {found}, expected {expected}", again("driving"), path)
