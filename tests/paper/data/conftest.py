"""For tests that ask a server on this machine."""

import pytest

from edgemerge.paper.data.download import RetryPolicy


@pytest.fixture
def pauses(monkeypatch):
    """How long was waited between tries; nobody really waits, and no proxy is asked."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return []


@pytest.fixture
def retry(pauses):
    return RetryPolicy(timeout_s=5.0, delay_s=2.0, pause=pauses.append)
