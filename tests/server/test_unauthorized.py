"""Every route against every caller who may not use it: refused, nothing changed, no secret told."""

import logging
import re

import pytest

from edgemerge.server.http import wall_path
from edgemerge.wire.codec import decode
from tests.server.callers import CALLERS, EVERYBODY, MEMBERS, ROUTES, STRANGERS, world
from tests.server.wire import ask, dump, head, line, note, push, status_on

REFUSED = {
    route: [who for who in CALLERS if who not in entry.who]
    for route, entry in ROUTES.items()
    if entry.who != EVERYBODY
}
TRICKS = (
    *("..", "%2e%2e", "%2E%2e%2f", "..;", "..%3b", ".", "%2e", "...", "%2f", "%5c..%5c", "a%2fb"),
    *("%00", "a%00b", "a%0a", "a%0d%0aX-Evil:%201", "%ff%fe", "%ed%a0%80", "%zz", "%", "%u002e"),
    *("%E2%80%AE", "%EF%BC%8E%EF%BC%8E", "a" * 300, "%41" * 300, "*", "'--", "~root", "%25252e"),
)
ADDRESSES = (
    "/fleets/{}",
    "/fleets/{}/total",
    "/fleets/{}/contributions/itself/0/normal",
    "/fleets/mine/devices/{}",
    "/fleets/mine/contributions/{}",
    "/fleets/mine/contributions/{}/0/normal",
    "/fleets/mine/contributions/itself/{}/normal",
)


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A world that nobody changes, as everything that is asked of it is refused."""
    with world(f"sqlite:///{tmp_path_factory.mktemp('strangers') / 'fleets.db'}") as made:
        yield made


@pytest.fixture
def mine(tmp_path):
    """A world of one's own."""
    with world(f"sqlite:///{tmp_path / 'fleets.db'}") as made:
        yield made


def routes_of(app) -> set[str]:
    paths = app.openapi()["paths"]
    return {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}


@pytest.mark.slow
def test_every_route_of_the_server_has_an_entry_in_the_table(here):
    assert routes_of(here.here.app) == set(ROUTES)


@pytest.mark.slow
@pytest.mark.parametrize("route", REFUSED)
def test_whoever_may_not_is_refused_and_changes_nothing(here, route):
    before = dump(here.here)
    enrolling = route == "POST /fleets/{fleet}/devices"  # every token but an invitation is nobody's
    for who in REFUSED[route]:
        answered = here.ask(route, who)
        stranger = who in STRANGERS or who == "an invitation" or enrolling
        assert answered.status == (401 if stranger else 403), (who, answered)
        assert b'"error"' in answered.body, who
        assert ("www-authenticate" in answered.headers) == stranger, who
    assert dump(here.here) == before


@pytest.mark.slow
@pytest.mark.parametrize("route", [route for route in REFUSED if "{fleet}" in route])
def test_a_refusal_does_not_tell_whether_a_fleet_is_there(here, route):
    for who in REFUSED[route]:
        if who not in MEMBERS:
            there, nowhere = (here.ask(route, who, fleet) for fleet in ("mine", "nowhere"))
            assert there.status == nowhere.status, who
            assert there.body.replace(b"mine", b"nowhere") == nowhere.body, who


@pytest.mark.slow
def test_whoever_may_is_not_refused(mine):
    for route, entry in ROUTES.items():
        for who in ("nobody",) if entry.who == EVERYBODY else entry.who:
            answered = mine.ask(route, who)
            if entry.masked:  # and this fleet is not
                assert answered.status in (404, 422), (route, who, answered)
                continue
            undone = route.startswith("DELETE")  # by the one before, perhaps
            expected = (200, 201, 204, *((404, 409) if undone else ()))
            assert answered.status in expected, (route, who, answered)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
@pytest.mark.parametrize("place", ADDRESSES)
@pytest.mark.parametrize("who", ["itself", "admin"])
def test_tricks_in_an_address_lead_nowhere(here, who, place, method):
    before = dump(here.here)
    body = ("Content-Length: 2", "Content-Type: application/octet-stream")
    for trick in TRICKS:
        with line(here.here) as opened:
            sent = head(method, place.format(trick), *body, token=here.tokens[who]) + b"{}"
            opened.sendall(sent)
            assert 400 <= status_on(opened) < 500, trick
    assert dump(here.here) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "target",
    [
        "http://127.0.0.1/fleets/mine",
        "http://elsewhere/fleets/mine",
        "//fleets/mine",
        "/fleets//mine",
        "/fleets/mine/",
        "/fleets/theirs/../mine",
        "/./fleets/mine",
        "fleets/mine",
        "*",
        "/fleets/mine%3Freads=totals",
        "/fleets/m\xefne",
        "/FLEETS/mine",
        "/fleets/mine\t/x",
        "",
    ],
)
@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_an_address_written_in_another_way_is_not_understood(here, method, target):
    before = dump(here.here)
    with line(here.here) as opened:
        opened.sendall(head(method, target, token=here.tokens["admin"]))
        assert 400 <= status_on(opened) < 500
    assert dump(here.here) == before


@pytest.mark.slow
def test_names_that_no_database_likes_are_refused_by_both(database_url):
    with world(database_url) as made:
        for pattern in TRICKS:
            path = f"/fleets/mine/contributions/itself/0/{pattern}"
            with line(made.here) as opened:
                opened.sendall(head("GET", path, token=made.tokens["itself"]))
                assert 400 <= status_on(opened) < 500, pattern


@pytest.mark.slow
def test_a_fleet_that_was_deleted_is_forgotten_even_if_one_of_that_name_is_made_again(mine):
    here = mine.here
    assert decode(ask(here, "GET", "/fleets/mine/total", token=here.token).body).total.count == 8
    hub = here.operator
    shared = hub.projection("mine")
    hub.delete_fleet("mine")
    hub.create_fleet("mine", shared)
    hub.close()
    again = {name: here.enrol("mine", name) for name in ("one", "two")}
    for name, token in again.items():  # as many changes as there were before
        assert push(here, token, note(name, rows=[[0.0, 0.0]])).status == 201
    told = decode(ask(here, "GET", "/fleets/mine/total", token=here.token).body)
    assert [origin.device for origin in told.origins] == ["one", "two"]
    assert told.total.count == 2


class Heard(logging.Handler):
    """Everything that is logged, with all that a record carries."""

    def __init__(self):
        super().__init__(logging.DEBUG)
        self.words = []

    def emit(self, record):
        self.words.append(f"{record.getMessage()} {record.__dict__}")


@pytest.fixture
def heard():
    """Whatever anybody logs, at the lowest level."""
    handler, names = Heard(), ("", "edgemerge", "uvicorn", "uvicorn.error", "asyncio")
    levels = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.DEBUG)
    logging.getLogger().addHandler(handler)
    yield handler.words
    logging.getLogger().removeHandler(handler)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@pytest.mark.slow
def test_no_token_is_logged_stored_or_told_to_anybody_else(heard, tmp_path):
    with world(f"sqlite:///{tmp_path / 'fleets.db'}") as made:
        told = [made.ask(route, who) for route, callers in REFUSED.items() for who in callers]
        lists = ("/fleets/mine", "/fleets/mine/devices", "/audit", "/status", "/metrics")
        pages = (*lists, "/accounts")
        told += [ask(made.here, "GET", page, token=made.here.token) for page in pages]
        wall = ask(made.here, "GET", wall_path(made.tokens["a wall link"]))
        assert wall.status == 200  # it names its own stream
        with line(made.here) as opened:  # what the server itself refuses is logged as well
            opened.sendall(head("GET", "/ \x00", token=made.here.token))
            assert status_on(opened) == 400
        secrets = [token for token in made.tokens.values() if re.match("em[odiw]_", token)]
        assert len(secrets) == len(made.tokens) == len(set(secrets))
    files = [path.read_bytes() for path in tmp_path.iterdir()]
    everything = b"".join(
        [*files, *(repr(one).encode() for one in told), "\n".join(heard).encode()]
    )
    assert b"revoked" in everything
    assert any("uvicorn" in words for words in heard)
    assert not [who for who, token in made.tokens.items() if token[-20:].encode() in everything]
