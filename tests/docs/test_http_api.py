"""The page about HTTP says of every route what the server does."""

import sys
from http.client import HTTPConnection
from importlib import import_module
from pathlib import Path

import pytest

from edgemerge import Projection
from edgemerge.server.main import create_app
from tests.server.test_page_access import PAGES
from tests.services.hub import running

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "_ext"))
http_api = import_module("http_api")

ROUTES = list(http_api.routes())
NAMES = {
    "fleet": "pumps",
    "device": "pump-3",
    "incarnation": "0",
    "pattern": "idle",
    "number": "1",
    "version": "1",
    "receiver": "phone",
    "account": "eve",
    "epoch": "1",
    "cohort": "1",
}
PEOPLE = {"a viewer": 0, "an operator": 1, "an admin": 2}  # by how much they may


@pytest.fixture
def asking(tmp_path):
    """Ask a server with two fleets, as a person, a device or nobody; give the status."""
    with running(str(tmp_path / "server.sqlite")) as server:
        tokens = {"an admin": server.token} | {
            f"{article} {role}": server.operator.add_account(role, role)["token"]
            for article, role in (("a", "viewer"), ("an", "operator"))
        }
        for fleet in ("pumps", "tanks"):
            server.operator.create_fleet(fleet, Projection(n_inputs=2, n_hidden=3))
            tokens[fleet] = server.enrol(fleet, "one")

        def ask(method, address, fleet=None):
            there = HTTPConnection(server.url.removeprefix("http://"), timeout=30)
            headers = {"Authorization": f"Bearer {tokens[fleet]}"} if fleet else {}
            try:
                there.request(method, address, b'{"device": "pump-3"}', headers)
                return there.getresponse().status
            finally:
                there.close()

        yield ask


@pytest.mark.slow
@pytest.mark.parametrize(("method", "route"), ROUTES, ids=lambda each: getattr(each, "path", each))
def test_who_may_call_is_who_the_server_lets_through(asking, method, route):
    address, words = route.path.format(**NAMES), http_api.who(route)
    least = next((who for who in PEOPLE if words.startswith(who)), None)
    strangers = words in PEOPLE or words.endswith(("a device of the fleet", "itself"))
    assert (asking(method, address) != 401) == words.startswith("anybody")
    assert (asking(method, address, "pumps") == 401) == words.startswith(
        "whoever has an invitation"
    )
    assert (asking(method, address, "tanks") == 403) == strangers
    if words in PEOPLE or words.endswith("itself"):
        assert asking(method, address, "pumps") == 403
    for who, rank in PEOPLE.items():
        refused = words == "the device itself" or (least is not None and rank < PEOPLE[least])
        assert (asking(method, address, who) == 403) == refused, who


@pytest.mark.slow
def test_who_sees_a_page_is_as_the_server_decides():
    decided = {"everybody": "anybody, without a sign-in", "wall": "whoever has a wall link"}
    decided |= {"viewer": "a viewer", "operator": "an operator", "admin": "an admin"}
    found = {
        f"{method} {route.path}": http_api.who_sees(route) for method, route in http_api.pages()
    }
    assert set(found) == set(PAGES)
    for page, least in PAGES.items():
        assert found[page].startswith(decided[least]), page


@pytest.mark.slow
def test_every_route_that_the_server_describes_is_on_the_page():
    told = create_app(None).openapi()["paths"]
    described = {(method.upper(), path) for path, found in told.items() for method in found}
    assert {(method, route.path) for method, route in ROUTES} == described


@pytest.mark.slow
def test_what_a_route_takes_and_answers_is_said():
    told = create_app(None).openapi()
    create_fleet = told["paths"]["/fleets/{fleet}"]["put"]
    assert "`?min_devices=`: a whole number" in http_api.taken(create_fleet)
    flag = "`?no_forgetting=`: `true` or `false`; false if not given"
    assert flag in http_api.taken(create_fleet)
    assert "`?least=`: the former name of `min_devices`" in http_api.taken(create_fleet)
    form = told["paths"]["/fleets/{fleet}/cohorts"]["post"]
    assert "`least` in JSON: the former name of `min_devices`" in http_api.taken(form)
    lines = list(http_api.answered(create_fleet, told["components"]["schemas"]))
    assert lines[0].startswith("`200`: The same is there already. JSON: `fleet`, `reads`")
    problems = "`400`, `401`, `403`, `404`, `409`, `413`, `422`, `503`, `507`"
    assert lines[-1] == f"Problems: {problems}."
