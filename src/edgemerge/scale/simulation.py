"""The simulation: aggregate all sites, check the total in other ways, and measure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from time import perf_counter

from edgemerge.core.stats import Stats
from edgemerge.scale import checks as checks_module
from edgemerge.scale.checks import Check, DrawCounts
from edgemerge.scale.machine import memory_bandwidth, peak_bytes, sums_per_second
from edgemerge.scale.simulated_devices import SimulatedFleet, cached_fleet
from edgemerge.scale.simulation_plan import Plan
from edgemerge.scale.sum_tree import (
    MessageCounts,
    Propagation,
    SiteResult,
    TreeNode,
    TreePath,
    collect_site,
    flat_sum,
    propagate,
    run_site,
)
from edgemerge.workers import WorkerPool


@dataclass(frozen=True)
class Speed:
    """What was measured of the machine, by one thread: sums, and bytes of memory, in a second."""

    sums_per_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class Aggregated:
    """What went up: the tallies of the three tiers, places heard, time and memory."""

    total: Stats
    up: tuple[MessageCounts, MessageCounts, MessageCounts]  # from devices, from sites, from regions
    places: tuple[int, int, int]  # devices, sites, regions that are in the total
    seconds: float
    cpu_s: float  # of the sites alone, all workers together
    peak_bytes: int  # of all processes together


@dataclass(frozen=True)
class Outcome:
    """All of it; once it is `stopped`, sites or checks are missing; the rest holds."""

    plan: Plan
    workers: int
    stopped: bool
    gathered: Aggregated
    checks: list[Check]
    spreading: Propagation | None
    speed: Speed | None

    @property
    def exact(self) -> bool:
        """Whether every check holds."""
        return all(check.holds for check in self.checks)


Advance = Callable[[float], None]
Stop = Callable[[], bool]


class Aggregation:
    """Hears sites in order; holds the top, the region that is being heard, and nothing older."""

    def __init__(self, plan: Plan) -> None:
        """Start with nothing heard."""
        self.plan, self.top = plan, TreeNode("top", plan.projection)
        self.region, self.site = TreeNode("none", plan.projection), 0
        self.up = (MessageCounts(), MessageCounts(), MessageCounts())
        self.sites_received, self.done, self.cpu_s = 0, 0, 0.0
        self._peaks: dict[int, int] = {}

    def run(self, workers: WorkerPool, advance: Advance, stop: Stop) -> Aggregated:
        """Hear all sites, or those begun before being stopped."""
        start = perf_counter()
        sites = takewhile(lambda _: not stop(), range(self.plan.n_sites))
        heard = workers.in_order(partial(run_site, self.plan), sites)
        for region in range(self.plan.n_regions):
            self._hear_region(region, heard, advance)
        seconds = perf_counter() - start
        seen = DrawCounts.of(self.plan, self.devices_done)
        places = seen.devices, self.sites_received, len(self.top.ledger)
        self._peaks.update([peak_bytes()])
        peak = sum(self._peaks.values())
        return Aggregated(self.top.own, self.up, places, seconds, self.cpu_s, peak)

    @property
    def devices_done(self) -> int:
        """How many devices belong to the sites that were heard: the first ones."""
        return min(self.done * self.plan.fan_out, self.plan.devices)

    def _hear_region(self, number: int, heard: Iterator[SiteResult], advance: Advance) -> None:
        region = TreeNode(f"region-{number:05}", self.plan.projection)
        for site in self.plan.sites_of(number):
            one = next(heard, None)
            if one is None:
                break
            self._take(region, site, one)
            advance(len(self.plan.devices_of(site)))
        if region.changed:
            self.region = region
            _receive(self.top, region.share(), self.up[2])

    def _take(self, region: TreeNode, site: int, heard: SiteResult) -> None:
        self.up[0].add(heard.tally)
        self._peaks[heard.process] = heard.peak_bytes
        for data in heard.messages:
            _receive(region, data, self.up[1])
        if heard.messages:
            self.site, self.sites_received = site, self.sites_received + 1
        self.done += 1
        self.cpu_s += heard.cpu_s


def _receive(junction: TreeNode, data: bytes, tally: MessageCounts) -> None:
    tally.heard(len(data), kept=junction.hear(data))


FLAT_SUM_WORK = 0.1  # of one device in the flat sum, where one in the tree is 1


def simulate(
    plan: Plan,
    *,
    workers: int = 1,
    advance: Advance = lambda _devices: None,
    stop: Stop = lambda: False,
    measure_s: float | None = 0.3,
) -> Outcome:
    """Send every device's contribution through the tree, and hold the total against other ways.

    `advance` hears how many devices are done, up to `work(plan)` in all. Once `stop` says so, no
    more sites are begun, and the outcome is that of those heard. `measure_s` is the time for each
    measurement of the machine; None: none. With workers, the calling program must be importable.
    """
    gathering = Aggregation(plan)
    with WorkerPool(workers) as crew:
        gathered = gathering.run(crew, advance, stop)
        again = None if stop() else flat_total(plan, crew, advance, stop)
    fleet, total = cached_fleet(plan), gathered.total
    checks = [
        checks_module.check_integers(total, fleet, DrawCounts.of(plan, gathering.devices_done))
    ]
    checks += [] if again is None else [checks_module.check_flat_sum(total, again)]
    more, spreading = change_one_device(fleet, gathering) if gathered.places[0] else ([], None)
    speed = None if measure_s is None else measure_speed(fleet, measure_s)
    return Outcome(plan, workers, again is None, gathered, checks + more, spreading, speed)


def measure_speed(fleet: SimulatedFleet, seconds: float) -> Speed:
    """Measure how fast sums are added up, and how fast memory is."""
    return Speed(sums_per_second(fleet, seconds), memory_bandwidth(seconds))


def total_work(plan: Plan) -> float:
    """Say what `advance` adds up to."""
    return plan.devices * (1.0 + FLAT_SUM_WORK)


def flat_total(plan: Plan, crew: WorkerPool, advance: Advance, stop: Stop) -> Stats | None:
    """Add up all devices without the tree, dealt out so that no group is a site's."""
    hands = plan.n_sites
    deal = partial(flat_sum, plan, hands=hands, devices=plan.devices)
    jobs = takewhile(lambda _: not stop(), range(hands))
    dealt = (
        _advance_after(part, advance, plan.devices / hands) for part in crew.in_order(deal, jobs)
    )
    total = Stats.total(plan.projection, dealt)
    return None if stop() else total


def change_one_device(
    fleet: SimulatedFleet, gathering: Aggregation
) -> tuple[list[Check], Propagation]:
    """Take the last site back and put it in again, then let one of its devices change."""
    site = collect_site(fleet.plan, gathering.site)[0]
    path = TreePath(site, gathering.region, gathering.top)
    checks = checks_module.check_removal(fleet, gathering.site, path)
    before, old = path.top.own, next(iter(site.ledger))
    new = fleet.contribution(int(old.device.partition("-")[2]), old.revision + 1)
    spreading = propagate(new, path)
    return checks + checks_module.check_change(old, new, before, path.top.own, spreading), spreading


def _advance_after(part: Stats, advance: Callable[[float], None], devices: float) -> Stats:
    advance(FLAT_SUM_WORK * devices)
    return part
