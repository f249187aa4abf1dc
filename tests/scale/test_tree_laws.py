"""Laws of the tree: its total is the flat total of the newest, whatever shape and whatever fate."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgemerge import Contribution, Ledger, Stats, decode, encode
from edgemerge.core.errors import RejectedError, UnknownError
from edgemerge.scale import Plan, simulate
from edgemerge.scale.simulated_devices import (
    DELIVERIES,
    WAVES,
    SimulatedFleet,
    arrivals,
    draw_deliveries,
)
from edgemerge.scale.sum_tree import TreeNode
from tests.scale.plans import CALM, plans


def heard_by_hand(plan: Plan) -> Ledger:
    """Put what arrives of every device into one ledger, without tree and bytes."""
    fleet, ledger, devices = SimulatedFleet(plan), Ledger(plan.projection), np.arange(plan.devices)
    for wave in WAVES:
        for device, revision in arrivals(plan, devices, wave):
            if revision:
                ledger.put(fleet.contribution(device, revision))
    return ledger


@pytest.mark.slow
@given(plans())
@settings(max_examples=20)
def test_the_total_of_the_tree_is_the_flat_total_of_the_newest(plan):
    outcome = simulate(plan, measure_s=None)
    ledger = heard_by_hand(plan)
    assert outcome.exact
    assert len(outcome.checks) == (6 if len(ledger) else 2)
    assert not outcome.stopped
    assert outcome.gathered.total == ledger.total()
    assert outcome.gathered.places[0] == len(ledger)


@pytest.mark.slow
@given(plans(), st.integers(1, 12))
@settings(max_examples=8)
def test_another_fan_out_gives_the_same_bits(plan, fan_out):
    sizes = {"devices": plan.devices, "n_inputs": plan.n_inputs, "seed": plan.seed}
    totals = [
        simulate(Plan(**sizes, n_hidden=2, fan_out=each), measure_s=None).gathered.total
        for each in (plan.fan_out, fan_out)
    ]
    assert totals[0].digest == totals[1].digest


@pytest.mark.slow
@given(plans())
@settings(max_examples=12)
def test_the_tally_adds_up(plan):
    outcome = simulate(plan, measure_s=None)
    first, second, third = outcome.gathered.up
    every = [
        list(DELIVERIES.values())[fate] for fate in draw_deliveries(plan, np.arange(plan.devices))
    ]
    assert first.messages == sum(
        len(revisions) for fate in every for revisions in fate.revisions_by_wave
    )
    assert first.kept + first.late_or_repeated + first.refused == first.messages
    assert first.refused == sum(fate is DELIVERIES["cut short"] for fate in every)
    late = (DELIVERIES["repeated"], DELIVERIES["overtaken"])
    assert first.late_or_repeated == sum(fate in late for fate in every)
    assert outcome.gathered.places[1] <= second.messages <= 2 * plan.n_sites
    assert third.messages == outcome.gathered.places[2] <= plan.n_regions


@st.composite
def conversations(draw):
    """A tree of any depth, and messages of devices at its leaves, in any order and repeated."""
    places = draw(st.integers(1, 6))
    parents = [None, *(draw(st.integers(0, number - 1)) for number in range(1, places))]
    homes = draw(st.lists(st.integers(0, len(parents) - 1), min_size=1, max_size=6))
    one = st.tuples(st.integers(0, len(homes) - 1), st.integers(1, 3), st.booleans())
    return parents, homes, draw(st.lists(one, max_size=25))


@pytest.mark.slow
@given(conversations(), st.integers(0, 2**32))
@settings(max_examples=40)
def test_any_tree_of_junctions_knows_what_one_ledger_knows(conversation, seed):
    parents, homes, messages = conversation
    fleet = SimulatedFleet(Plan(devices=len(homes), n_inputs=2, n_hidden=2, seed=seed, **CALM))
    tree = [TreeNode(f"place-{i}", fleet.projection) for i in range(len(parents))]
    ledger = Ledger(fleet.projection)
    for device, revision, by_difference in messages:
        note = fleet.contribution(device, revision)
        ledger.put(note)
        place, data = homes[device], encode(note)
        while place is not None:  # every place passes its sum on
            node = tree[place]
            (node.receive_change if by_difference else node.receive)(data)
            place, data = parents[place], node.share()
    assert tree[0].own == ledger.total()
    assert_all_know_the_total(tree, parents, ledger)


def assert_all_know_the_total(tree, parents, ledger):
    total, told = ledger.total(), {}
    for place, node in enumerate(tree):  # parents come first
        if parents[place] is not None and node.name in told:
            node.adopt(told[node.name])
        told |= dict(node.replies())
    for note in ledger:
        others = decode(told[note.device], projection=tree[0].projection)
        assert others + note.stats == total
    assert len([name for name in told if name.startswith("device")]) == len(ledger)


def test_a_change_brings_the_sum_up_without_adding_up_afresh(monkeypatch):
    fleet = SimulatedFleet(Plan(devices=3, n_inputs=2, n_hidden=2, **CALM))
    node = TreeNode("site-1", fleet.projection)
    for device in range(3):
        node.receive(encode(fleet.contribution(device, 1)))
    before = node.own
    monkeypatch.setattr(Ledger, "total", None)
    assert node.receive_change(encode(fleet.contribution(1, 2)))
    old, new = fleet.contribution(1, 1).stats, fleet.contribution(1, 2).stats
    assert node.own == before - old + new


def test_a_change_that_comes_late_changes_nothing():
    fleet = SimulatedFleet(Plan(devices=3, n_inputs=2, n_hidden=2, **CALM))
    node = TreeNode("site-1", fleet.projection)
    node.receive(encode(fleet.contribution(0, 2)))
    before = node.own
    node.share()
    assert not node.receive_change(encode(fleet.contribution(0, 1)))
    assert node.own == before == fleet.contribution(0, 2).stats
    assert not node.changed


def test_so_many_messages_get_all_checks_the_first_among_them():
    fleet = SimulatedFleet(Plan(devices=3, n_inputs=2, n_hidden=2, **CALM))
    good = fleet.contribution(0, 1)
    bad = Contribution("device-9", replace(good.stats, U=-good.stats.U), 1)  # the codec takes it
    with pytest.raises(RejectedError, match="device-9, normal: found a U with a negative"):
        TreeNode("site-1", fleet.projection).receive(encode(bad))
    second = TreeNode("site-1", fleet.projection, check_every=2)
    assert second.receive(encode(good))
    assert second.receive(encode(bad))
    with pytest.raises(RejectedError):
        second.receive(encode(bad))


def test_a_name_that_was_never_heard_is_told():
    fleet = SimulatedFleet(Plan(devices=3, n_inputs=2, n_hidden=2, **CALM))
    with pytest.raises(UnknownError, match="site-1 has heard nothing of device-5"):
        TreeNode("site-1", fleet.projection).contribution("device-5")


def test_the_sum_of_nothing_is_the_empty_one():
    plan = Plan(devices=30, fan_out=7, n_inputs=2, n_hidden=2, **(CALM | {"drop_out": 1.0}))
    outcome = simulate(plan, measure_s=None)
    assert outcome.gathered.total == Stats.empty(plan.projection)
    assert outcome.exact
    assert outcome.spreading is None
