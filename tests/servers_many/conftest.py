"""Whoever starts servers, for the tests of several servers."""

import pytest

from tests.servers_many.workers import Nest


@pytest.fixture(scope="module")
def nest():
    """Starts servers fast."""
    made = Nest()
    yield made
    made.close()
