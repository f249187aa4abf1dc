"""Outliers among the first samples: which are left out, by ranks of inputs and along axes."""

import numpy as np
import pytest

from edgemerge.core import patterns
from edgemerge.core.patterns import inliers, outlyingness


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
    assert (inliers(X) & fault).sum() > 15
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
