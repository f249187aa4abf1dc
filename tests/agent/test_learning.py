"""Learners in an agent: neither saving, sharing nor looking changes a bit of what comes later."""

from dataclasses import replace
from functools import cache
from random import Random

import numpy as np
import pytest

from edgemerge import Bank, Contribution, Detector, Monitor, Stats, kernel
from edgemerge.agent.state import (
    AgentState,
    census,
    own_stats,
    start_new_incarnation,
    state_from_bytes,
    state_to_bytes,
)
from edgemerge.core.detector import MAX_STEPS
from edgemerge.core.errors import MismatchError
from edgemerge.core.ledger import Merged, MergedPart
from tests.agent.agents import shared, stream

P = shared()
ROWS = np.vstack([stream(290), stream(90, 1, 0.8)])  # more than a settlement, and a new pattern
MAKERS = {
    "detector": lambda: Detector(P),
    "forgetful detector": lambda: Detector(P, forgetting=0.99, reject_above=20.0),
    "bank": lambda: Bank(P),
    "forgetful bank": lambda: Bank(P, forgetting=0.995, max_patterns=3),
}


@cache
def plain_run(maker):
    learner, scores = maker(), []
    for x in ROWS:
        seen = learner.look(x)
        scores.append(seen.score)
        learner.learn(seen)
    return learner, scores


def reloaded(learner):
    return state_from_bytes(
        state_to_bytes(AgentState("pump-1", 1, Monitor(learner, learn="always")))
    ).learner


@pytest.mark.slow
@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("seed", range(4))
def test_saving_and_looking_at_any_time_change_no_bit(maker, seed):
    random = Random(seed)
    alone, expected = plain_run(maker)
    learner, scores = maker(), []
    for x in ROWS:
        if random.random() < 0.05:
            learner = reloaded(learner)
        if random.random() < 0.05:
            own_stats(learner), census(learner), learner.explain(x), learner.look(x)
            [each.share("pump-1", revision=1) for each in learner.detectors.values()]
        seen = learner.look(x)
        if random.random() < 0.05:
            learner.explain(seen), learner.score(ROWS[:3]), own_stats(learner)
        scores.append(seen.score)
        learner.learn(seen)
    assert scores == expected
    assert own_stats(learner) == own_stats(alone)


def test_a_saved_detector_follows_the_same_schedule_of_refreshes():
    learner = Detector(P)
    for x in stream(MAX_STEPS + 40):
        learner.learn(learner.look(x))
    steps = learner.known.cache().steps
    again = reloaded(learner)
    assert 0 < steps < MAX_STEPS
    assert again.known.cache().steps == steps
    assert len(learner.progress()) < 20 + P.n_hidden**2  # no rows


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_judging_and_learning_project_a_sample_once(maker, monkeypatch):
    monkeypatch.setattr(kernel, "Run", None)  # it projects by itself, in the call that scores
    projected: list[int] = []
    project = type(P).project

    def counting(self, X):
        projected.append(np.size(X) // self.n_inputs)
        return project(self, X)

    monkeypatch.setattr(type(P), "project", counting)
    learner = maker()
    for x in ROWS[:200]:
        learner.learn(learner.look(x))
    if isinstance(learner, Detector):
        assert sum(projected) == 200
    else:  # finding, splitting and cleaning patterns projects rows that were kept
        assert projected.count(1) == 200
        assert 32 not in projected


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_what_was_seen_is_learnt_as_if_given_raw(maker):
    raw, looked = maker(), maker()
    for x in ROWS:
        raw.learn(x) if isinstance(raw, Bank) else raw.learn_and_score(x)
        looked.learn(looked.look(x))
    assert own_stats(looked) == own_stats(raw)


def test_a_look_that_is_out_of_date_is_made_again():
    one, other = Detector(P), Detector(P)
    for learner in (one, other):
        learner.learn(ROWS[:100])
    late, peer = one.look(ROWS[100]), Stats.of(P, stream(90, 3, 0.5))
    for learner in (one, other):
        learner.adopt(peer)
        learner.learn_and_score(ROWS[101])
    one.learn(late)
    other.learn(other.look(ROWS[100]))
    assert one.score(ROWS[102]) == other.score(ROWS[102])


@pytest.mark.parametrize("kind", [Detector, Bank])
def test_what_another_projection_saw_is_refused(kind):
    with pytest.raises(MismatchError):
        kind(P).learn(kind(replace(P, seed=8)).look(ROWS[0]))


@pytest.mark.parametrize("kind", [Detector, Bank])
def test_learners_swap_freely(kind):
    learner, peer = kind(P), kind(P)
    learner.learn(ROWS[:100])
    peer.learn(ROWS[100:200])
    notes = peer.share("pump-2", revision=1, incarnation=3)
    assert {note.key[:2] for note in notes} == {("pump-2", 3)}
    learner.adopt(Merged(P, (MergedPart.of(notes, P),)))
    total = sum(note.stats.count for note in notes)
    assert sum(each.others.count for each in learner.detectors.values()) == total
    learner.adopt(notes[0].stats)
    adopted = sum(each.others.count for each in learner.detectors.values())
    assert adopted == notes[0].stats.count
    assert learner.explain(learner.look(ROWS[0])).shape == (6,)


@pytest.mark.parametrize("after", [3, 30, 100])
def test_reading_own_while_forgetting_changes_no_later_score(after):
    read, alone = Detector(P, forgetting=0.95), Detector(P, forgetting=0.95)
    for learner in (read, alone):
        learner.learn(ROWS[:50])
        learner.score(ROWS[0])
        for x in ROWS[50 : 50 + after]:
            learner.learn(x)
        if learner is read:
            assert learner.own.count == pytest.approx(1.0 / (1.0 - 0.95**2), rel=0.01)
        for x in ROWS[:20]:
            learner.learn(x)
    assert read.score(ROWS[1]) == alone.score(ROWS[1])
    read.own, read.share("a", revision=1)
    assert read.learn_and_score(ROWS[:40]).tolist() == alone.learn_and_score(ROWS[:40]).tolist()
    assert read.own == alone.own


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_the_census_counts_what_was_learnt(maker):
    learner, _ = plain_run(maker)
    counted, own = census(learner), own_stats(learner)
    assert set(counted) == set(own)
    for name, seen in counted.items():
        assert seen.count == pytest.approx(own[name].count)
    if maker is MAKERS["detector"]:
        assert counted["normal"].learnt == len(ROWS)


@pytest.mark.parametrize("kind", [Detector, Bank])
def test_starting_anew_goes_on_detecting_and_owns_nothing(kind):
    learner = kind(P)
    for x in ROWS[:290]:
        learner.learn(x)
    peer = Merged(
        P, (MergedPart.of([Contribution("peer", Stats.of(P, stream(90, 3, 0.5)), 1)], P),)
    )
    learner.adopt(peer)
    known = sum(stats.count for stats in own_stats(learner).values())
    usual, odd = learner.score(ROWS[7]), learner.score(np.full(6, 0.9))
    monitor = Monitor(learner, learn="always")
    start_new_incarnation(monitor, peer)
    learner = monitor.learner
    assert own_stats(learner) == {}
    assert census(learner) == {}
    assert sum(part.others.count for part in learner.detectors.values()) == known + 90
    assert learner.score(ROWS[7]) == pytest.approx(usual, rel=0.3)
    assert learner.score(np.full(6, 0.9)) > 0.4 * odd  # the scale is that of all samples now


@pytest.mark.parametrize("small", [True, False])
def test_starting_anew_keeps_the_ridge_that_commissioning_chose(small):
    monitor = Monitor(Detector(P))
    monitor.learner.small_ridge = small
    start_new_incarnation(monitor, Merged(P))
    assert monitor.learner.small_ridge == small


def test_patterns_that_peers_told_travel_under_names_without_slashes():
    bank = Bank(P)
    peer = Contribution("pump-9", Stats.of(P, stream(200, 5, 0.8)), 1)
    bank.adopt(Merged(P, (MergedPart.of([peer], P),)))
    for x in stream(64, 6, 0.8):
        bank.learn(x)
    assert list(bank) == ["pump-9/normal"]
    assert list(own_stats(bank)) == list(census(bank)) == ["pump-9~normal"]


def test_samples_that_wait_for_their_block_go_on_waiting_when_something_is_told():
    bank = Bank(P, reject_above=None)
    for x in ROWS[:40]:
        bank.learn(x)
    bank.adopt(Merged(P))
    assert len(bank.waiting) == 8
    assert sum(stats.count for stats in own_stats(bank).values()) == 32
