"""What others sent is checked against own samples: left out, named, checked again when ready."""

import json
from math import inf
from threading import Event

import numpy as np
import pytest
from click.testing import CliRunner

from edgemerge import Bank, Contribution, Detector, Monitor, Stats
from edgemerge.agent.background import OverBudgetError
from edgemerge.agent.state import AgentState, merged_digest, state_from_bytes, state_to_bytes
from edgemerge.agent.supervisor import run
from edgemerge.agent.sync import SharingPolicy
from edgemerge.cli import main
from edgemerge.core.ledger import Merged, MergedPart
from edgemerge.exchange.folder import FolderExchange
from edgemerge.wire.codec import encode
from tests.agent.agents import (
    INPUTS,
    carry_out,
    configured,
    receive,
    shared,
    stream,
    undo,
    write_rows,
)

P = shared()
ENOUGH = 4 * P.n_hidden
TRY = stream(40, seed=99)


def noise(rows=400, seed=3):
    return Stats.of(P, np.random.default_rng(seed).uniform(-1.0, 1.0, (rows, INPUTS)))


def honest(rows=400, seed=5):
    return Stats.of(P, stream(rows, seed=seed))


def told(*parts, grouped=False):
    notes = [Contribution(name, stats, 1) for name, stats in parts]
    groups = [[note] for note in notes] if grouped else [notes]
    return Merged(P, tuple(MergedPart.of(each, P) for each in groups))


def sharing(kind, rows=200, desired=None):
    learner = kind(P)
    learner.learn(stream(rows))
    if kind is Bank:
        learner.catch_up()
    monitor = Monitor(learner, learn="always")
    memory = AgentState("pump-1", 1, monitor, merged=encode(Merged(P)), desired=desired)
    return SharingPolicy(memory, gate=2.0, max_shift=inf)


def held(subject):
    return sum(each.others.count for each in subject.memory.learner.detectors.values())


def scores(subject):
    return [subject.memory.learner.score(x) for x in TRY]


def test_a_sum_that_does_not_fit_is_refused_with_its_devices():
    subject = sharing(Detector)
    assert not receive(subject, told(("peer", honest()), ("pump-9", noise())))
    assert "peer, pump-9: found that 29% of the variance is unexplained" in subject.message
    assert held(subject) == 0


def test_of_several_patterns_those_that_fit_are_adopted_and_the_others_named(caplog):
    subject = sharing(Bank)
    assert receive(subject, told(("peer", honest()), ("pump-9", noise()), grouped=True))
    assert held(subject) == 400
    assert not any("pump-9" in name for name in subject.memory.learner.detectors)
    (why,) = subject.plain()["left_out"]
    assert why.startswith("pump-9: found that 29% of the variance is unexplained")
    assert "left out contributions that do not fit" in caplog.text
    assert not receive(subject, told(("peer", honest()), ("pump-9", noise()), grouped=True))
    assert subject.message == "nothing new"
    assert receive(subject, told(("peer", honest()), ("pump-9", honest(seed=7)), grouped=True))
    assert subject.plain()["left_out"] == []


def test_a_new_incarnation_does_not_adopt_what_was_left_out_before():
    subject = sharing(Bank)
    receive(subject, told(("peer", honest()), ("pump-9", noise()), grouped=True))
    learnt = sum(each.own.count for each in subject.memory.learner.detectors.values())
    subject.start_new_incarnation(lambda: 2.0)
    assert held(subject) == learnt + 400  # what it saw itself counts as adopted
    assert not any("pump-9" in name for name in subject.memory.learner.detectors)


@pytest.mark.parametrize("kind", [Detector, Bank])
def test_what_an_operator_chose_is_adopted(kind):
    chosen = {"format": 1, "revision": 3, "adopt": {"devices": ["pump-9"], "excluded": []}}
    subject = sharing(kind, desired=chosen)
    assert receive(subject, told(("pump-9", noise())))
    assert held(subject) == 400


@pytest.mark.parametrize("kind", [Detector, Bank])
def test_what_was_adopted_too_early_is_taken_back_when_it_can_be_checked(kind):
    subject = sharing(kind, rows=ENOUGH - 1)
    assert receive(subject, told(("pump-9", noise())))
    assert subject.recheck() is None
    subject.memory.learner.learn(stream(32, seed=1))
    alone = Detector(P)
    alone.learn(stream(ENOUGH - 1))
    alone.learn(stream(32, seed=1))
    carry_out(subject, subject.recheck())
    assert held(subject) == 0
    assert "pump-9: found that 29% of the variance is unexplained" in subject.message
    if kind is Detector:  # a bank has learnt some samples into the pattern that is gone now
        assert scores(subject) == [alone.score(x) for x in TRY]
    assert subject.recheck() is None
    assert subject.memory.before is None
    assert not receive(subject, told(("pump-9", noise())))


@pytest.mark.parametrize("kind", [Detector, Bank])
def test_what_fits_stays_to_the_last_bit_when_it_is_checked_later(kind):
    subject = sharing(kind, rows=ENOUGH - 1)
    assert receive(subject, told(("peer", honest())))
    subject.memory.learner.learn(stream(32, seed=1))
    before, data = scores(subject), subject.memory.merged
    carry_out(subject, subject.recheck())
    assert (scores(subject), subject.memory.merged) == (before, data)
    assert subject.recheck() is None


def test_of_a_bank_only_the_parts_that_do_not_fit_are_taken_back():
    subject = sharing(Bank, rows=ENOUGH - 1)
    both = told(("peer", honest()), ("pump-9", noise()), grouped=True)
    assert receive(subject, both)
    assert held(subject) == 800
    subject.memory.learner.learn(stream(32, seed=1))
    before = subject.memory.before
    carry_out(subject, subject.recheck())
    assert subject.memory.before == before
    assert held(subject) == 400
    assert subject.memory.merged == encode(both)  # so that it is not adopted again
    assert not receive(subject, both)


def test_undoing_brings_back_what_was_adopted_before_it_could_be_checked():
    subject = sharing(Detector, rows=ENOUGH - 1)
    receive(subject, told(("pump-9", noise())))
    receive(subject, told(("peer", honest(300))))
    subject.memory.learner.learn(stream(32, seed=1))  # now it could be
    assert "undone" in undo(subject)
    assert held(subject) == 400
    assert merged_digest(encode(told(("peer", honest(300))))) in subject.memory.rejected


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_many_small_steps_do_not_add_up_unseen():
    subject = sharing(Detector)
    subject._max_shift = 2.0
    adopted = [receive(subject, told(("pump-9", noise(rows)))) for rows in range(4, 400, 4)]
    assert adopted[0]
    assert not all(adopted)
    assert "sync.max_shift is 2" in subject.message
    assert subject.shift <= 2.0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["detector", "bank"])
def test_an_agent_leaves_out_a_single_device_of_its_folder(tmp_path, kind, caplog):
    config = configured(tmp_path, "sync.gate=0", kind=kind)
    write_rows(tmp_path / "pump-1.csv", stream(200))
    folder = FolderExchange(config.exchange.path, P)
    folder.push(Contribution("peer", honest(), 1))
    folder.push(Contribution("pump-9", noise(), 1))
    assert run(config, stop=Event(), sinks=[]) == 0
    shown = CliRunner().invoke(main, ["show", str(config.state), "--json"]).stdout
    assert json.loads(shown)["told_by"] == ["peer"]
    left_out = [
        r.values for r in caplog.records if r.message == "left out contributions that do not fit"
    ]
    assert left_out  # singly, or as a part that was adopted too early
    assert all(each["why"].startswith("pump-9") for each in left_out)


@pytest.mark.parametrize("kind", [Detector, Bank])
def test_what_cannot_be_compared_in_time_is_not_taken_back(kind, monkeypatch):
    subject = sharing(kind, rows=ENOUGH - 1)
    assert receive(subject, told(("peer", honest())))
    subject.memory.learner.learn(stream(32, seed=1))

    def slow(*_given):
        raise OverBudgetError("it took longer than 10 s")

    monkeypatch.setattr(kind, "plan", slow)
    carry_out(subject, subject.recheck())
    assert held(subject) == 400
    assert "not checked: it took longer than 10 s" in subject.message
    assert subject.recheck() is None


@pytest.mark.parametrize("rows", [ENOUGH - 1, 200])
def test_whether_it_was_checked_is_known_after_a_restart(rows):
    subject = sharing(Detector, rows=rows)
    receive(subject, told(("peer", honest())))
    memory = state_from_bytes(state_to_bytes(subject.memory))
    assert memory.provisional is (rows < ENOUGH)
    memory.learner.learn(stream(32, seed=1))
    again = SharingPolicy(memory, gate=2.0, max_shift=inf)
    assert (again.recheck() is not None) is (rows < ENOUGH)
