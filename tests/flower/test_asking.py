"""Nodes are asked within a time, and each reply belongs to the node whose message it answers."""

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict

from edgemerge import EdgemergeError
from edgemerge.flower.messages import fields_of, reply, request
from edgemerge.flower.server import Timing, request_all, wait_for_nodes
from tests.flower.near import Clock, NearGrid


def echo(message, _context):
    return reply(message, {"format": 1, "node": message.metadata.dst_node_id})


def dies(message, _context):
    """Answer as the SuperLink does for a node that went away: under an id of its own."""
    found = Message(Error(5, "Node Unavailable"), reply_to=message)
    found.metadata.__dict__["_src_node_id"] = 1
    return found


def asked(grid, timeout_s=10.0, clock=None):
    clock = clock or Clock()
    fields = ((node, {"format": 1, "to": node}) for node in grid.get_node_ids())
    return {
        h.node: h
        for h in request_all(grid, "contribute", fields, Timing(timeout_s, clock, clock.sleep))
    }


def test_every_node_is_asked_its_own_and_heard():
    grid = NearGrid({7: echo, 3: echo})
    heard = asked(grid)
    assert list(heard) == [3, 7]
    assert {node: each.fields["node"] for node, each in heard.items()} == {3: 3, 7: 7}
    assert [fields_of(message)["to"] for message in grid.pushed] == [7, 3]
    assert {message.metadata.message_type for message in grid.pushed} == {"query.contribute"}
    assert {message.metadata.ttl for message in grid.pushed} == {10.0}


def test_an_error_belongs_to_the_node_that_was_asked_whoever_sends_it():
    heard = asked(NearGrid({7: echo, 3: dies}))
    assert heard[3].problem == "went away (error 5 of Flower: Node Unavailable)"
    assert heard[7].problem == ""


@pytest.mark.parametrize(
    ("code", "words"),
    [(2, "raised an error"), (8, "crashed"), (99, "gave no answer")],
)
def test_an_error_of_flower_is_told_in_words(code, words):
    heard = asked(NearGrid({3: lambda m, _: Message(Error(code, "why"), reply_to=m)}))
    assert heard[3].problem == f"{words} (error {code} of Flower: why)"


@pytest.mark.parametrize("code", [3, 4])
def test_a_message_whose_time_is_over_was_not_answered(code):
    heard = asked(NearGrid({3: lambda m, _: Message(Error(code, "expired"), reply_to=m)}))
    assert heard[3].problem == "no answer within 10 s"


def test_nobody_is_waited_for_longer_than_the_time():
    clock = Clock()
    heard = asked(NearGrid({7: echo, 3: lambda *_: None}), 10.0, clock)
    assert heard[3].problem == "no answer within 10 s"
    assert heard[7].fields["node"] == 7
    assert clock.now == pytest.approx(10.0)


def test_when_all_have_answered_there_is_no_waiting():
    clock = Clock()
    asked(NearGrid({7: echo}), 10.0, clock)
    assert clock.now == 0.0


def test_a_late_answer_is_heard():
    grid = NearGrid({7: echo}, late_by=4)
    assert asked(grid)[7].fields["node"] == 7
    assert grid.looks == 5


def test_a_node_that_cannot_be_asked_is_named():
    heard = asked(NearGrid({7: echo, 3: lambda *_: "refused"}))
    assert heard[3].problem == "could not be asked: the SuperLink refused"
    assert heard[7].problem == ""


@pytest.mark.parametrize(
    "content",
    [RecordDict(), RecordDict({"edgemerge": ArrayRecord()}), RecordDict({"x": ConfigRecord()})],
)
def test_a_message_of_another_app_is_told(content):
    heard = asked(NearGrid({3: lambda m, _: Message(content, reply_to=m)}))
    assert "expected 'edgemerge': is it another app?" in heard[3].problem


def test_fields_survive_a_message_bit_for_bit():
    fields = {"format": 1, "told": bytes(range(256)) * 99, "contributions": [b"\x00", b"\xff" * 9]}
    message = request(3, "adopt", fields | {"nothing": []}, 5.0)
    record = message.content["edgemerge"]
    again = ConfigRecord.inflate(record.deflate())
    assert dict(again) == fields


class Filling(NearGrid):
    """A grid that nodes come to, one at each look."""

    def get_node_ids(self):
        self.looks += 1
        return list(self.apps)[: self.looks]


def test_nodes_are_waited_for():
    clock = Clock()
    grid = Filling(dict.fromkeys([5, 4, 3], echo))
    assert wait_for_nodes(grid, 2, Timing(10.0, clock, clock.sleep)) == [4, 5]


def test_too_few_nodes_are_told():
    clock = Clock()
    with pytest.raises(
        EdgemergeError, match="found 1 nodes within 10 s, expected 2 or more: start"
    ):
        wait_for_nodes(NearGrid({7: echo}), 2, Timing(10.0, clock, clock.sleep))
    assert clock.now == pytest.approx(10.0)
