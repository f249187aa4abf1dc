"""A missing service fails CI and is named elsewhere."""

import pytest

from tests.services.missing import left_out


def test_a_missing_service_is_named_and_left_out(monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"broker is missing.*left out: install it"):
        left_out("broker", "install it")


def test_a_missing_service_fails_ci(monkeypatch):
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="broker is missing"):
        left_out("broker", "install it")
