"""What a device that was let in may send: repeated, late, contradicting, damaged or too much."""

import asyncio
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from edgemerge import Projection, Stats
from edgemerge.wire.codec import decode, encode
from tests.server.callers import world
from tests.server.wire import ROWS, SHARED, address, ask, dump, head, line, note, status_on

pytestmark = pytest.mark.slow

FIRST = note("itself")
PIECE = 2**12


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A world in which everything that is sent is refused."""
    with world(f"sqlite:///{tmp_path_factory.mktemp('bodies') / 'fleets.db'}") as made:
        yield made


@pytest.fixture
def mine(tmp_path):
    """A world of one's own."""
    with world(f"sqlite:///{tmp_path / 'fleets.db'}") as made:
        yield made


def put(made, body, where=None, **more):
    token = made.tokens["itself"]
    return ask(made.here, "PUT", where or address(FIRST), token=token, body=body, **more)


def but_seen(rows):
    """Leave out when devices were last heard: the one thing that a repetition changes."""
    return {name: len(found) if name == "devices" else found for name, found in rows.items()}


def changed(**arrays):
    return encode(replace(FIRST, revision=2, stats=replace(FIRST.stats, **arrays)))


def damaged(**words):
    """The bytes of a newer contribution with other words in their header."""
    data = encode(note("itself", 2))
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"] |= words
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


def with_last(number):
    """The bytes of a newer contribution whose last sum is this number."""
    return encode(note("itself", 2))[:-8] + np.float64(number).tobytes()


def test_sending_the_same_again_changes_nothing(mine):
    before = dump(mine.here)
    for _ in range(3):
        answered = put(mine, encode(FIRST))
        assert answered.status == 200
        told = json.loads(answered.body)
        assert (told["kept"], told["revision"]) == (False, 1)
    assert but_seen(dump(mine.here)) == but_seen(before)


def test_an_older_revision_is_answered_with_the_newest(mine):
    assert put(mine, encode(note("itself", 7))).status == 201
    before = dump(mine.here)
    for body in (encode(FIRST), encode(note("itself", 6, rows=ROWS[:2]))):
        answered = put(mine, body)
        told = json.loads(answered.body)
        assert (answered.status, told["problem"], told["newest"]) == (409, "stale", 7)
    assert dump(mine.here) == before


def test_two_stories_under_one_revision_are_refused_and_written_down(mine):
    before = dump(mine.here)
    other = note("itself", rows=ROWS[:3])
    answered = put(mine, encode(other))
    told = json.loads(answered.body)
    assert (answered.status, told["problem"], told["newest"]) == (409, "equivocation", 1)
    after = dump(mine.here)
    (entry,) = set(after.pop("audit")) - set(before.pop("audit"))
    assert "equivocation" in entry
    assert after == before
    stored = ask(mine.here, "GET", address(FIRST), token=mine.tokens["itself"])
    assert stored.body == encode(FIRST)


WRONG = {
    "another device": encode(note("peer", 2)),
    "another pattern": encode(note("itself", 2, "idle")),
    "another incarnation": encode(note("itself", 2, incarnation=1)),
    "another seed": encode(note("itself", 2, projection=Projection(n_inputs=2, n_hidden=3))),
    "more hidden values": encode(
        note("itself", 2, projection=Projection(n_inputs=2, n_hidden=4, seed=5))
    ),
    "a projection": encode(SHARED),
    "stats without an origin": encode(Stats.of(SHARED, ROWS)),
    "an indefinite U": changed(U=-FIRST.stats.U),
    "a U with one entry too large": changed(
        U=FIRST.stats.U + np.ones((3, 3)) - np.eye(3), V=FIRST.stats.V
    ),
    "V of other samples": changed(V=-FIRST.stats.V),
    "a negative S": changed(S=-FIRST.stats.S),
    "too small a count": changed(count=1.0),
    "NaN": with_last(math.nan),
    "infinity": with_last(math.inf),
    "off the grid": with_last(math.pi),
    "a negative zero": with_last(-0.0),
    "a number that is none": with_last(5e-324),
    "a revision below 0": damaged(revision="-1"),
    "a revision past 2⁶³": damaged(revision=str(2**63)),
    "half a surrogate": damaged(device="\ud800"),
    "a form with half a surrogate": damaged(form="\udfff"),
    "a kind that nobody knows": damaged(kind="\ud800 pickle"),
    "a fingerprint of something else": damaged(fingerprint="\ud800" * 64),
    "settings with half a surrogate": damaged(projection='{"activation":"\ud800"}'),
    "settings that are huge": damaged(projection='{"n_inputs":' + "9" * 5000 + "}"),
    "nothing": b"",
    "JSON": b"{}",
    "a pickle": b"\x80\x04\x95" + bytes(40),
    "zeros": bytes(1000),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_contribution_to_this_address_is_refused(shared, what):
    before = dump(shared.here)
    answered = put(shared, WRONG[what])
    assert answered.status == 422, answered
    assert len(json.loads(answered.body)["error"]) > 10
    assert dump(shared.here) == before


def test_a_body_cut_anywhere_is_refused(shared):
    before, whole = dump(shared.here), encode(note("itself", 2))
    for length in range(0, len(whole), 7):
        assert put(shared, whole[:length]).status == 422, length
    assert put(shared, whole + b"\0").status == 422
    assert dump(shared.here) == before


def test_a_body_with_one_bit_changed_is_refused_or_is_another_contribution(mine):
    """Sums have no check digits: a changed bit may be the sum of other samples, and then counts."""
    rng, accepted = np.random.default_rng(3), 0
    for revision in range(2, 152):
        data = bytearray(encode(note("itself", revision)))
        data[rng.integers(len(data))] ^= 1 << rng.integers(8)
        status = put(mine, bytes(data)).status
        assert status in (201, 409, 422)
        accepted += status == 201
        stored = ask(mine.here, "GET", address(FIRST), token=mine.tokens["itself"])
        assert encode(decode(stored.body)) == stored.body
    assert accepted < 15


def test_more_bytes_than_declared_or_fewer_are_not_kept(shared):
    before, whole = dump(shared.here), encode(note("itself", 2))
    lines = f"Content-Length: {len(whole) - 8}", "Connection: close"
    for body in (whole, whole[:-16]):
        with line(shared.here) as opened:
            opened.sendall(head("PUT", address(FIRST), *lines, token=shared.tokens["itself"]))
            opened.sendall(body)
            opened.shutdown(1)
            assert status_on(opened) in (0, 400, 422)
    assert dump(shared.here) == before


def taken_from(made, headers):
    """Offer the app a body without end; give the status and how many bytes it took."""
    taken, status = 0, []

    async def receive():
        nonlocal taken
        taken += PIECE
        return {"type": "http.request", "body": bytes(PIECE), "more_body": True}

    async def send(message):
        status.append(message.get("status"))

    bearer = f"Bearer {made.tokens['itself']}".encode()
    scope = {
        "type": "http",
        "method": "PUT",
        "path": address(FIRST),
        "query_string": b"",
        "headers": [(b"authorization", bearer), *headers],
    }
    asyncio.run(asyncio.wait_for(made.here.app(scope, receive, send), 30))
    return status[0], taken


@pytest.mark.parametrize("length", [b"70000", b"99999999999999999999"])
def test_of_a_body_that_says_it_is_too_large_nothing_is_read(shared, length):
    assert taken_from(shared, [(b"content-length", length)]) == (413, 0)
    assert shared.here.app.state.load.bytes == 0


@pytest.mark.parametrize(
    "headers",
    [[(b"transfer-encoding", b"chunked")], [], [(b"content-length", b"-1")]],
    ids=["chunked", "silent", "nonsense"],
)
def test_a_body_without_end_is_given_up_at_the_limit(shared, headers):
    status, taken = taken_from(shared, headers)
    limit = shared.here.service.fleet("mine").max_contribution_bytes
    assert status == 413
    assert taken <= limit + PIECE
    assert shared.here.app.state.load.bytes == 0


@pytest.mark.parametrize(
    ("method", "path", "token"),
    [
        ("PUT", "/fleets/other", "admin"),
        ("POST", "/fleets/mine/invitations", "operator"),
        ("POST", "/fleets/mine/devices", "an invitation"),
    ],
)
def test_other_bodies_have_a_limit_too(shared, method, path, token):
    before = dump(shared.here)
    body = bytes(2**20 + 1)
    answered = ask(shared.here, method, path, token=shared.tokens[token], body=body)
    assert answered.status == 413
    assert dump(shared.here) == before
