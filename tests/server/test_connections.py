"""Connections end with the token of their last request: kept open, under way, on another server."""

import socket
from contextlib import contextmanager
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest

from edgemerge.core.errors import DeniedError
from edgemerge.exchange.client import ServerClient
from edgemerge.server import main
from edgemerge.server.auth import Caller, Connections, hash_token, new_token
from edgemerge.server.contributions import decode_and_check, put
from edgemerge.wire.codec import encode
from tests.server.wire import SHARED, address, head, line, note
from tests.services.hub import running
from tests.waiting import DEADLINE_S, until

pytestmark = pytest.mark.slow

ADMIN = Caller("root", role="admin")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setattr(main, "TOKEN_CACHE_S", 1e6)  # nothing is cut but by what a test does
    with running(f"sqlite:///{tmp_path / 'fleets.db'}") as made:
        made.operator.create_fleet("mine", SHARED)
        yield made


@contextmanager
def kept(here, *tokens):
    """A connection that stays open after one request with each of these tokens."""
    connection = HTTPConnection(urlsplit(here.url).netloc, timeout=DEADLINE_S)
    for token in tokens:
        connection.request("GET", "/fleets", headers={"Authorization": f"Bearer {token}"})
        reply = connection.getresponse()
        assert (reply.status, bool(reply.read())) == (200, True)
    try:
        yield connection
    finally:
        connection.close()


def is_closed(opened: socket.socket) -> bool:
    """Wait for the end of a connection, on which nothing more may come."""
    try:
        return opened.recv(1) == b""
    except ConnectionResetError:
        return True


def is_open(connection: HTTPConnection, token: str) -> bool:
    connection.request("GET", "/fleets", headers={"Authorization": f"Bearer {token}"})
    reply = connection.getresponse()
    return reply.status == 200 and bool(reply.read())


def test_revoking_a_device_ends_its_connection_and_no_other(here):
    mine, other = here.enrol("mine", "a"), here.enrol("mine", "b")
    with kept(here, mine) as cut, kept(here, other) as stays, kept(here, mine, other) as shared:
        here.operator.revoke("mine", "a")
        assert is_closed(cut.sock)
        assert is_open(stays, other)
        assert is_open(shared, other)  # as a proxy does: its last request was of another device


def test_a_push_that_is_under_way_is_cut_and_nothing_of_it_is_stored(here):
    token, given = here.enrol("mine", "a"), note("a")
    body = encode(given)
    with line(here) as opened:
        length = f"Content-Length: {len(body)}"
        opened.sendall(head("PUT", address(given), length, token=token) + body[:100])
        until(lambda: here.service.connections.hashes() >= {hash_token(token)})
        here.operator.revoke("mine", "a")
        assert is_closed(opened)
    assert here.operator.contributions("mine")["contributions"] == []
    until(lambda: not here.service.connections.hashes() & {hash_token(token)})


def test_the_connection_of_the_old_hardware_ends_when_the_new_one_enrols(here):
    old = here.enrol("mine", "a")
    with kept(here, old) as cut:
        invitation = here.operator.replace("mine", "a")["token"]
        assert is_open(cut, old)  # until the invitation is used
        new = ServerClient(here.url, invitation).enrol("mine", "a")["token"]
        assert is_closed(cut.sock)
    with kept(here, new):
        pass


def test_what_the_old_hardware_had_under_way_is_refused_once_the_new_one_has_enrolled(here):
    service = here.service
    caller = service.caller(here.enrol("mine", "a"))
    here.enrol("mine", "a")
    given, fleet = note("a"), service.fleet("mine")
    received = decode_and_check(encode(given), fleet, given.key)
    with pytest.raises(DeniedError, match="enrolled anew"):
        service.writer.write(lambda tx: put(tx, fleet, received, caller, 1.0))


@pytest.mark.parametrize("way", ["rotate", "revoke"])
def test_a_token_of_an_account_ends_with_its_connections(here, way):
    made = here.service.accounts.add("eve", "viewer", None, ADMIN)
    with kept(here, made.token) as cut, kept(here, here.token) as stays:
        getattr(here.service.accounts, way)("eve", ADMIN)
        assert is_closed(cut.sock)
        assert is_open(stays, here.token)


def test_a_token_that_ended_on_another_server_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(main, "TOKEN_CACHE_S", 0.1)
    with running(f"sqlite:///{tmp_path / 'fleets.db'}") as here:
        here.operator.create_fleet("mine", SHARED)
        token, other = here.enrol("mine", "a"), here.enrol("mine", "b")
        with kept(here, token) as cut, kept(here, other) as stays, kept(here, here.token) as admin:
            here.service.writer.write(
                lambda tx: tx.run("update devices set revoked = 1.0 where device = 'a'")
            )
            assert is_closed(cut.sock)
            assert is_open(stays, other)
            assert is_open(admin, here.token)


def test_a_wrong_token_is_answered_and_never_a_reason_to_cut(here):
    with kept(here, here.token) as stays:
        stays.request("GET", "/fleets", headers={"Authorization": f"Bearer {new_token('device')}"})
        assert stays.getresponse().status == 401
        assert here.service.connections.hashes() == set()


class Line:
    """A connection that notes that it was cut."""

    on_lost = None
    cut_by = None

    def cut(self, is_meant):
        self.cut_by = is_meant()


def test_tokens_are_remembered_while_their_connection_is_open_and_serves_them():
    connections, opened = Connections(), Line()
    token = new_token("device")
    device = Caller("a", "mine", token_hash=hash_token(token))
    connections.use(opened, device)
    assert connections.hashes() == {hash_token(token)}
    connections.cut({hash_token(new_token("device"))})
    assert opened.cut_by is None
    connections.cut({hash_token(token)})
    assert opened.cut_by is True
    opened.on_lost(opened)
    assert connections.hashes() == set()
    connections.use(opened, device)
    connections.use(opened, None)  # the next request on it is of somebody who is not known yet
    assert connections.hashes() == set()
