"""The made-up fleet: every device is another, and can be made again from its number alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgemerge import EdgemergeError, Stats, admit
from edgemerge.core.errors import CapacityError, SettingError
from edgemerge.scale import Plan
from edgemerge.scale.simulated_devices import (
    DELIVERIES,
    WAVES,
    SimulatedFleet,
    arrivals,
    draw_deliveries,
    newest_revisions,
)
from edgemerge.scale.simulation_plan import MAX_POOL_BYTES, SumPools
from tests.cases import examples
from tests.scale.plans import plans

SMALL = {"n_inputs": 3, "n_hidden": 2}


def test_no_two_devices_have_seen_the_same():
    fleet = SimulatedFleet(Plan(devices=3000, **SMALL))
    assert len({fleet.contribution(i, 1).stats.digest for i in range(3000)}) == 3000


@given(st.integers(1, 10**12), st.integers(1, 10**7))
def test_numbers_of_devices_differ_in_a_digit(devices, stats_bytes):
    shelves = SumPools.for_devices(devices, stats_bytes)
    assert shelves.base**shelves.digits >= devices
    assert shelves.count * stats_bytes <= MAX_POOL_BYTES or shelves.base == 2
    last = shelves.taken(devices - 1)
    assert sum(place * shelves.base**digit for digit, place in enumerate(last)) == devices - 1


def test_a_contribution_can_be_made_again_from_its_number():
    plan = Plan(devices=500, **SMALL)
    assert SimulatedFleet(plan).contribution(321, 2) == SimulatedFleet(plan).contribution(321, 2)


def test_devices_see_different_things_later_too():
    fleet = SimulatedFleet(Plan(devices=500, **SMALL))
    grown = [fleet.contribution(i, 2).stats - fleet.contribution(i, 1).stats for i in (3, 4)]
    again = fleet.contribution(3, 3).stats - fleet.contribution(3, 2).stats
    assert len({each.digest for each in (*grown, again)}) == 2  # device 4 saw then what 3 does now
    assert grown[0] != grown[1]


def test_messages_come_in_another_order_in_each_wave():
    plan = Plan(drop_out=0.0, repeat=1.0, revise=0.0, late=0.0)
    orders = [[d for d, _ in arrivals(plan, np.arange(50), wave)] for wave in WAVES]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(50))
    assert len({tuple(order) for order in (*orders, range(50))}) == 3


def test_another_seed_gives_other_samples():
    one, other = (SimulatedFleet(Plan(devices=5, seed=seed, **SMALL)) for seed in (1, 2))
    assert not np.array_equal(one.rows, other.rows)


@given(plans(), st.data())
@examples(40)
def test_every_revision_passes_all_checks_and_grows(plan, data):
    fleet, last = SimulatedFleet(plan), None
    device = data.draw(st.integers(0, plan.devices - 1))
    for revision in (1, 2, 3):
        note = fleet.contribution(device, revision)
        admit(note, projection=plan.projection, last=last)
        assert note.stats.count == plan.samples * (plan.pools.digits + revision - 1)
        last = note


@given(plans())
@examples(40)
def test_flat_adds_up_the_newest(plan):
    fleet, devices = SimulatedFleet(plan), np.arange(plan.devices)
    last = newest_revisions(plan, devices)
    notes = [fleet.contribution(i, int(r)).stats for i, r in enumerate(last) if r]
    assert fleet.flat(devices, last) == Stats.total(plan.projection, notes)


@given(plans())
def test_the_newest_is_the_highest_revision_that_arrives_whole(plan):
    devices = np.arange(plan.devices)
    found = np.zeros(plan.devices, np.int64)
    for wave in WAVES:
        for device, revision in arrivals(plan, devices, wave):
            found[device] = max(found[device], revision)
    assert np.array_equal(found, newest_revisions(plan, devices))


def test_fates_have_the_shares_that_were_asked_for():
    plan = Plan(drop_out=0.1, repeat=0.2, revise=0.3, late=0.1)
    times = (
        np.bincount(draw_deliveries(plan, np.arange(100_000)), minlength=len(DELIVERIES)) / 100_000
    )
    expected = [0.3, 0.05, 0.05, 0.2, 0.3, 0.05, 0.05]
    assert np.abs(times - expected).max() < 0.01  # six standard deviations


def test_the_fate_of_a_device_does_not_depend_on_who_else_is_asked_about():
    plan, devices = Plan(), np.arange(1000)
    assert np.array_equal(
        draw_deliveries(plan, devices)[300:400], draw_deliveries(plan, devices[300:400])
    )


@given(plans())
def test_every_device_has_one_site_and_every_site_one_region(plan):
    sites = [site for region in range(plan.n_regions) for site in plan.sites_of(region)]
    assert sites == list(range(plan.n_sites))
    assert [d for site in sites for d in plan.devices_of(site)] == list(range(plan.devices))
    assert all(len(plan.sites_of(region)) >= 1 for region in range(plan.n_regions))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"devices": 0}, "found devices=0, expected at least 1"),
        ({"fan_out": 0}, "found fan_out=0"),
        ({"check_every": 0}, "found check_every=0"),
        ({"devices": 50, "fan_out": 10, "regions": 6}, "found 6 regions, expected 1 to 5"),
        ({"drop_out": -0.1}, "expected each 0 or more"),
        ({"late": 0.5, "repeat": 0.6}, "together at most 1"),
        ({"n_hidden": 0}, "found n_hidden=0"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(wrong, words):
    with pytest.raises(SettingError, match=words):
        Plan(**wrong)


def test_a_plan_that_would_fill_the_exact_range_is_refused_before_it_starts():
    with pytest.raises(CapacityError, match="fewer grid_bits"):
        Plan(devices=100_000_000)
    assert Plan(devices=100_000_000, grid_bits=8).most_samples > 1e9


def test_a_plan_is_refused_with_our_errors_only():
    with pytest.raises(EdgemergeError):
        Plan(devices=2.5)
