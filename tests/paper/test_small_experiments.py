"""Small experiments: what each device learns, what is averaged, and the claims on rows."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgemerge import Stats
from edgemerge.paper import plan
from edgemerge.paper import small_experiments as small
from edgemerge.paper.dataset import Trial
from edgemerge.paper.hyperparameters import LAYERS, Layer
from edgemerge.paper.plan import Job, Plan, Scope
from tests.paper.toys import toy

PATTERNS = ("walking", "walking_upstairs", "walking_downstairs", "sitting", "standing", "laying")


@pytest.fixture
def scope(monkeypatch, tmp_path):
    """Six made-up activities of ten people, in the range of the real ones."""
    base = toy(patterns=6, samples=300, inputs=24)
    people = np.arange(len(base.X)) % 10
    made = replace(
        base, name="har", X=2.0 * base.X - 1.0, patterns=PATTERNS, origin=people, low=-1.0
    )
    monkeypatch.setattr(plan, "_dataset", lambda *_: made)
    narrow = Layer("identity", 8)
    monkeypatch.setitem(LAYERS, "har", narrow)
    monkeypatch.setattr(small, "FLEET_LAYER", narrow)
    monkeypatch.setattr(small, "MEMBERSHIP_LAYER", Layer("identity", 4))
    return Scope(tmp_path)


def trial_of(scope, method, split="sample"):
    return Trial(Job(small.NAME, "har", method, 0, split), scope, small.SPLITS[split])


def made(scope, method, split="sample"):
    return small.summarise(small.work(Job(small.NAME, "har", method, 0, split), scope))


def value(rows, setting, measure="ROC-AUC"):
    (found,) = (r for r in rows if (r["setting"], r["measure"]) == (setting, measure))
    return found["value"]


def test_anomalies_come_after_the_first_quarter_and_are_of_other_patterns(scope):
    trial = trial_of(scope, small.REJECTION)
    X, odd = small.contaminated(trial, 2)
    own = trial.learnt(2)
    first = len(own) // 4
    assert np.array_equal(X[:first], own[:first])
    assert not odd[:first].any()
    assert odd.sum() == round(small.CONTAMINATION * (len(own) - first))
    assert {x.tobytes() for x in X[~odd]} == {x.tobytes() for x in own}
    others = {x.tobytes() for i in range(6) if i != 2 for x in trial.learnt(i)}
    assert {x.tobytes() for x in X[odd]} <= others


@pytest.mark.slow
@pytest.mark.parametrize("split", small.SPLITS)
def test_rejecting_is_as_good_as_clean_samples(scope, monkeypatch, split):
    monkeypatch.setattr(small, "CONTAMINATION", 1.0)  # the made-up patterns are easy to tell apart
    monkeypatch.setitem(LAYERS, "har", Layer("identity", 16))
    rows = made(scope, small.REJECTION, split)
    everything = value(rows, "learns everything")
    rejecting = value(rows, "rejects high scores")
    assert everything < rejecting
    assert rejecting == pytest.approx(value(rows, "learns clean samples"), abs=0.01)
    assert value(rows, "rejects high scores", "share of anomalies rejected") > 0.5
    assert value(rows, "rejects high scores", "share of normal samples rejected") < 0.1
    assert {row["split"] for row in rows} == {split}


@pytest.mark.slow
def test_forgetting_brings_back_what_one_pattern_alone_gives(scope):
    rows = made(scope, small.FORGETTING)
    kept, some, fast = (value(rows, f"forgetting {fade:g}") for fade in small.FADES)
    assert kept < some < fast
    assert fast == pytest.approx(value(rows, "learnt only the new pattern"), abs=0.05)


def test_a_fleet_has_three_that_learnt_another_pattern_and_nobody_s_sample_twice(scope):
    trial = trial_of(scope, small.SELECTION)
    layer = small.FLEET_LAYER.projection(trial.data, 1)
    own, peers, bad = small.fleet(trial, layer, 3)
    assert (len(peers), bad.sum()) == (small.DEVICES - 1, small.BAD_DEVICES)
    right = Stats.total(
        layer, [own, *(p for p, wrong in zip(peers, bad, strict=True) if not wrong)]
    )
    assert right.count < len(trial.learnt(3))
    whole = Stats.of(layer, trial.learnt(3))
    assert all(each.count == pytest.approx(whole.count / small.DEVICES, abs=1) for each in peers)


@pytest.mark.slow
def test_selecting_by_the_loss_of_sums_leaves_the_wrong_ones_out(scope):
    rows = made(scope, small.SELECTION)
    chosen = value(rows, "adopts selected peers")
    assert value(rows, "adopts all peers") < chosen
    assert chosen == pytest.approx(value(rows, "adopts exactly the right peers"), abs=0.02)
    assert value(rows, "adopts selected peers", "share of wrong peers left out") > 0.8
    assert value(rows, "adopts selected peers", "share of right peers adopted") > 0.8


def test_members_of_small_releases_are_recognised_and_one_sample_is_recovered(scope):
    rows = made(scope, small.MEMBERSHIP, "")
    found = [value(rows, f"{n}N samples", "ROC-AUC of the attack") for n in small.MULTIPLES]
    assert found[0] > 0.99, "as many samples as hidden values: an exact fit"
    assert found[0] > found[2] > found[4]
    assert value(rows, "1 sample", "largest error of the recovered sample") < 2.0**-12


def test_trials_are_averaged_before_the_interval_is_taken():
    head = {"split": "sample", "experiment": "x", "setting": "s", "measure": "m"}
    rows = [head | {"trial": t, "value": v} for t, v in ((0, 0.01), (0, 0.03), (1, 0.04))]
    (row,) = small.summarise(rows)
    assert (row["trials"], row["value"]) == (2, 0.03)
    half = small.half_interval([0.02, 0.04])
    assert row["high"] - row["value"] == pytest.approx(half, rel=1e-3)


def test_no_share_is_above_one_in_an_interval():
    head = {"split": "sample", "experiment": "x", "setting": "s", "measure": "m"}
    (row,) = small.summarise([head | {"trial": t, "value": v} for t, v in ((0, 1.0), (1, 0.9))])
    assert row["low"] < row["value"] < row["high"] == 1.0


def test_selecting_is_compared_with_adopting_all_and_nobody():
    means = {"adopts no peer": 0.94, "adopts all peers": 0.8, "adopts selected peers": 0.945}
    names = {"experiment": small.SELECTION, "split": "person", "measure": "ROC-AUC", "trials": 10}
    rows = [
        names | {"setting": setting, "value": mean, "low": mean - 0.01, "high": mean + 0.01}
        for setting, mean in means.items()
    ]
    found = {claim.text: claim.holds for claim in small.claims(rows) if "selecting" in claim.text}
    assert list(found.values()) == [None, None, True, False], "better than all, not than nobody"


def averaging(far, seeds=3, pairs=(("a", "b"), ("c", "d"))):
    return [
        {"split": "sample", "method": method, "trial": t, "device_a": a, "device_b": b, "auc": auc}
        for t in range(seeds)
        for a, b in pairs
        for method, auc in (("after", 0.9 + t / 1000), ("BP-NN3-FL", 0.9 + t / 1000 + far))
    ]


def test_averaging_is_compared_with_merging_pair_by_pair_and_seed_by_seed():
    rows = small.summarise(averaging(-0.05))
    found = {(r["setting"], r["measure"]): r for r in rows}
    difference = found[small.DIFFERENCE, "ROC-AUC, all 2 pairs"]
    assert (difference["value"], difference["trials"]) == (-0.05, 3)
    assert difference["low"] == difference["high"] == -0.05, "the seeds' own spread is paired away"
    assert (small.DIFFERENCE, "ROC-AUC, a, b") in found
    assert [r["measure"] for r in small.table(rows)] == ["ROC-AUC, all 2 pairs"] * 3


def test_a_seed_without_its_other_half_is_left_out():
    rows = averaging(-0.05)
    del rows[-1]
    found = {(r["setting"], r["measure"]): r for r in small.summarise(rows)}
    assert found[small.DIFFERENCE, "ROC-AUC, c, d"]["trials"] == 2
    assert found[small.DIFFERENCE, "ROC-AUC, a, b"]["trials"] == 3


@pytest.mark.parametrize(("far", "holds"), [(-0.05, False), (0.05, False), (-0.002, True)])
def test_similar_is_claimed_from_the_interval(far, holds):
    claim = small.claims(small.summarise(averaging(far)))[0]
    assert claim.holds is holds
    assert claim.found.endswith(f": a and b {far:+.3f}, c and d {far:+.3f}; 3 seeds")


def test_without_rows_nothing_is_claimed():
    assert {claim.holds for claim in small.claims([])} == {None}


def planned(**settings):
    jobs = []

    def capture(_work, found, _scope):
        jobs.extend(found)
        return iter(())

    small.run(Plan(Scope(Path()), spread=capture, **settings))
    return jobs


@pytest.mark.slow
def test_federated_averaging_has_thirty_seeds_on_every_pair():
    pytest.importorskip("torch")
    jobs = [job for job in planned() if job.method == "BP-NN3-FL"]
    seeds = {}
    for job in jobs:
        seeds.setdefault(job.part, set()).add(job.trial)
    assert {part: len(found) for part, found in seeds.items()} == {
        f"{split} {a}-{b}": count
        for split, count in small.SEEDS.items()
        for a, b in small.PAIRS[split]
    }
    assert len(small.PAIRS["sample"]) == 15  # all of six patterns
    assert small.SEEDS["sample"] >= 30
    assert {len(seeds) for seeds in seeds.values()} == set(small.SEEDS.values())


def test_without_networks_only_the_fast_experiments_are_run():
    jobs = planned(baseline_trials=0)
    assert {job.method for job in jobs} == set(small.EXPERIMENTS)
    assert len({(job.method, job.part, job.trial) for job in jobs}) == len(jobs)


@pytest.mark.slow
def test_the_figure_has_a_panel_for_each_experiment_and_a_point_for_each_split(scope):
    parts = [(small.SELECTION, "sample"), (small.SELECTION, "person"), (small.MEMBERSHIP, "")]
    rows = [row for method, split in parts for row in made(scope, method, split)]
    (figure,) = small.plot(small.summarise(averaging(-0.05)) + rows).values()
    pairs, selection, membership = figure.axes
    assert [label.get_text() for label in pairs.get_yticklabels()] == ["a and b", "c and d"]
    methods = {"after merging, HAR by sample", "BP-NN3-FL, HAR by sample"}
    assert {points.get_label() for points in pairs.lines} == methods
    assert len({points.get_color() for points in pairs.lines}) == 2
    assert [len(points.get_xdata()) for points in selection.lines] == [4, 4]
    assert len({points.get_marker() for points in selection.lines}) == 2
    assert len(membership.lines[0].get_xdata()) == len(small.MULTIPLES)
    assert len(selection.texts) == 8, "a number at each point"
