"""scikit-learn's own checks of its estimators."""

from unittest import SkipTest

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from edgemerge.sklearn import OSELMClassifier, OSELMDetector, OSELMRegressor

pytestmark = pytest.mark.slow


@parametrize_with_checks(
    [OSELMDetector(), OSELMDetector(robust=False), OSELMRegressor(), OSELMClassifier()]
)
def test_scikit_learns_own_checks_pass_and_none_is_skipped(estimator, check):
    try:
        check(estimator)
    except SkipTest as skipped:
        pytest.fail(f"{skipped}: install pandas, as `make setup` does")
