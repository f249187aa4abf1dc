"""The matrix of a fleet as it is shown: rows, steps of colour, groups, words."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from math import isfinite

from edgemerge.server.merges.merging import Likeness

EDGES = (1.1, 1.3, 1.6, 2.0, 2.5, 4.0, 6.0, 10.0, 25.0, 60.0, 150.0)  # twelve steps of colour
TEXTS = 24  # devices up to which a cell has room for its number
UNKNOWN = "–"


@dataclass(frozen=True)
class Cell:
    """How well one explains the other; `first`: a group begins here."""

    step: str
    text: str
    first: bool
    own: bool


@dataclass(frozen=True)
class Row:
    """A device: how well its readout explains the data of each."""

    device: str
    samples: float
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Group:
    """Devices that explain each other's data."""

    number: int
    rows: tuple[Row, ...]

    @property
    def devices(self) -> list[str]:
        """Name them."""
        return [row.device for row in self.rows]

    @property
    def words(self) -> str:
        """Say how many there are."""
        count = len(self.rows)
        return f"group {self.number}: {count} device{'s' if count > 1 else ''}"


@dataclass(frozen=True)
class Matrix:
    """Devices × devices, like ones beside each other."""

    groups: tuple[Group, ...]
    left_out: int

    @property
    def devices(self) -> list[str]:
        """Name the devices in the order of rows and columns."""
        return [row.device for group in self.groups for row in group.rows]

    @property
    def is_small(self) -> bool:
        """Whether there is room for a number in each cell."""
        return len(self.devices) <= TEXTS

    @property
    def legend(self) -> list[tuple[str, str]]:
        """Give each step of colour and what it stands for."""
        words = [f"≤ {edge:g}" for edge in EDGES] + [f"> {EDGES[-1]:g}"]
        return [(f"m{step}", word) for step, word in enumerate(words)]


def matrix_of(likeness: Likeness, *, left_out: int) -> Matrix:
    """Prepare what is shown; the groups are numbered in the order in which they appear."""
    firsts = _firsts(likeness.groups)
    rows = [_row(likeness, index, firsts) for index in range(len(likeness.devices))]
    runs = groupby(range(len(rows)), key=lambda index: likeness.groups[index])
    groups = (
        Group(number, tuple(rows[index] for index in run))
        for number, (_, run) in enumerate(runs, 1)
    )
    return Matrix(tuple(groups), left_out)


def step_of(ratio: float) -> str:
    """Give the class of colour of a ratio.

    >>> step_of(0.98), step_of(2.4), step_of(1e6), step_of(float("nan"))
    ('m0', 'm4', 'm11', 'none')
    """
    return f"m{bisect_left(EDGES, ratio)}" if ratio == ratio else "none"  # noqa: PLR0124 - NaN


def short(ratio: float) -> str:
    """Write a ratio in at most five characters.

    >>> [short(ratio) for ratio in (0.984, 1.0, 12.34, 345.6, 45_678.0, 3e9, float("inf"))]
    ['0.98', '1.00', '12.3', '346', '46k', '> 1M', '> 1M']
    """
    if ratio != ratio:  # noqa: PLR0124 - NaN
        return UNKNOWN
    if not isfinite(ratio) or ratio >= 999_500:
        return "> 1M"
    if ratio >= 999.5:
        return f"{ratio / 1000:.{0 if ratio >= 9950 else 1}f}k"
    return f"{ratio:.{2 if ratio < 9.995 else 1 if ratio < 99.95 else 0}f}"


def _row(likeness: Likeness, index: int, firsts: frozenset[int]) -> Row:
    ratios = [float(ratio) for ratio in likeness.ratios[index]]
    cells = (
        Cell(step_of(ratio), short(ratio), column in firsts, column == index)
        for column, ratio in enumerate(ratios)
    )
    return Row(likeness.devices[index], likeness.samples[index], tuple(cells))


def _firsts(groups: Iterable[int]) -> frozenset[int]:
    """Give the places at which a group begins, but for the very first."""
    listed = list(groups)
    return frozenset(k for k in range(1, len(listed)) if listed[k] != listed[k - 1])
