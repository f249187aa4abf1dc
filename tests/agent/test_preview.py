"""The merge preview: a merge that would spoil the device's own level is refused, others undone."""

import numpy as np
import pytest

from edgemerge import Bank, Contribution, Detector, Monitor, Stats
from edgemerge.agent.state import (
    AgentState,
    merged_digest,
    own_stats,
    state_from_bytes,
    state_to_bytes,
)
from edgemerge.agent.sync import MergePreview, SharingPolicy
from edgemerge.core.ledger import Merged, MergedPart
from edgemerge.wire.codec import encode
from tests.agent.agents import INPUTS, receive, shared, stream, undo

pytestmark = pytest.mark.usefixtures("unchecked")

P = shared()
TRY = stream(40, seed=99)


def told(*rows):
    notes = [Contribution(f"peer-{i}", Stats.of(P, X), 1) for i, X in enumerate(rows)]
    return Merged(P, (MergedPart.of(notes, P),))


def like():
    return told(stream(400, seed=5))


def spoiling():
    """Normal of a machine whose inputs hang together in no way: it fits any sample badly."""
    return told(np.random.default_rng(3).uniform(-1.0, 1.0, (4000, INPUTS)))


def sharing(thing, rows=200, **options):
    learner = thing
    for x in stream(rows):
        learner.learn(x)
    memory = AgentState("pump-1", 1, Monitor(learner, learn="always"), merged=encode(Merged(P)))
    return SharingPolicy(memory, gate=2.0, **{"max_shift": 2.0, **options})


def scores(subject):
    return [subject.memory.learner.score(x) for x in TRY]


def test_a_merge_that_would_spoil_our_level_is_refused(caplog):
    subject = sharing(Detector(P))
    before = scores(subject)
    assert not receive(subject, spoiling())
    assert subject.preview.shift > 2.0
    assert "sync.max_shift is 2" in subject.message
    assert "refused a merge" in caplog.text
    assert scores(subject) == before
    assert subject.memory.learner.others.count == 0


def test_what_was_refused_is_not_tried_again_unless_it_changes(monkeypatch):
    subject = sharing(Detector(P))
    receive(subject, spoiling())
    looked = []
    monkeypatch.setattr(Detector, "plan", lambda *given: looked.append(given))
    assert not receive(subject, spoiling())
    assert looked == []
    assert "refused" in subject.message
    monkeypatch.undo()
    assert receive(subject, like())


def test_the_limit_is_what_decides():
    subject = sharing(Detector(P), max_shift=1e6)
    assert receive(subject, spoiling())
    assert subject.memory.learner.others.count == 4000


@pytest.mark.parametrize("kind", [Detector, Bank])
def test_the_preview_tells_what_adopting_does(kind):
    subject = sharing(kind(P))
    learner = subject.memory.learner
    before = state_to_bytes(subject.memory)
    preview = MergePreview.of(learner, like(), learner.plan(like()))
    assert state_to_bytes(subject.memory) == before  # nothing was adopted
    assert (preview.samples, preview.devices) == (400, 1)
    assert 0.5 < preview.shift < 2.0
    own = own_stats(learner)
    readouts = {name: learner[name].readout for name in own_stats(learner)} if kind is Bank else {}
    receive(subject, like())
    for name, old in readouts.items():
        after = own[name].mean_loss(learner[name].readout)
        assert preview.patterns[name] == pytest.approx(after / own[name].mean_loss(old), rel=0.2)


def test_a_device_that_has_seen_little_has_no_level_to_lose():
    subject = sharing(Detector(P), rows=5)
    assert receive(subject, spoiling())
    assert subject.preview.shift == 1.0


@pytest.mark.parametrize("kind", [Detector, Bank])
def test_undoing_a_merge_restores_every_bit(kind):
    subject = sharing(kind(P), max_shift=1e9)
    receive(subject, like())
    first = scores(subject)
    receive(subject, told(stream(300, seed=6), stream(100, seed=8, place=0.7)))
    assert scores(subject) != first
    again = state_from_bytes(state_to_bytes(subject.memory))
    subject = SharingPolicy(again, gate=2.0, max_shift=2.0)  # it is undone after a restart
    assert undo(subject) == "the last merge was undone"
    assert scores(subject) == first
    assert subject.consider_undo() is None


def test_the_first_merge_can_be_undone_too():
    subject = sharing(Detector(P))
    subject.memory.learner.adopt(Merged(P))  # settles it
    before = scores(subject)
    receive(subject, like())
    undo(subject)
    assert scores(subject) == before


def test_what_was_undone_is_not_adopted_again_unless_it_changes():
    subject = sharing(Detector(P))
    receive(subject, like())
    undo(subject)
    assert not receive(subject, like())
    assert "it was undone" in subject.message
    assert receive(subject, told(stream(401, seed=5)))


def test_what_is_known_already_is_not_adopted_again():
    subject = sharing(Detector(P))
    assert receive(subject, like())
    assert not receive(subject, like())
    assert subject.message == "nothing new"


def test_what_does_not_fit_is_refused_and_nothing_else_happens():
    other = shared(hidden=9)
    strange = Merged(other, (MergedPart.of([Contribution("x", Stats.of(other, TRY), 1)], other),))
    subject = sharing(Detector(P))
    assert not receive(subject, strange)
    assert "same Projection" in subject.message


def test_a_refusal_does_not_outlive_a_restart_because_the_limit_may_be_another_now():
    subject = sharing(Detector(P))
    receive(subject, spoiling())
    subject.memory.reject(merged_digest(encode(like())), "it was undone")
    again = SharingPolicy(state_from_bytes(state_to_bytes(subject.memory)), gate=2.0, max_shift=1e9)
    assert receive(again, spoiling())
    assert not receive(again, like())
    assert "it was undone" in again.message


def test_what_is_held_back_is_logged(caplog):
    caplog.set_level("INFO")
    sharing(Detector(P), rows=3).release()
    assert "held back" in caplog.text
