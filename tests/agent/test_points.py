"""What of the verdicts waits for a report, and when a report is due."""

from time import thread_time

import pytest

from edgemerge.agent.background import REPORT_MAX_DELAY_S, REPORT_MIN_GAP_S, ReportSchedule
from edgemerge.agent.judge import Verdict
from edgemerge.agent.reports import RECENT_VERDICTS, ReportBuffer
from edgemerge.exchange.client import (
    MAX_REPORT_ALARMS,
    MAX_REPORT_INTERVAL_S,
    MAX_REPORT_POINTS,
)

MICROSECONDS = 1e-6
FLOOD = 100_000
SLOWEST_S = 50 * MICROSECONDS  # on average; it takes about 2, and the machine may be busy


def verdict(score=1.0, *, alarm=False, index=0, pattern=None):
    return Verdict("pump-1", index, 60.0, score, 4.0, alarm, pattern)


def scores(judged):
    return [each.verdict.score for each in judged]


def test_of_each_slot_the_highest_score_is_kept():
    points = ReportBuffer()
    for now, score in ((0.01, 1.0), (0.05, 3.0), (0.09, 2.0), (0.11, 1.5), (0.19, 1.4)):
        points.add(verdict(score), now)
    taken = points.take()
    assert scores(taken.points) == [3.0, 1.5]
    assert [each.at for each in taken.points] == [0.05, 0.11]
    assert taken.alarms == ()


def test_an_alarm_is_not_thinned_away_for_a_higher_score_that_is_none():
    points = ReportBuffer()
    points.add(verdict(50.0), 0.01)
    points.add(verdict(5.0, alarm=True, index=7), 0.02)
    points.add(verdict(60.0), 0.03)
    taken = points.take()
    assert [(each.verdict.score, each.verdict.alarm) for each in taken.points] == [(5.0, True)]
    assert [each.verdict.index for each in taken.alarms] == [7]


def test_an_alarm_that_lasts_is_told_of_once_a_second_at_its_highest():
    points = ReportBuffer()
    for i, score in enumerate((5.0, 9.0, 6.0, 7.0, 8.0)):
        points.add(verdict(score, alarm=True), 0.4 * i)
        points.add(verdict(1.0), 0.4 * i + 0.2)
    assert scores(points.take().alarms) == [9.0, 8.0]


def test_slots_grow_with_the_time_between_reports_but_an_hour_fits():
    points = ReportBuffer()
    points.space(20.0)
    for i in range(100):
        points.add(verdict(), 0.1 * i)
    assert len(points) == 5
    points.space(3600.0)
    for i in range(3600):
        points.add(verdict(), 1000.0 + i)
    assert len(points) == MAX_REPORT_POINTS


def test_what_was_taken_is_gone_and_what_comes_next_does_not_replace_it():
    points = ReportBuffer()
    points.add(verdict(9.0, alarm=True), 0.01)
    assert scores(points.take().points) == [9.0]
    points.add(verdict(2.0, alarm=True), 0.02)  # in the same slots
    taken = points.take()
    assert (scores(taken.points), scores(taken.alarms)) == ([2.0], [2.0])
    assert points.take() == ((), ())


def test_what_is_given_back_comes_before_what_is_newer_as_far_as_there_is_room():
    points = ReportBuffer()
    for i in range(MAX_REPORT_POINTS):
        points.add(verdict(i, alarm=True), float(i))
    taken = points.take()
    for i in range(5):
        points.add(verdict(1000.0 + i, alarm=True), 1000.0 + i)
    points.requeue(taken)
    again = points.take()
    assert scores(again.points) == [*range(5, MAX_REPORT_POINTS), *(1000.0 + i for i in range(5))]
    assert len(again.alarms) == MAX_REPORT_ALARMS
    assert scores(again.alarms)[-6:] == [
        MAX_REPORT_POINTS - 1.0,
        1000.0,
        1001.0,
        1002.0,
        1003.0,
        1004.0,
    ]


@pytest.mark.slow
def test_a_flood_is_bounded_keeps_the_newest_and_costs_microseconds():
    points = ReportBuffer()
    given = [verdict(i, alarm=i % 2 == 0, index=i, pattern=str(i)) for i in range(FLOOD)]
    start = thread_time()
    for i, each in enumerate(given):
        points.add(each, 0.5 * i)
    spent = thread_time() - start
    assert points.used().total() == len(vars(points)["_recent"]) == RECENT_VERDICTS
    taken = points.take()
    assert (len(taken.points), len(taken.alarms)) == (MAX_REPORT_POINTS, MAX_REPORT_ALARMS)
    assert taken.points[-1].verdict.index == FLOOD - 1
    assert taken.alarms[-1].verdict.index == FLOOD - 2
    assert spent / FLOOD < SLOWEST_S, f"{spent / FLOOD / MICROSECONDS:.1f} µs each"


def test_patterns_are_counted_among_the_last_thousand():
    points = ReportBuffer()
    for i in range(RECENT_VERDICTS + 300):
        points.add(verdict(pattern="idle" if i < 500 else "fast"), 0.01 * i)
    assert points.used() == {"idle": 200, "fast": 800}
    assert points.newest.pattern == "fast"


def test_an_alarm_begins_once():
    points = ReportBuffer()
    given = (False, True, True, False, True)
    assert [points.add(verdict(alarm=each), 0.0) for each in given] == [*given[:2], 0, 0, 1]
    assert ReportBuffer().add(verdict(alarm=True), 0.0)


def late(rhythm, now):
    """Give how long it takes from a moment until it is due, in steps of a tenth of a second."""
    return next(i / 10 for i in range(10 * 4000) if rhythm.due(now + i / 10))


def sent(every_s=1.0, asked=None, now=100.0):
    rhythm = ReportSchedule(every_s, "pump-1")
    assert rhythm.due(now)
    rhythm.begun(now)
    rhythm.succeeded(now + 0.1, asked)
    return rhythm


@pytest.mark.parametrize(
    ("every_s", "asked", "expected"),
    [
        (1.0, None, 1.0),
        (1.0, 20.0, 20.0),
        (5.0, 1.0, 5.0),
        (1.0, MAX_REPORT_INTERVAL_S, MAX_REPORT_INTERVAL_S),
    ],
)
def test_it_is_due_as_seldom_as_either_side_wishes(every_s, asked, expected):
    rhythm = sent(every_s, asked)
    assert late(rhythm, 100.0) == expected
    assert rhythm.every_s == expected


def test_an_answer_that_came_late_makes_it_due_at_once_and_not_twice():
    rhythm = sent()
    rhythm.begun(101.0)
    rhythm.succeeded(104.0, None)
    assert rhythm.due(104.0)
    rhythm.begun(104.0)
    rhythm.succeeded(104.1, None)
    assert not rhythm.due(104.9)


def test_an_alarm_is_due_soon_but_not_more_often_than_once_a_second():
    rhythm = sent(60.0)
    assert not rhythm.due(130.0)
    rhythm.mark_urgent()
    assert not rhythm.due(100.0 + REPORT_MIN_GAP_S - 0.1)
    assert rhythm.due(100.0 + REPORT_MIN_GAP_S)
    rhythm.begun(101.0)
    rhythm.mark_urgent()  # the next one begins while the report is on its way
    rhythm.succeeded(101.2, None)
    assert not rhythm.due(101.9)
    assert rhythm.due(102.0)
    rhythm.begun(102.0)
    rhythm.succeeded(102.1, None)
    assert not rhythm.due(110.0)


def test_after_failures_it_waits_ever_longer_up_to_a_minute_with_jitter():
    rhythm, waits = sent(), []
    for _ in range(70):
        rhythm.begun(200.0)
        rhythm.failed(200.0)
        rhythm.mark_urgent()
        waits.append(late(rhythm, 200.0))
    for i, wait in enumerate(waits):
        whole = min(2.0 ** (i + 1), REPORT_MAX_DELAY_S)
        assert 0.5 * whole <= wait <= whole + 0.1
    assert len(set(waits[10:])) > 30
    rhythm.begun(300.0)
    rhythm.succeeded(300.0, None)
    assert late(rhythm, 300.0) == 1.0


def test_it_does_not_come_before_the_server_wants_it_nor_wait_for_ever():
    rhythm = sent()
    rhythm.failed(200.0, 100.0)
    assert late(rhythm, 200.0) == 100.0
    rhythm.failed(200.0, 1e9)
    assert late(rhythm, 200.0) == 3600.0
    slow = sent(1.0, 1000.0)
    slow.failed(200.0)
    assert 500.0 <= late(slow, 200.0) <= 1000.1


def test_devices_do_not_all_come_at_once():
    rhythms = [ReportSchedule(1.0, f"pump-{i}") for i in range(20)]
    for rhythm in rhythms:
        rhythm.failed(0.0)
    assert len({late(rhythm, 0.0) for rhythm in rhythms}) > 5
