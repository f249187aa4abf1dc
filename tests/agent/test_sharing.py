"""Sharing when others refuse, ask to wait, or know a later life."""

from itertools import count

import numpy as np
import pytest

from edgemerge import Bank, Contribution, Detector, Monitor, Stats
from edgemerge.agent.background import ExchangeJob, SyncSchedule, run_exchange
from edgemerge.agent.judge import Judge
from edgemerge.agent.sources import Reading
from edgemerge.agent.state import AgentState, start_new_incarnation
from edgemerge.agent.sync import Clocks, SharingPolicy, Synchronizer
from edgemerge.core.errors import CapacityError, DeniedError, RejectedError, UnavailableError
from edgemerge.core.ledger import Merged, MergedPart, Selection
from edgemerge.wire.codec import encode
from tests.agent.agents import receive, shared, stream

P = shared()


def told(*seeds):
    notes = [Contribution(f"peer-{s}", Stats.of(P, stream(50, s)), revision=1) for s in seeds]
    return Merged(P, (MergedPart.of(notes, P),))


def memory(thing=Detector):
    return AgentState("pump-1", 1000, Monitor(thing(P), learn="always"), merged=encode(Merged(P)))


class Refusing:
    """An exchange that keeps nothing, and may not tell anything either."""

    def __init__(self, pull_fails=None):
        self.pull_fails = pull_fails

    def push(self, contribution):
        raise RejectedError(f"{contribution.device} cannot be true")

    def pull(self, _selection, **_how):
        if self.pull_fails is not None:
            raise self.pull_fails
        return told(1)


JOB = ExchangeJob((Contribution("pump-1", Stats.of(P, stream(50)), revision=1),), Selection())


def test_who_is_refused_is_told_all_the_same():
    outcome = run_exchange(Refusing(), JOB)
    assert outcome.merged == told(1)
    assert (outcome.pushed, str(outcome.error)) == (0, "pump-1 cannot be true")


def test_a_refusal_is_not_hidden_by_what_goes_wrong_behind_it():
    outcome = run_exchange(Refusing(UnavailableError("gone")), JOB)
    assert isinstance(outcome.error, RejectedError)


class Ready:
    """A courier that has run its errand at once, with an outcome given."""

    busy = False

    def __init__(self, outcome):
        self._outcome = outcome

    def send(self, _errand):
        """Know the end already."""

    def outcome(self):
        return self._outcome

    def close(self, _timeout_s):
        """Have no thread to end."""


@pytest.mark.parametrize(
    ("error", "least"), [(UnavailableError("busy", 500.0), 500.0), (DeniedError("no"), 0.0)]
)
def test_who_says_when_to_come_back_is_not_asked_before(error, least):
    made = memory()
    schedule = SyncSchedule(60.0, 0.1, "pump-1")
    found = run_exchange(Refusing(error), ExchangeJob((), Selection()))
    syncing = Synchronizer(
        SharingPolicy(made, gate=2.0, max_shift=2.0),
        Ready(found),
        schedule,
        config=None,
        save=lambda done: done(""),
        clocks=Clocks(lambda: 0.0, lambda: 0.0),
    )
    syncing.tend()
    assert syncing.state.startswith("away" if least else "denied")
    assert least <= schedule.next <= max(least, 60.0)
    syncing.close(0.0)


def test_a_merge_before_a_new_life_cannot_be_undone_in_it():
    made = memory()
    sharing = SharingPolicy(made, gate=2.0, max_shift=1e9)
    for x in stream(50):
        made.learner.learn(x)
    assert receive(sharing, told(1))
    sharing.start_new_incarnation(lambda: 5.0)
    assert receive(sharing, told(1))  # it is news to the new life
    assert sharing.consider_undo() is None
    assert made.learner.others == told(1).total


def test_samples_that_wait_for_their_block_wait_on_in_a_new_life():
    made = memory(Bank)
    for x in stream(40):
        made.learner.learn(x)
    waiting = made.learner.waiting
    assert len(waiting) == 8
    start_new_incarnation(made.monitor, Merged(P))
    assert np.array_equal(made.learner.waiting, waiting)


class Raw:
    """Features that are the readings themselves."""

    def state(self):
        return None

    def push(self, values):
        return values


def test_a_full_learner_ends_learning_and_is_not_asked_again(monkeypatch, caplog):
    made, calls = memory(), count()
    made.learner.learn(stream(100, 1))

    def full(_x):
        next(calls)
        raise CapacityError("there is no more room")

    monkeypatch.setattr(made.learner, "learn", full)
    judge = Judge(made, Raw(), lambda _read: "abcdef", lambda: 0.0)
    verdicts = []
    for x in stream(3):
        verdicts.append(judge.judge(Reading(x)))
        judge.news()
    assert all(verdict.score is not None for verdict in verdicts)
    assert next(calls) == 1
    assert not made.learning
    assert made.index == 3
    assert caplog.text.count("learning has ended") == 1
