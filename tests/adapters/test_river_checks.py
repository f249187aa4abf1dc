"""River's own checks of its detectors, over samples that are made here."""

import pytest
from river import checks, datasets

from edgemerge.river import OSELMDetector
from tests.adapters.cards import CreditCard

pytestmark = pytest.mark.slow


def own_checks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets, "CreditCard", CreditCard)
        return list(checks.yield_checks(OSELMDetector()))


@pytest.mark.parametrize("check", own_checks(), ids=lambda check: check.__name__)
def test_rivers_own_checks_pass(check):
    check(OSELMDetector())
