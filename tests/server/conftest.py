"""Databases and services for the tests of the server: each test has empty ones."""

import pytest

from edgemerge.server.db.migrations import connect
from edgemerge.server.main import create_app
from tests.server.visiting import Visitor
from tests.server.world import World


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


@pytest.fixture
def world(tmp_path):
    """A service on an empty file of SQLite; a module that wants more in it overrides this."""
    made = World(f"sqlite:///{tmp_path / 'fleets.db'}")
    yield made
    made.close()


@pytest.fixture
def any_world(database_url):
    """A service on an empty database, of each kind in turn."""
    made = World(database_url)
    yield made
    made.close()


@pytest.fixture
def operator(world):
    """A person at the pages of `world`, signed in as admin."""
    made = Visitor(create_app(world.service))
    assert made.sign_in(world.operator_token).status_code == 303
    return made
