"""Episodes: stored from reports once, merged in any order, acknowledged, listed and deleted."""

from itertools import permutations

import httpx
import pytest

from edgemerge.core.errors import UnknownError
from edgemerge.server import episodes
from edgemerge.server.auth import Caller
from edgemerge.server.db.migrations import connect
from edgemerge.server.episodes import GROWTH_S, MAX_CURVE_POINTS, MAX_PER_DEVICE
from edgemerge.server.reports.model import DAY_S, NO_POINTS
from edgemerge.server.schemas import ReviewRequest
from edgemerge.server.service import Service
from tests.server.merge_site import create, serving
from tests.server.reporting import NAMED, monitor, point, report
from tests.server.world import FLEET, ROOT, World
from tests.waiting import until

pytestmark = pytest.mark.slow

EVE = Caller("eve")


@pytest.fixture
def world(any_world):
    any_world.caller("a")
    return any_world


def episode(number=1, began=900.0, ended=None, **changed):
    inputs = [["bearing_rms", 12.5], ["speed", 2.0]]
    base = {"number": number, "began": began, "ended": ended, "peak": 33.0, "samples": 60}
    return base | {"inputs": inputs, "pattern": "odd-1", "acknowledged": False} | changed


def tell(world, *said, device="a", service=None, points=(), **status):
    """Report these episodes, and wait until they are stored."""
    told = report(world.now, points=points, monitor=monitor(episodes=list(said)), **status)
    service = service or world.service
    service.take_report(FLEET, device, told, world.now)
    settle(service)


def settle(service):
    """Wait until what was taken in is stored, and what had to wait for that."""
    until(lambda: not service.episodes._writing)


def stored(world, **wanted):
    asked = {"since": 0.0, "limit": 1000, "open_only": False, "device": None} | wanted
    return world.service.episodes.list_changed(FLEET, **asked)


def by_number(world):
    return sorted(stored(world), key=lambda row: row.number)


def curve(world, row):
    with world.service.database.reading() as tx:
        return episodes.read_curves(tx, [row])[row.id]


def test_an_episode_is_stored_from_its_beginning_to_its_end(world):
    tell(world, episode(began=990.0, **NAMED), incarnation=7)
    (row,) = stored(world)
    assert (row.device, row.incarnation, row.number) == ("a", 7, 1)
    assert (row.began, row.ended, row.peak, row.samples) == (990.0, None, 33.0, 60)
    assert row.inputs == (("bearing_rms", 12.5), ("speed", 2.0))
    assert (row.pattern, row.fault, row.like) == ("odd-1", NAMED["fault"], NAMED["like"])
    assert (row.threshold, row.reported, row.closed) == (4.0, 1000.0, None)
    assert (row.acknowledged, row.comment) == (None, "")
    world.now = 1050.0
    tell(world, episode(began=990.0, ended=1040.0, peak=50.0, samples=110), incarnation=7)
    (after,) = stored(world)
    assert after.id == row.id
    assert (after.ended, after.peak, after.samples) == (1040.0, 50.0, 110)
    assert (after.reported, after.closed) == (1000.0, 1050.0)
    assert after.changed > row.changed


def test_the_same_report_twice_is_once_and_writes_nothing(world):
    tell(world, episode())
    before = stored(world)
    world.now = 1001.0
    tell(world, episode())
    assert stored(world) == before
    world.restart()  # and after a restart, when nothing is remembered
    world.now = 1002.0
    tell(world, episode())
    (row,) = stored(world)
    assert row.changed == before[0].changed


def test_what_only_grows_is_written_now_and_then_and_is_no_change(world):
    tell(world, episode(peak=33.0))
    (before,) = stored(world)
    world.now += GROWTH_S / 2
    tell(world, episode(peak=40.0))
    assert stored(world)[0].peak == 33.0
    world.now += GROWTH_S
    tell(world, episode(peak=41.0, samples=99))
    (row,) = stored(world)
    assert (row.peak, row.samples) == (41.0, 99)
    assert row.changed == before.changed


def test_a_report_that_comes_while_another_is_written_is_not_lost(world):
    service = world.service
    for number, ended in enumerate((None, 905.0), 1):
        told = report(world.now, monitor=monitor(episodes=[episode(1, ended=ended, peak=number)]))
        service.take_report(FLEET, "a", told, world.now)
    settle(service)
    assert stored(world)[0].ended == 905.0


REPORTS = [
    (1000.0, [episode(1, peak=5.0, pattern=None)]),
    (1010.0, [episode(1, ended=1009.0, peak=9.0), episode(2, began=1010.0)]),
    (1020.0, [episode(1, ended=1009.0, peak=9.0), episode(2, began=1010.0, ended=1018.0)]),
    (1030.0, [episode(2, began=1010.0, ended=1018.0)]),
]


def test_reports_of_several_servers_give_the_same_in_any_order(world):
    for order in permutations(range(4)):
        with world.service.database.writing() as tx:
            tx.run("delete from episodes")
            for i in (*order, *order):
                at, said = REPORTS[i]
                told = report(at, monitor=monitor(episodes=said)).status.monitor
                told = episodes.EpisodeReport(FLEET, "a", 0, told, at)
                episodes.store_report(tx, told, lambda _since: NO_POINTS)
        first, second = by_number(world)
        assert (first.ended, first.peak, first.pattern) == (1009.0, 9.0, "odd-1")
        assert (first.acknowledged, first.acknowledged_by) == (1030.0, "device a")
        assert (first.reported, first.heard) == (1000.0, 1020.0)
        assert (second.ended, second.acknowledged, second.reported) == (1018.0, None, 1010.0)


def test_two_servers_on_one_database_store_an_episode_once(fresh_postgres_url):
    world = World(fresh_postgres_url)
    world.caller("a")
    other = Service(connect(world.url), clock=lambda: world.now)
    tell(world, episode())
    world.now = 1005.0
    tell(world, episode(ended=1004.0), service=other)
    other.close()
    (row,) = stored(world)
    assert row.ended == 1004.0
    world.close()


def test_an_ended_episode_that_is_no_longer_listed_was_acknowledged_at_the_device(world):
    tell(world, episode(1, ended=950.0), episode(2, began=960.0))
    world.now = 1010.0
    tell(world, episode(2, began=960.0))
    first, second = by_number(world)
    assert (first.acknowledged, first.acknowledged_by) == (1010.0, "device a")
    assert second.acknowledged is None


def test_an_older_episode_of_a_full_list_is_not_taken_for_acknowledged(world):
    said = [episode(i, began=10.0 * i, ended=10.0 * i + 5) for i in range(1, 41)]
    tell(world, *said[:32])
    world.now = 1010.0
    tell(world, *said[8:])
    assert [row.number for row in stored(world) if row.acknowledged is not None] == []
    world.now = 1020.0
    tell(world, *said[8:20], *said[21:])
    seen = [row.number for row in stored(world) if row.acknowledged is not None]
    assert seen == [*range(1, 9), 21]


def test_an_open_episode_that_is_lost_has_ended_and_still_wants_a_person(world):
    tell(world, episode(1, began=990.0))
    world.now = 1030.0
    tell(world)
    (row,) = stored(world)
    assert (row.ended, row.closed, row.acknowledged) == (1020.0, 1030.0, None)


def test_a_lost_episode_that_comes_again_is_open_again(world):
    tell(world, episode(1, began=990.0))
    for now, said in ((1010.0, []), (1020.0, [episode(1, began=992.0)])):
        world.now = now
        tell(world, *said)
    (row,) = stored(world)
    assert (row.ended, row.closed, row.began) == (None, None, 992.0)


def test_a_new_incarnation_with_the_old_episodes_goes_on_with_their_rows(world):
    tell(world, episode(1, began=900.0), episode(2, began=950.0, ended=960.0), incarnation=5)
    world.now = 1010.0
    tell(world, episode(1, began=905.0), episode(3, began=1005.0), incarnation=6)
    rows = by_number(world)
    assert [(row.number, row.incarnation) for row in rows] == [(1, 6), (2, 5), (3, 6)]
    assert rows[1].acknowledged is None  # the new incarnation does not know it


def test_an_episode_stays_the_same_when_the_clock_of_its_device_is_set_right(world):
    tell(world, episode(1, began=5.0))
    world.now += GROWTH_S
    tell(world, episode(1, began=995.0, samples=99))
    (row,) = stored(world)
    assert (row.began, row.ended) == (995.0, None)


def test_a_number_that_is_used_again_is_another_episode(world):
    tell(world, episode(4, began=500.0, ended=520.0))
    world.now = 2000.0
    tell(world, episode(4, began=1990.0))
    assert [(row.number, row.began) for row in stored(world)] == [(4, 500.0), (4, 1990.0)]
    assert [row.acknowledged for row in stored(world)] == [None, None]


def test_acknowledging_is_a_review_and_is_seen_at_once(world):
    tell(world, episode(1, ended=950.0), episode(2, began=960.0))
    asked = ReviewRequest(decision="acknowledge", episode=1, comment="heard it too")
    made = world.service.reviews.add(FLEET, "a", asked, EVE)
    assert (made.state, made.episode) == ("waiting", 1)
    first, second = by_number(world)
    assert (first.acknowledged, first.acknowledged_by) == (1000.0, "operator eve")
    assert (first.comment, first.commented_by) == ("heard it too", "operator eve")
    assert second.acknowledged is None
    assert first.changed > second.changed
    world.now = 1010.0
    tell(world, episode(1, ended=950.0), episode(2, began=960.0))  # it has not acted yet
    assert by_number(world)[0].acknowledged == 1000.0
    world.service.reviews.add(FLEET, "a", ReviewRequest(decision="acknowledge"), ROOT)
    by = [row.acknowledged_by for row in by_number(world)]
    assert by == ["operator eve", "operator root"]


def test_an_episode_of_a_revoked_device_can_be_acknowledged(world):
    tell(world, episode(1, ended=950.0))
    world.service.revoke(FLEET, "a", ROOT)
    asked = ReviewRequest(decision="acknowledge", episode=1)
    assert world.service.reviews.add(FLEET, "a", asked, EVE).state == "done"
    assert stored(world)[0].acknowledged_by == "operator eve"


def test_all_that_ended_is_acknowledged_up_to_what_was_seen(world):
    world.caller("b")
    tell(world, episode(1, ended=950.0), episode(2, ended=960.0), device="b")
    tell(world, episode(1, ended=950.0), episode(2, ended=960.0), episode(3, began=990.0))
    until_then = stored(world)[-1].changed
    world.now = 1010.0
    world.caller("c")
    tell(world, episode(1, ended=1009.0), device="c")
    assert world.service.reviews.acknowledge_ended(FLEET, EVE, until=until_then) == 4
    seen = {(row.device, row.number) for row in stored(world) if row.acknowledged is not None}
    assert seen == {("a", 1), ("a", 2), ("b", 1), ("b", 2)}
    waiting = world.service.choices.desired
    assert [each.episode for each in waiting(FLEET, "a")[1].reviews] == [1, 2]  # 3 is open
    assert [each.episode for each in waiting(FLEET, "b")[1].reviews] == [None]
    assert world.service.reviews.acknowledge_ended(FLEET, EVE, until=until_then) == 0


def test_a_comment_replaces_the_one_before_and_is_in_the_audit_log(world):
    tell(world, episode())
    (row,) = stored(world)
    world.service.episodes.comment(FLEET, row.id, "looks like the seal", EVE)
    world.now = 1060.0
    after = world.service.episodes.comment(FLEET, row.id, "it was the seal", EVE)
    assert (after.comment, after.commented, after.commented_by) == (
        "it was the seal",
        1060.0,
        "operator eve",
    )
    assert stored(world) == [after]
    assert after.changed > row.changed
    said = [
        entry.detail for entry in world.service.audit(FLEET, 0, 99) if entry.action == "comment"
    ]
    assert said == [
        '{"comment":"looks like the seal","episode":1}',
        '{"comment":"it was the seal","episode":1}',
    ]
    again = world.service.episodes.comment(FLEET, row.id, "it was the seal", ROOT)
    assert again == after
    with pytest.raises(UnknownError, match="no episode 999 in pumps"):
        world.service.episodes.comment(FLEET, 999, "x", EVE)


def test_a_client_reads_on_from_the_last_change_without_gap_or_repeat(world):
    world.caller("b")
    for number in range(1, 6):
        tell(
            world, *(episode(k, began=100.0 * k, ended=100.0 * k + 9) for k in range(1, number + 1))
        )
    tell(world, episode(1, began=990.0), device="b")
    everything = stored(world)
    assert len({row.changed for row in everything}) == 6  # the clock stood still
    since, read = 0.0, []
    while page := stored(world, since=since, limit=2):
        read += page
        since = page[-1].changed
    assert read == everything
    assert [row.device for row in stored(world, open_only=True)] == ["b"]
    assert [row.number for row in stored(world, device="a")] == [1, 2, 3, 4, 5]


def test_changes_rise_also_when_the_clock_is_set_back(world):
    tell(world, episode(1))
    world.now = 500.0
    world.caller("b")
    tell(world, episode(1, began=490.0), device="b")
    first, second = stored(world)
    assert second.changed > first.changed
    assert second.device == "b"


def test_old_episodes_are_deleted_after_their_days(database_url):
    world = World(database_url)
    world.service.close()
    world.service = Service(connect(database_url), clock=lambda: world.now, episode_days=10.0)
    world.caller("a")
    world.caller("b")
    tell(world, episode(1, ended=950.0))
    world.now += 9 * DAY_S
    tell(world, episode(1, ended=world.now - 1.0, began=world.now - 50.0), device="b")
    assert len(stored(world)) == 2
    world.now += 2 * DAY_S
    tell(world, episode(2, began=world.now), device="b")
    assert {row.device for row in stored(world)} == {"b"}
    world.close()


def test_a_device_has_a_bounded_number_of_episodes(world, monkeypatch):
    monkeypatch.setattr(episodes, "MAX_PER_DEVICE", 20)
    assert MAX_PER_DEVICE == 1000
    for first in range(1, 60, 10):
        world.now += 1.0
        tell(
            world,
            *(episode(i, began=10.0 * i, ended=10.0 * i + 1) for i in range(first, first + 10)),
        )
    assert sorted(row.number for row in stored(world)) == [*range(41, 61)]


def test_episodes_go_with_their_fleet(world):
    tell(world, episode())
    world.service.delete(FLEET, ROOT)
    with world.service.database.reading() as tx:
        assert tx.one("select count(*) from episodes") == (0,)
    world.service.create(world.fleet, ROOT)
    world.tokens.clear()
    world.caller("a")
    tell(world, episode())  # the same report is not taken for known
    assert len(stored(world)) == 1


def test_a_report_of_a_device_that_is_gone_stores_nothing(world):
    told = report(world.now, monitor=monitor(episodes=[episode()]))
    world.service.take_report(FLEET, "nobody", told, world.now)
    settle(world.service)
    assert stored(world) == []


def test_the_curve_holds_the_scores_before_in_and_after_an_episode(world):
    world.now = 10_000.0
    before = [point(world.now - 100 + k, 1.0, 4.0) for k in range(80)]
    within = [point(world.now - 20 + k, 9.0 + k, 4.0, True) for k in range(20)]
    tell(world, episode(began=9980.0), points=[*before, *within])
    (row,) = stored(world)
    drawn = curve(world, row)
    assert len(drawn) <= MAX_CURVE_POINTS
    assert drawn[0, 0] >= 9980.0 - 60.0
    assert drawn[:, 1].max() == 28.0
    world.now = 10_010.0
    tell(world, episode(began=9980.0, ended=10_001.0), points=[point(10_005.0, 1.0, 4.0)])
    world.now = 10_080.0  # after the pad of the curve: it is drawn once more
    after = [point(10_006.0 + k, 1.5, 4.0) for k in range(74)]
    tell(world, episode(began=9980.0, ended=10_001.0), points=after)
    drawn = curve(world, row)
    assert len(drawn) <= MAX_CURVE_POINTS
    assert drawn[:, 1].max() == 28.0
    assert 10_060.0 <= drawn[-1, 0] <= 10_070.0
    assert (drawn[1:, 0] > drawn[:-1, 0]).all()
    world.now = 10_100.0
    tell(world, episode(began=9980.0, ended=10_001.0), points=[point(10_099.0, 77.0, 4.0)])
    assert (curve(world, row) == drawn).all()


def test_an_episode_that_is_reported_late_spans_the_time_of_its_samples(world):
    tell(world, episode(1, began=400.0, ended=460.0), episode(2, began=5.0 - 2 * DAY_S))
    first, second = by_number(world)
    assert first.span == (400.0, 460.0)
    assert first.curve_span == (340.0, 520.0)
    assert second.span == (1000.0, 1000.0)  # recorded long ago


def test_samples_of_long_ago_have_the_curve_of_when_they_were_reported(world):
    world.now = 100 * DAY_S
    scores = [point(world.now - 30 + k, 2.0 + k, 4.0) for k in range(30)]
    tell(world, episode(began=5.0), points=scores)
    (row,) = stored(world)
    assert len(curve(world, row)) == 30


def test_operators_list_episodes_over_http(tmp_path):
    with serving(tmp_path) as (here, _operator):
        create(here, FLEET)
        here.enrol(FLEET, "a")
        now = here.service.clock()
        said = [episode(1, now - 90, now - 50), episode(2, now - 9, **NAMED)]
        told = report(now, monitor=monitor(episodes=said))
        here.service.take_report(FLEET, "a", told, now)
        settle(here.service)
        first = here.operator.episodes(FLEET, limit=1)
        assert first["more"] is True
        assert [each["number"] for each in first["episodes"]] == [1]
        second = here.operator.episodes(FLEET, since=first["next"])
        assert second["more"] is False
        (listed,) = second["episodes"]
        assert (listed["number"], listed["device"], listed["ended"]) == (2, "a", None)
        assert listed["inputs"] == [["bearing_rms", 12.5], ["speed", 2.0]]
        assert (listed["fault"], listed["acknowledged"]) == (NAMED["fault"], None)
        nothing = here.operator.episodes(FLEET, since=second["next"])
        assert nothing == {"episodes": [], "next": second["next"], "more": False}
        only = here.operator.episodes(FLEET, open_only=True, device="a")
        assert [each["number"] for each in only["episodes"]] == [2]
        assert here.operator.episodes(FLEET, device="b")["episodes"] == []
        auth = {"Authorization": f"Bearer {here.token}"}
        with httpx.Client(base_url=f"{here.url}/fleets", headers=auth) as client:
            comment = f"/{FLEET}/episodes/{listed['id']}/comment"
            assert client.put(comment, json={"comment": "seal"}).json()["comment"] == "seal"
            assert client.put(comment, json={"comment": "a\nb"}).status_code == 422
            wrong = f"/{FLEET}/episodes/99/comment"
            assert client.put(wrong, json={"comment": ""}).status_code == 404
            assert client.get(f"/{FLEET}/episodes", params={"limit": 0}).status_code == 422
            assert client.get(f"/{FLEET}/episodes", params={"since": "nan"}).status_code == 422
            assert client.get("/nowhere/episodes").status_code == 404
