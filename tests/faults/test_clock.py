"""Clocks that jump or are days off: revisions decide what is newest, never the time.

Invitations go by the clock of the server alone.
"""

from dataclasses import replace
from email.utils import formatdate
from itertools import cycle

import pytest

from edgemerge.exchange.client import DesiredState, in_device_time
from edgemerge.server import audit, contributions
from edgemerge.server.episodes import EpisodeReport, store_report
from edgemerge.server.reports.history import DeviceId, DeviceRecords
from edgemerge.server.reports.model import NO_POINTS, to_server_clock
from tests.faults.local import FLEET, fill, must_be_right, opened, share
from tests.server.reporting import alarm_of, monitor, point, report

JUMPS = (1_700_000_000.0, 0.0, 4e9, 1_700_000_001.0, -5.0, 1_600_000_000.0)


class Clock:
    """Tells what it was set to."""

    def __init__(self, now=1_700_000_000.0):
        self.now = now

    def __call__(self):
        return self.now


@pytest.fixture
def url(tmp_path):
    return str(tmp_path / "fleets.db")


@pytest.mark.slow
def test_revisions_decide_whatever_the_clock_says(url):
    jumping, steady = cycle(JUMPS), [True]
    tokens = {}
    with opened(url, tokens, clock=lambda: 5e9 if steady else next(jumping)) as local:
        newest = fill(local)  # invitations go by the clock
        steady.clear()
        for revision in (5, 3, 6, 4):  # late ones come at any time
            note = share("pump-1", "idle", revision)
            late = revision < newest[note.key].revision
            assert local.push(note).status_code == (409 if late else 201)
            newest[note.key] = newest[note.key] if late else note
            for grouping in ("total", "patterns"):
                must_be_right(local.told(grouping), newest)
        with local.service.database.reading() as tx:
            times = [entry.at for entry in audit.entries(tx, fleet=None, after=0, limit=1000)]
            assert times != sorted(times), "the clock did jump"
            assert audit.verify(tx) == len(times)
    with opened(url, tokens, clock=lambda: 0.0) as local:
        must_be_right(local.told(), newest)


@pytest.mark.slow
def test_a_fleet_made_again_while_the_clock_stands_still_tells_nothing_of_the_old(url):
    with opened(url, clock=Clock()) as local:
        must_be_right_after = fill(local, devices=("pump-1", "pump-2", "pump-3"))
        must_be_right(local.told(), must_be_right_after)
        assert local.ask("DELETE", f"/fleets/{FLEET}").status_code in (200, 204)
        local.tokens.clear()
        again = fill(local, devices=("fan-1", "fan-2", "fan-3"))
        must_be_right(local.told(), again)


@pytest.mark.parametrize(("then", "status"), [(59.0, 201), (61.0, 401), (-1e9, 201), (4e9, 401)])
def test_an_invitation_expires_by_the_clock_alone(url, then, status):
    clock = Clock()
    with opened(url, clock=clock) as local:
        local.make_fleet()
        asked = {"device": "pump-1", "valid_s": 60.0}
        token = local.ask("POST", f"/fleets/{FLEET}/invitations", json=asked).json()["token"]
        clock.now += then
        where, body = f"/fleets/{FLEET}/devices", {"device": "pump-1"}
        assert local.ask("POST", where, token, json=body).status_code == status
        clock.now -= then
        again = local.ask("POST", where, token, json=body).status_code
        assert again == (401 if status == 201 else 201), "it works once, within its time"


DAY_S = 86_400.0
NOW = 1_790_000_000.0
THEN = 2_100_000_000_000  # an incarnation that began in 2036, by a wrong clock


@pytest.mark.slow
def test_a_device_whose_clock_was_in_2036_is_not_locked_out_once_it_is_right(url):
    with opened(url, clock=Clock(NOW)) as local:
        local.make_fleet(reads="contributions")
        for device in ("pump-1", "pump-2", "pump-3"):
            local.enrol(device)
        wrong = replace(share("pump-1", "idle", 9), incarnation=THEN)
        right = replace(share("pump-1", "idle", 1), incarnation=int(NOW * 1000))
        assert local.push(wrong).status_code == 201
        local.enrol("pump-1")  # a new image of its disk, and the right time
        assert local.push(right).status_code == 201
        newest = {note.key: note for note in (wrong, right)}
        for grouping in ("total", "patterns"):
            must_be_right(local.told(grouping), newest)
        newer = replace(share("pump-1", "idle", 2), incarnation=right.incarnation)
        assert local.push(newer).status_code == 201
        must_be_right(local.told(), newest | {newer.key: newer})
        with local.service.database.reading() as tx:
            stored = contributions.list_stored(tx, FLEET)
        (current,) = contributions.current_contributions(stored, "pump-1")
        assert current.incarnation == right.incarnation, "what it sees now is its own"


@pytest.mark.parametrize("off", [-5 * DAY_S, -3600.0, 0.0, 3600.0, 5 * DAY_S])
def test_reports_of_a_device_whose_clock_is_off_are_shown_at_the_server_s_time(off):
    tracks, who = DeviceRecords(), DeviceId(FLEET, "pump-1")
    for after in (0.0, 10.0):
        sent = NOW + off + after
        points = [point(sent - 2.0, 1.0), point(sent - 1.0, 7.0)]
        tracks.take(who, report(sent, points=points, alarms=[alarm_of(sent - 1.0)]), NOW + after)
    latest = tracks.find(who).latest
    assert [each.at for each in latest.points] == [NOW - 2.0, NOW - 1.0, NOW + 8.0, NOW + 9.0]
    assert latest.alarm.at == NOW + 9.0
    assert latest.heard == NOW + 10.0


@pytest.mark.parametrize("jump", [-5 * DAY_S, 5 * DAY_S])
def test_a_clock_that_is_set_while_a_device_runs_loses_no_scores(jump):
    tracks, who = DeviceRecords(), DeviceId(FLEET, "pump-1")
    for after, off in ((0.0, 0.0), (10.0, jump), (20.0, jump)):
        sent = NOW + off + after
        tracks.take(who, report(sent, points=[point(sent, 1.0 + after)]), NOW + after)
    latest = tracks.find(who).latest
    assert [(each.at - NOW, each.score) for each in latest.points] == [
        (0.0, 1.0),
        (10.0, 11.0),
        (20.0, 21.0),
    ]


def episode_of(began, ended=None):
    return {"number": 1, "began": began, "ended": ended, "peak": 9.0, "samples": 3}


@pytest.mark.slow
@pytest.mark.parametrize("jump", [0.0, -5 * DAY_S, 5 * DAY_S])
def test_an_episode_stays_one_and_where_it_was_when_the_device_s_clock_is_set(url, jump):
    with opened(url, clock=Clock(NOW)) as local:
        local.make_fleet()
        local.enrol("pump-1")
        shown = []
        for after, off, ended in ((0.0, 0.0, None), (60.0, jump, None), (120.0, jump, -30.0)):
            # The device knows the beginning by the clock that it had then.
            end = None if ended is None else NOW + off + after + ended
            watched = monitor(episodes=[episode_of(NOW - 20.0, end)], patterns=[])
            said = report(NOW + off + after, monitor=watched)
            with local.service.database.writing() as tx:
                heard = to_server_clock(said, NOW + after).status.monitor
                told = EpisodeReport(FLEET, "pump-1", 1, heard, NOW + after)
                store_report(tx, told, lambda _since: NO_POINTS)
            with local.service.database.reading() as tx:
                rows = tx.rows("select began, ended from episodes")
            shown.append(rows)
        assert shown == [
            [(NOW - 20.0, None)],
            [(NOW - 20.0, None)],
            [(NOW - 20.0, NOW + 90.0)],
        ]


@pytest.mark.parametrize("off", [-3 * DAY_S, -30.0, 0.0, 30.0, 3 * DAY_S])
def test_a_snooze_lasts_as_long_as_it_was_meant_whatever_the_clock_of_the_device(off):
    review = {"number": 1, "decision": "snooze", "until": NOW + 7200.0}
    other = {"number": 2, "decision": "snooze", "until": None}
    date = formatdate(NOW, usegmt=True)
    found = in_device_time(DesiredState(1, reviews=(review, other)), date, NOW + off)
    assert found.reviews is not None
    lasts = found.reviews[0]["until"] - (NOW + off)
    assert lasts == pytest.approx(7200.0, abs=60.0)
    assert found.reviews[1] == other
    for unknown in ("", "yesterday"):
        assert in_device_time(found, unknown, NOW) == found


@pytest.mark.slow
@pytest.mark.parametrize(("jump", "shown"), [(-5 * DAY_S, 60.0), (5 * DAY_S, -20.0)])
def test_an_end_by_another_clock_lies_between_the_beginning_and_when_it_was_heard(url, jump, shown):
    with opened(url, clock=Clock(NOW)) as local:
        local.make_fleet()
        local.enrol("pump-1")
        for after, off, ended in ((0.0, 0.0, None), (60.0, jump, NOW + 30.0)):
            watched = monitor(episodes=[episode_of(NOW - 20.0, ended)], patterns=[])
            said = to_server_clock(report(NOW + off + after, monitor=watched), NOW + after)
            told = EpisodeReport(FLEET, "pump-1", 1, said.status.monitor, NOW + after)
            with local.service.database.writing() as tx:
                store_report(tx, told, lambda _since: NO_POINTS)
        with local.service.database.reading() as tx:
            assert tx.rows("select began, ended from episodes") == [(NOW - 20.0, NOW + shown)]
