"""Databases for the tests of the server: each test has an empty one."""

import pytest

from edgemerge.server.db.migrations import connect


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def database_url(request, tmp_path):
    """The address of an empty database, of each kind in turn."""
    if request.param == "postgres":
        return request.getfixturevalue("fresh_postgres_url")
    return f"sqlite:///{tmp_path / 'fleets.db'}"


@pytest.fixture
def database(database_url):
    """An empty database with its tables, of each kind in turn."""
    opened = connect(database_url)
    yield opened
    opened.close()
