"""What a report says of others: what is held of them, told when it has changed."""

import pytest

from edgemerge import Detector, Stats
from edgemerge.agent.reports import describe_merge
from edgemerge.agent.state import merged_digest
from edgemerge.core.ledger import Merged, MergedPart, Origin
from edgemerge.exchange.client import MAX_REPORT_ORIGINS
from edgemerge.wire.codec import encode
from tests.agent.agents import receive, stream, undo
from tests.agent.reporting_desk import AWAY, NOON, OK, Desk, P, told


@pytest.fixture
def desk():
    return Desk(Detector(P))


def test_what_was_adopted_is_told_once_with_where_it_comes_from(desk):
    assert desk.told_by(OK).merge is None
    receive(desk.sharing, told("pump-2", "pump-3"))
    desk.tick(0.1)  # this is when it is seen
    merge = desk.told_by(OK, 0.9).merge
    assert merge.at - NOON == pytest.approx(1.1)
    assert merge.digest == merged_digest(desk.memory.merged)
    assert (merge.samples, merge.devices, merge.shift) == (80.0, 2, 1.0)
    origins = [
        (each.device, each.incarnation, each.pattern, each.revision) for each in merge.origins
    ]
    assert origins == [("pump-2", 0, "normal", 3), ("pump-3", 0, "normal", 3)]
    assert desk.told_by(OK).merge is None


def test_the_shift_is_that_of_what_was_adopted_and_not_of_what_was_refused(desk):
    for x in stream(100):
        desk.memory.learner.learn(x)
    receive(desk.sharing, told("pump-2"))
    adopted = desk.sharing.preview.shift
    desk.sharing._max_shift = 0.0
    receive(desk.sharing, told("pump-3", rows=30))
    assert desk.told_by(OK).merge.shift == pytest.approx(adopted, rel=1e-5)
    assert adopted != 1.0


def test_what_is_held_is_told_after_a_start():
    desk = Desk(Detector(P), merged=encode(told("pump-2")))
    merge = desk.told_by(OK).merge
    assert (merge.samples, merge.devices, merge.shift) == (40.0, 1, None)


def test_what_is_held_after_an_undo_is_told(desk):
    first, second = told("pump-2"), told("pump-2", "pump-3")
    receive(desk.sharing, first)
    receive(desk.sharing, second)
    assert desk.told_by(OK).merge.devices == 2
    undo(desk.sharing)
    merge = desk.told_by(OK).merge
    assert (merge.devices, merge.digest, merge.shift) == (1, merged_digest(encode(first)), None)


def test_a_new_incarnation_holds_nothing_and_says_so(desk):
    receive(desk.sharing, told("pump-2"))
    desk.told_by(OK)
    desk.sharing.start_new_incarnation(lambda: NOON)
    merge = desk.told_by(OK).merge
    assert (merge.samples, merge.devices, merge.origins) == (0.0, 0, [])


def test_a_merge_is_told_until_it_is_heard_and_the_newest_only(desk):
    desk.told_by(OK)
    receive(desk.sharing, told("pump-2"))
    assert desk.told_by(AWAY).merge.devices == 1
    assert desk.told_by(OK, 10.0).merge is None  # to see whether anybody is there
    desk.tick(1.0)
    assert desk.reports[-1].merge.devices == 1
    receive(desk.sharing, told("pump-2", "pump-3"))  # while that one is on its way
    desk.tick(0.0, OK)
    assert desk.told_by(OK).merge.devices == 2
    assert desk.told_by(OK).merge is None


def from_origins(*origins):
    return Merged(
        P, (MergedPart(Stats.of(P, stream(40)), tuple(Origin(*each) for each in origins)),)
    )


def test_of_many_origins_the_first_are_named_and_all_devices_counted(desk):
    names = [f"pump-{i:04}" for i in range(MAX_REPORT_ORIGINS + 50)]
    receive(desk.sharing, from_origins(*((name, 0, "normal", 3) for name in names)))
    found = describe_merge(desk.memory, None)
    assert [each["device"] for each in found["origins"]] == names[:MAX_REPORT_ORIGINS]
    assert found["devices"] == MAX_REPORT_ORIGINS + 50
    assert desk.told_by(OK).merge.devices == MAX_REPORT_ORIGINS + 50


def test_names_of_others_are_cut_to_what_can_be_shown(desk):
    hostile = "\x1b[2J<b>" + "n" * 500
    origins = (("\x00", 0, "a", 3), (hostile, 0, hostile, 3), ("b", 0, "\x01", 3))
    receive(desk.sharing, from_origins(*origins))
    merge = desk.told_by(OK).merge
    assert merge.devices == 3
    (origin,) = merge.origins
    assert origin.device == origin.pattern == "[2J<b>" + "n" * 194
