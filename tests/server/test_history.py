"""The history of a fleet: what is kept of reports, for how long, and what a restart keeps."""

import pytest

from edgemerge.server.db.migrations import connect
from edgemerge.server.reports.model import (
    KEPT_DAYS,
    MAX_POINTS,
    MAX_STORED_ALARMS,
    MAX_STORED_MERGES,
    Traffic,
)
from edgemerge.server.service import Service
from tests.server.reporting import alarm_of, merge_of, point, report
from tests.server.world import FLEET, ROOT, World

NOW = 1_000_020.0  # the beginning of a minute


def furnish(world):
    """Have two devices."""
    world.now = NOW
    for device in ("a", "b"):
        world.caller(device)
    return world


@pytest.fixture
def world(world):
    return furnish(world)


@pytest.fixture
def anywhere(any_world):
    return furnish(any_world)


def history_of(world):
    return world.service.history


def seen(history, device="a"):
    """All that can be known of a device, with what changes at a restart left out."""
    glimpse = history.latest(FLEET, device)
    return (
        None if glimpse is None else {**vars(glimpse), "seq": 0, "points": tuple(glimpse.points)},
        history.minutes(FLEET, device, since=0.0),
        history.alarms(FLEET, device),
        history.merges(FLEET, device),
        history.traffic(FLEET).get(device),
        history.merged(FLEET),
    )


def told(world, device="a", now=None, **words):
    """Let a device report at a moment; its own clock is 500 s behind."""
    world.now = world.now if now is None else now
    for name in {"points", "alarms"} & set(words):
        words[name] = [{**one, "at": one["at"] - 500.0} for one in words[name]]
    if "merge" in words:
        words["merge"] = {**words["merge"], "at": words["merge"]["at"] - 500.0}
    history_of(world).take(FLEET, device, report(world.now - 500.0, **words), world.now)


def test_a_report_is_seen_at_once_by_the_servers_clock(world):
    told(
        world,
        points=[point(NOW - 2.0, 0.5), point(NOW - 5.0, 3.0, 2.0, True), point(NOW + 9.0, 0.7)],
        alarms=[alarm_of(NOW - 5.0, 8), alarm_of(NOW - 6.0, 7), alarm_of(NOW + 99.0, 9)],
        merge=merge_of(NOW - 50.0, 1, origins=3),
        synced=NOW - 570.0,
        pattern="idle",
    )
    glimpse = history_of(world).latest(FLEET, "a")
    assert (glimpse.device, glimpse.heard, glimpse.every_s, glimpse.left) == ("a", NOW, 1.0, False)
    assert [tuple(one) for one in glimpse.points] == [
        (NOW - 5.0, 3.0, 2.0, True),
        (NOW - 2.0, 0.5, None, False),
        (NOW, 0.7, None, False),
    ]
    assert (glimpse.status.pattern, glimpse.status.synced) == ("idle", NOW - 70.0)
    assert (glimpse.alarm.at, glimpse.alarm.sample) == (NOW, 9)
    assert (glimpse.merge.at, glimpse.merge.origins) == (NOW - 50.0, [])
    history = history_of(world)
    assert [alarm.sample for alarm in history.alarms(FLEET, "a")] == [9, 8, 7]
    assert len(history.merges(FLEET, "a")[0].origins) == 3
    assert history.merged(FLEET) == 1
    assert history.latest_reports(FLEET) == {"a": glimpse}
    assert history.latest_reports("another") == {}


def test_a_restart_keeps_everything(anywhere):
    for i in range(70):
        told(
            anywhere,
            now=NOW + 5.0 * i,
            points=[point(NOW + 5.0 * i - j, 1.0 + i % 7) for j in range(5)],
            alarms=[alarm_of(NOW + 5.0 * i, i, why=[("x", 2.0)])],
            merge=merge_of(NOW + i, i // 2, origins=2),
        )
        if i % 20 == 0:
            history_of(anywhere).flush()
    history_of(anywhere).pushed(FLEET, "a", 100)
    history_of(anywhere).pulled(FLEET, "b", 0, grouped=False)
    before = [seen(history_of(anywhere), device) for device in "ab"]
    assert len(before[0][0]["points"]) == 350
    assert len(before[0][2]) == 70
    assert before[0][5] == len(before[0][3]) == 35
    assert sum(minute.scores for minute in before[0][1]) == 350
    assert before[1][4] == Traffic(pulls=1, last=anywhere.now, grouped=False)
    anywhere.restart()
    assert [seen(history_of(anywhere), device) for device in "ab"] == before
    anywhere.restart()
    assert [seen(history_of(anywhere), device) for device in "ab"] == before


def test_what_is_written_in_between_changes_nothing(world):
    for device, often in (("a", True), ("b", False)):
        world.now = NOW
        for i in range(30):
            told(
                world,
                device,
                now=NOW + 20.0 * i,
                points=[point(NOW + 20.0 * i - j % 40, j % 5) for j in range(60)],
                alarms=[alarm_of(NOW + 20.0 * i - j, i) for j in range(3)],
            )
            if often:
                history_of(world).flush()
    for one, other in zip(*(seen(history_of(world), device)[1:4] for device in "ab"), strict=True):
        if one and hasattr(one[0], "mean"):
            one, other = (
                [m._replace(mean=round(m.mean, 9)) for m in some] for some in (one, other)
            )
        assert one == other
    a, b = (history_of(world).latest(FLEET, device) for device in "ab")
    assert a.points == b.points


def test_minutes_are_those_since_a_moment_and_until_another(world):
    history = history_of(world)
    told(world, points=[point(NOW - 70.0), point(NOW)])
    for _ in range(2):
        assert [one.at for one in history.minutes(FLEET, "a", since=0.0)] == [NOW - 120.0, NOW]
        assert [one.at for one in history.minutes(FLEET, "a", since=NOW - 30.0)] == [NOW]
        history.flush()
    for until, found in (
        (NOW - 60.0, [NOW - 120.0]),
        (NOW, [NOW - 120.0]),
        (NOW + 0.5, [NOW - 120.0, NOW]),
    ):
        assert [one.at for one in history.minutes(FLEET, "a", since=0.0, until=until)] == found
    world.now = NOW + KEPT_DAYS * 86_400.0 + 1800.0
    assert history.minutes(FLEET, "a", since=0.0) == []


@pytest.mark.slow
def test_scores_of_months_are_bounded_and_keep_their_peak(anywhere):
    """Minutes become quarters of an hour after a week."""
    history, step = history_of(anywhere), 24 * 3600.0
    start, peak = NOW + 9 * step, 41.5
    for i in range(30):
        at = NOW + i * step
        score = peak if i == 9 else 1.0 + i % 3
        told(anywhere, now=at, points=[point(at - 70.0, 1.0), point(at, score, 4.0, score > 4.0)])
        history.flush()
        for _ in range(2):
            anywhere.service.history._history_writer.sweep()
    tables = [rows_of(anywhere, table) for table in ("minutes", "quarters")]
    assert tables == [16, 22]  # 8 days of minutes, and 22 quarters
    now = anywhere.now + 1.0
    for span, most in ((86_400.0 * 40, 600), (86_400.0 * 40, 50), (1e9, 12)):
        step_s, found = history.scores(FLEET, "a", since=now - span, until=now, most=most)
        assert len(found) <= most
        assert sum(one.scores for one in found) == 60
        assert sum(one.alarms for one in found) == 1
        (highest,) = [one for one in found if one.highest == peak]
        assert highest.at <= start < highest.at + step_s
        assert [one.at for one in found] == sorted({one.at // step_s * step_s for one in found})
    step_s, found = history.scores(FLEET, "a", since=now - 3600.0, until=now)
    assert (step_s, [one.at for one in found]) == (60.0, [now - 121.0, now - 1.0])
    step_s, found = history.scores(FLEET, "a", since=start - 3600.0, until=start + 3600.0)
    assert (step_s, [one.highest for one in found][-1]) == (900.0, peak)


def test_a_chart_has_no_more_points_than_were_asked_for(anywhere):
    first = int(NOW // 60) - 1440
    row = "insert into minutes values (?, ?, ?, 1, 1.0, ?, 4.0, 0)"

    def change(tx):
        for minute in range(first, first + 1440):
            tx.run(row, FLEET, "a", minute, 1.0 + minute % 97)

    anywhere.service.writer.write(change, 60.0)
    for most in (2, 3, 10, 100, 750, 5000):
        for since in (NOW - 86_400.0, NOW - 86_000.0, NOW - 7_000.0):
            found = history_of(anywhere).scores(FLEET, "a", since=since, until=NOW, most=most)[1]
            assert len(found) <= most
            assert max(one.highest for one in found) == 97.0


def rows_of(world, table):
    with world.service.database.reading() as tx:
        return tx.one(f"select count(*) from {table}")[0]


def test_retention_in_days_is_a_setting(anywhere):
    anywhere.service.close()
    anywhere.service = Service(connect(anywhere.url), clock=lambda: anywhere.now, history_days=2)
    told(anywhere, points=[point(NOW)])
    history = history_of(anywhere)
    history.flush()
    for days, left in ((1.9, 1), (2.1, 0)):
        anywhere.now = NOW + days * 86_400.0
        for _ in range(2):  # the second begins again at the first device
            history._history_writer.sweep()
        assert len(history.minutes(FLEET, "a", since=0.0)) == left
        assert rows_of(anywhere, "minutes") + rows_of(anywhere, "quarters") == left


@pytest.mark.slow
def test_a_flood_stays_within_its_bounds(anywhere):
    for i in range(40):
        told(
            anywhere,
            now=NOW + 60.0 * i,
            points=[point(NOW + 60.0 * i - j / 4) for j in range(240)],
            alarms=[alarm_of(NOW + 60.0 * i - j, j) for j in range(20)],
            merge=merge_of(NOW + 60.0 * i, i),
        )
        for j in range(2):
            told(anywhere, merge=merge_of(NOW + 60.0 * i - j, 1000 + 2 * i + j))
        if i == 20:
            history_of(anywhere).flush()
    for _ in range(2):
        history = history_of(anywhere)
        assert len(history.latest(FLEET, "a").points) == MAX_POINTS
        assert history.latest(FLEET, "a").points[0].at == anywhere.now - (MAX_POINTS - 1) / 4
        newest = history.alarms(FLEET, "a", limit=10_000)
        assert len(newest) == MAX_STORED_ALARMS
        assert newest[0].at == anywhere.now
        assert len(history.merges(FLEET, "a", limit=10_000)) == MAX_STORED_MERGES
        assert [one.at for one in newest] == sorted((one.at for one in newest), reverse=True)
        assert history.merged(FLEET) == 120
        assert len(history.alarms(FLEET, "a", limit=3)) == 3
        anywhere.restart()
    with anywhere.service.database.reading() as tx:
        assert tx.one("select count(*) from alarms") == (MAX_STORED_ALARMS,)
        assert tx.one("select count(*) from merges") == (MAX_STORED_MERGES,)
        assert len(tx.one("select points from rings")[0]) <= 32 * MAX_POINTS
        assert len(tx.one("select points from reports")[0]) <= 32 * 120


def test_only_the_newest_merge_keeps_a_long_list_of_origins(anywhere):
    for number, origins in enumerate((3, 600, 700, 800)):
        told(anywhere, merge=merge_of(NOW - 100.0 + number, number, origins=origins))
        if number != 1:
            history_of(anywhere).flush()
    anywhere.restart()
    kept = [(one.devices, len(one.origins)) for one in history_of(anywhere).merges(FLEET, "a")]
    assert kept == [(800, 800), (700, 0), (600, 0), (3, 3)]


def test_a_merge_that_is_told_again_is_the_same_merge(world):
    for at in (NOW - 9.0, NOW - 9.25):
        told(world, merge=merge_of(at, 5))
    told(world)
    assert history_of(world).merged(FLEET) == 1
    assert history_of(world).latest(FLEET, "a").merge.at == NOW - 9.0


def test_changes_are_numbered(world):
    history = history_of(world)
    told(world, "a")
    told(world, "b")
    between = history.seq
    told(world, "a")
    found = history.latest_reports(FLEET)
    assert (found["b"].seq, found["a"].seq) == (between, history.seq)
    assert between < history.seq


def test_pushes_and_pulls_are_counted_where_they_happen(anywhere):
    history = history_of(anywhere)
    history.pushed(FLEET, "a", 100)
    history.pushed(FLEET, "a", 20)
    history.flush()
    history.pulled(FLEET, "a", 7, grouped=False)
    history.pulled(FLEET, "a", 0, grouped=True)
    assert history.traffic(FLEET) == {"a": Traffic(2, 120, 2, 7, NOW, True)}
    assert history.latest_reports(FLEET) == {}  # it has never reported
    anywhere.restart()
    assert history_of(anywhere).traffic(FLEET) == {"a": Traffic(2, 120, 2, 7, NOW, True)}
    assert history_of(anywhere).latest_reports(FLEET) == {}


def test_deleting_a_fleet_forgets_its_history(anywhere):
    told(anywhere, points=[point(NOW)], alarms=[alarm_of(NOW)], merge=merge_of(NOW))
    history_of(anywhere).flush()
    told(anywhere, "b")
    anywhere.service.delete(FLEET, ROOT)
    assert seen(history_of(anywhere)) == (None, [], [], [], None, 0)
    told(anywhere, points=[point(NOW)])  # a report that was under way
    history_of(anywhere).flush()
    anywhere.service.create(anywhere.fleet, ROOT)
    assert seen(history_of(anywhere)) == (None, [], [], [], None, 0)
    anywhere.restart()
    assert seen(history_of(anywhere)) == (None, [], [], [], None, 0)


def test_a_revoked_device_keeps_its_history(world):
    told(world, points=[point(NOW)])
    world.service.revoke(FLEET, "a", ROOT)
    world.restart()
    assert len(history_of(world).latest(FLEET, "a").points) == 1


def test_a_damaged_row_costs_no_other_device_its_history(world):
    told(world, "a", points=[point(NOW)])
    told(world, "b", points=[point(NOW)])
    world.service.history.flush()
    world.service.writer.write(
        lambda tx: tx.run("update reports set body = '{', points = ? where device = 'a'", b"x")
    )
    world.restart()
    assert history_of(world).latest(FLEET, "a") is None
    assert len(history_of(world).latest(FLEET, "b").points) == 1


def test_two_servers_on_one_database_see_what_each_was_told(fresh_postgres_url):
    world = World(fresh_postgres_url)
    world.now = NOW
    world.caller("a")
    world.caller("b")
    other = Service(connect(fresh_postgres_url), clock=lambda: world.now)
    both = (world.service.history, other.history)
    for i in range(150):  # the device reports to either in turn, the second is slow to write
        world.now = NOW + i
        words = {"points": [point(world.now)], "alarms": [alarm_of(world.now, i)], "samples": i}
        both[i % 2].take(FLEET, "a", report(world.now, **words), world.now)
        both[i % 2].pushed(FLEET, "a", 10)
        both[i % 2].take(FLEET, "b", report(world.now, merge=merge_of(world.now, i)), world.now)
        if i % 20 == 0:
            both[0].flush()
        if i % 50 == 0:
            both[1].flush()
    for history in (*both, both[0]):
        history.flush()
        history.refresh()
    mine, theirs = map(seen, both)
    assert mine == theirs
    assert [one.at for one in mine[0]["points"]] == [NOW + i for i in range(150)]
    assert mine[0]["status"].samples == 149
    assert sum(minute.scores for minute in mine[1]) == 150
    assert len(mine[2]) == MAX_STORED_ALARMS
    assert mine[4] == Traffic(pushes=150, pushed_bytes=1500, last=world.now)
    assert seen(both[0], "b") == seen(both[1], "b")
    world.service.delete(FLEET, ROOT)
    both[1].refresh()
    assert seen(both[1]) == (None, [], [], [], None, 0)
    other.close()
    world.close()


def test_what_a_device_asked_for_last_is_known_after_a_restart_and_to_other_servers(anywhere):
    history = history_of(anywhere)
    assert history.last_pull_was_grouped(FLEET, "a") is None
    for grouped in (False, True):
        anywhere.now += 1.0
        history.pulled(FLEET, "a", 7, grouped=grouped)
    history.pushed(FLEET, "a", 100)  # says nothing about it
    history.flush()
    anywhere.restart()
    assert history_of(anywhere).last_pull_was_grouped(FLEET, "a")


def test_what_was_asked_for_last_counts_in_whatever_order_it_is_added():
    old, new = Traffic(last=1.0, grouped=True), Traffic(last=2.0, grouped=False)
    assert (old + new).grouped is (new + old).grouped is False
    assert (Traffic(last=3.0) + old).grouped is True
