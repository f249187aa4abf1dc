"""Learners in an agent: neither saving, sharing nor looking changes a bit of what comes later."""

from functools import cache
from random import Random

import numpy as np
import pytest

from edgemerge import Bank, Contribution, Detector, Stats
from edgemerge.agent.learner import REFRESH_EVERY, as_learner
from edgemerge.core.ledger import Merged, MergedPart
from edgemerge.wire.state import from_bytes
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
    learner, scores = as_learner(maker()), []
    for x in ROWS:
        scores.append(learner.score(x))
        learner.learn(x)
    return learner, scores


@pytest.mark.slow
@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("seed", range(4))
def test_saving_and_looking_at_any_time_change_no_bit(maker, seed):
    random = Random(seed)
    alone, expected = plain_run(maker)
    learner, scores = as_learner(maker()), []
    for x in ROWS:
        if random.random() < 0.05:
            data, rows = learner.state()
            learner = as_learner(from_bytes(data), rows)
        if random.random() < 0.05:
            learner.own(), learner.census(), learner.explain(x), learner.closest(x)
        scores.append(learner.score(x))
        learner.learn(x)
    assert scores == expected
    assert learner.own() == alone.own()


def test_what_is_saved_beside_a_detector_is_bounded():
    learner = as_learner(Detector(P))
    for x in stream(2 * REFRESH_EVERY + 3):
        learner.learn(x)
    assert len(learner.state()[1]) == 3


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_the_census_counts_what_was_learnt(maker):
    learner, _ = plain_run(maker)
    census = learner.census()
    own = learner.own()
    assert set(census) == set(own)
    for name, seen in census.items():
        assert seen.count == pytest.approx(own[name].count)
    if maker is MAKERS["detector"]:
        assert census["normal"].learnt == len(ROWS)


@pytest.mark.parametrize("kind", [Detector, Bank])
def test_starting_anew_goes_on_detecting_and_owns_nothing(kind):
    learner = as_learner(kind(P))
    for x in ROWS[:290]:
        learner.learn(x)
    peer = Merged(
        P, (MergedPart.of([Contribution("peer", Stats.of(P, stream(90, 3, 0.5)), 1)], P),)
    )
    learner.adopt(peer)
    known = sum(stats.count for stats in learner.own().values())
    usual, odd = learner.score(ROWS[7]), learner.score(np.full(6, 0.9))
    learner.start_new_incarnation(peer)
    assert learner.own() == {}
    assert learner.census() == {}
    thing = learner.thing
    parts = [thing] if isinstance(thing, Detector) else [thing[name] for name in thing]
    assert sum(part.others.count for part in parts) == known + 90
    assert learner.score(ROWS[7]) == pytest.approx(usual, rel=0.3)
    assert learner.score(np.full(6, 0.9)) > 0.5 * odd


def test_patterns_that_peers_told_travel_under_names_without_slashes():
    bank = Bank(P)
    peer = Contribution("pump-9", Stats.of(P, stream(200, 5, 0.8)), 1)
    learner = as_learner(bank)
    learner.adopt(Merged(P, (MergedPart.of([peer], P),)))
    for x in stream(64, 6, 0.8):
        learner.learn(x)
    assert list(bank) == ["pump-9/normal"]
    assert list(learner.own()) == list(learner.census()) == ["pump-9~normal"]


def test_samples_that_wait_for_their_block_go_on_waiting_when_something_is_told():
    bank = Bank(P, reject_above=None)
    learner = as_learner(bank)
    for x in ROWS[:40]:
        learner.learn(x)
    learner.adopt(Merged(P))
    assert len(bank.waiting) == 8
    assert sum(stats.count for stats in learner.own().values()) == 32
