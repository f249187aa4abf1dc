"""The plan of a simulation: devices, tree, failure rates, and pools of sums to draw from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil, sqrt
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.errors import SettingError
from edgemerge.core.projection import Projection, as_int
from edgemerge.core.stats import must_fit

IntArray = NDArray[np.int64]
IntOrArray = TypeVar("IntOrArray", int, IntArray)  # of one device, or of many

POOL_SIZES = (2, 4, 8, 16, 32, 64, 128)
MAX_DIGITS = 3  # digits, if the base allows it: each is one more sum to add
MAX_POOL_BYTES = 2**24  # bytes for all shelves; more would leave the cache


@dataclass(frozen=True)
class SumPools:
    """One shelf of `base` sums for each digit of a device's number, and one for later revisions.

    Two numbers differ in a digit, so no two devices take the same; the number alone says what.
    """

    base: int
    digits: int

    @classmethod
    def for_devices(cls, devices: int, stats_bytes: int) -> Self:
        """Take shelves just long enough for few digits, or shorter ones where sums are large."""
        every = [cls(base, _digits_needed(devices, base)) for base in POOL_SIZES]
        enough = next(
            (i for i, each in enumerate(every) if each.digits <= MAX_DIGITS), len(POOL_SIZES) - 1
        )
        fitting = (s for s in every[enough::-1] if s.count * stats_bytes <= MAX_POOL_BYTES)
        return next(fitting, every[0])

    @property
    def count(self) -> int:
        """How many sums lie on all shelves."""
        return self.base * (self.digits + 1)

    def taken(self, device: IntOrArray) -> list[IntOrArray]:
        """Say which sum a device takes from the shelf of each digit."""
        return [device // self.base**digit % self.base for digit in range(self.digits)]

    def later_index(self, device: IntOrArray, revision: int) -> IntOrArray:
        """Say which sum it takes from the last shelf for a revision past the first."""
        return (device + revision) % self.base


def _digits_needed(devices: int, base: int) -> int:
    digits = 1
    while base**digits < devices:
        digits += 1
    return digits


COUNT_FIELDS = ("devices", "fan_out", "samples", "check_every")
RATE_FIELDS = ("drop_out", "repeat", "revise", "late")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Devices tell sites, sites tell regions, regions tell the top; each number can be set.

    A site hears `fan_out` devices. A device has seen `samples` samples of each of a few kinds.
    The shares say how many devices drop out, repeat, revise, or come late. Of the devices' messages
    every `check_every`th gets all checks of `admit`; the codec and the ledger check all of them.
    """

    devices: int = 1_000_000
    fan_out: int = 1000
    regions: int | None = None
    n_inputs: int = 64
    n_hidden: int = 32
    grid_bits: int = 12
    samples: int = 8
    seed: int = 7
    drop_out: float = 0.02
    repeat: float = 0.05
    revise: float = 0.05
    late: float = 0.04
    check_every: int = 100

    def __post_init__(self) -> None:
        """Refuse what cannot be simulated, before anything is made."""
        for name in COUNT_FIELDS:
            if as_int(name, getattr(self, name)) < 1:
                raise SettingError(f"found {name}={getattr(self, name)}, expected at least 1")
        if self.regions is not None and not 1 <= as_int("regions", self.regions) <= self.n_sites:
            raise SettingError(
                f"found {self.regions} regions, expected 1 to {self.n_sites}, the number of sites"
            )
        shares = [getattr(self, name) for name in RATE_FIELDS]
        if not (all(share >= 0.0 for share in shares) and sum(shares) <= 1.0):
            raise SettingError(
                f"found shares {shares}, expected each 0 or more, together at most 1"
            )
        must_fit(float(self.most_samples), self.projection.quantum)

    @cached_property
    def projection(self) -> Projection:
        """The hidden layer that all devices share."""
        return Projection(
            n_inputs=self.n_inputs,
            n_hidden=self.n_hidden,
            grid_bits=self.grid_bits,
            seed=self.seed,
        )

    @cached_property
    def pools(self) -> SumPools:
        """How many sums there are to make contributions of."""
        return SumPools.for_devices(self.devices, self.stats_bytes)

    @property
    def most_samples(self) -> int:
        """What all devices can have seen at most; two revisions past the first."""
        return self.devices * self.samples * (self.pools.digits + 2)

    @property
    def n_sites(self) -> int:
        """The places that hear devices."""
        return ceil(self.devices / self.fan_out)

    @property
    def n_regions(self) -> int:
        """The places that hear sites; by default as many as each of them hears sites."""
        return self.regions or max(1, round(sqrt(self.n_sites)))

    @property
    def stats_bytes(self) -> int:
        """The memory of one stats: U, V, C and S in float64."""
        return 8 * (self.n_hidden**2 + (self.n_hidden + 2) * self.n_inputs)

    def devices_of(self, site: int) -> range:
        """Give the numbers of the devices that a site hears."""
        return range(site * self.fan_out, min((site + 1) * self.fan_out, self.devices))

    def sites_of(self, region: int) -> range:
        """Give the numbers of the sites that a region hears."""
        return range(
            region * self.n_sites // self.n_regions, (region + 1) * self.n_sites // self.n_regions
        )

    def memory(self, workers: int) -> int:
        """Bound the bytes of all stats that are held at a time; programs come on top.

        Each worker has one site with the newest of each of its devices, and the shelves; whoever
        adds up has the sites of one region, of the one before, and all regions. The number of
        devices is in it by its square root only. Messages on their way, and copies, double it.
        """
        site = self.fan_out + self.pools.count
        top = 2 * ceil(self.n_sites / self.n_regions) + self.n_regions
        return 2 * self.stats_bytes * (workers * site + top)
