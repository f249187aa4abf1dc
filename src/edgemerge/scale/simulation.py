"""The simulation as a whole: gather, add up again without the tree, take back, change, measure."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import takewhile

from edgemerge.core.stats import Stats
from edgemerge.scale import exactness
from edgemerge.scale.exactness import Check
from edgemerge.scale.gathering import Advance, Gathering, Stop
from edgemerge.scale.made_up import Fleet, fleet_of
from edgemerge.scale.memory import bandwidth, sums_per_second
from edgemerge.scale.outcome import Outcome, Speed
from edgemerge.scale.plan import Plan
from edgemerge.scale.site import flat, gather
from edgemerge.scale.spreading import Path, Spreading, spread
from edgemerge.scale.whole_numbers import Seen
from edgemerge.scale.workers import Workers

FLAT_WORK = 0.1  # of one device in the flat sum, where one in the tree is 1


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
    gathering = Gathering(plan)
    with Workers(workers) as crew:
        gathered = gathering.run(crew, advance, stop)
        again = None if stop() else flat_total(plan, crew, advance, stop)
    fleet, total = fleet_of(plan), gathered.total
    checks = [exactness.whole(total, fleet, Seen.of(plan, gathering.devices_done))]
    checks += [] if again is None else [exactness.flat(total, again)]
    more, spreading = one_change(fleet, gathering) if gathered.places[0] else ([], None)
    speed = None if measure_s is None else measured(fleet, measure_s)
    return Outcome(plan, workers, again is None, gathered, checks + more, spreading, speed)


def measured(fleet: Fleet, seconds: float) -> Speed:
    """Measure how fast sums are added up, and how fast memory is."""
    return Speed(sums_per_second(fleet, seconds), bandwidth(seconds))


def work(plan: Plan) -> float:
    """Say what `advance` adds up to."""
    return plan.devices * (1.0 + FLAT_WORK)


def flat_total(plan: Plan, crew: Workers, advance: Advance, stop: Stop) -> Stats | None:
    """Add up all devices without the tree, dealt out so that no group is a site's."""
    hands = plan.n_sites
    deal = partial(flat, plan, hands=hands, devices=plan.devices)
    jobs = takewhile(lambda _: not stop(), range(hands))
    dealt = (_told(part, advance, plan.devices / hands) for part in crew.do(deal, jobs))
    total = Stats.total(plan.projection, dealt)
    return None if stop() else total


def one_change(fleet: Fleet, gathering: Gathering) -> tuple[list[Check], Spreading]:
    """Take the last site back and put it in again, then let one of its devices change."""
    site = gather(fleet.plan, gathering.site)[0]
    path = Path(site, gathering.region, gathering.top)
    checks = exactness.take_back(fleet, gathering.site, path)
    before, old = path.top.own, next(iter(site.ledger))
    new = fleet.contribution(int(old.device.partition("-")[2]), old.revision + 1)
    spreading = spread(new, path)
    return checks + exactness.changed(old, new, before, path.top.own, spreading), spreading


def _told(part: Stats, advance: Callable[[float], None], devices: float) -> Stats:
    advance(FLAT_WORK * devices)
    return part
