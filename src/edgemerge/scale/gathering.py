"""Gathering: sites are heard one after the other, region by region, up to the top."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import takewhile
from time import perf_counter

from edgemerge.scale.junction import Junction
from edgemerge.scale.memory import peak_bytes
from edgemerge.scale.outcome import Gathered
from edgemerge.scale.plan import Plan
from edgemerge.scale.site import Heard, hear
from edgemerge.scale.tally import Tally
from edgemerge.scale.whole_numbers import Seen
from edgemerge.scale.workers import Workers

Advance = Callable[[float], None]
Stop = Callable[[], bool]


class Gathering:
    """Hears sites in order; holds the top, the region that is being heard, and nothing older."""

    def __init__(self, plan: Plan) -> None:
        """Start with nothing heard."""
        self.plan, self.top = plan, Junction("top", plan.projection)
        self.region, self.site = Junction("none", plan.projection), 0
        self.up = (Tally(), Tally(), Tally())
        self.sites_heard, self.done, self.cpu_s = 0, 0, 0.0
        self._peaks: dict[int, int] = {}

    def run(self, workers: Workers, advance: Advance, stop: Stop) -> Gathered:
        """Hear all sites, or those begun before being stopped."""
        start = perf_counter()
        sites = takewhile(lambda _: not stop(), range(self.plan.n_sites))
        heard = workers.do(partial(hear, self.plan), sites)
        for region in range(self.plan.n_regions):
            self._hear_region(region, heard, advance)
        seconds = perf_counter() - start
        seen = Seen.of(self.plan, self.devices_done)
        places = seen.devices, self.sites_heard, len(self.top.ledger)
        self._peaks.update([peak_bytes()])
        peak = sum(self._peaks.values())
        return Gathered(self.top.own, self.up, places, seconds, self.cpu_s, peak)

    @property
    def devices_done(self) -> int:
        """How many devices belong to the sites that were heard: the first ones."""
        return min(self.done * self.plan.fan_out, self.plan.devices)

    def _hear_region(self, number: int, heard: Iterator[Heard], advance: Advance) -> None:
        region = Junction(f"region-{number:05}", self.plan.projection)
        for site in self.plan.sites_of(number):
            one = next(heard, None)
            if one is None:
                break
            self._take(region, site, one)
            advance(len(self.plan.devices_of(site)))
        if region.changed:
            self.region = region
            _hear(self.top, region.share(), self.up[2])

    def _take(self, region: Junction, site: int, heard: Heard) -> None:
        self.up[0].add(heard.tally)
        self._peaks[heard.process] = heard.peak_bytes
        for data in heard.messages:
            _hear(region, data, self.up[1])
        if heard.messages:
            self.site, self.sites_heard = site, self.sites_heard + 1
        self.done += 1
        self.cpu_s += heard.cpu_s


def _hear(junction: Junction, data: bytes, tally: Tally) -> None:
    tally.heard(len(data), kept=junction.hear(data))
