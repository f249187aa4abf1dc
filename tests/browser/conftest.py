"""A browser for all tests of one process, and visitors whose consoles must stay silent."""

import pytest
from playwright.sync_api import expect

from tests.browser.visitor import Visitor
from tests.browser.workshop import workshop
from tests.services.chromium import chromium

expect.set_options(timeout=30_000)  # what must come soon says so itself


@pytest.fixture(scope="module")  # its event loop must not outlive the tests that need it
def browser():
    with chromium() as started:
        yield started


@pytest.fixture
def shop(tmp_path):
    with workshop(f"sqlite:///{tmp_path / 'fleets.db'}") as made:
        yield made


@pytest.fixture
def visit(browser, shop):
    """Give a function that opens a browser at the workshop; all of them close at the end."""
    visitors = []

    def visiting(**settings):
        visitors.append(Visitor.at(browser, shop.here.url, **settings))
        return visitors[-1]

    yield visiting
    for visitor in visitors:
        visitor.context.close()
