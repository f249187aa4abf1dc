"""A wrong sum is caught, wherever it is wrong; and what is stopped is exact as far as it goes."""

from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from edgemerge import Stats
from edgemerge.scale import Plan, record, simulate
from edgemerge.scale.checks import DrawCounts, check_integers
from edgemerge.scale.machine import peak_bytes
from edgemerge.scale.simulated_devices import SimulatedFleet, newest_revisions
from edgemerge.scale.simulation import total_work
from edgemerge.scale.sum_tree import Replies, TreeNode

pytestmark = pytest.mark.slow  # many of a tenth of a second

PLAN = Plan(devices=120, fan_out=10, n_inputs=3, n_hidden=2, seed=3)


def held(outcome):
    return [check.holds for check in outcome.checks]


def off(stats: Stats, name: str) -> Stats:
    """The same stats with one entry wrong by the smallest amount."""
    value = getattr(stats, name)
    if name == "count":
        return replace(stats, count=value + 1.0)
    wrong = value.copy()
    wrong.flat[-1] += stats.projection.quantum
    return replace(stats, **{name: wrong})


@pytest.mark.parametrize("name", ["U", "V", "C", "S", "count"])
def test_one_entry_that_is_wrong_by_one_quantum_is_caught(name):
    fleet, devices = SimulatedFleet(PLAN), np.arange(PLAN.devices)
    total, seen = (
        fleet.flat(devices, newest_revisions(PLAN, devices)),
        DrawCounts.of(PLAN, PLAN.devices),
    )
    assert check_integers(total, fleet, seen).holds
    assert not check_integers(off(total, name), fleet, seen).holds


def test_a_site_that_tells_a_wrong_sum_is_caught(monkeypatch):
    right = TreeNode.share

    def share(node):
        if node.name == "site-000003":
            node._own = off(node.own, "U")
        return right(node)

    monkeypatch.setattr(TreeNode, "share", share)
    assert held(simulate(PLAN, measure_s=None))[:2] == [False, False]


def test_a_message_that_counts_twice_is_caught(monkeypatch):
    monkeypatch.setattr(
        "edgemerge.scale.simulated_devices.NEWEST_REVISIONS", np.array([1, 0, 0, 1, 1, 1, 2])
    )
    assert not simulate(PLAN, measure_s=None).exact  # revised ones count with the first revision


def test_a_wrong_flat_sum_is_caught(monkeypatch):
    right = SimulatedFleet.flat
    monkeypatch.setattr(SimulatedFleet, "flat", lambda *given: off(right(*given), "S"))
    assert held(simulate(PLAN, measure_s=None)) == [True, False, False, True, True, True]


def test_the_flat_sum_goes_from_the_last_to_the_first_and_groups_nobody_with_its_neighbour(
    monkeypatch,
):
    groups, right = [], SimulatedFleet.flat

    def seen(fleet, devices, newest):
        groups.append(devices.tolist())
        return right(fleet, devices, newest)

    monkeypatch.setattr(SimulatedFleet, "flat", seen)
    simulate(PLAN, measure_s=None)
    dealt = groups[: PLAN.n_sites]
    assert sorted(device for group in dealt for device in group) == list(range(PLAN.devices))
    assert all(np.diff(group).max() <= -PLAN.fan_out for group in dealt)


def test_a_site_that_does_not_come_back_whole_is_caught(monkeypatch):
    right = TreeNode.contribution
    wrong = lambda j, name: replace(right(j, name), stats=off(right(j, name).stats, "C"))  # noqa: E731
    monkeypatch.setattr(TreeNode, "contribution", wrong)
    assert held(simulate(PLAN, measure_s=None))[3] is False


def test_a_change_that_is_lost_on_its_way_is_caught(monkeypatch):
    monkeypatch.setattr(TreeNode, "receive_change", lambda *_: True)
    assert held(simulate(PLAN, measure_s=None))[4] is False


def test_answers_that_forget_what_came_from_above_are_caught(monkeypatch):
    monkeypatch.setattr(TreeNode, "adopt", lambda *_: None)
    assert held(simulate(PLAN, measure_s=None)) == [True] * 5 + [False]


def test_what_was_heard_before_the_stop_is_exact():
    asked = count()
    outcome = simulate(PLAN, stop=lambda: next(asked) >= 5, measure_s=None)
    assert outcome.stopped
    assert outcome.exact
    devices = np.arange(50)
    assert outcome.gathered.total == SimulatedFleet(PLAN).flat(
        devices, newest_revisions(PLAN, devices)
    )
    assert len(outcome.checks) == 5  # all but the flat sum
    assert outcome.spreading is not None


def test_a_stop_during_the_flat_sum_leaves_the_total_whole():
    asked = count()
    outcome = simulate(PLAN, stop=lambda: next(asked) >= PLAN.n_sites + 4, measure_s=None)
    assert outcome.stopped
    assert outcome.gathered.places[1] == PLAN.n_sites
    assert len(outcome.checks) == 5


def test_nothing_heard_before_the_stop_is_an_empty_total():
    outcome = simulate(PLAN, stop=lambda: True, measure_s=None)
    assert (outcome.stopped, outcome.exact) == (True, True)
    assert outcome.gathered.total.count == 0.0


def test_progress_ends_where_it_said():
    heard = []
    simulate(PLAN, advance=heard.append, measure_s=None)
    assert sum(heard) == pytest.approx(total_work(PLAN))


def test_the_number_of_workers_changes_no_bit():
    one, two = (simulate(PLAN, workers=number, measure_s=None) for number in (1, 2))
    assert one.gathered.total.digest == two.gathered.total.digest
    assert one.gathered.up == two.gathered.up
    assert held(two) == [True] * 6
    assert two.gathered.peak_bytes > peak_bytes()[1]  # that of this process alone


def test_every_tier_is_told_what_the_places_above_it_tell():
    outcome = simulate(PLAN, measure_s=None)
    region = len(PLAN.sites_of(PLAN.n_regions - 1))
    site = int((newest_revisions(PLAN, np.arange(110, 120)) > 0).sum())
    assert outcome.spreading is not None
    assert [each.number for each in outcome.spreading.answers] == [PLAN.n_regions, region, site]
    answers = (Replies(2, 20), Replies(5, 500), Replies(1, 1000))
    told = replace(outcome, spreading=replace(outcome.spreading, answers=answers))
    down = [tier["down"] for tier in record(told)["tiers"]]
    assert [each["answer_bytes"] for each in down] == [1000.0, 100.0, 10.0]
    assert [each["bytes"] for each in down][1:] == [100.0 * 12, 10.0 * PLAN.n_regions]


def test_the_record_has_only_plain_values():
    import json

    outcome = simulate(PLAN, measure_s=0.0)
    found = record(outcome, interval_s=1800.0, latency_s=0.5)
    assert json.loads(json.dumps(found)) == found
    assert found["device_day"]["shares"] == 48.0
    assert found["change"]["reaches_all_s"] == pytest.approx(found["change"]["work_s"] + 3.0)
    assert len(found["change"]["steps"]) == 8
