"""The fleet: who learns what, what the exam asks, which fleets there are, and how they compare."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from edgemerge import Bank, Detector, Stats
from edgemerge.paper import har_fleet
from edgemerge.paper.dataset import rng_for
from edgemerge.paper.har_fleet import AVERAGED, MERGED, OURS, Fleet, split_person
from edgemerge.paper.hyperparameters import LAYERS
from edgemerge.paper.plan import Job, Plan, Scope
from tests.paper.toys import noting, toy

DATA = toy(patterns=6, samples=200, inputs=8, origins=5)
PAIR = (1, 4)


@pytest.fixture(scope="module")
def people():
    return Fleet.of(DATA, PAIR, rng_for(7, "fleet"))


def rows_of(method, *aucs, **more):
    return [
        {"method": method, "trial": i, "pair": "a, b", "devices": 30, "auc": auc, **more}
        for i, auc in enumerate(aucs)
    ]


def test_a_device_learns_the_first_windows_of_one_person_and_one_of_two_activities(people):
    assert sorted(people.names) == [f"person-{who:02d}" for who in range(5)]
    for name, part in zip(people.names, people.parts, strict=True):
        (who,), (what,) = np.unique(DATA.origin[part]), np.unique(DATA.y[part])
        assert name == f"person-{who:02d}"
        assert what in PAIR
        assert np.array_equal(part, split_person(DATA, who, what)[0])
        assert np.array_equal(people.learnt(people.names.index(name)), DATA.X[part])
    assert {int(DATA.y[part[0]]) for part in people.parts} == set(PAIR)


def test_windows_are_cut_in_their_order_with_one_left_out_between():
    learn, keep = split_person(DATA, 3, 2)
    every = np.flatnonzero((DATA.origin == 3) & (DATA.y == 2))
    assert len(every) == 40
    assert learn.tolist() == every[:32].tolist()
    assert keep.tolist() == every[33:].tolist()


def test_the_exam_asks_for_both_activities_of_all_people_and_a_tenth_of_others(people):
    rows, odd = people.eval_set.rows, people.eval_set.odd
    assert len(rows) == len(set(rows.tolist()))
    assert not set(rows.tolist()) & set(np.concatenate(people.parts).tolist())
    seen = {(int(DATA.origin[i]), int(DATA.y[i])) for i in rows[~odd]}
    assert seen == {(who, what) for who in range(5) for what in PAIR}
    assert (~odd).sum() == 5 * 2 * 7
    assert odd.sum() == 7
    assert not set(DATA.y[rows[odd]].tolist()) & set(PAIR)
    assert np.array_equal(people.readings, DATA.X[rows])


def test_a_trial_a_pair_and_a_seed_say_all_about_a_fleet_and_quick_cuts_nothing(monkeypatch):
    asked = []
    monkeypatch.setattr("edgemerge.paper.plan._dataset", noting(asked, lambda *_: DATA))
    job = Job("devices", "har", OURS, 0, "1-4")
    scope = Scope(Path(), quick=True)
    found, same = Fleet.for_job(job, scope), Fleet.for_job(replace(job, method=AVERAGED), scope)
    assert found.names == same.names
    assert all(map(np.array_equal, found.parts, same.parts))
    assert np.array_equal(found.eval_set.rows, same.eval_set.rows)
    assert asked[0][2] == 0  # 0: all samples
    others = [Fleet.for_job(replace(job, trial=1), scope), Fleet.for_job(job, Scope(Path(), 8))]
    for other in others:
        assert not np.array_equal(found.eval_set.rows, other.eval_set.rows)
        assert found.seed != other.seed
    assert set(DATA.y[np.concatenate(found.parts)].tolist()) <= {1, 4}


def test_merging_sums_is_learning_all_rows_in_one_place(people):
    notes, shared = people.sums(), people.layer(LAYERS["har"])
    total = har_fleet.ledger_of(notes, shared).total()
    one = Detector(shared)
    one.learn(DATA.X[np.concatenate(people.parts)])
    assert total == one.own
    assert np.array_equal(
        har_fleet.merged_detector(total).loss(people.readings), one.loss(people.readings)
    )
    assert [note.device for note in notes] == list(people.names)


def test_a_newcomer_takes_in_every_sample_of_a_fleet_in_few_patterns(people):
    notes, shared = (
        [note for sent in people.banks() for note in sent],
        people.layer(har_fleet.LAYER),
    )
    newcomer = har_fleet.merged_bank(har_fleet.ledger_of(notes, shared))
    told = Stats.total(shared, (newcomer[name].others for name in newcomer))
    assert told == Stats.of(shared, DATA.X[np.concatenate(people.parts)])
    assert len(newcomer) < len(notes)
    assert people.auc(newcomer.score(people.readings)) > 0.9
    assert isinstance(newcomer, Bank)


def test_networks_get_readings_between_0_and_1(people):
    wide = replace(people, data=replace(DATA, low=-1.0))
    parts, readings = wide.network_inputs()
    assert np.array_equal(parts[2], (people.learnt(2) + 1.0) / 2.0)
    assert np.array_equal(readings, (people.readings + 1.0) / 2.0)


def test_a_full_plan_goes_through_all_pairs_and_a_quick_one_through_each_activity_once():
    jobs = har_fleet.jobs("devices", Plan(Scope(Path())), "20 epochs")
    ours, averaged = ([job for job in jobs if job.method == way] for way in (OURS, AVERAGED))
    assert len(ours) == 5 * 15
    assert len(averaged) == 15
    assert len({job.part for job in averaged}) == 15
    assert "20 epochs" in averaged[0].settings
    assert "20 epochs" not in ours[0].settings
    quick = har_fleet.jobs(
        "devices", Plan(Scope(Path(), quick=True), trials=3, baseline_trials=1), ""
    )
    assert [job.method for job in quick] == [OURS] * 3 + [AVERAGED] * 3
    assert sorted("".join(job.part for job in quick[:3]).replace("-", "")) == list("012345")
    none = har_fleet.jobs("devices", Plan(Scope(Path()), trials=1, baseline_trials=0), "")
    assert {job.method for job in none} == {OURS}
    assert len(none) == 15


def test_a_gain_is_the_mean_over_the_fleets_that_both_have():
    rows = rows_of(OURS, 0.9, 0.7, 0.1) + rows_of(MERGED, 0.8, 0.5)
    ours, merged = (har_fleet.aucs(rows, way, devices=30) for way in (OURS, MERGED))
    assert har_fleet.mean_gain(ours, merged) == pytest.approx(0.15)
    assert har_fleet.mean(merged) == pytest.approx(0.65)
    assert har_fleet.aucs(rows, OURS, devices=8) == {}
    assert har_fleet.mean_gain(ours, {}) is None


def test_a_claim_without_a_measurement_neither_holds_nor_fails():
    assert har_fleet.gain_claim("more", 0.1, None).holds is None
    assert har_fleet.gain_claim("more", 0.1, 0.1).holds is True
    missed = har_fleet.gain_claim("more", 0.1, 0.0999)
    assert missed.holds is False
    assert missed.found == "+0.100"


def test_a_line_is_the_mean_and_a_band_the_middle_half():
    rows = rows_of(OURS, 0.2, 0.4, 0.6, 0.8, 1.0) + rows_of(OURS, 0.5, devices=1)
    axes = Figure().subplots()
    looks = {OURS: ("ours", "blue", "-"), MERGED: ("nobody", "red", "-")}
    har_fleet.draw_curves(axes, rows, "devices", looks)
    assert [line.get_label() for line in axes.lines] == ["ours"]
    assert axes.lines[0].get_xydata().tolist() == [[1.0, 0.5], [30.0, pytest.approx(0.6)]]
    corners = np.asarray(axes.collections[0].get_paths()[0].vertices)
    edges = {round(float(y), 6) for x, y in corners if x == 30}
    assert edges == {0.4, 0.8}
