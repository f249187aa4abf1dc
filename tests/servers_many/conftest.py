"""Databases, and whoever starts servers, for the tests of several servers."""

import pytest

from tests.servers_many.workers import Nest
from tests.services.postgres import (  # noqa: F401 - pytest finds fixtures by their names here
    fresh_postgres_url,
    postgres_server,
    postgres_url,
)


@pytest.fixture(scope="module")
def nest():
    """Starts servers fast."""
    made = Nest()
    yield made
    made.close()
