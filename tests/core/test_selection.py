"""Which contributions to merge, and which belong together."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from edgemerge.core.errors import SettingError, UnknownError
from edgemerge.core.ledger import (
    Contribution,
    Ledger,
    Selection,
    everyone,
    fitting,
    freshest,
    largest,
    named,
)
from edgemerge.core.projection import Projection
from edgemerge.core.similarity import Profile, alike, explained_by, group, loss_ratio
from edgemerge.core.stats import Stats
from edgemerge.wire.codec import decode, encode

SHARED = Projection(n_inputs=12, n_hidden=8, seed=1)
RNG = np.random.default_rng(0)
SHAPES = [RNG.normal(0.0, 0.5, (2, 12)) for _ in range(3)]


def rows(kind, k, seed):
    rng = np.random.default_rng(seed)
    return rng.normal(0.0, 0.7, (k, 2)) @ SHAPES[kind] + rng.normal(0.0, 0.02, (k, 12))


def note(device, kind=0, k=100, revision=1):
    return Contribution(device, Stats.of(SHARED, rows(kind, k, sum(map(ord, device)))), revision)


NOTES = [note("d", 1, 60, 4), note("a", 0, 90, 2), note("c", 0, 120, 9), note("b", 1, 100, 1)]


def names(selection, notes=NOTES):
    return "".join(chosen.device for chosen in selection(notes))


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (everyone(), "abcd"),
        (everyone(without="b"), "acd"),
        (everyone(without=["b", "c"]), "ad"),
        (named("d", "a", "z"), "ad"),
        (largest(2), "bc"),
        (freshest(2), "cd"),
        (freshest(2, age={("a", 0, "normal"): 3.0, ("b", 0, "normal"): 7.0}), "ab"),
        (~largest(2), "ad"),
        (largest(2) & freshest(2), "c"),
        (largest(2) | freshest(2), "bcd"),
        (everyone(without="c").then(largest(2)), "ab"),
        (largest(2).then(everyone(without="c")), "b"),
        (fitting(3.0, bytes_per_s=100.0, bytes_each=100), "abc"),
        (fitting(3.0, bytes_per_s=100.0, bytes_each=100, solve_s=1.5), "c"),
        (fitting(0.5, bytes_per_s=100.0, bytes_each=100), ""),
        (explained_by(note("me", 0).stats), "ac"),
        (~explained_by(note("me", 0).stats), "bd"),
    ],
)
def test_each_rule_chooses_what_it_says_in_any_order(selection, expected):
    assert names(selection) == expected
    assert names(selection, NOTES[::-1]) == expected


def test_what_does_not_fit_leaves_room_for_what_does():
    bytes_each = {kept.key: size for kept, size in zip(NOTES, (10, 10, 900, 10), strict=True)}
    assert names(fitting(1.0, bytes_per_s=30.0, bytes_each=bytes_each)) == "abd"


@pytest.mark.parametrize("make", [largest, freshest])
def test_choosing_none_is_refused(make):
    with pytest.raises(SettingError, match="at least 1"):
        make(0)


def test_a_link_without_speed_is_refused():
    with pytest.raises(SettingError, match="above 0"):
        fitting(1.0, bytes_per_s=0.0, bytes_each=1)


def test_usual_is_the_loss_of_fresh_samples():
    learnt, fresh = Stats.of(SHARED, rows(0, 400, 1)), Stats.of(SHARED, rows(0, 4000, 2))
    profile = Profile.of(learnt)
    assert profile.known
    assert profile.usual_loss == pytest.approx(fresh.mean_loss(profile.readout), rel=0.3)


def test_like_data_explain_each_other_and_others_do_not():
    a, b = Stats.of(SHARED, rows(0, 100, 1)), Stats.of(SHARED, rows(0, 100, 2))
    other = Stats.of(SHARED, rows(1, 100, 3))
    assert 0.5 < loss_ratio(a, b) < 2.0
    assert alike(a, b)
    assert loss_ratio(a, other) > 5.0
    assert not alike(a, other)
    assert not alike(Profile.of(other), Profile.of(a))


def test_being_alike_takes_both_directions():
    narrow = Stats.of(SHARED, rows(0, 200, 1))
    both = narrow + Stats.of(SHARED, rows(1, 200, 2))
    assert loss_ratio(both, narrow) < loss_ratio(narrow, both)
    assert not alike(both, narrow)


def test_with_few_samples_the_level_of_the_one_who_explains_counts():
    many, few = Stats.of(SHARED, rows(0, 400, 1)), Stats.of(SHARED, rows(1, 3, 2))
    assert not Profile.of(few).known
    assert loss_ratio(many, few) > 10.0


def test_groups_are_the_patterns_their_sums_are_exact_and_the_order_makes_no_difference():
    notes = [note(f"{kind}-{i}", kind, 60 + i) for kind in range(3) for i in range(6)]
    groups = group(notes)
    assert [{key[0][0] for key in found.keys} for found in groups] == [{"0"}, {"1"}, {"2"}]
    for found in groups:
        assert list(found.keys) == sorted(found.keys)
        assert found.stats == sum((m.stats for m in found.members), Stats.empty(SHARED))
    for seed in range(3):
        shuffled = [notes[i] for i in np.random.default_rng(seed).permutation(len(notes))]
        again = group(shuffled)
        assert [found.keys for found in again] == [found.keys for found in groups]
        assert all(a.stats == b.stats for a, b in zip(again, groups, strict=True))


def between(share, k, seed):
    rng = np.random.default_rng(seed)
    shape = (1.0 - share) * SHAPES[0] + share * SHAPES[1]
    return Stats.of(SHARED, rng.normal(0.0, 0.7, (k, 2)) @ shape + rng.normal(0.0, 0.02, (k, 12)))


def test_where_one_pattern_goes_over_into_another_the_order_makes_no_difference_either():
    notes = [Contribution(f"{i:02}", between(i / 15, 60 + i % 4, i), 1) for i in range(16)]
    keys = [found.keys for found in group(notes)]
    assert 1 < len(keys) < 16
    for seed in range(8):
        shuffled = [notes[i] for i in np.random.default_rng(seed).permutation(len(notes))]
        assert [found.keys for found in group(shuffled)] == keys


def test_groups_that_came_apart_by_chance_are_joined_in_the_end():
    # with these samples two groups start, as the largest does not yet explain the next
    notes = [Contribution(f"{i}", Stats.of(SHARED, rows(0, 30 + i, 1400 + i)), 1) for i in range(8)]
    first, second = (Stats.of(SHARED, rows(0, 30 + i, 1400 + i)) for i in (7, 6))
    apart = [loss_ratio(first, note.stats) for note in notes[:-1]]
    assert max(apart) > 1.5 or loss_ratio(first, second) > 1.5
    assert len(group(notes, factor=1.5)) == 1


def test_an_empty_contribution_belongs_to_no_group():
    assert group([Contribution("new", Stats.empty(SHARED), 1)]) == []
    assert group([]) == []
    assert repr(group(NOTES)[0]).startswith("Group(2 contributions")


def test_a_selection_is_a_value_and_combinations_can_be_pickled():
    assert Selection(without="a") == everyone(without=["a"])
    assert {Selection(devices=["a", "b"]): 1}[named("a", "b")] == 1
    assert repr(Selection(devices=(), largest=2)) == "Selection(devices=(), largest=2)"
    combined = (~largest(2) | named("b")).then(freshest(2))
    assert names(pickle.loads(pickle.dumps(combined))) == names(combined) == "ad"  # noqa: S301 - our own


def test_a_ledger_totals_a_selection():
    ledger = Ledger(SHARED)
    for each in NOTES:
        ledger.put(each)
    both = NOTES[2].stats + NOTES[3].stats
    assert ledger.total(largest(2)) == ledger.total(devices=["b", "c"]) == both
    assert ledger.total(largest(2), without="b") == NOTES[2].stats
    with pytest.raises(UnknownError, match="no contribution of"):
        ledger.total(named("z"))


@pytest.mark.parametrize(
    ("revision", "seed", "expected"),
    [(2, 1, "newer"), (1, 1, "same"), (0, 1, "stale"), (0, 2, "stale"), (1, 2, "contradicting")],
)
def test_the_higher_revision_wins(revision, seed, expected):
    known = Contribution("a", Stats.of(SHARED, rows(0, 5, 1)), 1)
    new = Contribution("a", Stats.of(SHARED, rows(0, 5, seed)), revision)
    assert Ledger.check(new, known) == expected
    assert Ledger.check(new, None) == "newer"


def test_bytes_that_were_kept_are_passed_on_and_a_changed_copy_has_none():
    data = encode(NOTES[0])
    kept = decode(data).keep_encoded(data)
    assert encode(kept) is data
    assert decode(encode(replace(kept, revision=9))).revision == 9
