"""What is remembered of devices: their state, how many there may be, how often they report."""

import pytest

from edgemerge.server.reports.history import DeviceId, DeviceRecords
from edgemerge.server.reports.model import NO_POINTS, LatestReport, Traffic, device_state
from edgemerge.server.reports.storage import StoredReport
from edgemerge.server.schemas import ReportedStatus
from tests.server.reporting import STATUS, merge_of, report
from tests.server.world import FLEET

NOW = 1_000_020.0


def glimpse(**words):
    known = {"device": "a", "heard": 1000.0, "every_s": 1.0, "left": False, "points": ()}
    known |= {"status": ReportedStatus(**STATUS), "alarm": None, "merge": None, "seq": 1}
    return LatestReport(**(known | words))


@pytest.mark.parametrize(
    ("after", "words", "seen_after", "state"),
    [
        (30.0, {}, None, "online"),
        (30.1, {}, None, "quiet"),
        (300.0, {}, None, "quiet"),
        (300.1, {}, None, "offline"),
        (400.0, {}, 200.0, "quiet"),
        (60.0, {"every_s": 20.0}, None, "online"),
        (60.1, {"every_s": 20.0}, None, "quiet"),
        (900.0, {"every_s": 300.0}, None, "online"),
        (0.0, {"left": True}, 0.0, "offline"),
    ],
)
def test_the_state_of_a_device_that_reports(after, words, seen_after, state):
    last = None if seen_after is None else 1000.0 + seen_after
    assert device_state(1000.0 + after, latest=glimpse(**words), seen=last, revoked=None) == state
    assert (
        device_state(1000.0 + after, latest=glimpse(**words), seen=last, revoked=5.0) == "revoked"
    )


def test_the_state_of_a_device_that_does_not_report():
    for seen_at, state in ((None, "offline"), (2800.0, "quiet"), (2799.0, "offline")):
        assert device_state(10_000.0, latest=None, seen=seen_at, revoked=None) == state
    assert device_state(10_000.0, latest=None, seen=None, revoked=1.0) == "revoked"


def test_of_too_many_devices_the_longest_unheard_goes():
    tracks = DeviceRecords(most=3)
    for i, device in enumerate("abcad"):
        tracks.take(DeviceId(FLEET, device), report(NOW), NOW + i)
    assert sorted(tracks.of(FLEET)) == ["a", "c", "d"]
    tracks.count(DeviceId(FLEET, "e"), Traffic(pushes=1))
    assert sorted(tracks.of(FLEET)) == ["a", "d", "e"]
    assert {sheet.device for sheet in tracks.collect(9, NOW)} == {"a", "d", "e"}


def test_a_large_fleet_is_told_to_report_less_often():
    tracks = DeviceRecords()
    for count, expected in ((50, 1.0), (100, 2.0), (1000, 20.0)):
        for i in range(count):
            tracks.take(DeviceId(FLEET, f"d{i}"), report(0.0), NOW)
        assert tracks.every_s(NOW + 2.0) == expected
    tracks.take(DeviceId(FLEET, "d0"), report(0.0), NOW + 3.0)
    assert tracks.of(FLEET)["d0"].latest.every_s == 20.0
    for i in range(500):
        tracks.take(DeviceId(FLEET, f"d{i}"), report(0.0, leaving=True), NOW + 4.0)
    assert tracks.every_s(NOW + 6.0) == 10.0
    assert tracks.every_s(NOW + 1000.0) == 1.0


def row(heard, version=3, **words):
    """What another server has written of a device."""
    known = {"device": "a", "heard": heard, "points": (), "seq": 0, "every_s": 1.0, "left": False}
    status = ReportedStatus(**STATUS | {"samples": int(heard)})
    shown = LatestReport(**known, status=status, alarm=None, merge=None)
    stored = {"points": NO_POINTS, "traffic": Traffic(pushes=5), "merged": 7} | words
    return StoredReport(version=version, latest=shown, **stored)


def test_what_is_stored_is_added_to_what_is_not_written_yet():
    tracks, name = DeviceRecords(), DeviceId(FLEET, "a")
    tracks.count(name, Traffic(pushes=1))
    tracks.take(name, report(NOW, merge=merge_of(NOW, 1)), NOW)
    tracks.collect(9, NOW)  # is being written
    tracks.count(name, Traffic(pushes=1, pulls=1))
    tracks.learn(name, row(NOW - 9.0))
    found = tracks.find(name)
    assert (found.traffic, found.merged) == (Traffic(pushes=7, pulls=1), 8)


def test_of_two_servers_the_one_that_heard_last_knows_best():
    tracks, name = DeviceRecords(), DeviceId(FLEET, "a")
    tracks.take(name, report(NOW, samples=1), NOW)
    tracks.learn(name, row(NOW - 9.0))
    assert tracks.find(name).latest.status.samples == 1
    before = tracks.seq
    tracks.learn(name, row(NOW + 9.0))
    assert tracks.find(name).latest.status.samples == int(NOW + 9.0)
    assert tracks.find(name).latest.seq > before


def test_what_is_stored_of_more_devices_than_fit_is_left_there():
    tracks = DeviceRecords(most=1)
    tracks.take(DeviceId(FLEET, "a"), report(NOW), NOW)
    tracks.learn(DeviceId(FLEET, "b"), row(NOW))
    assert list(tracks.every()) == [DeviceId(FLEET, "a")]
