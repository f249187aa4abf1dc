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
MAX_DIGITS = 3  # if the pool size allows it: each is one more sum to add
MAX_POOL_BYTES = 2**24  # of all pools; more would not fit the CPU's cache


@dataclass(frozen=True)
class SumPools:
    """One pool of `base` sums for each digit of a device's number, and one for later revisions.

    A device's stats are one sum of each pool, chosen by its digits, so no two devices are equal.
    """

    base: int
    digits: int

    @classmethod
    def for_devices(cls, devices: int, stats_bytes: int) -> Self:
        """Choose pools just large enough for few digits, or smaller ones where sums are large."""
        every = [cls(base, _digits_needed(devices, base)) for base in POOL_SIZES]
        small = [each for each in every if each.digits > MAX_DIGITS]
        candidates = every[: len(small) + 1][::-1]
        fitting = (each for each in candidates if each.count * stats_bytes <= MAX_POOL_BYTES)
        return next(fitting, every[0])

    @property
    def count(self) -> int:
        """The number of sums in all pools."""
        return self.base * (self.digits + 1)

    def taken(self, device: IntOrArray) -> list[IntOrArray]:
        """Return the index of the sum that a device takes from the pool of each digit."""
        return [device // self.base**digit % self.base for digit in range(self.digits)]

    def later_index(self, device: IntOrArray, revision: int) -> IntOrArray:
        """Return the index in the last pool of the sum that a later revision adds."""
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
    """Settings of a simulation: devices send to sites, sites to regions, regions to the top.

    A site receives from `fan_out` devices. A device has seen `samples` samples of each of a few
    kinds. `drop_out`, `repeat`, `revise` and `late` are shares of the devices whose message is
    lost, arrives twice, is replaced by a newer revision, or arrives late. Every `check_every`th
    message of a device gets all checks of `admit`; the codec and the ledger check all of them.
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
        """Refuse settings that cannot be simulated."""
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
        n, N = self.n_inputs, self.n_hidden
        return Projection(n_inputs=n, n_hidden=N, grid_bits=self.grid_bits, seed=self.seed)

    @cached_property
    def pools(self) -> SumPools:
        """The pools of sums that contributions are made of."""
        return SumPools.for_devices(self.devices, self.stats_bytes)

    @property
    def most_samples(self) -> int:
        """The most samples of all devices together, with two revisions past the first."""
        return self.devices * self.samples * (self.pools.digits + 2)

    @property
    def n_sites(self) -> int:
        """The number of sites, which receive from devices."""
        return ceil(self.devices / self.fan_out)

    @property
    def n_regions(self) -> int:
        """The number of regions, which receive from sites; by default the root of their number."""
        return self.regions or max(1, round(sqrt(self.n_sites)))

    @property
    def stats_bytes(self) -> int:
        """The memory of one stats: U, V, C and S in float64."""
        return 8 * (self.n_hidden**2 + (self.n_hidden + 2) * self.n_inputs)

    def devices_of(self, site: int) -> range:
        """Return the numbers of a site's devices."""
        return range(site * self.fan_out, min((site + 1) * self.fan_out, self.devices))

    def sites_of(self, region: int) -> range:
        """Return the numbers of a region's sites."""
        return range(*((region + i) * self.n_sites // self.n_regions for i in (0, 1)))

    def memory(self, workers: int) -> int:
        """Return a bound on the bytes of all stats that are in memory at a time.

        Each worker has one site with the newest contribution of each device, and the pools; the
        main process has the sites of one region, of the one before, and all regions. It grows with
        the square root of the number of devices. Messages in transit, and copies, double it.
        """
        site = self.fan_out + self.pools.count
        top = 2 * ceil(self.n_sites / self.n_regions) + self.n_regions
        return 2 * self.stats_bytes * (workers * site + top)
