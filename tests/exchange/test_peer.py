"""Devices that talk to each other directly: dead, hostile and slow peers, wrong tokens."""

import json
import socket
import threading
from contextlib import ExitStack, closing
from dataclasses import replace
from time import monotonic

import pytest

from edgemerge import Contribution, Projection, Stats, decode, encode
from edgemerge.core.errors import DeniedError, SettingError, UnavailableError
from edgemerge.core.ledger import Merged, Selection
from edgemerge.exchange import peer
from edgemerge.exchange.connection import Connection
from edgemerge.exchange.peer import PeerExchange
from tests.exchange.scripted import reply, scripted
from tests.exchange.test_contract import note
from tests.exchange.worlds import SHARED, TOKEN
from tests.services.ports import free_port

pytestmark = pytest.mark.slow

WISH = Selection(receiver="b")
OTHER = Projection(n_inputs=6, n_hidden=8, seed=8, low=-1.0, high=2.0)
UNSOUND = replace(note("a").stats, U=-note("a").stats.U)


def exchange(*peers, token=TOKEN, **options):
    return closing(PeerExchange(SHARED, token=token, peers=peers, **options))


def test_a_wrong_token_is_denied_and_shown_nowhere(caplog):
    with exchange() as a, exchange(a.url, token="another-token") as b:
        a.push(note("a"))
        with pytest.raises(DeniedError, match="401") as caught:
            b.pull(WISH)
    assert "another-token" not in str(caught.value) + caplog.text
    assert TOKEN not in str(caught.value) + caplog.text


@pytest.mark.parametrize(
    "header", [None, "", TOKEN, f"bearer {TOKEN}", f"Bearer {TOKEN}x", "Bärer"]
)
def test_who_has_no_token_learns_nothing(header):
    with exchange() as a, closing(Connection(a.url)) as stranger:
        a.push(note("a"))
        for path in ("/contributions", "/contributions/a/0/normal", "/nothing"):
            with pytest.raises(DeniedError, match="401"):
                stranger.ask(
                    "GET", path, headers={} if header is None else {"Authorization": header}
                )


def test_nobody_can_write():
    with exchange() as a, closing(Connection(a.url, TOKEN)) as there:
        for method in ("PUT", "POST", "DELETE"):
            with pytest.raises(UnavailableError, match="501"):
                there.ask(method, "/contributions/a/0/normal", body=b"x")
        assert a.pull(WISH) == Merged(SHARED)


def test_what_a_dead_peer_told_last_is_used(caplog):
    with exchange() as a, exchange() as c, exchange(a.url, c.url) as b:
        a.push(note("a", seed=1))
        c.push(note("c", seed=2))
        both = b.pull(WISH)
        c.close()
        a.push(note("a", 2, seed=3))
        for _ in range(2):
            assert b.pull(WISH).total == note(seed=3).stats + note(seed=2).stats
        a.close()
        assert b.pull(WISH).total == note(seed=3).stats + note(seed=2).stats
        assert both.total == note(seed=1).stats + note(seed=2).stats
    assert [record.values["name"] for record in caplog.records] == [c.url, a.url]


def test_one_living_peer_is_enough():
    with exchange() as a, exchange(f"http://127.0.0.1:{free_port()}", a.url) as b:
        assert b.pull(WISH) == Merged(SHARED)
        a.push(note("a"))
        assert b.pull(WISH).total == note("a").stats


def test_only_what_is_new_is_fetched():
    offers = json.dumps([["a", 0, "normal", 3]]).encode()
    newer = json.dumps([["a", 0, "normal", 4]]).encode()
    acts = [reply(offers), reply(encode(note("a", 3))), reply(offers), reply(newer)]
    with scripted(*acts, reply(encode(note("a", 4, seed=1)))) as server, exchange(server.url) as b:
        assert b.pull(WISH) == b.pull(WISH)
        assert b.pull(WISH).origins[0].revision == 4
    paths = [request.split()[1] for request in server.requests]
    lists, fetched = b"/contributions", b"/contributions/a/0/normal"
    assert paths == [lists, fetched, lists, lists, fetched]


@pytest.mark.parametrize(
    "told",
    [
        b"<html>",
        b"{}",
        b"[1]",
        b'["abcd"]',
        b'[["a", 0, "normal"]]',
        b'[["a", "0", "normal", 1]]',
        b'[["a", 0, "normal", -1]]',
        b'[["a", true, "normal", 1]]',
        b'[[7, 0, "normal", 1]]',
        b'[["\\ud800", 0, "normal", 1]]',
        b'[["a", 0, "", 1]]',
        json.dumps([["a", i, "normal", 1] for i in range(1001)]).encode(),
        b"[" + b" " * peer.MAX_LIST_BYTES + b"]",
    ],
)
def test_a_peer_that_is_none_is_away(told):
    none = pytest.raises(UnavailableError, match="no peer could be asked: found")
    with scripted(reply(told)) as server, exchange(server.url) as b, none:
        b.pull(WISH)


@pytest.mark.parametrize(
    "body",
    [
        b"junk",
        encode(note("c")),
        encode(note("a").stats),
        encode(Contribution("a", UNSOUND, 1)),
        encode(Contribution("a", Stats.empty(OTHER), 1)),
    ],
    ids=["junk", "another's", "stats", "unsound", "another projection"],
)
def test_a_bad_contribution_is_left_alone_and_named_once(body, caplog):
    offers = json.dumps([["a", 0, "normal", 1], ["d", 0, "normal", 1]]).encode()
    good = reply(encode(note("d")))
    acts = [reply(offers), reply(body), good, reply(offers), reply(body)]
    with scripted(*acts) as server, exchange(server.url) as b:
        for _ in range(2):
            assert b.pull(WISH).total == note("d").stats
    assert [record.values["name"] for record in caplog.records] == ["('a', 0, 'normal')"]


def test_of_two_stories_the_newer_counts_whoever_tells_it():
    with exchange() as a, exchange() as c, exchange(a.url, c.url) as b, exchange(c.url, a.url) as d:
        a.push(note("x", 1, seed=1))
        c.push(note("x", 2, seed=2))
        for one in (b, d):
            assert one.pull(WISH).total == note(seed=2).stats


@pytest.mark.slow
def test_silent_strangers_do_not_keep_peers_out_for_long():
    with exchange(timeout_s=0.3) as a, exchange(a.url) as b, ExitStack() as stack:
        a.push(note("a"))
        port = int(a.url.rsplit(":", 1)[1])
        for _ in range(peer.MAX_CONNECTIONS):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        end = monotonic() + 20.0
        while True:
            try:
                assert b.pull(WISH).total == note("a").stats
                break
            except UnavailableError:
                assert monotonic() < end, "they still keep them out"


def test_closing_ends_its_thread_and_frees_its_port():
    before = set(threading.enumerate())  # those of earlier tests may end at any time
    a = PeerExchange(SHARED, token=TOKEN)
    port = int(a.url.rsplit(":", 1)[1])
    assert set(threading.enumerate()) - before
    a.close()
    assert not set(threading.enumerate()) - before
    with exchange(listen=("127.0.0.1", port)) as again:
        assert again.url.endswith(str(port))


def test_a_port_that_is_taken_is_named():
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(SettingError, match=f"cannot listen on 127.0.0.1:{taken.getsockname()[1]}"),
    ):
        PeerExchange(SHARED, token=TOKEN, listen=taken.getsockname())


def test_without_an_address_there_is_nothing_to_offer():
    with pytest.raises(SettingError, match="expected a host and a port"):
        PeerExchange(SHARED, token=TOKEN, listen=None)


def test_the_token_may_stand_in_a_file(tmp_path):
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    with closing(PeerExchange(SHARED, token_file=tmp_path / "token")) as a, exchange(a.url) as b:
        a.push(note("a"))
        assert b.pull(WISH).total == note("a").stats


@pytest.mark.parametrize("options", [{}, {"token": ""}, {"token": "a b"}, {"token": "ä"}])
def test_without_a_good_token_nothing_is_offered(options):
    with pytest.raises(SettingError, match="token"):
        PeerExchange(SHARED, **options)


def test_contradicting_contributions_are_logged_once_and_the_first_is_used(caplog):
    with (
        closing(PeerExchange(SHARED, token=TOKEN)) as a,
        closing(PeerExchange(SHARED, token=TOKEN)) as twin,
    ):
        a.push(note("a", seed=1))
        twin.push(note("a", seed=2))
        with closing(PeerExchange(SHARED, token=TOKEN, peers=[a.url, twin.url])) as b:
            for _ in range(2):
                assert b.pull(WISH).total == note("a", seed=1).stats
    found = [r for r in caplog.records if r.message == "contradicting contributions"]
    assert ["twice with different numbers" in r.values["why"] for r in found] == [True]


def test_a_peer_serves_the_bytes_that_were_pushed():
    data = encode(note("a"))
    with closing(PeerExchange(SHARED, token=TOKEN)) as a:
        a.push(decode(data).keep_encoded(data))
        assert encode(a._served()[0].contribution) is data
