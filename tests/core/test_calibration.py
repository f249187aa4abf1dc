"""A promised limit for single scores: which scores count, and what is promised of how many."""

import numpy as np
import pytest

from edgemerge import Detector, Projection, Stats
from edgemerge.core.errors import SettingError
from edgemerge.core.limit import (
    FIRST_GENERATION,
    HOLDOUT_BLOCKS,
    MAX_GENERATION,
    Calibration,
    must_be_rate,
    scores_without_blocks,
)

BIN = 2.0 ** (1 / 32) - 1.0  # width of a bin


def counted(*parts, rate=0.05):
    found = Calibration()
    for part in parts:
        found.count(part, rate)
    return found


def test_the_limit_is_the_conformal_quantile():
    scores = np.arange(1.0, 1000.0)
    assert counted(scores).limit(0.05) == pytest.approx(950.0, rel=BIN)
    assert counted(scores).limit(0.001) == pytest.approx(999.0, rel=BIN)


@pytest.mark.parametrize(("highest", "limit"), [(2.0, 4.0), (5.0, 5.0), (90.0, 6.0)])
def test_without_enough_scores_the_limit_is_above_them_from_four_to_six(highest, limit):
    assert counted([highest] * 18).limit(0.05) == pytest.approx(limit, rel=BIN)
    assert counted([highest] * 19).limit(0.05) == pytest.approx(highest, rel=BIN)
    assert Calibration().limit(0.05) == 4.0


@pytest.mark.slow
def test_the_newest_half_counts_at_least_and_the_first_scores_are_let_go():
    found = Calibration()
    for i in range(4000):
        found.count(1000.0 if i < 500 else 1.0, 0.05)
        counts = (found.older + found.newer).samples
        assert counts >= min((i + 1) / 2, MAX_GENERATION / 0.05)
    assert found.limit(0.05) == pytest.approx(1.0, rel=BIN)
    assert counts <= 2 * MAX_GENERATION / 0.05


def test_one_call_is_one_generation_and_calls_add():
    many = counted(np.ones(10 * FIRST_GENERATION))
    assert many.older.samples == 0
    many.count(np.ones(5), 0.05)
    assert (many.older.samples, many.newer.samples) == (10 * FIRST_GENERATION, 5)
    both = many + counted(np.ones(7))
    assert (both.older + both.newer).samples == 10 * FIRST_GENERATION + 12


def test_a_weight_is_so_many_scores_and_fractions_add_up():
    scores = np.linspace(1.0, 9.0, 60)
    weights = np.arange(60.0) % 4
    weighted, repeated = Calibration(), counted(scores.repeat(weights.astype(int)))
    weighted.count(scores, 0.05, weights)
    assert np.array_equal(weighted.newer.held, repeated.newer.held)
    thirds = Calibration()
    thirds.count(scores, 0.05, np.full(60, 1 / 3))
    assert thirds.newer.samples == 20


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, float("nan")])
def test_a_rate_that_cannot_be_promised_is_refused(rate):
    with pytest.raises(SettingError, match="expected a rate between 0 and 1"):
        must_be_rate(rate)


def test_rescaled_counts_give_a_rescaled_limit_and_small_factors_add_up():
    found = counted(np.linspace(1.0, 9.0, 500), np.linspace(1.0, 9.0, 500))
    before, total = found.limit(0.05), (found.older + found.newer).samples
    found.rescale(0.5)
    assert found.limit(0.05) == pytest.approx(before / 2.0)
    for _ in range(100):
        found.rescale(2.0**0.01)
    assert found.limit(0.05) == pytest.approx(before, rel=BIN)
    for factor in (1e-30, 1e60):
        found.rescale(factor)
        assert (found.older + found.newer).held.sum() == total


@pytest.mark.parametrize("adopted", [0, 200])
def test_a_row_is_scored_without_its_block_and_the_two_beside_it(adopted):
    shared = Projection(n_inputs=3, n_hidden=6, seed=7)
    rng = np.random.default_rng(0)
    rows = shared.to_grid(rng.normal(0.0, 0.3, (16 * 10, 3)))
    learnt = rng.random(len(rows)) < 0.8
    detector = Detector(shared)
    detector.learn(rng.normal(0.0, 0.3, (5, 3)))
    detector.adopt(Stats.of(shared, rng.normal(0.0, 0.3, (adopted, 3))))
    found = scores_without_blocks(detector, rows, learnt)
    for i in range(0, len(rows), 7):
        block = np.arange(len(rows)) // (len(rows) // HOLDOUT_BLOCKS)
        others = rows[learnt & (np.abs(block - block[i]) > 1)]
        slow = detector.with_own(detector.own + Stats.of(shared, others))
        assert found[i] == pytest.approx(slow.score(rows[i]), rel=1e-9)


def test_rows_that_nothing_else_can_score_are_taken_as_usual():
    shared = Projection(n_inputs=3, n_hidden=6, seed=7)
    found = scores_without_blocks(Detector(shared), np.ones((8, 3)), np.ones(8, np.bool_))
    assert (found == 1.0).all()
