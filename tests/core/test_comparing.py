"""Comparing all pairs at once: it is what comparing them one by one would give."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgemerge import Stats
from edgemerge.core import similarity
from edgemerge.core.similarity import (
    SIMILAR_FACTOR,
    Profile,
    cluster_order,
    loss_ratio,
    loss_ratios,
    loss_ratios_by_owner,
)
from tests.cases import machine, parts
from tests.server.world import SHARED

EPSILON = np.finfo(float).eps


def rounding(a, b):
    """How far two ways to sum up the loss of b under a's readout may lie apart, as a ratio.

    Each of the products that cancel is rounded; with N·m of them, by so many epsilons at most.
    """
    B, stats = a.readout.B, b.stats
    terms = stats.S.sum() + 2 * np.abs(B * stats.V).sum() + np.abs(stats.U).sum() * (B**2).sum()
    level = b.usual_loss if b.known else a.usual_loss
    return 4 * B.size * EPSILON * terms / max(stats.count, 1e-9) / stats.S.size / level


@pytest.mark.slow
@settings(max_examples=60)
@given(parts(count=4, min_rows=1), st.sampled_from((1, 2**25)))
def test_all_pairs_at_once_are_what_each_pair_is(case, block):
    projection, rows = case
    profiles = [Profile.of(Stats.of(projection, X)) for X in rows]
    before, similarity.BLOCK_BYTES = (
        similarity.BLOCK_BYTES,
        block,
    )  # one pair at a time, or all together
    try:
        R = loss_ratios(profiles[:3], profiles)
    finally:
        similarity.BLOCK_BYTES = before
    assert R.shape == (3, 4)
    for i, a in enumerate(profiles[:3]):
        for j, b in enumerate(profiles):
            assert R[i, j] == pytest.approx(loss_ratio(a, b), rel=1e-9, abs=rounding(a, b))


def test_none_are_compared_with_none():
    assert loss_ratios([], []).shape == (0, 0)
    assert loss_ratios([], [Profile.of(Stats.empty(SHARED))]).shape == (0, 1)


def test_with_too_few_samples_for_a_level_of_its_own_the_level_of_the_readout_counts():
    rng = np.random.default_rng(0)
    many, few = (Profile.of(Stats.of(SHARED, machine(0.1, rows, rng))) for rows in (200, 3))
    assert many.known
    assert not few.known
    assert loss_ratios([many], [few])[0, 0] == pytest.approx(loss_ratio(many, few), rel=1e-9)


def test_a_pattern_is_explained_by_the_best_of_anothers_and_weighs_by_its_samples():
    R = np.array(
        [  # patterns of: a, a, b
            [1.0, 9.0, 3.0],
            [8.0, 2.0, 7.0],
            [4.0, 6.0, 1.0],
        ]
    )
    found = loss_ratios_by_owner(R, sizes=[2, 1], samples=[30.0, 10.0, 5.0])
    assert found.tolist() == [
        [(30 * 1.0 + 10 * 2.0) / 40, 3.0],
        [(30 * 4.0 + 10 * 6.0) / 40, 1.0],
    ]


def test_like_ones_stand_together_in_groups_within_which_each_explains_each():
    rng = np.random.default_rng(1)
    places = [0.1, 0.9, 0.5, 0.1, 0.9, 0.1]
    profiles = [Profile.of(Stats.of(SHARED, machine(place, 80, rng))) for place in places]
    R = loss_ratios(profiles, profiles)
    order, groups = cluster_order(R)
    assert sorted(order) == list(range(6))
    assert sorted(groups) == groups
    assert groups[0] == 0
    for k in set(groups):
        inside = [i for i, group in zip(order, groups, strict=True) if group == k]
        assert len({places[i] for i in inside}) == 1
        assert R[np.ix_(inside, inside)].max() <= SIMILAR_FACTOR
    assert len(set(groups)) == 3


def test_what_explains_one_way_only_is_not_alike():
    R = np.array([[1.0, 1.0], [9.0, 1.0]])
    assert cluster_order(R)[1] == [0, 1]
    assert cluster_order(np.minimum(R, SIMILAR_FACTOR))[1] == [0, 0]


def test_one_or_none_needs_no_order():
    assert cluster_order(np.ones((1, 1))) == ([0], [0])
    assert cluster_order(np.ones((0, 0))) == ([], [])
