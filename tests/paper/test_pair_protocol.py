"""Fairness of the pair protocol: who learns what, what the exam asks, and by whose chance."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgemerge import Bank, Stats
from edgemerge.paper import auc, hyperparameters, plan
from edgemerge.paper import dataset as trials
from edgemerge.paper.dataset import ANOMALY_RATIO, TRAIN_SHARE, Dataset, Trial
from edgemerge.paper.hyperparameters import LAYERS, NETWORKS, Layer, Network
from edgemerge.paper.plan import Job, Plan, Scope
from tests.paper.toys import ToyScope, noting, toy

pytestmark = pytest.mark.slow  # PyTorch takes seconds to import

BASELINES = hyperparameters.BASELINES


class SignedScope(ToyScope):
    """Toys in [−1, 1], as HAR is, so that a forgotten scaling shows."""

    def dataset(self, name):
        found = super().dataset(name)
        return replace(found, X=2.0 * found.X - 1.0, low=-1.0, high=1.0)


SCOPE = SignedScope(patterns=6, samples=120, inputs=8)


def trial_of(method="OS-ELM", trial=0, dataset="har", scope=SCOPE):
    return Trial(Job("auc", dataset, method, trial), scope)


def values(X):
    return {tuple(x) for x in X}


def test_nothing_that_is_learnt_is_asked():
    trial = trial_of()
    asked = values(x for a, b in trial.pairs() for x in trial.data.X[trial.eval_set(a, b).rows])
    for pattern in range(6):
        learnt = values(trial.learnt(pattern))
        assert len(learnt) == 96
        assert not learnt & asked


def learnt_by(monkeypatch, trial, method):
    """Watch what banks, or sums, are given to learn."""
    seen = []
    if method == "OS-ELM":
        monkeypatch.setattr(Stats, "of", noting(seen, Stats.of))
        auc.merge_pairs(trial)
    else:
        monkeypatch.setattr(auc, "train_bank", noting(seen, auc.train_bank))
        auc.exchange_pairs(trial, method)
    return [given[-1] for given in seen]


@pytest.mark.parametrize("method", ["OS-ELM", "bank", "ours"])
def test_what_merges_learns_each_pattern_without_what_was_kept(method, monkeypatch):
    trial = trial_of()
    seen = learnt_by(monkeypatch, trial, method)
    assert len(seen) == 6
    for pattern, X in enumerate(seen):
        assert np.array_equal(X, trial.data.X[trial.split.learn[pattern]])


@pytest.mark.parametrize("method", ["bank", "ours"])
def test_device_a_judges_with_what_device_b_sent_and_with_nothing_else(method, monkeypatch):
    trial = trial_of()
    told, asked = [], []
    monkeypatch.setattr(Bank, "adopt", lambda _, notes: told.append([*notes]))
    score = noting(asked, lambda _, X: np.arange(len(X)))
    monkeypatch.setattr(Bank, "score", score)
    auc.exchange_pairs(trial, method)
    judges = [asked[6 * a][0] for a in range(6)]
    assert len(set(map(id, judges))) == 6
    for (a, b), notes, (judge, X) in zip(trial.pairs(), told, asked, strict=True):
        assert {note.device for note in notes} == (set() if a == b else {f"device-{b}"})
        assert judge is judges[a]
        assert np.array_equal(X, trial.data.X[trial.eval_set(a, b).rows])


def test_each_pair_draws_its_odd_samples_by_a_chance_of_its_own(monkeypatch):
    seen = []
    monkeypatch.setattr(trials, "eval_set", lambda *given: seen.append(given[2].random()))
    trial = trial_of()
    for a, b in trial.pairs():
        trial.eval_set(a, b)
    assert len(seen) == len(set(seen)) == 21
    assert trial.rng_for("cut").random() not in seen


def test_another_data_set_is_another_chance_in_the_same_trial():
    assert trial_of(dataset="har").number("layer") != trial_of(dataset="mnist").number("layer")


def test_odd_samples_that_score_high_are_an_auc_of_one():
    trial = trial_of()
    odd = trial.eval_set(2, 5).odd
    row = trial.row("any", (2, 5), odd + 0.0)
    assert row["auc"] == 1.0
    assert (row["device_a"], row["device_b"]) == ("pattern-2", "pattern-5")
    assert trial.row("any", (2, 5), 1.0 - odd)["auc"] == 0.0


def test_networks_get_readings_between_0_and_1_whatever_the_range():
    X = np.array([[-1.0, 0.0, 1.0]])
    data = Dataset("toy", X, np.array([0]), ("any",), np.array([0]), -1.0, 1.0)
    assert data.between_0_and_1(np.array([0])).tolist() == [[0.0, 0.5, 1.0]]


def trainings(monkeypatch, trial, method, *pairs):
    """Say what back-propagation is given for each pair; nothing is trained."""
    backprop = pytest.importorskip("edgemerge.paper.backprop")
    seen = []

    def train(network, parts, seed):
        seen.append({"network": network, "parts": parts, "seed": seed, "rounds": 0})

    def apart(network, parts, *, rounds, seed):
        seen.append({"network": network, "parts": parts, "seed": seed, "rounds": rounds})

    monkeypatch.setattr(backprop, "train", train)
    monkeypatch.setattr(backprop, "train_federated", apart)
    for a, b in pairs:
        backprop.train_pair(trial, method, a, b)
    return seen


@pytest.mark.parametrize("method", BASELINES)
def test_back_propagation_learns_both_patterns_without_what_was_kept(method, monkeypatch):
    trial = trial_of(method)
    (given,) = trainings(monkeypatch, trial, method, (1, 3))
    assert given["network"] == NETWORKS["har"][method.removesuffix("-FL")]
    assert given["rounds"] == (50 if method.endswith("-FL") else 0)
    assert len(given["parts"]) == 2
    for pattern, part in zip((1, 3), given["parts"], strict=True):
        assert np.array_equal(part, trial.data.X[trial.split.learn[pattern]] * 0.5 + 0.5)


def test_a_pattern_with_itself_is_learnt_once_in_one_place_and_by_both_clients_apart(monkeypatch):
    for method, parts in (("BP-NN3", 1), ("BP-NN5", 1), ("BP-NN3-FL", 2)):
        (given,) = trainings(monkeypatch, trial_of(method), method, (2, 2))
        assert len(given["parts"]) == parts


def test_every_pair_trial_and_method_starts_back_propagation_by_its_own_seed(monkeypatch):
    seeds = [
        given["seed"]
        for method in BASELINES
        for trial in (0, 1)
        for given in trainings(monkeypatch, trial_of(method, trial), method, (0, 1), (0, 2), (1, 2))
    ]
    assert len(set(seeds)) == len(seeds) == 18


def test_back_propagation_is_asked_what_the_others_are_asked(monkeypatch):
    backprop = pytest.importorskip("edgemerge.paper.backprop")
    trial, asked = trial_of("BP-NN3"), []
    monkeypatch.setattr(backprop, "train_pair", lambda *_: None)
    losses = noting(asked, lambda _, X: np.arange(len(X)))
    monkeypatch.setattr(backprop, "losses", losses)
    backprop.baseline_rows(trial, "BP-NN3", 1, 3)
    assert np.array_equal(asked[0][1], trial.data.X[trial.eval_set(1, 3).rows] * 0.5 + 0.5)


def test_settings_are_those_of_the_papers_table():
    layers, networks = dict(LAYERS), dict(NETWORKS)
    assert layers == {
        "driving": Layer("sigmoid", 16),
        "har": Layer("identity", 128),
        "mnist": Layer("identity", 64),
    }
    assert networks == {
        "har": {"BP-NN3": Network((256,), 8, 20), "BP-NN5": Network((128, 256, 128), 8, 20)},
        "mnist": {"BP-NN3": Network((64,), 32, 5), "BP-NN5": Network((64, 32, 64), 8, 10)},
    }
    assert (hyperparameters.ROUNDS, hyperparameters.LEARNING_RATE, TRAIN_SHARE, ANOMALY_RATIO) == (
        50,
        0.001,
        0.8,
        0.1,
    )
    assert (plan.Plan(SCOPE).trials, plan.Plan(SCOPE).baseline_trials) == (50, 3)


def test_banks_of_the_same_n_have_the_papers_layer_and_one_pattern_and_reject_nothing():
    data = SCOPE.dataset("har")
    for name, exchange in hyperparameters.SAME_SIZE_BANKS.items():
        assert exchange.layer == LAYERS[name]
        bank = exchange.bank(exchange.layer.projection(data, 1))
        assert (bank.max_patterns, bank.reject_above) == (1, None)


def test_a_layer_has_the_range_of_the_data_unless_it_says_another():
    data = toy()
    for layer, low in (
        (Layer("sigmoid", 4), 0.0),
        (Layer("sigmoid", 4, low=-1.0, width=0.5), -1.0),
    ):
        found = layer.projection(data, 3)
        assert (found.low, found.high, found.seed, found.n_hidden) == (low, 1.0, 3, 4)
        assert layer.width in (None, found.width)


def test_a_quick_run_takes_a_part_of_each_pattern_and_a_full_one_takes_all(monkeypatch):
    data = toy(samples=500)
    monkeypatch.setattr("edgemerge.paper.data.load", lambda *_: data)
    sizes = []
    for quick in (True, False):
        plan._dataset.cache_clear()
        found = Scope(Path("of a test"), quick=quick).dataset("har")
        sizes.append({len(found.rows(pattern)) for pattern in found.patterns})
    plan._dataset.cache_clear()
    assert sizes == [{400}, {500}]


def test_fewer_trials_than_a_quick_run_has_stay_fewer():
    few = Plan(Scope(Path(), quick=True), trials=2, baseline_trials=0)
    assert (len(few.merging), len(few.training)) == (2, 0)


def test_a_data_set_that_is_not_there_is_left_out_of_the_run(monkeypatch):
    monkeypatch.setattr(SCOPE, "has", lambda name: name == "har", raising=False)
    seen = []
    spread = noting(seen, lambda *_: [])
    auc.run(Plan(SCOPE, trials=1, baseline_trials=1, spread=spread))
    jobs = seen[0][1]
    assert {job.dataset for job in jobs} == {"har"}
    pairs = {job.part for job in jobs if job.method == "BP-NN3"}
    assert len(pairs) == 21
    assert "3-3" in pairs


def test_trials_of_back_propagation_are_counted_by_themselves():
    jobs = auc.jobs(Plan(Scope(Path()), trials=5, baseline_trials=2), "har")
    assert {job.trial for job in jobs if job.method in BASELINES} == {0, 1}
    assert {job.trial for job in jobs if job.method not in BASELINES} == set(range(5))
