"""The thread that sends reports: it survives mistakes, and ends when it is let go."""

from threading import Event

import pytest

from edgemerge.agent.background import ReportOutcome, report_worker
from edgemerge.core.errors import UnavailableError
from edgemerge.exchange.client import ReportAnswer
from tests.waiting import DEADLINE_S, until


class Slow:
    """Takes a report when the test lets it, and then fails as it is told to."""

    def __init__(self):
        self.go, self.closed, self.error = Event(), Event(), None

    def send(self, _report):
        assert self.go.wait(DEADLINE_S)
        if self.error is not None:
            raise self.error
        return ReportAnswer(1.0, 2)

    def close(self):
        self.closed.set()


@pytest.fixture
def slow():
    found = Slow()
    yield found
    found.go.set()


@pytest.fixture
def reporter(slow):
    found = report_worker(slow)
    yield found
    found.close()


def test_the_answer_is_given_once_and_nobody_waits_for_it(slow, reporter):
    assert reporter.outcome() is None
    reporter.send({})
    assert reporter.outcome() is None
    assert reporter.outcome(0.01) is None
    assert reporter.busy
    slow.go.set()
    assert reporter.outcome(DEADLINE_S) == ReportOutcome(ReportAnswer(1.0, 2))
    assert not reporter.busy
    assert reporter.outcome() is None


def test_one_report_at_a_time(reporter):
    reporter.send({})
    with pytest.raises(RuntimeError, match="wait for its outcome"):
        reporter.send({})


def test_an_error_is_an_outcome_and_a_mistake_is_logged_and_does_not_end_the_thread(
    slow, reporter, caplog
):
    slow.go.set()
    for error in (UnavailableError("away"), ZeroDivisionError("a mistake")):
        slow.error = error
        reporter.send({})
        found = reporter.outcome(DEADLINE_S).error
        assert isinstance(found, UnavailableError)
        assert str(error) in str(found)
    assert caplog.text.count("failed unexpectedly") == 1


def test_let_go_while_it_waits_it_ends_and_closes_the_connection(slow, reporter):
    reporter.close()
    assert slow.closed.wait(DEADLINE_S)
    reporter._thread.join(DEADLINE_S)
    assert not reporter._thread.is_alive()


def test_let_go_while_it_hangs_it_ends_when_the_network_lets_it_go(slow, reporter):
    reporter.send({})
    reporter.close()
    assert not slow.closed.is_set()
    slow.go.set()
    assert slow.closed.wait(DEADLINE_S)
    until(lambda: not reporter._thread.is_alive(), DEADLINE_S)
