"""Shelves of sums, and which of them a device takes: its number, digit by digit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Number = TypeVar("Number", int, Numbers)  # of one device, or of many

BASES = (2, 4, 8, 16, 32, 64, 128)
FEW = 3  # digits, if the base allows it: each is one more sum to add
ROOM = 2**24  # bytes for all shelves; more would leave the cache


@dataclass(frozen=True)
class Shelves:
    """One shelf of `base` sums for each digit of a device's number, and one for later revisions.

    Two numbers differ in a digit, so no two devices take the same; the number alone says what.
    """

    base: int
    digits: int

    @classmethod
    def that_tell_apart(cls, devices: int, stats_bytes: int) -> Self:
        """Take shelves just long enough for few digits, or shorter ones where sums are large."""
        every = [cls(base, _digits(devices, base)) for base in BASES]
        enough = next((i for i, each in enumerate(every) if each.digits <= FEW), len(BASES) - 1)
        fitting = (s for s in every[enough::-1] if s.count * stats_bytes <= ROOM)
        return next(fitting, every[0])

    @property
    def count(self) -> int:
        """How many sums lie on all shelves."""
        return self.base * (self.digits + 1)

    def taken(self, device: Number) -> list[Number]:
        """Say which sum a device takes from the shelf of each digit."""
        return [device // self.base**digit % self.base for digit in range(self.digits)]

    def taken_later(self, device: Number, revision: int) -> Number:
        """Say which sum it takes from the last shelf for a revision past the first."""
        return (device + revision) % self.base


def _digits(devices: int, base: int) -> int:
    digits = 1
    while base**digits < devices:
        digits += 1
    return digits
