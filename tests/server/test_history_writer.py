"""The historian: it writes when nobody waits, deletes what is old, and lives with a full disk."""

from math import inf
from threading import Event, Thread
from time import monotonic

import pytest

from edgemerge.core.errors import UnavailableError
from edgemerge.server.db.base import DiskFullError
from edgemerge.server.reports import history as history_module
from edgemerge.server.reports import storage
from edgemerge.server.reports.history import (
    SHARED_INTERVAL_S,
    SINGLE_INTERVAL_S,
    DeviceId,
    DeviceRecords,
    History,
    HistoryWriter,
)
from edgemerge.server.reports.model import (
    KEPT_DAYS,
    MAX_PENDING_MINUTES,
    MAX_POINTS,
    MAX_STORED_ALARMS,
    MAX_STORED_MERGES,
    MINUTE_DAYS,
)
from tests.server.reporting import alarm_of, merge_of, point, report
from tests.server.world import FLEET, generator, note
from tests.waiting import DEADLINE_S, until

NOW = 1_000_020.0
NEVER_S = 3600.0


def furnish(world):
    """Have forty devices."""
    world.now = NOW
    world.caller("d00")
    world.service.writer.write(lambda tx: [let_in(tx, f"d{i:02}") for i in range(1, 40)])
    return world


@pytest.fixture
def world(world):
    return furnish(world)


@pytest.fixture
def anywhere(any_world):
    return furnish(any_world)


def let_in(tx, device):
    """Enrol a device without the words that this takes."""
    fields = "fleet, device, token_hash, enrolled"
    tx.run(f"insert into devices ({fields}) values (?, ?, ?, 0)", FLEET, device, device)


class Desk:
    """A writer that counts; somebody may be waiting, or the disk may be full."""

    def __init__(self, writer, waiting=0):
        self.writer, self.waiting, self.written, self.disk_full_at = writer, waiting, 0, -inf
        self.problem, self.looked = None, Event()

    def write(self, change, timeout_s, *, fleet=""):
        if self.problem:
            raise self.problem
        self.written += 1
        return self.writer.write(change, timeout_s, fleet=fleet)

    def __getattribute__(self, name):
        if name == "waiting":
            self.looked.set()
        return super().__getattribute__(name)


def working(world, tracks=None, desk=None, every_s=NEVER_S):
    """A historian of the test's own, which works when it is asked to."""
    desk = desk or Desk(world.service.writer)
    tracks = DeviceRecords() if tracks is None else tracks
    database, clock = world.service.database, lambda: world.now
    return HistoryWriter(tracks, database, desk, clock=clock, every_s=every_s), tracks, desk


def tell(tracks, device="d00", now=NOW, **words):
    tracks.take(DeviceId(FLEET, device), report(now, **words), now)


def rows(world, sql):
    with world.service.database.reading() as tx:
        return tx.rows(sql)


def test_while_a_share_waits_history_does_not_ask_for_a_turn(world):
    mine, tracks, desk = working(world, desk=Desk(world.service.writer, waiting=1))
    tell(tracks)
    thread = Thread(target=mine.write)
    thread.start()
    for _ in range(2):  # it looks again and again
        assert desk.looked.wait(DEADLINE_S)
        desk.looked.clear()
    assert desk.written == 0
    desk.waiting = 0
    thread.join(DEADLINE_S)
    assert desk.written == 1
    assert rows(world, "select device from reports") == [("d00",)]
    mine.close()


@pytest.mark.slow
def test_if_shares_wait_for_ever_one_small_change_is_made_now_and_then(world, monkeypatch):
    monkeypatch.setattr(history_module, "MAX_WAIT_S", 0.2)
    mine, tracks, desk = working(world, desk=Desk(world.service.writer, waiting=1))
    for i in range(40):
        tell(tracks, f"d{i:02}")
    start = monotonic()
    mine.write()
    assert (desk.written, monotonic() - start >= 0.4) == (2, True)
    mine.close()


def test_a_change_is_small_and_a_share_can_come_in_between(anywhere, monkeypatch):
    order = []
    desk = Desk(anywhere.service.writer)
    mine, tracks, _ = working(anywhere, desk=desk)
    for i in range(40):
        tell(tracks, f"d{i:02}")
    write = desk.writer.write

    def noting(change, timeout_s=30.0, *, fleet=""):
        done = write(change, timeout_s, fleet=fleet)
        order.append(len(done) if isinstance(done, list) else "share")
        if order == [32]:
            anywhere.put(note("d00", 1, generator(0)))
        return done

    monkeypatch.setattr(desk.writer, "write", noting)
    mine.write()
    assert order == [32, "share", 8]
    mine.write()
    assert len(order) == 3  # nothing is left
    mine.close()


def test_it_writes_by_itself_every_few_seconds(world):
    history = History(
        world.service.database, world.service.writer, clock=lambda: world.now, every_s=0.01
    )
    history.take(FLEET, "d00", report(NOW, points=[point(NOW)]), NOW)
    until(lambda: rows(world, "select device from reports"))
    assert history.oldest_unwritten_s() == 0.0
    world.now += 7.0
    assert history.oldest_unwritten_s() == 7.0  # of the minute that has only begun
    world.now += 53.0
    until(lambda: rows(world, "select scores from minutes"))
    until(lambda: history.oldest_unwritten_s() == 0.0)
    history.close()


def test_a_minute_is_written_when_it_is_over(anywhere):
    mine, tracks, _ = working(anywhere)
    tell(tracks, points=[point(NOW - 30.0), point(NOW)])
    mine.write()
    assert rows(anywhere, "select scores from minutes") == [(1,)]
    mine.write()
    anywhere.now += 60.0
    mine.write()
    assert rows(anywhere, "select scores from minutes order by minute") == [(1,), (1,)]
    mine.close()


def test_old_minutes_go_also_of_silent_devices(anywhere):
    mine, tracks, desk = working(anywhere)
    for i in range(40):
        tell(tracks, f"d{i:02}", points=[point(NOW - 3600.0), point(NOW)])
    mine.flush()
    assert len(rows(anywhere, "select * from minutes")) == 80
    for _ in range(3):
        mine.sweep()
    assert len(rows(anywhere, "select * from minutes")) == 80
    assert desk.written == 2  # to find nothing, nothing is written
    anywhere.now += MINUTE_DAYS * 86_400.0 - 1800.0
    for left in (48, 40, 40, 40, 32, 32, 0):
        anywhere.now += 86_400.0 * (left == 32)
        mine.sweep()
        assert len(rows(anywhere, "select * from minutes")) == left
        assert len(rows(anywhere, "select * from quarters")) == 80 - left
    anywhere.now = NOW + KEPT_DAYS * 86_400.0
    for left in (72, 72, 40, 40):  # the last eight devices, the end of the list, then the first
        mine.sweep()
        assert len(rows(anywhere, "select * from quarters")) == left
    mine.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "problem", [DiskFullError("the disk is full"), UnavailableError("it is away")]
)
def test_without_a_database_there_is_memory_and_one_line_in_the_log(
    world, caplog, monkeypatch, problem
):
    caplog.set_level("INFO")
    mine, tracks, desk = working(world, every_s=0.01)
    desk.problem = problem
    looked, collect = [], tracks.collect

    def looking(*given, **more):
        looked.append(given)
        return collect(*given, **more)

    monkeypatch.setattr(tracks, "collect", looking)
    for i in range(200):
        now = NOW + 60.0 * i
        points = [point(now - j) for j in range(100)]
        alarms = [alarm_of(now - j, j) for j in range(2)]
        tell(tracks, now=now, points=points, alarms=alarms, merge=merge_of(now, i))
    world.now = NOW + 60.0 * 200
    before = len(looked)
    until(lambda: len(looked) > before + 3)  # it goes on trying
    assert caplog.text.count("history stays in memory") == 1
    fresh = (
        tracks.find(DeviceId(FLEET, "d00")).fresh or tracks.find(DeviceId(FLEET, "d00")).in_flight
    )
    assert len(fresh.points) == MAX_POINTS
    assert (len(fresh.alarms), len(fresh.merges)) == (MAX_STORED_ALARMS, MAX_STORED_MERGES)
    assert len(fresh.minutes) == MAX_PENDING_MINUTES
    assert rows(world, "select * from reports") == []
    desk.problem = None
    until(lambda: rows(world, "select * from reports"))
    until(lambda: "history is written again" in caplog.text)
    assert rows(world, "select count(*) from alarms") == [(MAX_STORED_ALARMS,)]
    assert rows(world, "select merged from reports") == [(200,)]
    mine.close()


def test_after_the_disk_was_full_history_leaves_the_rest_of_it_to_shares(world):
    mine, tracks, desk = working(world)
    tell(tracks)
    desk.disk_full_at = monotonic()
    mine.write()
    assert desk.written == 0
    desk.disk_full_at -= history_module.DISK_FULL_PAUSE_S
    mine.write()
    assert desk.written == 1
    mine.close()


def test_a_fault_of_ours_is_logged_and_the_thread_goes_on(world, caplog):
    mine, tracks, desk = working(world, every_s=0.01)
    desk.problem = ZeroDivisionError("ours")
    tell(tracks)
    until(lambda: "history could not be kept" in caplog.text)
    desk.problem = None
    until(lambda: rows(world, "select * from reports"))
    mine.close()


def test_closing_does_not_take_long_though_others_wait(world):
    mine, tracks, desk = working(world, desk=Desk(world.service.writer, waiting=5), every_s=0.01)
    tell(tracks)
    assert desk.looked.wait(DEADLINE_S)
    start = monotonic()
    mine.close()
    assert monotonic() - start < history_module.CLOSE_TIMEOUT_S
    assert len(rows(world, "select * from reports")) == 1


def test_a_broken_database_at_the_start_is_no_reason_not_to_start(world, caplog, monkeypatch):
    monkeypatch.setattr(storage, "report_versions", lambda _tx: 1 / 0)
    mine, tracks, _ = working(world)
    assert "history could not be kept" in caplog.text
    tell(tracks)
    assert len(tracks.of(FLEET)) == 1
    mine.close()


def test_a_server_that_heard_a_device_earlier_does_not_undo_what_another_wrote(anywhere):
    (mine, early, _), (other, late, _) = (working(anywhere) for _ in range(2))
    tell(early, now=NOW, samples=1, points=[point(NOW)])
    tell(late, now=NOW + 1.0, samples=2, points=[point(NOW + 1.0)])
    other.write()
    mine.write()
    third, found, _ = working(anywhere)
    glimpse = found.find(DeviceId(FLEET, "d00")).latest
    assert (glimpse.heard, glimpse.status.samples) == (NOW + 1.0, 2)
    assert [one.at for one in glimpse.points] == [NOW, NOW + 1.0]
    for each in (mine, other, third):
        each.close()


def test_a_fleet_that_is_made_anew_here_is_not_taken_for_the_one_before(world):
    mine, tracks, _ = working(world)
    mine.read()
    mine.forget(FLEET)
    tell(tracks)  # of a device of the new fleet
    world.service.writer.write(lambda tx: tx.run("update fleets set created = 5"))
    mine.read()
    assert len(tracks) == 1
    world.service.writer.write(lambda tx: tx.run("update fleets set created = 6"))
    mine.read()  # that was another server's doing
    assert len(tracks) == 0
    mine.close()


def test_a_large_fleet_is_written_as_often_as_it_reports(world):
    mine, tracks, _ = working(world, every_s=SHARED_INTERVAL_S)
    alone, *_ = working(world, tracks, every_s=SINGLE_INTERVAL_S)
    assert (mine.pause_s(), alone.pause_s()) == (SHARED_INTERVAL_S, SINGLE_INTERVAL_S)
    for i in range(500):
        tell(tracks, f"e{i}")
    world.now += 2.0
    assert (mine.pause_s(), alone.pause_s()) == (10.0, SINGLE_INTERVAL_S)
    for each in (mine, alone):
        each.close()


def test_who_has_the_database_alone_writes_less_often(world):
    history = world.service.history
    shared = world.service.database.is_shared
    assert history._history_writer.pause_s() == (SHARED_INTERVAL_S if shared else SINGLE_INTERVAL_S)
