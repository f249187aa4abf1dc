"""Peers with as many contributions as are kept of one."""

from contextlib import closing

from edgemerge.core.ledger import Selection
from edgemerge.exchange import peer
from edgemerge.exchange.peer import PeerExchange
from tests.exchange.test_contract import note
from tests.exchange.worlds import SHARED, TOKEN

WISH = Selection(receiver="b")


def offering(port=0):
    return closing(PeerExchange(SHARED, token=TOKEN, listen=("127.0.0.1", port)))


def told(exchange):
    return [(origin.incarnation, origin.revision) for origin in exchange.pull(WISH).origins]


def test_a_peer_with_the_most_contributions_is_still_heard_and_no_more_are_kept(monkeypatch):
    monkeypatch.setattr(peer, "MAX_CONTRIBUTIONS", 1)
    with offering() as a:
        port = int(a.url.rpartition(":")[2])
        b = PeerExchange(SHARED, token=TOKEN, peers=[a.url])
        for revision in (1, 2):
            a.push(note("a", revision))
            assert told(b) == [(0, revision)]
    with closing(b), offering(port) as a:  # a new life of the same peer
        a.push(note("a", 1, incarnation=1))
        assert told(b) == [(0, 2)]
