"""Drop-out: what is left is what was never left out; rows, claims, figure, and real people."""

from pathlib import Path

import numpy as np
import pytest
import torch

from edgemerge import Detector
from edgemerge.paper import backprop, drop_out, har_fleet
from edgemerge.paper.dataset import rng_for
from edgemerge.paper.drop_out import (
    claims,
    is_exact,
    last_rounds,
    ledger_without,
    plot,
    remaining,
    table,
)
from edgemerge.paper.har_fleet import AVERAGED, MERGED, OURS, Fleet
from edgemerge.paper.hyperparameters import LAYERS, ROUNDS, Network
from edgemerge.paper.plan import Plan, Scope
from tests.paper.real import FOLDER, needs_data
from tests.paper.toys import toy

pytestmark = pytest.mark.slow  # PyTorch takes seconds to import

DATA = toy(patterns=6, samples=400, inputs=8, origins=10)


@pytest.fixture(scope="module")
def people():
    return Fleet.of(DATA, (0, 3), rng_for(7, "fleet"))


@pytest.fixture
def small(monkeypatch):
    network = Network((3,), 8, 2)
    monkeypatch.setattr(har_fleet, "NETWORK", network)
    return network


def made_up(lost=0.01, averaged=0.7, same=1, seconds=0.1):
    """Rows of two fleets that lose so much with each share."""
    rows = []
    for trial in (0, 1):
        for share in (0.0, 0.3, 0.5, 0.9):
            key = {"trial": trial, "pair": "a, b", "share": share}
            for method in (OURS, MERGED):
                auc = 0.9 - lost * share / 0.3
                rows.append({**key, "method": method, "auc": auc, "same": same})
            if share != 0.3:
                rows.append({**key, "method": AVERAGED, "auc": averaged})
    for way, time in ((OURS, seconds), (AVERAGED, 10.0)):
        rows.append({"method": "time", "share": 0.3, "way": way, "seconds": time})
    return rows


def same_weights(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


def test_a_share_of_the_devices_is_left_and_never_none(people):
    assert [remaining(people, share) for share in (0.0, 0.3, 0.9, 1.0)] == [10, 7, 1, 1]


def test_those_that_are_left_are_all_that_counts(people):
    rows = drop_out.exchanged(people)
    few = Detector(people.layer(LAYERS["har"]))
    few.learn(DATA.X[np.concatenate(people.parts[:7])])
    auc = people.auc(few.loss(people.readings))
    found = [r for r in rows if (r["method"], r["share"]) == (MERGED, 0.3)]
    assert [row["auc"] for row in found] == [pytest.approx(auc)]
    notes = [note for sent in people.banks()[:7] for note in sent]
    bank = har_fleet.merged_bank(har_fleet.ledger_of(notes, people.layer(har_fleet.LAYER)))
    found = [r for r in rows if (r["method"], r["share"]) == (OURS, 0.3)]
    assert [r["auc"] for r in found] == [pytest.approx(people.auc(bank.score(people.readings)))]
    assert {row["same"] for row in rows} == {1}
    assert len(rows) == 2 * len(drop_out.DROP_SHARES)


def test_dropped_is_never_heard_and_back_is_never_left(people):
    notes, gone = people.sums(), people.names[4:]
    ledger = ledger_without(notes, gone)
    assert ledger.devices == sorted(people.names[:4])
    assert is_exact(notes, gone, ledger)
    never = har_fleet.ledger_of(notes[:4], ledger.projection)
    assert ledger.total().digest == never.total().digest
    for note in notes[4:]:
        assert ledger.put(note)
    whole = har_fleet.ledger_of(notes, ledger.projection)
    assert ledger.total().digest == whole.total().digest


def test_a_ledger_that_dropped_too_few_or_too_many_is_not_exact(people):
    notes, gone = people.sums(), people.names[4:]
    assert not is_exact(notes, gone, ledger_without(notes, gone[1:]))
    assert not is_exact(notes, gone, ledger_without(notes, people.names[3:]))


def test_a_ledger_that_does_not_take_a_device_back_is_not_exact(people, monkeypatch):
    notes, gone, real = people.sums(), people.names[4:], har_fleet.ledger_of
    dropped = ledger_without(notes, gone)
    monkeypatch.setattr(
        har_fleet, "ledger_of", lambda told, p: real(told[:4] if len(told) > 10 else told, p)
    )
    assert not is_exact(notes, gone, dropped)


def test_who_leaves_does_so_at_a_round_by_chance(people):
    stay = last_rounds(people, 0.3)
    assert stay[:7] == [ROUNDS] * 7
    assert len(stay) == 10
    assert all(0 <= turn < ROUNDS for turn in stay[7:])
    assert stay == last_rounds(people, 0.3)
    assert last_rounds(people, 0.0) == [ROUNDS] * 10


def test_training_apart_is_the_papers_when_nobody_leaves(people, small):
    parts = people.network_inputs()[0][:3]
    net = drop_out.train_federated(parts, [ROUNDS] * 3, people.seed)
    theirs = backprop.train_federated(small, parts, rounds=ROUNDS, seed=people.seed)
    assert same_weights(net, theirs)


@pytest.mark.usefixtures("small")
def test_a_client_that_leaves_has_no_say_in_later_rounds(people):
    parts = people.network_inputs()[0][:2]
    all_along, never, some = (
        drop_out.train_federated(parts, [ROUNDS, turns], people.seed) for turns in (ROUNDS, 0, 10)
    )
    assert not same_weights(some, all_along)
    assert not same_weights(some, never)
    other = [parts[0], 1.0 - parts[1]]
    assert same_weights(never, drop_out.train_federated(other, [ROUNDS, 0], people.seed))


@pytest.mark.usefixtures("small")
def test_averaged_fleets_have_few_shares(people):
    rows = drop_out.averaged(people)
    assert [(r["method"], r["share"]) for r in rows] == [(AVERAGED, s) for s in (0.0, 0.5, 0.9)]
    assert all(0.0 <= row["auc"] <= 1.0 for row in rows)


@pytest.mark.usefixtures("small")
def test_both_ways_are_timed_in_one_job(people):
    rows = drop_out.time_removal(people)
    assert [row["way"] for row in rows] == [OURS, AVERAGED]
    assert all(row["seconds"] > 0.0 for row in rows)


def test_a_plan_has_one_job_of_time_and_none_without_baselines(monkeypatch):
    monkeypatch.setattr(drop_out, "work", lambda job, _: [{"method": job.method, "part": job.part}])

    def methods(plan):
        return [row["method"] for row in drop_out.run(plan)]

    full = methods(Plan(Scope(Path())))
    assert [full.count(way) for way in (OURS, AVERAGED, "time")] == [75, 15, 1]
    assert methods(Plan(Scope(Path(), quick=True))) == [OURS] * 3 + ["time"]
    assert set(methods(Plan(Scope(Path()), baseline_trials=0))) == {OURS}


def test_claims_hold_when_little_is_lost_and_nothing_is_trained_again():
    found = claims(made_up())
    assert [claim.holds for claim in found] == [True] * 5
    assert found[0].found == "-0.010"
    assert "100 times" in found[-1].found


def test_claims_fail_one_by_one():
    dear = claims(made_up(lost=0.03))
    assert [claim.holds for claim in dear] == [False, False, True, True, True]
    assert claims(made_up(averaged=0.875))[2].holds is False
    assert claims(made_up(same=0))[3].holds is False
    assert claims(made_up(seconds=11.0))[4].holds is False
    assert {claim.holds for claim in claims([])} == {None}


def test_the_table_has_a_line_for_each_share():
    rows = table(made_up())
    assert [row["dropped out"] for row in rows] == ["0%", "30%", "50%", "90%"]
    assert rows[1] == {"dropped out": "30%", OURS: 0.89, MERGED: 0.89}


def test_a_figure_has_a_line_for_each_way():
    (figure,) = plot(made_up()).values()
    (axes,) = figure.axes
    assert len(axes.lines) == 3
    assert len(axes.collections) == 2
    assert [tick.get_text() for tick in axes.get_xticklabels()][-1] == "90%"
    assert plot([])[""].axes


@needs_data
@pytest.mark.long
def test_on_real_people_losing_some_costs_little_and_nothing_is_trained_again():
    rows = drop_out.run(Plan(Scope(FOLDER, quick=True), trials=1, baseline_trials=0))
    held = claims(rows)
    assert all(held[i].holds for i in (0, 1, 3))
