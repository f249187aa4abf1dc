"""scikit-learn's own checks of its estimators."""

from unittest import SkipTest

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from edgemerge.sklearn import (
    OSELMClassifier,
    OSELMDetector,
    OSELMRegressor,
    SpectrumFeatures,
    WindowFeatures,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*scores are rough with fewer rows than hidden values"),
]


@parametrize_with_checks(
    [OSELMDetector(), OSELMDetector(robust=False), OSELMRegressor(), OSELMClassifier()]
)
def test_scikit_learns_own_checks_pass_and_none_is_skipped(estimator, check):
    try:
        check(estimator)
    except SkipTest as skipped:
        pytest.fail(f"{skipped}: install pandas, as `make setup` does")


ONE_EACH = "it expects one row out for each row in; a window makes one of many"
WINDOW_CHECKS = {
    "check_transformer_data_not_an_array": ONE_EACH,
    "check_transformer_general": ONE_EACH,
    "check_methods_sample_order_invariance": "the order of readings is what a window is about",
    "check_methods_subset_invariance": "one reading alone is no window",
}


@parametrize_with_checks(
    [
        WindowFeatures(length=2),
        WindowFeatures(length=3, step=1),
        SpectrumFeatures(length=4, bands=2),
    ],
    expected_failed_checks=lambda _estimator: WINDOW_CHECKS,
)
def test_transformers_pass_all_checks_but_those_of_one_row_for_each_row(estimator, check):
    check(estimator)
