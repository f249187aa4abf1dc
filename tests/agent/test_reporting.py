"""Reporting: what an agent tells its server, with a clock and a server that do as they are told."""

import logging

import pytest

from edgemerge import Bank, Detector, Stats
from edgemerge.agent.background import LASTING_ERROR_DELAYS_S, ReportOutcome
from edgemerge.agent.config import ReportConfig
from edgemerge.agent.judge import Verdict
from edgemerge.agent.reports import FINAL_REPORT_TIMEOUT_S
from edgemerge.core.errors import DeniedError, RejectedError, UnavailableError, UnknownError
from edgemerge.core.patterns import Pattern
from edgemerge.exchange.client import MAX_REPORT_PATTERNS, ReportAnswer
from tests.agent.agents import receive, stream
from tests.agent.reporting_desk import AWAY, NOON, OK, Desk, P, told

HOSTILE = "<script>\x00\x1b[2J\ud800" + "x" * 5000


@pytest.fixture
def desk():
    return Desk(Detector(P))


def test_scores_and_alarms_are_told_by_the_time_of_day_once(desk):
    desk.told_by(OK, 5.0)
    desk.judge(2.0)
    desk.now += 0.5
    desk.judge(9.0, alarm=True, index=7, carried=(("heat", 80.0), ("flow", 2.0)))
    found = desk.told_by(OK)
    at = [point.at - NOON for point in found.points]
    assert at == [5.0, 5.5]
    assert found.sent == NOON + 6.5
    assert [(p.score, p.threshold, p.alarm) for p in found.points] == [(2, 4, False), (9, 4, True)]
    (alarm,) = found.alarms
    assert (alarm.at - NOON, alarm.sample, alarm.pattern) == (5.5, 7, "normal")
    assert [(each.input, each.factor) for each in alarm.why] == [("heat", 80.0), ("flow", 2.0)]
    again = desk.told_by(OK)
    assert (again.points, again.alarms, again.merge, again.leaving) == ([], [], None, False)


def test_a_clock_that_is_set_meanwhile_moves_the_scores_along(desk):
    desk.told_by(OK)
    desk.judge()
    desk.wall_s += 1e6
    found = desk.told_by(OK)
    assert found.sent - found.points[0].at == 1.0
    desk.wall_s = -1e12
    assert desk.told_by(OK).sent == 0.0


def test_a_heartbeat_goes_out_without_samples(desk):
    for i in range(1, 5):
        desk.told_by(OK)
        assert len(desk.reports) == i


def test_the_server_may_slow_it_down(desk):
    desk.told_by(ReportOutcome(ReportAnswer(20.0, 0)))
    desk.tick(19.0)
    assert len(desk.reports) == 1
    desk.tick(1.0)
    assert len(desk.reports) == 2


def test_an_alarm_that_begins_is_told_within_a_second(desk):
    desk.told_by(ReportOutcome(ReportAnswer(60.0, 0)))
    desk.tick(0.5)
    desk.judge(9.0, alarm=True)
    desk.tick(0.4)
    assert len(desk.reports) == 1
    assert desk.told_by(OK, 0.1).alarms
    desk.judge(9.0, alarm=True)  # it lasts
    desk.tick(0.9)
    assert len(desk.reports) == 2


def test_the_status_says_what_was_learnt_told_and_used():
    desk = Desk(Bank(P))
    for x in stream(64):
        desk.memory.learner.learn(x)
    receive(desk.sharing, told("pump-2"))
    desk.last = NOON - 60.0
    for pattern in ("normal", "normal", "gone"):
        desk.judge(pattern=pattern)
    status = desk.told_by(OK).status
    thing = desk.memory.learner
    assert isinstance(thing, Bank)
    own = sum(thing[name].known.own.count for name in thing)
    assert status.learnt == own > 50
    assert sum(each.told for each in status.patterns) == 40.0
    assert {each.pattern: each.used for each in status.patterns if each.used} == {"normal": 2}
    assert (status.samples, status.alarms, status.incarnation, status.revision) == (5, 1, 1000, 2)
    assert (status.exchange, status.told, status.saved) == ("ok", "nothing new", "ok")
    assert (status.synced, status.pattern) == (NOON - 60.0, "gone")


def test_what_forgetting_has_faded_counts_as_it_weighs_now():
    desk = Desk(Detector(P, forgetting=0.9))
    for x in stream(60):
        desk.memory.learner.learn(x)
    receive(desk.sharing, told("pump-2"))
    for x in stream(3, 1):  # what was told fades with them, for a while
        desk.memory.learner.learn(desk.memory.learner.look(x))
    assert desk.memory.learner.known.frame < 1.0
    status = desk.told_by(OK).status
    assert status.learnt == pytest.approx(1.0 / (1.0 - 0.81), rel=0.01)
    (pattern,) = status.patterns
    assert (pattern.pattern, pattern.own, pattern.told) == ("normal", status.learnt, 40.0)


def test_hostile_names_words_and_numbers_are_cut_to_what_the_server_takes(desk):
    inf, nan = float("inf"), float("nan")
    desk.words = {"exchange": HOSTILE, "told": HOSTILE, "saved": HOSTILE}
    carried = [(HOSTILE, inf), ("\x00", 1.0), ("b", nan), ("c", -1.0), *[("d", 1e308)] * 9]
    desk.judge(inf, alarm=True, pattern=HOSTILE, carried=tuple(carried))
    found = desk.told_by(OK)
    assert found.status.exchange == found.status.told == ("<script>[2J" + "x" * 500)[:500]
    (alarm,) = found.alarms
    assert alarm.pattern == ("<script>[2J" + "x" * 200)[:200]
    assert [each.input[:8] for each in alarm.why] == ["<script>", "b", "c", "d", "d", "d", "d"]
    assert [each.factor for each in alarm.why][:3] == [1e300, 0.0, 0.0]
    assert found.points[0].score == 1e300


def test_what_failed_is_not_sent_again_and_what_came_meanwhile_waits(desk):
    desk.judge(2.0)
    assert desk.told_by(AWAY).points
    desk.judge(3.0)
    for _ in range(5):
        assert desk.told_by(AWAY, 70.0).points == []
        desk.tick(0.4)
        assert not desk.busy
    assert desk.told_by(OK, 70.0).points == []
    assert [point.score for point in desk.told_by(OK).points] == [3.0]


def test_what_never_left_is_told_when_the_server_is_back(desk):
    refused = UnavailableError("nobody is there")
    refused.__cause__ = ConnectionRefusedError()
    desk.judge(9.0, alarm=True)
    assert desk.told_by(ReportOutcome(error=refused)).alarms
    desk.told_by(OK, 10.0)
    found = desk.told_by(OK)
    assert [point.score for point in found.points] == [9.0]
    assert len(found.alarms) == 1


def test_a_server_that_says_when_to_come_back_is_left_alone_until_then(desk):
    desk.told_by(ReportOutcome(error=UnavailableError("too many", 100.0)))
    desk.tick(99.0)
    assert len(desk.reports) == 1
    desk.tick(1.0)
    assert len(desk.reports) == 2


def test_patterns_are_the_largest_that_fit_and_have_a_name_to_show():
    desk = Desk(Bank(P))
    names = ["\x00", *(f"normal-{i}" for i in range(MAX_REPORT_PATTERNS + 5))]
    for i, name in enumerate(names):
        own = Stats.of(P, stream(50 + 3 * i if i % 2 else 50 - i // 2))
        instance = Pattern(Detector.resume(own), stream(1))
        desk.memory.learner.patterns.instances[name] = instance
    found = desk.told_by(OK).status
    sizes = sorted((instance.detector.count, name) for name, instance in thing_of(desk))
    kept = [each for each in reversed(sizes) if each[1] != "\x00"][:MAX_REPORT_PATTERNS]
    assert [(each.own, each.pattern) for each in found.patterns] == kept
    assert found.learnt == sum(count for count, _name in sizes)


def thing_of(desk):
    return desk.memory.learner.patterns.instances.items()


def test_a_threshold_that_still_learns_is_none(desk):
    desk.reporting.verdict(Verdict("pump-1", 0, 12.0, 1.0, float("inf"), alarm=False))
    desk.last = -5.0
    found = desk.told_by(OK)
    assert (found.points[0].threshold, found.status.synced) == (None, 0.0)


def test_an_outage_is_kept_in_ever_wider_steps_within_bounds(desk):
    for _ in range(8):
        desk.told_by(AWAY, 70.0)
    for i in range(10_000):
        desk.now += 0.06
        desk.judge(float(i), alarm=i % 500 == 0, index=i)
    desk.told_by(OK, 70.0)
    found = desk.told_by(OK)
    assert len(found.points) == pytest.approx(100, abs=2)  # ten minutes, in steps of six seconds
    assert len(found.alarms) == 20


def test_trouble_is_logged_when_it_begins_and_when_it_ends(desk, caplog):
    caplog.set_level(logging.INFO)
    for answer in (OK, AWAY, ReportOutcome(error=RejectedError("what?")), AWAY, OK, OK, AWAY):
        desk.told_by(answer, 70.0)
    found = [(each.levelname, each.message) for each in caplog.records]
    failed = ("WARNING", "a report did not reach the server")
    assert found == [failed, ("INFO", "the server accepts reports again"), failed]


@pytest.mark.parametrize(("error", "level"), [(UnknownError, "INFO"), (DeniedError, "WARNING")])
def test_a_server_that_wants_no_reports_is_left_alone_for_long(desk, caplog, error, level):
    caplog.set_level(logging.INFO)
    desk.told_by(ReportOutcome(error=error("no")))
    desk.judge(9.0, alarm=True)
    desk.tick(LASTING_ERROR_DELAYS_S[error] - 1.0)
    assert len(desk.reports) == 1
    desk.told_by(ReportOutcome(error=error("no")))
    assert [each.levelname for each in caplog.records] == [level]
    desk.reporting.leave(desk.status)
    assert len(desk.reports) == 2
    desk.told_by(OK, LASTING_ERROR_DELAYS_S[error])
    assert caplog.messages[-1] == "the server accepts reports again"


def test_the_operators_choice_is_followed_once(desk):
    desk.told_by(OK)
    assert desk.followers == []
    for choice in (3, 3, None, 3):
        desk.told_by(ReportOutcome(ReportAnswer(1.0, choice)))
        assert len(desk.followers) == 1
    desk.followers[0]({"exchange": "ok"})
    for choice in (3, 3, 2):  # the newest may have been undone
        assert len(desk.followers) == 1
        desk.told_by(ReportOutcome(ReportAnswer(1.0, choice)))
    assert len(desk.followers) == 2


def test_the_first_answer_is_followed_if_something_was_chosen(desk):
    desk.told_by(ReportOutcome(ReportAnswer(1.0, 1)))
    assert len(desk.followers) == 1


def test_an_exchange_that_did_not_work_is_tried_again_after_a_while(desk):
    chosen = ReportOutcome(ReportAnswer(1.0, 3))
    desk.told_by(chosen)
    desk.followers[0]({"exchange": "away since noon"})
    desk.told_by(chosen)
    assert len(desk.followers) == 1
    desk.told_by(chosen, 60.0)
    assert len(desk.followers) == 2


def test_who_does_not_follow_does_not():
    desk = Desk(Detector(P), ReportConfig(follow=False))
    desk.told_by(ReportOutcome(ReportAnswer(1.0, 1)))
    assert desk.followers == []


def test_the_last_report_has_what_is_left_and_says_that_it_leaves(desk):
    desk.tick()
    desk.judge(2.0)
    receive(desk.sharing, told("pump-2"))
    desk.answers.append(OK)
    desk.reporting.leave(desk.status)
    found = desk.reports[-1]
    assert found.leaving
    assert [point.score for point in found.points] == [2.0]
    assert found.merge.devices == 1
    assert desk.now == pytest.approx(FINAL_REPORT_TIMEOUT_S)
    desk.reporting.close()
    assert desk.closed


def test_a_report_that_hangs_delays_the_end_by_less_than_a_second(desk):
    desk.tick()
    desk.reporting.leave(desk.status)
    assert desk.now == pytest.approx(FINAL_REPORT_TIMEOUT_S)
    assert len(desk.reports) == 1
    assert FINAL_REPORT_TIMEOUT_S < 1.0


def test_problems_with_the_data_go_only_to_a_server_that_takes_them(desk):
    found = {"name": "no data", "since": NOON, "words": "no usable row\x1b for 31 s" + "." * 600}
    desk.words |= {"problems": [found | {"inputs": []}] * 20}
    assert desk.told_by(OK).status.problems == []
    takes = ReportOutcome(ReportAnswer(1.0, 0, problems=True))
    assert desk.told_by(takes).status.problems == []
    problems = desk.told_by(takes).status.problems
    assert len(problems) == 16
    assert (problems[0].name, problems[0].since) == ("no data", NOON)
    assert problems[0].words.startswith("no usable row for 31 s..")
    desk.told_by(AWAY)
    desk.tick(60.0)
    assert desk.reports[-1].status.problems == []  # it may be an older server now
