"""A missing service fails CI and is named elsewhere."""

import pytest

from tests.services.missing import NO_DATA, SERVICES, left_out, reason, summary


def test_a_missing_service_is_named_and_left_out(monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"broker is missing.*left out: install it"):
        left_out("broker", "install it")


def test_a_missing_service_fails_ci(monkeypatch):
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="broker is missing"):
        left_out("broker", "install it")


def test_skipped_tests_are_counted_in_one_line_with_the_command_that_helps():
    database = [reason("PostgreSQL", SERVICES)] * 2
    told = [*database, f"Skipped: {reason('nginx', SERVICES)}", NO_DATA, "no systemd-analyze"]
    assert summary(told) == (
        "5 tests skipped: 2 without PostgreSQL, 1 without nginx (to run them: make services); "
        "1 without real data (to run them: edgemerge paper data --data FOLDER --fetch har --fetch "
        "mnist; export EDGEMERGE_DATA=FOLDER); 1 since no systemd-analyze"
    )
