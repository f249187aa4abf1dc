"""ROC-AUC of pairs: the protocol, its jobs, what is summed up, and the claims on real data."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from edgemerge import Detector, Stats
from edgemerge.paper import auc, backprop
from edgemerge.paper.dataset import Trial
from edgemerge.paper.hyperparameters import BANKS, BASELINES, LAYERS, ROUNDS
from edgemerge.paper.plan import Job, Plan, Scope
from tests.paper.real import FOLDER, needs_data
from tests.paper.toys import ToyScope

pytestmark = pytest.mark.slow  # PyTorch takes seconds to import

SCOPE = ToyScope(patterns=6, samples=120, inputs=8)


def job(method, part="", trial=0, dataset="har"):
    return Job("auc", dataset, method, trial, part)


def by_pair(rows, method):
    return {(r["device_a"], r["device_b"]): r["auc"] for r in rows if r["method"] == method}


def off_diagonal(rows, method):
    return np.mean([auc for (a, b), auc in by_pair(rows, method).items() if a != b])


def test_all_methods_of_a_trial_get_the_same_cut_and_the_same_exams():
    one, two = (Trial(job(method), SCOPE) for method in ("BP-NN3", "ours"))
    for a, b in one.pairs():
        assert np.array_equal(one.learnt(a), two.learnt(a))
        assert np.array_equal(one.eval_set(a, b).rows, two.eval_set(b, a).rows)


def test_another_trial_or_seed_is_another_cut_and_another_layer():
    found = [
        Trial(job("OS-ELM", trial=trial), ToyScope(seed=seed))
        for trial in (0, 1)
        for seed in (7, 8)
    ]
    assert len({tuple(trial.split.learn[0]) for trial in found}) == 4
    assert len({trial.number("layer") for trial in found}) == 4


def test_before_merging_a_device_knows_its_own_pattern_alone():
    trial = Trial(job("OS-ELM"), SCOPE)
    layer = LAYERS["har"].projection(trial.data, trial.number("layer"))
    alone = Detector(layer)
    for x in trial.learnt(2):
        alone.learn(x)
    exam = trial.eval_set(2, 4)
    slow = roc_auc_score(exam.odd, alone.loss(trial.data.X[exam.rows]))
    found = by_pair(auc.merge_pairs(trial), "before")
    assert found["pattern-2", "pattern-4"] == slow


def test_after_merging_a_device_is_as_if_it_had_seen_both_patterns():
    trial = Trial(job("OS-ELM"), SCOPE)
    layer = LAYERS["har"].projection(trial.data, trial.number("layer"))
    both = Detector.resume(Stats.of(layer, np.vstack([trial.learnt(4), trial.learnt(2)])))
    exam = trial.eval_set(2, 4)
    slow = roc_auc_score(exam.odd, both.loss(trial.data.X[exam.rows]))
    found = by_pair(auc.merge_pairs(trial), "after")
    assert found["pattern-2", "pattern-4"] == found["pattern-4", "pattern-2"] == slow


def test_merging_with_a_device_that_saw_the_same_changes_nothing():
    rows = auc.work(job("OS-ELM"), SCOPE)
    before, after = by_pair(rows, "before"), by_pair(rows, "after")
    same = [pair for pair in before if pair[0] == pair[1]]
    assert len(same) == 6
    assert [before[pair] for pair in same] == pytest.approx([after[pair] for pair in same])


@pytest.mark.parametrize("method", ["bank", "ours"])
def test_a_bank_keeps_the_peers_pattern_beside_its_own(method):
    rows = auc.work(job(method), SCOPE)
    assert len(rows) == 36
    alone = off_diagonal(auc.work(job("OS-ELM"), SCOPE), "before")
    assert off_diagonal(rows, method) > max(alone, 0.9)


def test_what_a_bank_is_told_comes_over_the_wire_in_the_form_of_the_setting():
    trial = Trial(job("ours"), SCOPE)
    exchange = BANKS["ours"]["har"]
    layer = exchange.layer.projection(trial.data, 1)
    bank = auc.train_bank(exchange, layer, trial.learnt(0))
    notes = auc.encode_contributions(bank, exchange, "device-0")
    assert all(b'"form":"root16"' in note[:4000] for note in notes)
    told = auc.decode_contributions(notes, layer)
    assert [note.pattern for note in told] == list(bank)
    assert sum(note.stats.count for note in told) == len(trial.learnt(0))


def test_a_bank_is_taught_every_sample_whatever_the_strips():
    trial = Trial(job("ours"), ToyScope(samples=1500, patterns=3))
    exchange = BANKS["ours"]["har"]
    layer = exchange.layer.projection(trial.data, 1)
    bank, other = auc.train_bank(exchange, layer, trial.learnt(0)), exchange.bank(layer)
    other.learn(trial.learnt(0))
    assert auc.encode_contributions(bank, exchange, "a") == auc.encode_contributions(
        other, exchange, "a"
    )


@pytest.mark.parametrize(
    "method",
    [
        each if each == "BP-NN3-FL" else pytest.param(each, marks=pytest.mark.long)
        for each in BASELINES
    ],
)
def test_back_propagation_learns_a_pair_whose_order_does_not_matter(method, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(backprop, "ROUNDS", 5)
    rows = auc.work(job(method, "1-3"), SCOPE)
    assert [(r["device_a"], r["device_b"]) for r in rows] == [
        ("pattern-1", "pattern-3"),
        ("pattern-3", "pattern-1"),
    ]
    assert rows[0]["auc"] == rows[1]["auc"] > 0.6
    assert len(auc.work(job(method, "2-2"), SCOPE)) == 1


def test_there_is_a_job_for_every_trial_and_for_every_pair_of_back_propagation():
    plan = Plan(SCOPE, trials=2, baseline_trials=1)
    jobs = auc.jobs(plan, "mnist")
    assert len(jobs) == len(set(jobs)) == 3 * 2 + 3 * 55
    for each in jobs:
        assert each.settings
    federated = [each for each in jobs if each.method == "BP-NN3-FL"]
    assert f"{ROUNDS} rounds" in federated[0].settings


def test_a_quick_run_cuts_trials_and_a_full_one_does_not():
    for quick, merging, training in ((True, 3, 1), (False, 50, 4)):
        plan = Plan(Scope(Path(), quick=quick), trials=50, baseline_trials=4)
        assert (len(plan.merging), len(plan.training)) == (merging, training)


def rows_of(method, *aucs):
    pairs = [("x", "x"), ("x", "y"), ("y", "x"), ("y", "y")]
    return [
        {"dataset": "har", "method": method, "trial": trial, "device_a": a, "device_b": b, "auc": v}
        for trial, values in enumerate(aucs)
        for (a, b), v in zip(pairs, values, strict=True)
    ]


def test_means_and_spreads_are_those_over_trials():
    found = auc.summarise(rows_of("after", [1.0, 0.6, 0.8, 1.0], [1.0, 0.8, 0.8, 0.9]))
    pair = next(r for r in found if (r["device_a"], r["device_b"]) == ("x", "y"))
    assert (pair["auc"], pair["spread"], pair["trials"]) == (0.7, round(np.sqrt(0.02), 4), 2)
    assert auc.means(found, "har") == {"after": 0.75}
    (mean,) = auc.table(found)
    assert mean["spread"] == round(float(np.std([0.7, 0.8], ddof=1)), 4)


def summary(**methods):
    rows = [
        row
        for method, v in methods.items()
        for row in rows_of(method.replace("_", "-"), [1, v, v, 1])
    ]
    return auc.summarise(rows)


def test_claims_say_what_holds_and_by_how_much():
    found = auc.claims(summary(before=0.74, after=0.89, BP_NN3=0.90, BP_NN5=0.93, ours=0.94))
    assert [claim.holds for claim in found] == [True, True, True, False]
    assert "0.740 → 0.890; better in 2 of 2 pairs" in found[0].found
    assert "0.940 against 0.930 (BP-NN5)" in found[2].found
    assert "-0.012" in found[3].found


def test_claims_fail_when_the_numbers_do():
    found = auc.claims(summary(before=0.80, after=0.79, BP_NN3=0.96, ours=0.953))
    assert [claim.holds for claim in found] == [False, False, False, True]


def test_what_was_not_run_is_neither_true_nor_false():
    found = auc.claims(summary(before=0.74, after=0.89))
    assert [claim.holds for claim in found] == [True, True, None, None]
    assert auc.claims(summary(before=0.74, after=0.89, ours=0.96))[2].holds is None
    assert auc.claims([]) == []


def test_the_map_marks_the_best_of_five_and_ours_where_it_is_better():
    rows = summary(before=0.7, after=0.9, BP_NN3=0.8, bank=0.85, ours=0.95)
    (figure,) = auc.plot(rows).values()
    bold = {
        axes.get_title().split(":")[0]: [t.get_fontweight() for t in axes.texts].count("bold")
        for axes in figure.axes
        if axes.texts
    }
    assert bold == {  # on the diagonal all are 1: a tie
        "before merging": 2,
        "after merging": 4,
        "BP-NN3": 2,
        "ours, same N": 0,
        "ours, best": 2,
    }


@pytest.mark.long
@needs_data
@pytest.mark.parametrize("dataset", ["har", "mnist"])
def test_on_real_data_merging_helps_and_ours_more(dataset):
    scope = Scope(FOLDER, quick=True)
    rows = [
        row
        for method in ("OS-ELM", "bank", "ours")
        for row in auc.work(job(method, dataset=dataset), scope)
    ]
    before, after, bank, ours = (
        off_diagonal(rows, method) for method in ("before", "after", "bank", "ours")
    )
    assert before + 0.1 < after < min(bank, ours)
