"""The desired state: fetched when its revision changes, kept, followed and reported back."""

import json
import logging

import pytest

from edgemerge import Detector, Monitor
from edgemerge.agent.background import ReportOutcome, ReportSender
from edgemerge.agent.config import ReportConfig
from edgemerge.agent.state import AgentState, state_from_bytes, state_to_bytes
from edgemerge.core.errors import DeniedError, RejectedError, UnavailableError, UnknownError
from edgemerge.exchange.client import DesiredState, ReportAnswer, ReportClient, parse_desired
from tests.agent.reporting_desk import AWAY, OK, Desk, P
from tests.exchange.scripted import reply, scripted

DOCUMENT = {"format": 1, "revision": 42, "adopt": {"devices": ["pump-1"], "excluded": []}}
DESIRED = DesiredState(42, ("pump-1",))
NEW = ReportOutcome(ReportAnswer(1.0, 42, 42), desired=DESIRED)
SAME = ReportOutcome(ReportAnswer(1.0, 42, 42))


class RawDesk(Desk):
    """A desk that keeps reports as they were sent."""

    def send(self, report):
        self.busy = True
        self.reports.append(report)


@pytest.fixture
def desk():
    return RawDesk(Detector(P))


class Transport:
    """A server with a desired state, or an error instead of it."""

    def __init__(self, revision=42, error=None):
        self.revision, self.error, self.asked = revision, error, []

    def send(self, _report):
        return ReportAnswer(1.0, self.revision, self.revision)

    def desired(self, known=None):
        self.asked.append(known)
        if self.error is not None:
            raise self.error
        return DesiredState(self.revision)


def test_it_is_fetched_when_its_revision_differs_from_the_one_held():
    server = Transport()
    sender = ReportSender(server, 7)
    assert sender.send({}).desired == DesiredState(42)
    assert sender.send({}).desired is None
    server.revision = 43
    assert sender.send({}).desired == DesiredState(43)
    assert server.asked == [7, 42]


@pytest.mark.parametrize(
    ("error", "retry_s"),
    [(DeniedError("403"), 600.0), (UnknownError("404"), 3600.0), (RejectedError("what?"), 3600.0)],
)
def test_one_that_is_denied_missing_or_unreadable_is_fetched_again_later(error, retry_s):
    server, now = Transport(error=error), [0.0]
    sender = ReportSender(server, None, lambda: now[0])
    for now[0] in (0.0, 1.0, retry_s - 1.0):
        assert sender.send({}) == ReportOutcome(ReportAnswer(1.0, 42, 42))  # the choice is followed
    assert len(server.asked) == 1
    for now[0] in (retry_s, retry_s + 1.0):
        sender.send({})
    assert len(server.asked) == 2
    server.error, now[0] = None, 2.0 * retry_s
    assert sender.send({}).desired == DesiredState(42)


def test_a_new_revision_is_fetched_at_once_whatever_became_of_the_one_before():
    server = Transport(error=DeniedError("403"))
    sender = ReportSender(server, None, lambda: 0.0)
    sender.send({})
    server.revision, server.error = 43, None
    assert sender.send({}).desired == DesiredState(43)


def test_one_that_cannot_be_fetched_now_is_fetched_before_anything_is_followed():
    server = Transport(error=UnavailableError("busy"))
    sender = ReportSender(server, None)
    assert sender.send({}) == ReportOutcome(ReportAnswer(1.0))
    server.error = None
    assert sender.send({}).desired == DesiredState(42)


def test_it_is_kept_followed_and_reported_only_to_servers_that_have_it(desk):
    assert "desired" not in desk.told_by(NEW)["status"]
    assert (desk.memory.desired["revision"], len(desk.followers)) == (42, 1)
    assert desk.told_by(SAME)["status"]["desired"] == 0
    desk.followers[0]({"exchange": "ok"})
    assert desk.told_by(SAME)["status"]["desired"] == 42
    assert len(desk.followers) == 1
    desk.told_by(AWAY)
    assert "desired" not in desk.told_by(OK, 70.0)["status"]  # it may be an older server now


def test_it_is_held_but_not_acted_upon_by_an_agent_that_does_not_follow():
    desk = RawDesk(Detector(P), ReportConfig(follow=False))
    desk.told_by(NEW)
    assert (desk.memory.desired["revision"], desk.followers) == (42, [])
    assert desk.told_by(SAME)["status"]["desired"] == 0


def test_the_address_of_a_sink_is_not_logged(desk, caplog):
    caplog.set_level(logging.INFO)
    sink = {"kind": "webhook", "url": "https://chat.example/hooks/geheim"}
    wanted = DESIRED._replace(configuration={"version": 1, "tables": {"sinks": [sink]}})
    desk.told_by(NEW._replace(desired=wanted))
    (record,) = (each for each in caplog.records if each.message == "new desired state")
    assert "geheim" not in repr(record.values)
    assert record.values["revision"] == 42


def test_the_log_says_whose_contributions_are_adopted(desk, caplog):
    caplog.set_level(logging.INFO)
    desk.told_by(NEW)
    all_others = NEW._replace(desired=DESIRED._replace(revision=43, devices=None, excluded=()))
    desk.told_by(all_others, 70.0)
    chosen, everyone = (e for e in caplog.records if e.message == "new desired state")
    assert list(chosen.values["adopt_from"]) == list(DESIRED.devices)
    assert everyone.values == {"revision": 43, "adopt_from": "all others"}


def test_it_is_saved_and_states_without_it_load():
    state = AgentState("pump-1", 1, Monitor(Detector(P)), desired=DESIRED.plain(), followed=42)
    found = state_from_bytes(state_to_bytes(state))
    assert (parse_desired(found.desired), found.followed) == (DESIRED, 42)


def test_the_document_is_read_and_unknown_keys_are_ignored():
    found = parse_desired({**DOCUMENT, "reviews": [], "adopt": {"devices": None, "excluded": 3}})
    assert found == DesiredState(42, None, 3, reviews=())
    keys = {"devices": [], "excluded": [["pump-9", 0, "normal"]], "other": 1}
    assert parse_desired(DOCUMENT | {"adopt": keys}).excluded == (("pump-9", 0, "normal"),)
    assert parse_desired(json.loads(json.dumps(DESIRED.plain()))) == DESIRED


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"revision": -1},
        {"revision": True},
        {"revision": "42"},
        {"adopt": None},
        {"adopt": {"devices": "pump-1"}},
        {"adopt": {"devices": [1]}},
        {"adopt": {"devices": ["x" * 201]}},
        {"adopt": {"excluded": -1}},
        {"adopt": {"excluded": [["pump-9", 0]]}},
        {"adopt": {"excluded": [["pump-9", "0", "normal"]]}},
        {"adopt": {"excluded": [[[], 0, "normal"]]}},
    ],
)
def test_a_document_with_a_wrong_value_is_rejected(change):
    with pytest.raises(RejectedError, match="desired state"):
        parse_desired(DOCUMENT | change)


def test_it_is_fetched_over_http_with_the_revision_held_and_a_bound_on_its_size():
    acts = [
        reply(json.dumps(DOCUMENT).encode()),
        reply(status="304 Not Modified"),
        reply(status="404 Not Found"),
        reply(b"[" * 2**18 + b"["),
    ]
    with scripted(*acts) as server:
        client = ReportClient(server.url, "pumps", "pump-3", "secret")
        assert client.desired() == DESIRED
        assert client.desired(42) is None
        with pytest.raises(UnknownError):
            client.desired(42)
        with pytest.raises(RejectedError, match="more than 262144 bytes"):
            client.desired(42)
        client.close()
    first, second = server.requests[:2]
    assert first.startswith(b"GET /fleets/pumps/devices/pump-3/desired ")
    assert b"If-None-Match" not in first
    assert b'If-None-Match: "42"' in second
