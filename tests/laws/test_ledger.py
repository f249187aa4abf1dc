"""Laws of the ledger: a replicated map that forgets order, repetition and what was replaced."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgemerge import Contribution, Ledger, Projection, Stats
from edgemerge.core.errors import MismatchError, RejectedError, SettingError, UnknownError
from tests.cases import projections, samples

SHARED = Projection(n_inputs=2, n_hidden=3, seed=1)


@st.composite
def stories(draw):
    """What some devices told over time; a higher revision holds more samples."""
    projection = draw(projections(max_inputs=3, max_hidden=4))
    story = []
    for device in draw(st.sets(st.sampled_from("ABCDE"), min_size=1)):
        X = draw(samples(projection, min_rows=1, max_rows=8))
        for incarnation in range(draw(st.integers(1, 2))):
            for pattern in draw(st.sets(st.sampled_from(("idle", "fast")), min_size=1)):
                for revision in range(draw(st.integers(1, 3))):
                    stats = Stats.of(projection, X[: 1 + revision])
                    story.append(Contribution(device, stats, revision, pattern, incarnation))
    return projection, story


def ledger_of(projection, story):
    ledger = Ledger(projection)
    for contribution in story:
        ledger.put(contribution)
    return ledger


def newest(story):
    last = {}
    for c in story:
        if c.key not in last or c.revision > last[c.key].revision:
            last[c.key] = c
    return last


@given(stories(), st.randoms())
def test_order_and_repetition_do_not_matter(case, random):
    projection, story = case
    shuffled = story + random.choices(story, k=len(story))
    random.shuffle(shuffled)
    a, b = ledger_of(projection, story), ledger_of(projection, shuffled)
    assert list(a) == list(b)
    assert a.total() == b.total()
    assert a.total() == sum((c.stats for c in newest(story).values()), Stats.empty(projection))


@given(stories())
def test_putting_twice_is_putting_once(case):
    projection, story = case
    ledger = ledger_of(projection, story)
    before = ledger.total()
    assert not any(ledger.put(c) for c in story)
    assert ledger.total() == before


@given(stories(), st.sampled_from("ABCDE"))
def test_dropping_a_device_is_never_having_heard_it(case, device):
    projection, story = case
    ledger = ledger_of(projection, story)
    if device in ledger.devices:
        ledger.drop(device)
        assert list(ledger) == list(ledger_of(projection, [c for c in story if c.device != device]))
    else:
        with pytest.raises(UnknownError, match=f"no contribution of '{device}'; known:"):
            ledger.drop(device)


@given(stories(), st.sampled_from("ABCDE"), st.sampled_from(("idle", "fast")))
def test_a_total_holds_what_was_chosen_and_nothing_else(case, me, pattern):
    projection, story = case
    ledger, last = ledger_of(projection, story), newest(story).values()
    zero = Stats.empty(projection)
    others = [c.stats for c in last if c.device != me]
    assert ledger.total(without=me) == sum(others, zero)
    if me in ledger.devices:
        assert ledger.total(without=[me]) + ledger.total(devices=[me]) == ledger.total()
    assert ledger.total(pattern=pattern) == sum(
        (c.stats for c in last if c.pattern == pattern), zero
    )


@given(stories(), st.integers(2, 6), st.randoms(use_true_random=False))
def test_gossip_over_a_lossy_network_counts_every_sample_once(case, size, random):
    projection, story = case
    replicas = [Ledger(projection) for _ in range(size)]
    for contribution in story:  # each is heard first by one replica, in any order
        random.choice(replicas).put(contribution)
    links = [(i, random.randrange(i)) for i in range(1, size)]  # a tree: connected, any shape
    for _ in range(3 * size):  # lost, repeated and reordered, one way at a time
        for a, b in random.sample(links, k=random.randint(0, len(links))):
            replicas[a].merge(replicas[b]) if random.random() < 0.5 else replicas[b].merge(
                replicas[a]
            )
    for _ in range(size):  # then the network heals
        for a, b in links:
            replicas[a].merge(replicas[b])
            replicas[b].merge(replicas[a])
    digests = {replica.total().digest for replica in replicas}
    assert digests == {ledger_of(projection, story).total().digest}
    expected = sum(c.stats.count for c in newest(story).values())
    assert replicas[0].total().count == expected


def test_two_stories_under_one_revision_are_refused():
    ledger = Ledger(SHARED)
    ledger.put(Contribution("A", Stats.of(SHARED, [[0.1, 0.2]]), 3))
    with pytest.raises(RejectedError, match="A sent revision 3 of normal twice"):
        ledger.put(Contribution("A", Stats.of(SHARED, [[0.3, 0.2]]), 3))
    assert ledger.total().count == 1


def test_strangers_and_nameless_origins_are_refused():
    other = Projection(n_inputs=2, n_hidden=3, seed=2)
    with pytest.raises(MismatchError, match="does not fit"):
        Ledger(SHARED).put(Contribution("A", Stats.empty(other), 1))
    for origin in ({"device": ""}, {"device": "a\nb"}, {"pattern": "x" * 201}, {"revision": -1}):
        settings = {"device": "A", "stats": Stats.empty(SHARED), "revision": 1} | origin
        with pytest.raises(SettingError, match="expected"):
            Contribution(**settings)


def test_every_repr_fits_on_one_line():
    ledger = Ledger(SHARED)
    note = Contribution("pump-3", Stats.of(SHARED, np.zeros((2, 2))), 1)
    ledger.put(note)
    assert repr(ledger) == "Ledger(1 devices, 1 contributions, 2 samples)"
    assert repr(note) == "Contribution(pump-3/normal, incarnation 0, revision 1, 2 samples)"
    assert len(ledger) == 1
