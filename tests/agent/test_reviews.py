"""Reviews of the server: done once and in order, saved, reported, or refused with a reason."""

import json
import logging

import numpy as np
import pytest

from edgemerge import Detector, Monitor
from edgemerge.agent.background import ReportOutcome, save_worker
from edgemerge.agent.config import SaveConfig
from edgemerge.agent.features import Raw
from edgemerge.agent.judge import Judge
from edgemerge.agent.reports import describe_monitor
from edgemerge.agent.reviewer import Reviewer
from edgemerge.agent.sources import Reading
from edgemerge.agent.state import (
    MAX_REFUSED_REVIEWS,
    AgentState,
    StateFolder,
    StateSaver,
    state_from_bytes,
    state_to_bytes,
)
from edgemerge.core.errors import UnavailableError
from edgemerge.exchange.client import (
    MAX_REPORT_BYTES,
    MAX_REPORT_EPISODES,
    DesiredState,
    ReportAnswer,
    encode_report,
    parse_desired,
)
from tests.agent.agents import shared, stream
from tests.agent.reporting_desk import OK, Desk

P = shared()
FAULT = stream(60, 1) + np.array([0.0, 0.0, 0.0, 0.0, 0.5, 0.2])
NOW = 1_700_000_000.0


def watching():
    """A state with an unreviewed pattern."""
    monitor = Monitor(Detector(P), limit=30.0)
    for at, x in enumerate(np.vstack([stream(200), FAULT])):
        monitor.take(x, NOW + at)
    assert list(monitor.odd_patterns) == ["odd-1"]
    return AgentState("pump-1", 1, monitor)


class Desktop:
    """A reviewer on a state, and a folder that it saves to."""

    def __init__(self, folder, memory=None, **options):
        self.memory, self.next = memory or watching(), None
        self.folder = StateFolder(folder)
        self.judge = Judge(self.memory, Raw(), lambda _read: "abcdef", lambda: NOW)
        often = SaveConfig(every=1000, every_s=1000.0)
        self.worker = save_worker(self.folder)
        self.keeper = StateSaver(
            self.folder, self.memory, Raw(), often, worker=self.worker, steady=lambda: 0.0
        )
        self.reviewer = Reviewer(self.memory, self.judge, self.keeper, clock=lambda: NOW, **options)

    def hears(self, *reviews):
        """Get a desired state with reviews; say whether something was done."""
        document = {"format": 1, "revision": 1, "adopt": {}, "reviews": list(reviews)}
        self.memory.desired = parse_desired(json.loads(json.dumps(document))).plain()
        return self.reviewer.tend()

    def close(self):
        self.worker.close(5.0)
        if self.next is not None:
            self.next.close()

    def restarted(self):
        """Go on from what was saved, after kill -9."""
        self.close()
        memory = self.folder.read()
        self.folder.close()
        self.next = Desktop(self.folder.path, memory)
        return self.next


@pytest.fixture
def desktop(tmp_path):
    made = Desktop(tmp_path)
    yield made
    made.close()


def review(number, decision, pattern="odd-1", **more):
    return {"number": number, "decision": decision, "pattern": pattern, "by": "ann", **more}


def test_reviews_are_done_in_order_once_and_reported(desktop):
    own = desktop.memory.learner.own
    ask = (review(3, "fault", name="bearing"), review(1, "approve"), review(2, "undo"))
    assert desktop.hears(*ask)
    assert desktop.memory.monitor.odd_patterns["bearing"].status == "fault"
    assert desktop.memory.learner.own == own
    assert desktop.reviewer.plain() == {"done": 3, "refused": []}
    assert not desktop.hears(*ask)
    assert desktop.hears(*ask, review(7, "undo", "bearing"))
    assert desktop.reviewer.plain()["done"] == 7
    assert not desktop.reviewer.tend()


@pytest.mark.parametrize(("by", "shown"), [("admin ann", "ann"), ("ann", "ann")])
def test_the_log_names_who_made_a_review_without_the_role(desktop, caplog, by, shown):
    caplog.set_level(logging.INFO)
    desktop.hears(review(1, "approve") | {"by": by})
    (record,) = (each for each in caplog.records if "a review of the server" in each.message)
    assert record.values["by"] == shown


def test_a_review_is_done_once_also_after_a_kill(desktop):
    desktop.hears(review(1, "approve"))
    own = desktop.memory.learner.own
    again = desktop.restarted()
    assert not again.hears(review(1, "approve"))
    assert again.reviewer.plain() == {"done": 1, "refused": []}
    assert again.memory.learner.own == own
    assert again.memory.monitor.odd_patterns["odd-1"].status == "normal"


def test_one_that_was_held_but_not_done_is_done_at_the_next_start(desktop):
    document = {"format": 1, "revision": 1, "adopt": {}, "reviews": [review(1, "approve")]}
    desktop.memory.desired = parse_desired(document).plain()
    desktop.keeper.save()
    again = desktop.restarted()
    assert again.reviewer.tend()
    assert again.memory.monitor.odd_patterns["odd-1"].status == "normal"


def test_all_kinds_are_done(desktop):
    monitor = desktop.memory.monitor
    desktop.hears(review(1, "dismiss"), {"number": 2, "decision": "acknowledge", "episode": None})
    assert monitor.odd_patterns["odd-1"].status == "dismissed"
    assert all(episode.acknowledged for episode in monitor.episodes)
    desktop.hears({"number": 3, "decision": "snooze", "until": NOW + 60.0})
    assert monitor.snoozed_until == NOW + 60.0
    desktop.hears({"number": 4, "decision": "snooze", "until": None})
    assert monitor.snoozed_until is None
    desktop.hears({"number": 5, "decision": "accept_drift"}, {"number": 6, "decision": "watch"})
    desktop.hears({"number": 7, "decision": "relearn"})
    assert monitor.phase == "commissioning"
    assert desktop.reviewer.plain() == {"done": 7, "refused": []}


def test_a_snooze_is_by_the_clock_of_the_samples(desktop):
    desktop.judge.judge(Reading(stream(1, 3)[0], at=1000.0))  # the time of day is NOW
    desktop.reviewer.command({"command": "snooze", "time": "1 minute"})
    assert desktop.memory.monitor.snoozed_until == 1060.0


def test_refused_ones_are_told_with_a_reason_and_do_not_stop_others(desktop):
    desktop.hears(
        review(1, "approve", "odd-9"),
        review(2, "praise"),
        {"number": 3},
        review(4, "fault"),
        review(5, "fault", name=["x"]),
        {"number": 6, "decision": "snooze", "until": "tomorrow"},
        review(7, "approve"),
    )
    told = desktop.reviewer.plain()
    assert told["done"] == 7
    reasons = dict(told["refused"])
    assert list(reasons) == [1, 2, 3, 4, 5, 6]
    assert "no pattern 'odd-9'" in reasons[1]
    assert "known are review, acknowledge" in reasons[2]
    assert 'expected "name"' in reasons[4]
    assert desktop.memory.monitor.odd_patterns["odd-1"].status == "normal"
    json.dumps(told)
    again = desktop.restarted()
    assert again.reviewer.plain() == told
    for number in range(8, 40):
        again.hears(review(number, "undo", "odd-9"))
    assert len(again.reviewer.plain()["refused"]) == MAX_REFUSED_REVIEWS


def test_a_review_that_could_not_be_saved_is_not_reported_as_done(desktop, monkeypatch):
    def full(*_given):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("edgemerge.agent.state.write_atomically", full)
    desktop.hears(review(1, "approve"))
    assert desktop.reviewer.plain()["done"] == 0
    monkeypatch.undo()
    desktop.keeper.save()
    assert desktop.reviewer.plain()["done"] == 1


def test_an_agent_that_does_not_follow_does_none(tmp_path):
    desktop = Desktop(tmp_path, follow=False)
    assert not desktop.hears(review(1, "approve"))
    assert desktop.reviewer.plain()["done"] == 0
    desktop.close()


def test_documents_without_reviews_do_nothing(desktop):
    assert parse_desired({"format": 1, "revision": 1, "adopt": {}}).reviews is None
    odd = [1, {"decision": "approve"}, {"number": 0}, {"number": "1"}, {"number": True}]
    assert parse_desired({"format": 1, "revision": 1, "adopt": {}, "reviews": odd}).reviews == ()
    desktop.memory.desired = DesiredState(1).plain()
    assert not desktop.reviewer.tend()
    state = state_from_bytes(state_to_bytes(desktop.memory))
    assert (state.reviewed, state.refused_reviews) == (0, [])


def status_of(memory):
    judge = Judge(memory, Raw(), lambda _read: ["x" * 500] * 6, lambda: NOW)
    return judge.status()


class MonitorDesk(Desk):
    """A desk that keeps reports as they were sent, and has the status of a monitor."""

    def send(self, report):
        self.busy = True
        self.reports.append(report)

    def __post_init__(self):
        super().__post_init__()
        self.words |= {"monitor": status_of(watching()), "reviews": {"done": 4, "refused": []}}


def test_only_servers_that_take_it_are_told_of_the_monitor():
    desk = MonitorDesk(Detector(P))
    assert "monitor" not in desk.told_by(OK)["status"]
    knows = ReportOutcome(ReportAnswer(1.0, 0, 1, monitor=True))
    desk.told_by(knows)
    told = desk.told_by(knows)["status"]
    assert told["reviews"] == {"done": 4, "refused": []}
    assert told["monitor"]["patterns"][0]["name"] == "odd-1"
    desk.told_by(OK)
    assert "monitor" not in desk.told_by(OK)["status"]
    desk.told_by(ReportOutcome(error=UnavailableError("away")))
    reviews = DesiredState(2, reviews=())
    desk.told_by(ReportOutcome(ReportAnswer(1.0, 2, 2), desired=reviews), 70.0)
    assert "monitor" in desk.told_by(ReportOutcome(ReportAnswer(1.0, 2, 2)), 80.0)["status"]


def test_a_report_with_a_full_monitor_fits():
    memory = watching()
    monitor, episode = memory.monitor, memory.monitor.episodes[0]
    monitor.episodes = [episode] * 256
    monitor.odd_patterns = {f"odd-{i}": monitor.odd_patterns["odd-1"] for i in range(100)}
    told = describe_monitor(status_of(memory))
    assert len(told["episodes"]) == MAX_REPORT_EPISODES
    assert len(encode_report({"status": {"monitor": told}})) < MAX_REPORT_BYTES
