"""What an exchange returns: sums with their origins, as a value and as bytes."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgemerge import Contribution, Detector, Projection, Stats, decode, encode
from edgemerge.core.errors import FormatError
from edgemerge.core.ledger import Merged, MergedPart, Origin, Selection
from edgemerge.wire.codec import pack, unpack
from tests.cases import parts, projections, samples

SHARED = Projection(n_inputs=2, n_hidden=3)


def note(device="a", revision=1, pattern="normal", incarnation=0, rows=((0.1, 0.2),)):
    return Contribution(device, Stats.of(SHARED, rows), revision, pattern, incarnation)


def told(*groups):
    return Merged(SHARED, tuple(MergedPart.of(group, SHARED) for group in groups))


@given(parts(count=3), st.integers(0, 2**63 - 1))
def test_bytes_and_back_is_the_identity(case, number):
    projection, rows = case
    notes = [
        Contribution(device, Stats.of(projection, X), number, "normal", number)
        for device, X in zip(("a", "b", "c"), rows, strict=True)
    ]
    for groups in ([notes], [notes[:1], notes[1:]], [[n] for n in notes], []):
        one = Merged(projection, tuple(MergedPart.of(group, projection) for group in groups))
        again = decode(encode(one))
        assert again == one
        assert encode(again) == encode(one)
        assert again.total == Stats.total(projection, (n.stats for g in groups for n in g))


def test_a_part_lists_its_origins_in_order_and_names_its_devices():
    part = MergedPart.of([note("b"), note("a", 3), note("a", 2, "idle")], SHARED)
    assert part.origins == (
        Origin("a", 0, "idle", 2),
        Origin("a", 0, "normal", 3),
        Origin("b", 0, "normal", 1),
    )
    assert part.devices == ["a", "b"]


def test_each_part_is_adopted_under_the_name_of_its_first_origin():
    found = told([note("b"), note("c", rows=[(0.3, 0.4)])], [note("a", 7, "idle", 5)])
    assert [repr(c) for c in found.contributions] == [
        "Contribution(b/normal, incarnation 0, revision 1, 2 samples)",
        "Contribution(a/idle, incarnation 5, revision 7, 1 samples)",
    ]


def test_equality_is_of_bits_and_of_origins():
    assert told([note("a")]) == told([note("a")])
    assert told([note("a")]) != told([note("a", 2)])
    assert told([note("a")]) != told([note("a", rows=[(0.1, 0.3)])])
    assert told([note("a"), note("b")]) != told([note("a")], [note("b")])
    assert told() != "nothing"


@pytest.mark.parametrize(
    "origins",
    [
        "",
        "[]",
        "{}",
        "[[1]]",
        '[["a",0,"normal"]]',
        '[["a",0,"normal",1,2]]',
        '[["a",0,"normal",1.0]]',
        '[["a",0,"normal",true]]',
        '[["a",-1,"normal",1]]',
        f'[["a",0,"normal",{2**63}]]',
        '[[1,0,"normal",1]]',
        '[["b",0,"normal",1],["a",0,"normal",1]]',
        '[["a",0,"normal",1],["a",0,"normal",1]]',
        '[["a", 0, "normal", 1]]',
        "[" * 3000,
    ],
)
def test_origins_that_we_would_not_write_are_refused(origins):
    words, tensors = unpack(encode(told([note("a")])), 10**6)
    words["0.origins"] = origins
    with pytest.raises(FormatError, match=r"origins|two sums"):
        decode(pack(words, tensors))


def test_one_contribution_in_two_sums_is_refused():
    words, tensors = unpack(encode(told([note("a")], [note("b")])), 10**6)
    words["1.origins"] = json.dumps([["a", 0, "normal", 1]], separators=(",", ":"))
    with pytest.raises(FormatError, match="in two sums"):
        decode(pack(words, tensors))


def test_sums_of_another_task_are_refused():
    stats = Stats.of(SHARED, [[0.1, 0.2]], [[0.5]])
    with pytest.raises(FormatError, match="another task"):
        decode(encode(Merged(SHARED, (MergedPart(stats, (Origin("a", 0, "normal", 1),)),))))


@given(projections().flatmap(lambda p: st.tuples(st.just(p), samples(p, min_rows=1))))
def test_learnt_counts_samples_whatever_is_forgotten_or_how_they_come(case):
    projection, X = case
    for forgetting in (1.0, 0.9):
        learner = Detector(projection, forgetting=forgetting)
        learner.learn(X)
        assert learner.learnt == len(X)
        for x in X[:3]:
            learner.learn(x)
        learner.learn_and_score(X)
        learner.learn_and_score(X[0])
        assert learner.learnt == 2 * len(X) + len(X[:3]) + 1
    assert Detector.resume(learner.own).learnt == 0


def test_what_is_rejected_is_not_learnt():
    rng = np.random.default_rng(0)
    learner = Detector(Projection(n_inputs=4, n_hidden=4), reject_above=8.0)
    learner.learn(rng.normal(0.0, 0.05, (200, 4)))
    before = learner.learnt
    learner.learn([[0.9, -0.9, 0.9, -0.9]])
    assert learner.learnt == before


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.integers(0, 1),
            st.sampled_from(["x", "y"]),
            st.integers(0, 3),
        ),
        unique_by=lambda t: t[:3],
    )
)
def test_a_wish_chooses_what_it_says(entries):
    notes = [
        note(d, 1, p, i, rows=[(0.1, 0.2)] * k)
        if k
        else Contribution(d, Stats.empty(SHARED), 1, p, i)
        for d, i, p, k in entries
    ]
    some = [n for n in notes if n.stats.count]

    def keys(wish):
        return [n.key for n in wish(note for note in notes if note.samples)]

    assert keys(Selection()) == sorted(n.key for n in some)
    assert all(k[0] != "a" for k in keys(Selection(receiver="a")))
    assert keys(Selection(receiver="a", incarnation=0)) == sorted(
        n.key for n in some if n.key[:2] != ("a", 0)
    )
    assert {k[0] for k in keys(Selection(devices=("a", "b"), without=("b",)))} <= {"a"}
    assert {k[2] for k in keys(Selection(pattern="x"))} <= {"x"}
    assert len(keys(Selection(largest=2))) == min(2, len(some))
    sizes = sorted((n.stats.count for n in some), reverse=True)[:2]
    assert sorted((n.stats.count for n in Selection(largest=2)(some)), reverse=True) == sizes
