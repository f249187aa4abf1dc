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
    receive_and_count,
    run_site,
)
from edgemerge.workers import WorkerPool


@dataclass(frozen=True)
class Speed:
    """Speed of the machine with one thread: sums, and bytes of memory, in a second."""

    sums_per_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class Aggregated:
    """Result of the way up: the total, counts of the three tiers, time and memory."""

    total: Stats
    up: tuple[MessageCounts, MessageCounts, MessageCounts]  # from devices, from sites, from regions
    places: tuple[int, int, int]  # devices, sites, regions that are in the total
    seconds: float
    cpu_s: float  # of the sites alone, all workers together
    peak_bytes: int  # of all processes together


@dataclass(frozen=True)
class Outcome:
    """Result of a simulation; if it was `stopped`, sites or checks are missing."""

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
    """Receives from sites in order; holds the top and the current region, and nothing older."""

    def __init__(self, plan: Plan) -> None:
        """Start without contributions."""
        self.plan, self.top = plan, TreeNode("top", plan.projection)
        self.region, self.site = TreeNode("none", plan.projection), 0
        self.up = (MessageCounts(), MessageCounts(), MessageCounts())
        self.sites_received, self.done, self.cpu_s = 0, 0, 0.0
        self._peaks: dict[int, int] = {}

    def run(self, workers: WorkerPool, advance: Advance, stop: Stop) -> Aggregated:
        """Receive from all sites, or from those started before `stop` returned true."""
        start = perf_counter()
        sites = takewhile(lambda _: not stop(), range(self.plan.n_sites))
        results = workers.in_order(partial(run_site, self.plan), sites)
        for region in range(self.plan.n_regions):
            self._receive_region(region, results, advance)
        seconds = perf_counter() - start
        seen = DrawCounts.of(self.plan, self.devices_done)
        places = seen.devices, self.sites_received, len(self.top.ledger)
        self._peaks.update([peak_bytes()])
        peak = sum(self._peaks.values())
        return Aggregated(self.top.own, self.up, places, seconds, self.cpu_s, peak)

    @property
    def devices_done(self) -> int:
        """The number of devices of the sites that are done: the first ones."""
        return min(self.done * self.plan.fan_out, self.plan.devices)

    def _receive_region(self, number: int, sites: Iterator[SiteResult], advance: Advance) -> None:
        region = TreeNode(f"region-{number:05}", self.plan.projection)
        for site in self.plan.sites_of(number):
            result = next(sites, None)
            if result is None:
                break
            self.up[0].add(result.counts)
            self._peaks[result.process] = result.peak_bytes
            for data in result.messages:
                receive_and_count(region, data, self.up[1])
            if result.messages:
                self.site, self.sites_received = site, self.sites_received + 1
            self.done += 1
            self.cpu_s += result.cpu_s
            advance(len(self.plan.devices_of(site)))
        if region.changed:
            self.region = region
            receive_and_count(self.top, region.share(), self.up[2])


FLAT_SUM_WORK = 0.1  # of one device in the flat sum, where one in the tree is 1


def simulate(
    plan: Plan,
    *,
    workers: int = 1,
    advance: Advance = lambda _devices: None,
    stop: Stop = lambda: False,
    measure_s: float | None = 0.3,
) -> Outcome:
    """Send every device's contribution through the tree, and check the total in other ways.

    `advance` is called with the work done since, up to `total_work(plan)` in all. Once `stop`
    returns true, no more sites are started, and the outcome is that of those done. `measure_s` is
    the time for each measurement of the machine; None skips them. With several workers, the calling
    program must be importable.
    """
    aggregation = Aggregation(plan)
    with WorkerPool(workers) as pool:
        gathered = aggregation.run(pool, advance, stop)
        again = None if stop() else flat_total(plan, pool, advance, stop)
    fleet, total = cached_fleet(plan), gathered.total
    drawn = DrawCounts.of(plan, aggregation.devices_done)
    checks = [checks_module.check_integers(total, fleet, drawn)]
    checks += [] if again is None else [checks_module.check_flat_sum(total, again)]
    more, spreading = change_one_device(fleet, aggregation) if gathered.places[0] else ([], None)
    speed = None
    if measure_s is not None:
        speed = Speed(sums_per_second(fleet, measure_s), memory_bandwidth(measure_s))
    return Outcome(plan, workers, again is None, gathered, checks + more, spreading, speed)


def total_work(plan: Plan) -> float:
    """Return the sum of all calls of `advance`."""
    return plan.devices * (1.0 + FLAT_SUM_WORK)


def flat_total(plan: Plan, pool: WorkerPool, advance: Advance, stop: Stop) -> Stats | None:
    """Add up all devices without the tree, in parts that are not those of sites."""
    parts = plan.n_sites
    add = partial(flat_sum, plan, parts=parts, devices=plan.devices)
    jobs = takewhile(lambda _: not stop(), range(parts))

    def sums() -> Iterator[Stats]:
        for stats in pool.in_order(add, jobs):
            advance(FLAT_SUM_WORK * plan.devices / parts)
            yield stats

    total = Stats.total(plan.projection, sums())
    return None if stop() else total


def change_one_device(
    fleet: SimulatedFleet, aggregation: Aggregation
) -> tuple[list[Check], Propagation]:
    """Remove the last site and add it again, then let one of its devices change."""
    site = collect_site(fleet.plan, aggregation.site)[0]
    path = TreePath(site, aggregation.region, aggregation.top)
    checks = checks_module.check_removal(fleet, aggregation.site, path)
    before, old = path.top.own, next(iter(site.ledger))
    new = fleet.contribution(int(old.device.partition("-")[2]), old.revision + 1)
    spreading = propagate(new, path)
    return checks + checks_module.check_change(old, new, before, path.top.own, spreading), spreading
