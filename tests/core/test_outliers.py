"""Outliers among the first samples: which are left out, by distances of ranks and along axes."""

import numpy as np
import pytest

from edgemerge import Bank, Projection
from edgemerge.core import patterns
from edgemerge.core.patterns import inliers, outlyingness
from edgemerge.wire.state import from_bytes, to_bytes


def inliers_by_axes(X):
    return outlyingness(X) <= 1.0


def correlated(rows=500, faults=25, seed=0):
    """Rows of six inputs with two causes, and scattered faults that break their relation."""
    rng = np.random.default_rng(seed)
    causes = rng.normal(size=(rows, 2))
    X = causes @ rng.normal(size=(2, 6)) + 0.02 * rng.normal(size=(rows, 6))
    fault = np.zeros(rows, np.bool_)
    fault[rng.permutation(rows)[:faults]] = True
    X[fault] += np.array([0.4, -0.4, 0.0, 0.4, 0.0, -0.4])
    return X, fault


@pytest.mark.parametrize("seed", range(5))
def test_faults_that_no_input_alone_shows_are_far_out_along_an_axis(seed):
    X, fault = correlated(seed=seed)
    assert not (inliers_by_axes(X) & fault).any()
    assert (inliers(X) & fault).any()
    assert inliers_by_axes(X).sum() == 460
    assert outlyingness(X)[fault].min() > 4.0
    assert outlyingness(X)[~fault].max() < 4.0


def test_one_wild_value_does_not_hide_others():
    X, fault = correlated()
    X[7] = 1e5
    kept = inliers_by_axes(X)
    assert not kept[7]
    assert not (kept & fault).any()


def test_constant_and_single_inputs_and_single_rows_can_be_sifted():
    X = np.random.default_rng(0).normal(size=(100, 1))
    assert inliers_by_axes(X).sum() == 92
    assert inliers_by_axes(np.hstack([X, np.ones((100, 1))])).sum() == 92
    assert inliers_by_axes(np.ones((100, 3))).all()
    assert inliers_by_axes(X[:1]).tolist() == [True]


def test_with_very_many_inputs_ranks_have_to_do(monkeypatch):
    monkeypatch.setattr(patterns, "MAX_AXES", 5)
    X, _ = correlated()
    assert np.array_equal(inliers_by_axes(X), inliers(X))


def test_outliers_that_are_alike_do_not_vouch_for_each_other():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 6))
    X[::13] = 2.0 + 0.05 * rng.normal(size=(39, 6))  # denser than the rest
    assert not inliers(X)[::13].any()
    assert inliers(X).sum() == 460


@pytest.mark.parametrize("rows", [40, 500])
def test_one_wild_value_is_enough_to_be_left_out(rows):
    X = np.random.default_rng(0).normal(size=(rows, 30))
    X[7] = 0.0
    assert inliers(X)[7]
    X[7, 3] = -1e5
    assert not inliers(X)[7]


def test_units_do_not_tell_which_samples_are_outliers():
    X = np.random.default_rng(0).normal(size=(200, 4))
    assert np.array_equal(inliers(X * [1e-6, 1.0, -8.0, 1e6] + 5.0), inliers(X))


def test_a_weight_of_two_is_two_samples_in_any_order():
    rng = np.random.default_rng(0)
    X, times = rng.normal(size=(1500, 3)).round(2), rng.integers(0, 3, 1500)
    kept, order = inliers(X, times.astype(float)), rng.permutation(times.sum())
    repeated = np.repeat(X, times, axis=0)[order]
    assert np.array_equal(inliers(repeated), np.repeat(kept, times)[order])


LATE = Projection(n_inputs=5, n_hidden=64, activation="cosine", low=-4.0, high=4.0, width=0.5)


def dirty_later(rows=350, first=100, seed=0):
    """Rows with outliers, all alike, in every twelfth place after the first ones."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 5))
    X[first::12] = 2.5 + 0.1 * rng.normal(size=(len(X[first::12]), 5))
    return X, 2.5 + 0.1 * rng.normal(size=(50, 5))


def test_a_bank_scores_without_outliers_that_came_after_it_was_ready():
    X, more = dirty_later()
    cautious, trusting = Bank(LATE), Bank(LATE, reject_above=None)
    for bank in (cautious, trusting):
        bank.learn(X)
    assert cautious.patterns.settled
    assert not cautious.patterns.sifted
    assert cautious.score(more).min() > 1.5 * trusting.score(more).max()


def test_a_bank_leaves_out_one_share_of_its_first_samples():
    bank = Bank(LATE, reject_above=1e9, max_patterns=1)
    bank.learn(np.random.default_rng(0).normal(size=(480, 5)))
    assert bank.patterns.sifted
    assert bank.rejected == pytest.approx(0.08 * 6 * 64, abs=3)  # of 6N samples, in two rounds


def test_a_saved_bank_scores_without_the_same_outliers():
    X, more = dirty_later(rows=333)  # between two looks for outliers
    bank = Bank(LATE)
    for i in range(0, len(X), 40):
        bank.learn(X[i : i + 40])
        bank.score(more)
    assert np.array_equal(from_bytes(to_bytes(bank)).score(more), bank.score(more))


def test_a_bank_does_not_look_for_outliers_with_every_block(monkeypatch):
    looks, look = [], patterns.inliers

    def counted(X, **settings):
        looks.append(len(X))
        return look(X, **settings)

    monkeypatch.setattr(patterns, "inliers", counted)
    X, more = dirty_later()
    bank = Bank(LATE)
    for i in range(0, len(X), 32):
        bank.learn(X[i : i + 32])
        bank.score(more)
    assert max(looks) == 256
    assert len(looks) <= 7
