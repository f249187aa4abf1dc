"""Edges of projections, sums, ledgers, readouts and ranks."""

import numpy as np
import pytest

from edgemerge import Contribution, Detector, Ledger, Projection, Stats
from edgemerge.core.errors import CapacityError, RidgeWarning, SampleError, SettingError, SolveError
from edgemerge.core.readout import Readout, ridge_for

SHARED = Projection(n_inputs=6, n_hidden=12, seed=3)


def test_one_far_sample_is_taken_in_as_in_a_row_of_many():
    shared = Projection(n_inputs=1, low=1000.0, high=1001.0)
    for v in np.linspace(800.0, 1300.0, 501):
        assert np.array_equal(shared.grid.one([v]), shared.grid.rows([[v]])[0])


def test_a_total_past_the_exact_range_is_refused():
    shared = Projection(n_inputs=2, n_hidden=3, seed=1)
    half = Stats.of(shared, np.ones((1, 2))) * (2.0**52 * shared.quantum)
    ledger = Ledger(shared)
    for device in "ABC":
        ledger.put(Contribution(device, half, 1))
    with pytest.raises(CapacityError, match="up to which sums are exact"):
        ledger.total()


def test_sums_of_other_projections_have_other_digests():
    one, two = (Stats.empty(Projection(n_inputs=2, n_hidden=3, seed=seed)) for seed in (1, 2))
    assert one.digest != two.digest


def test_without_a_ridge_dependent_hidden_values_are_an_error():
    H = np.array([[1.0, 1.0], [1.0, 1.0 + 2.0**-30]])
    U = H.T @ H
    with pytest.raises(SolveError, match="or give a ridge above 0"):
        Readout.solve(U + np.diag([0.0, 1e-16]), H.T, 0.0)


def test_the_ridge_is_raised_a_thousandfold_at_most():
    U = np.diag([1.0, -5e-4])
    with pytest.warns(RidgeWarning, match="raised to 0.001"):
        assert Readout.solve(U, np.eye(2), 1e-6).ridge == pytest.approx(1e-3)
    with pytest.raises(SolveError, match="does not determine"):
        Readout.solve(np.diag([1.0, -5e-3]), np.eye(2), 1e-6)


def test_the_ridge_changes_only_when_what_was_seen_doubles():
    shared = Projection(n_inputs=2, n_hidden=4)
    found = {ridge_for(shared, trace) for trace in np.linspace(4.0, 64.0, 200)}
    assert len(found) == 5
    assert ridge_for(shared, 40.0) == 1e-2 * 16.0


def test_bits3():
    with pytest.raises(SettingError, match="expected 4 to 16"):
        Projection(n_inputs=2, grid_bits=3)


def test_both_tails_count_alike():
    from edgemerge.core.patterns import rarity

    X = np.random.default_rng(0).integers(0, 6, (50, 3)).astype(float)
    assert rarity(X, np.ones(50)) == pytest.approx(rarity(-X, np.ones(50)))


def test_a_detector_without_a_ridge_doubts_its_factor_too():
    from edgemerge.core.readout import ridge_cholesky

    H = np.array([[1.0, 1.0], [1.0, 1.0 + 2.0**-30]])
    with pytest.raises(SolveError, match="or give a ridge above 0"):
        ridge_cholesky(H.T @ H + np.diag([0.0, 1e-16]), 0.0)


def test_the_share_above_the_limit_is_the_one_asked_for():
    from edgemerge.core.patterns import upper_quantile

    values = np.arange(100.0)
    assert (values > upper_quantile(values, np.ones(100), 0.08)).sum() == 8


def test_dropping_a_device_spares_a_pattern_of_that_name():
    ledger = Ledger(SHARED)
    for device, pattern in (("A", "normal"), ("B", "A")):
        ledger.put(Contribution(device, Stats.empty(SHARED), 1, pattern))
    ledger.drop("A")
    assert ledger.devices == ["B"]


def test_infinite_ridges_and_targets_are_refused():
    with pytest.raises(SettingError, match="expected 0 or more, or None"):
        Detector(SHARED, ridge=np.inf)
    with pytest.raises(SampleError, match="expected 1 rows of finite"):
        Stats.of(SHARED, np.zeros((1, 6)), T=[[np.nan]])
