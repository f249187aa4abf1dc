"""The plan of a simulation: how many devices, in what tree, and how badly they behave."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil, sqrt

from edgemerge.core.errors import SettingError
from edgemerge.core.projection import Projection
from edgemerge.core.settings import whole
from edgemerge.core.sums import must_fit
from edgemerge.scale.shelves import Shelves

WHOLE = ("devices", "fan_out", "samples", "check_every")
SHARES = ("drop_out", "repeat", "revise", "late")


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
        for name in WHOLE:
            if whole(name, getattr(self, name)) < 1:
                raise SettingError(f"found {name}={getattr(self, name)}, expected at least 1")
        if self.regions is not None and not 1 <= whole("regions", self.regions) <= self.n_sites:
            raise SettingError(
                f"found {self.regions} regions, expected 1 to {self.n_sites}, the number of sites"
            )
        shares = [getattr(self, name) for name in SHARES]
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
    def shelves(self) -> Shelves:
        """How many sums there are to make contributions of."""
        return Shelves.that_tell_apart(self.devices, self.stats_bytes)

    @property
    def most_samples(self) -> int:
        """What all devices can have seen at most; two revisions past the first."""
        return self.devices * self.samples * (self.shelves.digits + 2)

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
        site = self.fan_out + self.shelves.count
        top = 2 * ceil(self.n_sites / self.n_regions) + self.n_regions
        return 2 * self.stats_bytes * (workers * site + top)
