"""Exchange over HTTP: what it remembers, what it believes, and what a real server lets it do."""

import pytest

from edgemerge import Contribution, Projection, Stats, decode, encode
from edgemerge.core.errors import (
    DeniedError,
    MismatchError,
    RejectedError,
    SettingError,
    StaleError,
    UnavailableError,
    UnknownError,
)
from edgemerge.core.ledger import Merged, MergedPart, Selection
from edgemerge.exchange.client import BINARY_HEADERS, ServerClient
from edgemerge.exchange.connection import Connection
from edgemerge.exchange.http import HttpExchange
from tests.exchange.scripted import reply, scripted
from tests.exchange.test_contract import note
from tests.exchange.worlds import SHARED

pytestmark = pytest.mark.slow

OTHER = Projection(n_inputs=6, n_hidden=8, seed=8, low=-1.0, high=2.0)
WISH = Selection(receiver="b")


def told(*notes):
    return Merged(SHARED, tuple(MergedPart.of([one], SHARED) for one in notes))


def exchange(server, **options):
    return HttpExchange(server.url, "pumps", "token", **{"projection": SHARED} | options)


def test_what_has_not_changed_is_not_sent_again():
    first, second = told(note("a", 1)), told(note("a", 2, seed=1))
    acts = [reply(encode(first), ETag='"1"'), reply(status="304 Same"), reply(encode(second))]
    with scripted(*acts, reply(encode(first))) as server:
        there = exchange(server)
        assert there.pull(WISH) == first
        assert there.pull(WISH) == first
        assert there.pull(WISH) == second
        assert there.pull(WISH) == first  # the second had no tag
        there.close()
    asked = [b'If-None-Match: "1"' in request for request in server.requests]
    assert asked == [False, True, True, False]


def test_a_real_server_sends_no_body_then(http_exchange):
    http_exchange.exchange("a").push(note("a"))
    there = http_exchange.exchange("b")
    first = there.pull(WISH)
    replies, ask = [], there._connection.ask

    def listening(*args, **named):
        replies.append(ask(*args, **named))
        return replies[-1]

    there._connection.ask = listening
    assert there.pull(WISH) == first
    assert [(one.status, one.body) for one in replies] == [(304, b"")]


def test_only_a_few_answers_are_remembered():
    wishes = [Selection(receiver="b", largest=k) for k in range(1, 10)]
    acts = [reply(encode(told(note("a"))), ETag=f'"{k}"') for k in range(11)]
    with scripted(*acts) as server:
        there = exchange(server)
        for wish in (*wishes, wishes[-1], wishes[0]):
            there.pull(wish)
        there.close()
    assert b'If-None-Match: "8"' in server.requests[9]
    assert b"If-None-Match" not in server.requests[10]


LIES = {
    "not ours": (b"<html>Please log in</html>", RejectedError, "cannot be read"),
    "nothing": (b"", RejectedError, "cannot be read"),
    "cut": (encode(told(note("a")))[:-1], RejectedError, "cannot be read"),
    "one contribution": (encode(note("a")), RejectedError, "expected Merged"),
    "another projection": (encode(Merged(OTHER)), MismatchError, "build the same Projection"),
    "the default of another version": (
        encode(Merged(Projection(n_inputs=2, activation="cosine", n_hidden=128))),
        MismatchError,
        "where cosine, the newer default, was taken",
    ),
    "my own": (encode(told(note("a"), note("b"))), RejectedError, "token that of another device"),
}


@pytest.mark.parametrize(("body", "error", "words"), LIES.values(), ids=LIES)
def test_what_was_told_is_not_believed_blindly(body, error, words):
    with scripted(reply(body, ETag='"1"'), reply(body)) as server:
        there = exchange(server)
        for _ in range(2):
            with pytest.raises(error, match=words):
                there.pull(WISH)
        there.close()
    assert b"If-None-Match" not in server.requests[1]


def test_unchanged_is_no_answer_to_who_knows_nothing():
    same = reply(status="304 Same")
    with scripted(same) as server, pytest.raises(RejectedError, match="status 304"):
        exchange(server).pull(WISH)


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (reply(b'{"error": "late", "newest": 9}', "409 No"), StaleError, "a: late"),
        (reply(b'{"error": "late"}', "409 No"), RejectedError, "expected a revision"),
        (reply(b'{"error": "late", "newest": -1}', "409 No"), RejectedError, "expected a revision"),
        (reply(b'{"newest": "' + b"9" * 9000 + b'"}', "409 No"), RejectedError, "a revision"),
        (reply(b"[]", "409 No"), RejectedError, "expected a revision"),
        (reply(b'{"error": "unsound"}', "422 No"), RejectedError, r"^unsound \(status 422"),
        (reply(b'{"error": "too large"}', "413 No"), RejectedError, r"^too large \(status 413"),
        (reply(b'{"error": "what"}', "400 No"), RejectedError, r"^what \(status 400"),
        (
            reply(b'{"error": "disk full"}', "507 No"),
            UnavailableError,
            r"^disk full .*status 507\)",
        ),
        (reply(status="302 Found", Location="http://127.0.0.1:1/"), RejectedError, "302"),
    ],
)
def test_a_refused_push_says_why(answer, error, words):
    with scripted(answer) as server, pytest.raises(error, match=words) as caught:
        exchange(server).push(note("a"))
    assert len(str(caught.value)) < 400


def test_the_projection_is_fetched_if_it_was_not_given(http_exchange):
    http_exchange.exchange("a").push(note("a"))
    given = http_exchange.exchange("b")
    token = given._connection._headers["Authorization"].removeprefix("Bearer ")
    there = HttpExchange(http_exchange.place.url, http_exchange.fleet, token)
    assert there.pull(WISH) == given.pull(WISH)
    assert there.projection == SHARED
    there.close()


@pytest.fixture
def fleet(hub, request):
    """A fleet whose devices may see sums of two devices at least, and nothing else."""
    operator = hub.operator
    name = f"closed-{abs(hash(request.node.name))}"
    assert operator.create_fleet(name, SHARED, least=2) is True
    assert operator.create_fleet(name, SHARED, least=2) is False
    yield name, operator
    operator.close()


@pytest.mark.parametrize(
    ("few", "kept", "most"),
    [
        ("min_devices", "no_forgetting", "max_contributions"),
        ("least", "growing", "largest"),  # their former names
    ],
)
def test_settings_of_a_fleet_and_of_a_pull_are_taken_under_both_names(hub, few, kept, most):
    operator, name = hub.operator, f"named-{few}"
    asked = {"reads": "contributions", few: "2", kept: "true"}
    operator._ask("PUT", "fleets", name, query=asked, body=encode(SHARED), headers=BINARY_HEADERS)
    found = operator.fleet(name)
    assert (found["least"], found["growing"]) == (2, True)
    for device in "ab":
        hub.exchange(name, device, SHARED).push(note(device))
    reply = operator._ask("GET", "fleets", name, "total", query={most: "1"})
    assert len(decode(reply.body, Merged).origins) == 1
    operator.close()


def test_the_server_lets_a_device_do_only_what_its_fleet_allows(hub, fleet):
    name, operator = fleet
    a, b, c, d = (hub.exchange(name, device, SHARED) for device in "abcd")
    a.push(note("a"))
    with pytest.raises(DeniedError, match="403"):
        b.push(note("a", 2))
    assert b.pull(WISH).parts == ()  # one device only
    for seed, (one, device) in enumerate(((c, "c"), (d, "d")), 1):
        one.push(note(device, seed=seed))
    others = [note(device, seed=seed).stats for seed, device in enumerate("acd")]
    assert b.pull(WISH).total == Stats.total(SHARED, others)
    for choice in ({"without": ("a",)}, {"devices": ("a",)}, {"pattern": "normal"}):
        with pytest.raises(DeniedError, match="403"):
            b.pull(Selection(receiver="b", **choice))
    operator.revoke(name, "b")
    with pytest.raises(DeniedError, match=r"40[13]"):
        b.pull(WISH)
    for one in (a, b, c, d):
        one.close()


def test_what_an_operator_asks_of_a_server(hub, fleet):
    name, operator = fleet
    with pytest.raises(RejectedError, match="409"):
        operator.create_fleet(name, OTHER)
    token = hub.enrol(name, "a")
    there = HttpExchange(hub.url, name, token)
    there.push(note("a", number=41))
    assert operator.projection(name) == there.projection == SHARED
    assert operator.fleet(name)["fingerprint"] == SHARED.fingerprint
    assert name in [found["fleet"] for found in operator.fleets()]
    assert [(found["device"], found["samples"]) for found in operator.devices(name)] == [("a", 41)]
    listed = operator.contributions(name)["contributions"]
    assert [(one["device"], one["pattern"], one["revision"]) for one in listed] == [
        ("a", "normal", 1)
    ]
    assert operator.drop(name, "a") == 1
    actions = [entry["action"] for entry in operator.audit(name)["entries"]]
    assert len(actions) >= 4
    assert operator.audit(name, limit=1)["entries"][0]["action"] == actions[0]
    assert isinstance(operator.status(), dict)
    operator.delete_fleet(name)
    with pytest.raises(UnknownError, match="404"):
        operator.fleet(name)
    there.close()


def test_an_invitation_works_once_and_shows_in_no_error(hub, fleet):
    name, operator = fleet
    invitation = operator.invite(name, valid_s=60)["token"]
    guest = ServerClient(hub.url, invitation)
    assert guest.enrol(name, "a")["device"] == "a"
    with pytest.raises(DeniedError, match=r"40[13]") as caught:
        guest.enrol(name, "b")
    assert invitation not in str(caught.value) + repr(guest)
    guest.close()


@pytest.mark.parametrize("body", [b"[]", b"{}", b'[{"a": 1}, 2]', b"x", b"[" * 5000, b"null"])
def test_a_hub_that_is_none_is_noticed(body):
    asked = [
        ServerClient.fleets,
        lambda hub: hub.drop("pumps", "a"),
        lambda hub: hub.projection("pumps"),
    ]
    expected = {b"[]": asked[1:], b"{}": asked}.get(body, asked)
    for ask in expected:
        with scripted(reply(body)) as server, pytest.raises(RejectedError, match="found"):
            ask(ServerClient(server.url))


def test_a_pattern_that_no_address_can_hold_is_refused_before_it_is_sent(http_exchange):
    for pattern in ("a/b", ".."):
        with pytest.raises(RejectedError, match="not only dots"):
            http_exchange.exchange("a").push(note("a", pattern=pattern))


def test_someone_with_the_address_but_no_token_learns_nothing(http_exchange):
    there = Connection(http_exchange.place.url)
    with pytest.raises(DeniedError, match="401"):
        there.ask("GET", f"/fleets/{http_exchange.fleet}/total")
    there.close()


def test_contributions_of_any_size_arrive(hub):
    shared = Projection(n_inputs=561, n_hidden=128)
    operator = hub.operator
    operator.create_fleet("large", shared, least=1)
    stats = Stats.of(shared, [[0.5] * 561] * 3)
    a, b = (hub.exchange("large", device, shared) for device in "ab")
    assert a.push(Contribution("a", stats, 1)) is True
    assert b.pull(WISH).total == stats
    for one in (operator, a, b):
        one.close()


def test_a_selection_with_a_rule_is_not_sent():
    there = HttpExchange("http://127.0.0.1:9", "pumps", "secret", projection=SHARED)
    with pytest.raises(SettingError, match="without a rule"):
        there.pull(~WISH)
