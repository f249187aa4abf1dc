"""Laws of the monitor: restarts change nothing, undoing is exact, no sample counts twice."""

import json
from functools import reduce
from operator import add

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgemerge import Bank, Detector, Monitor, Stats
from edgemerge.core.errors import EdgemergeError
from edgemerge.core.monitor import MAX_EPISODES, MAX_PATTERNS, RESERVOIR_ROWS
from edgemerge.wire.state import from_bytes, to_bytes
from tests.cases import projections

pytestmark = pytest.mark.slow

REVIEWS = ("approve", "fault", "dismiss", "undo")
COMMANDS = ("watch", "relearn", "accept_drift", "acknowledge", "snooze", "wake", "adopt", *REVIEWS)


@st.composite
def streams(draw, max_rows=400):
    """A projection, and a stream that leaves its place now and then, with glitches."""
    projection = draw(projections(max_inputs=4, max_hidden=6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = draw(st.sampled_from((max_rows, max_rows // 2, 3)))
    places = rng.uniform(-1.0, 1.0, (draw(st.integers(2, 4)), projection.n_inputs))
    lasts = draw(st.sampled_from((20, 7, 60)))
    away = rng.integers(0, len(places), rows // lasts + 1).repeat(lasts)[:rows]
    away[: rows // 3] = 0  # commissioning is mostly calm
    X = places[away] + rng.normal(
        0.0, draw(st.sampled_from((0.02, 0.1))), (rows, projection.n_inputs)
    )
    X[rng.random(rows) < 0.02] *= 5.0
    return projection, projection.grid.to_readings(X)


@st.composite
def monitors(draw, **fixed):
    """A function that makes a monitor of a projection, always the same."""
    kind, n = draw(st.sampled_from((Detector, Bank))), draw(st.integers(1, 6))
    learner = {
        "forgetting": draw(st.sampled_from((1.0, 1.0, 0.99))),
        "ridge": draw(st.one_of(st.none(), st.floats(1e-2, 10.0))),
        "reject_above": draw(st.sampled_from((None, 4.0))),
    }
    alarm = draw(
        st.sampled_from(
            ({}, {"limit": 2.0}, {"false_alarms": 0.02}, {"false_alarms": "1 per minute"})
        )
    )
    options = {
        "learn": draw(st.sampled_from(("normal", "normal", "always", "off"))),
        "votes": (draw(st.integers(1, n)), n),
        "commissioning": draw(st.sampled_from((None, 40, "30 seconds", "40 seconds", "manual"))),
        **alarm,
    }
    learner |= {name: fixed[name] for name in fixed.keys() & learner.keys()}
    options |= {name: fixed[name] for name in fixed.keys() - learner.keys()}

    def make(projection):
        return Monitor(kind(projection, **learner), **options)

    return make


def command(monitor, word, at, X):
    """Carry out what a person may ask for; give back what was refused."""
    if word in REVIEWS:
        for name in list(monitor.odd_patterns):
            refused(monitor.review, name, word)
    elif word == "snooze":
        monitor.snooze(at + 10.0)
    elif word == "wake":
        monitor.snooze(None)
    elif word == "adopt":
        monitor.learner.adopt(Stats.of(monitor.learner.projection, X[::3]))
    else:
        refused(getattr(monitor, word))


def refused(call, *words):
    try:
        call(*words)
    except EdgemergeError:
        return


moments = st.integers(1, 100).map(lambda k: 4 * k - 1)
asked = st.lists(st.tuples(moments, st.sampled_from(COMMANDS)), min_size=2, max_size=12)


@given(streams(), monitors(), asked, st.lists(moments, min_size=1, max_size=9))
def test_saving_and_loading_at_any_point_changes_no_result(case, make, commands, saves):
    projection, X = case
    steady, restarted = make(projection), make(projection)
    for t, x in enumerate(X):
        for word in [word for when, word in commands if when == t]:
            for each in (steady, restarted):
                command(each, word, float(t), X)
        if t in saves:
            data = to_bytes(restarted)
            restarted = from_bytes(data)
            assert to_bytes(restarted) == data
        assert restarted.take(x, float(t)) == steady.take(x, float(t))
    assert restarted.status() == steady.status()
    assert list(restarted.events) == list(steady.events)
    assert to_bytes(restarted) == to_bytes(steady)


def total(parts, projection):
    return reduce(add, parts, Stats.empty(projection))


def own(monitor):
    getattr(monitor.learner, "catch_up", lambda: None)()
    parts = [each.own for each in monitor.learner.detectors.values()]
    return total(parts, monitor.learner.projection)


@given(streams(), monitors(forgetting=1.0, learn="normal"), st.data())
def test_approving_and_undoing_in_any_order_leaves_the_sums_as_they_were(case, make, data):
    projection, X = case
    monitor = make(projection)
    for t, x in enumerate(X):
        monitor.take(x, float(t))
    before = own(monitor)
    odd = {name: each.stats for name, each in monitor.odd_patterns.items()}
    for name in data.draw(st.permutations(list(odd))):
        monitor.review(name, "approve")
    assert own(monitor) == before + total(odd.values(), projection)
    for name in data.draw(st.permutations(list(odd))):
        monitor.review(name, "undo")
    assert own(monitor) == before
    assert {name: each.stats for name, each in monitor.odd_patterns.items()} == odd


@given(streams(), monitors(forgetting=1.0, learn="normal"), asked)
def test_no_sample_counts_twice_and_all_that_is_kept_is_bounded(case, make, commands):
    projection, X = case
    monitor = make(projection)
    for t, x in enumerate(X):
        for word in [word for when, word in commands if when == t]:
            command(monitor, word, float(t), X)
        monitor.take(x, float(t))
    aside = [each for each in monitor.odd_patterns.values() if each.status != "normal"]
    kept = sum(each.stats.count for each in aside)
    waiting = len(monitor.first_rows) + len(monitor.pending) + len(monitor.block)
    assert own(monitor).count + kept + waiting <= len(X)
    shared = monitor.learner.share("pump", revision=1)
    assert total((each.stats for each in shared), projection) == own(monitor)
    assert json.dumps(monitor.status(), allow_nan=False)
    assert len(monitor.episodes) <= MAX_EPISODES
    assert sum(each.status in ("unreviewed", "dismissed") for each in aside) <= MAX_PATTERNS
    assert all(len(each.rows.rows) <= RESERVOIR_ROWS for each in aside)
    assert all(each.began <= each.ended for each in monitor.episodes if each.ended is not None)
    assert [each.number for each in monitor.episodes] == sorted(
        {e.number for e in monitor.episodes}
    )


@given(streams(max_rows=200), monitors(learn="always"))
def test_a_monitor_that_always_learns_scores_as_its_learner_alone(case, make):
    projection, X = case
    monitor, alone = make(projection), make(projection).learner
    assert not alone.supervised
    for t, x in enumerate(X):
        seen = alone.look(x)
        result = monitor.take(x, float(t))
        assert result.score in (None, seen.score)
        assert (result.score is None) == (not result.ready)
        alone.learn(seen)
    assert to_bytes(monitor.learner) == to_bytes(alone)


@given(streams(max_rows=300), monitors(limit=1e12, false_alarms=None, learn="normal"))
def test_without_alarms_every_sample_after_commissioning_is_learnt(case, make):
    projection, X = case
    monitor = make(projection)
    for t, x in enumerate(X):
        phase, before = monitor.phase, own(monitor).count
        monitor.take(x, float(t))
        if phase == "watching" and monitor.learner.forgetting == 1.0:
            assert monitor.drifted or own(monitor).count == before + 1
    assert monitor.episodes == []
