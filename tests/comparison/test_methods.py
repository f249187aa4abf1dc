"""Every method of the comparison on a tiny fleet: what it sends, and that it tells odd rows."""

import numpy as np
import pytest

pytest.importorskip("sklearn")

from edgemerge import Bank, Contribution, Detector, Stats
from edgemerge.comparison import methods
from edgemerge.comparison.datasets import Fleet
from edgemerge.comparison.methods import (
    ALONE,
    BEST,
    FLEET_BANKS,
    GAUSSIAN,
    KNN,
    LOF,
    METHODS,
    PAIR_BANKS,
    PAPER,
    PCA,
    RIVALS,
    SAME_SIZE,
    SVM,
    limit_for,
    measure,
)

BANK = {"activation": "cosine", "n_hidden": 32, "width": 1.0, "parts": 2, "sift": False}
BANK |= {"form": "exact"}
PARAMS = {BEST: BANK, ALONE: BANK, GAUSSIAN: {"ridge": 1e-3}, PCA: {"share": 0.9}}
PARAMS |= {KNN: {"k": 5}, LOF: {"k": 20}, SVM: {"nu": 0.1}}
ROWS = 120  # of each device
N_INPUTS = 6


def tiny(devices: int = 2, seed: int = 0) -> Fleet:
    """Two lines in six dimensions, one for each of the devices in turn; odd rows lie off both."""
    rng = np.random.default_rng(seed)
    axes = rng.normal(size=(2, N_INPUTS))

    def line(i, count):
        along = rng.uniform(-0.15, 0.15, (count, 1)) * axes[i % 2]
        return 0.5 + along + rng.normal(0.0, 0.01, (count, N_INPUTS))

    learnt = tuple(line(i, ROWS) for i in range(devices))
    held = tuple(line(i, 60) for i in range(devices))
    normal = np.vstack([line(0, 40), line(1, 40)])
    odd = 0.5 + rng.uniform(-0.25, 0.25, (40, N_INPUTS))
    return Fleet("tiny", learnt, held, np.vstack([normal, odd]), np.arange(120) >= 80)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_tells_odd_rows_from_normal_ones(method):
    row = measure(METHODS[method], tiny(), 0, PARAMS.get(method, {}))
    assert row["auc"] > (0.6 if method == ALONE else 0.85)
    assert 0.0 <= row["false_alarms"] <= 1.0
    assert row["detected"] > 0.0
    assert row["seconds"] >= 0.0
    assert (row["bytes"] == 0) == (method == ALONE)


def test_what_alone_does_not_know_is_an_alarm_and_merging_ends_it():
    alone = measure(METHODS[ALONE], tiny(), 0, BANK)
    merged = measure(METHODS[BEST], tiny(), 0, BANK)
    assert alone["false_alarms"] > 0.3
    assert merged["false_alarms"] < 0.05
    assert merged["auc"] > alone["auc"]


def test_the_papers_merge_is_that_of_all_rows_in_one_place():
    fleet = tiny(devices=3)
    views, _ = methods.paper_merge(fleet, 5)
    central = Detector(methods.paper_layer(fleet, 5))
    central.learn(fleet.rows)
    assert views[0].scores == pytest.approx(np.asarray(central.loss(fleet.test)), rel=1e-6)


def test_ours_scores_what_was_adopted_and_nothing_else(monkeypatch):
    fleet, seen = tiny(), []

    def adopt(bank, contributions):
        seen.extend(contributions)
        real(bank, contributions)

    real = Bank.adopt
    monkeypatch.setattr(Bank, "adopt", adopt)
    monkeypatch.setattr(Bank, "learn", lambda *_: pytest.fail("the joining bank must not learn"))
    (view,), sent = methods.ours(fleet, 0, **BANK)
    assert all(isinstance(each, Contribution) for each in seen)
    assert {each.device for each in seen} == {"device-0", "device-1"}
    assert len(seen) == 4
    assert sum(each.stats.count for each in seen) == 2 * ROWS
    again = Bank(methods.agreed_layer(fleet, 0, BANK), max_patterns=methods.MAX_PATTERNS)
    real(again, seen)
    assert np.array_equal(view.scores, np.asarray(again.score(fleet.test)))
    assert sent > 0.0


def test_the_sums_that_are_sent_are_those_of_the_rows():
    fleet = tiny()
    layer = methods.agreed_layer(fleet, 0, BANK)
    shared = methods.share_parts(layer, fleet.learnt[0], "device-0", 0, BANK)
    total = Stats.total(layer, [each.stats for each in shared])
    assert total == Stats.of(layer, fleet.learnt[0])


def test_bytes_are_those_of_what_was_encoded():
    fleet = tiny(devices=4)
    layer = methods.agreed_layer(fleet, 0, BANK)
    exact = [methods.share_parts(layer, rows, "d", 0, BANK) for rows in fleet.learnt]
    lengths = [len(data) for each in exact for data in methods.encoded(each, "exact")]
    found = methods.ours(fleet, 0, **BANK)[1]
    assert found == pytest.approx(sum(lengths) / 4, rel=0.01)  # names of devices differ in length
    assert methods.ours(fleet, 0, **{**BANK, "form": "root16"})[1] < 0.5 * found


def test_sums_of_gaussians_are_mean_and_covariance_of_all_rows():
    fleet = tiny(devices=3)
    mean, covariance, sent = methods.summed_covariance(fleet)
    assert mean == pytest.approx(fleet.rows.mean(0))
    assert covariance == pytest.approx(np.cov(fleet.rows, rowvar=False, bias=True), abs=1e-12)
    assert sent == 8 * (1 + 6 + 21)


def test_pca_leaves_out_the_share_of_variance_that_was_asked_for():
    fleet = tiny()
    (view,), _ = methods.federated_pca(fleet, 0, share=0.5)
    mean, covariance, _ = methods.summed_covariance(fleet)
    axis = np.linalg.eigh(covariance)[1][:, -1]
    far = fleet.test - mean
    expected = ((far - np.outer(far @ axis, axis)) ** 2).sum(1)
    assert view.scores == pytest.approx(expected)


def test_sifting_leaves_rows_out():
    fleet = tiny()
    layer = methods.agreed_layer(fleet, 0, BANK)
    sifted = methods.share_parts(layer, fleet.learnt[0], "d", 0, {**BANK, "sift": True})
    assert ROWS * 0.9 <= sum(each.stats.count for each in sifted) < ROWS * 0.96


def test_a_device_with_few_rows_makes_few_parts():
    fleet = tiny()
    layer = methods.agreed_layer(fleet, 0, BANK)
    asked = {**BANK, "parts": 8}
    assert len(methods.share_parts(layer, fleet.learnt[0][:40], "d", 0, asked)) == 1
    assert len(methods.share_parts(layer, fleet.learnt[0], "d", 0, asked)) == 3


def test_width_is_a_multiple_of_what_the_data_suggest():
    fleet = tiny()
    usual = methods.agreed_layer(fleet, 0, BANK)
    wide = methods.agreed_layer(fleet, 0, {**BANK, "width": 2.0})
    assert wide.width == 2.0 * usual.width


def test_a_limit_keeps_its_promise_on_average():
    rng = np.random.default_rng(0)
    rates = [
        float((rng.normal(size=1000) > limit_for(rng.normal(size=199))).mean()) for _ in range(200)
    ]
    assert np.mean(rates) == pytest.approx(0.01, abs=0.002)


def test_too_few_rows_give_their_largest_score_as_the_limit():
    assert limit_for(np.array([3.0, 1.0, 2.0])) == 3.0


def test_every_candidate_can_be_run():
    fleet = tiny()
    tried = {BEST: [PAIR_BANKS[0], *FLEET_BANKS[:2]], **RIVALS}
    for method, params in ((m, p) for m, found in tried.items() for p in found):
        assert measure(METHODS[method], fleet, 0, params)["auc"] > 0.4
    assert {PAPER, SAME_SIZE}.isdisjoint(tried)
