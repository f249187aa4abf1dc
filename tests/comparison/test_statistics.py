"""Confidence intervals, paired tests and margins agree with scipy and with values by hand."""

import numpy as np
import pytest
from scipy import stats

from edgemerge.comparison.statistics import (
    Interval,
    holm,
    interval,
    non_inferior,
    paired_p_value,
)

EXACT = 1e-12  # the same formula in float64


def draws(seed: int, shift: float, count: int = 30) -> tuple[list[float], list[float]]:
    rng = np.random.default_rng(seed)
    theirs = rng.normal(0.9, 0.02, count)
    return (theirs + shift + rng.normal(0.0, 0.01, count)).tolist(), theirs.tolist()


def test_the_interval_is_that_of_scipy():
    values = draws(0, 0.0)[0]
    low, high = stats.t.interval(0.95, 29, np.mean(values), stats.sem(values))
    found = interval(values)
    assert found.mean - found.half == pytest.approx(low, abs=EXACT)
    assert found.mean + found.half == pytest.approx(high, abs=EXACT)


def test_a_single_value_has_no_spread():
    assert interval([0.5]) == Interval(0.5, 0.0, 1)


def test_the_interval_covers_the_true_mean_in_about_95_of_100_cases():
    rng = np.random.default_rng(0)
    found = [interval(rng.normal(0.3, 1.0, 10).tolist()) for _ in range(500)]
    covered = np.mean([abs(each.mean - 0.3) <= each.half for each in found])
    assert 0.92 <= covered <= 0.98


def test_the_paired_test_is_wilcoxons():
    ours, theirs = draws(1, 0.005)
    expected = stats.wilcoxon(ours, theirs).pvalue
    assert paired_p_value(ours, theirs) == pytest.approx(expected, abs=EXACT)


def test_equal_pairs_decide_nothing():
    assert paired_p_value([0.5, 0.6], [0.5, 0.6]) == 1.0


def test_five_pairs_that_agree_have_the_p_value_of_counting_signs():
    # of the 2⁵ ways to give five ranks a sign, two are as extreme
    assert paired_p_value([2.0, 3.0, 4.0, 5.0, 6.0], [1.0, 1.0, 1.0, 1.0, 1.0]) == 2 / 2**5


def test_holms_correction_is_that_of_a_worked_example():
    # Holm (1979): .01 × 4, .03 × 2 with .02 × 3 before it, .04 × 1 with .06 before it
    assert holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])


def test_holms_correction_never_exceeds_one_nor_falls_below_the_p_value():
    given = np.random.default_rng(2).random(20).tolist()
    found = holm(given)
    assert all(p <= corrected <= 1.0 for p, corrected in zip(given, found, strict=True))
    assert found[int(np.argmin(given))] == pytest.approx(min(1.0, 20 * min(given)))


def test_a_method_that_is_a_little_behind_is_not_inferior_by_a_wide_margin():
    ours, theirs = draws(3, -0.001)
    found = non_inferior(ours, theirs, 0.02)
    assert found.holds
    assert found.p_value < 0.025
    assert not non_inferior(ours, theirs, 0.001).holds


def test_the_margin_is_tested_like_a_one_sided_paired_t_test():
    ours, theirs = draws(4, -0.004)
    found = non_inferior(ours, theirs, 0.005)
    shifted = np.asarray(ours) + 0.005
    expected = stats.ttest_rel(shifted, theirs, alternative="greater").pvalue
    assert found.p_value == pytest.approx(expected, rel=1e-9)
    assert found.holds == (expected < 0.025)


def test_one_pair_tells_nothing_about_a_margin():
    assert non_inferior([0.5], [0.5], 0.1) is None
