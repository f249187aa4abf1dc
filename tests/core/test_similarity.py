"""Best match, nearest pair and groups: the first of equals, and nothing beyond the factor."""

import numpy as np
import pytest

from edgemerge.core.ledger import Contribution
from edgemerge.core.projection import Projection
from edgemerge.core.similarity import (
    FACTOR_GROWTH,
    SAME_FACTOR,
    Profile,
    alike,
    best_match,
    distance,
    group,
    group_to_limit,
    loss_ratio,
    nearest_pair,
)
from edgemerge.core.stats import Stats

SHARED = Projection(n_inputs=2, n_hidden=2, activation="identity")
T = np.linspace(-0.9, 0.9, 100)
NOISE = np.random.default_rng(0).normal(0.0, 0.02, (100, 2))


def seen(slope: float) -> Profile:
    return Profile.of(Stats.of(SHARED, np.column_stack([T, slope * T]) + NOISE))


A, NEAR, FAR = seen(0.5), seen(0.52), seen(-0.5)


def test_the_distance_is_the_larger_ratio_and_symmetric():
    assert distance(A, FAR) == distance(FAR, A) == max(loss_ratio(A, FAR), loss_ratio(FAR, A))
    assert distance(A.stats, NEAR.stats) == distance(A, NEAR)
    assert alike(A, NEAR, distance(A, NEAR))
    assert not alike(A, NEAR, np.nextafter(distance(A, NEAR), 0.0))


def test_the_best_match_is_the_first_of_equals():
    assert best_match({"far": FAR, "b": NEAR, "a": A, "twin": A}, A, 2.5) == "a"
    assert best_match({"far": FAR}, A, 2.5) is None
    assert best_match({}, A, 2.5) is None


@pytest.mark.parametrize("names", ["abf", "fba", "baf"])
def test_the_nearest_pair_keeps_the_order_of_the_caller(names):
    profiles = {name: {"a": A, "b": NEAR, "f": FAR}[name] for name in names}
    assert nearest_pair(profiles, np.inf) == tuple(name for name in names if name != "f")
    assert nearest_pair(profiles, np.inf, [("f", "a"), ("b", "a")]) == ("b", "a")
    assert nearest_pair(profiles, 0.5) is None
    assert nearest_pair(profiles, np.inf, []) is None


def test_of_equally_near_pairs_the_first_is_taken():
    twins = {"a": A, "b": A, "c": A}
    assert nearest_pair(twins, 2.5) == ("a", "b")
    assert nearest_pair(twins, 2.5, [("c", "b"), ("a", "b")]) == ("c", "b")


WIDE = Projection(n_inputs=4, n_hidden=6, seed=1)


def notes(seed, kinds=12, each=2):
    """Contributions of several kinds, some of them twins, of different sizes."""
    rng = np.random.default_rng(seed)
    found = []
    for kind in range(kinds):
        place, mixing = rng.uniform(-0.6, 0.6, 4), rng.normal(0.0, 0.2, (2, 4))
        for i in range(each):
            size = int(rng.integers(5, 60))
            rows = place + rng.normal(size=(size, 2)) @ mixing + rng.normal(0.0, 0.01, (size, 4))
            found.append(Contribution(f"d{kind}", Stats.of(WIDE, rows), 1, f"p{i}"))
        found.append(Contribution(f"twin{kind}", found[-1].stats, 1))
    return found


def slow_ratio(a, b):
    level = b.usual_loss if b.known else a.usual_loss
    return b.stats.mean_loss(a.readout) / level


def slow_distance(a, b):
    return max(slow_ratio(a, b), slow_ratio(b, a))


def slow_groups(contributions, factor):
    """Group as the module's docstring says, with each loss computed by its definition."""
    clusters = []
    for note in sorted(contributions, key=lambda note: (-note.stats.count, note.key)):
        one = Profile.of(note.stats)
        ratios = [slow_ratio(known, one) for known, _ in clusters]
        if ratios and min(ratios) <= factor:
            known, members = clusters[ratios.index(min(ratios))]
            together = Profile.of(known.stats + one.stats), [*members, note]
            clusters[ratios.index(min(ratios))] = together
        else:
            clusters.append((one, [note]))
    while True:
        pairs = [(a, b) for i, a in enumerate(clusters) for b in clusters[:i]]
        near = min(pairs, key=lambda pair: slow_distance(pair[0][0], pair[1][0]), default=None)
        if near is None or slow_distance(near[0][0], near[1][0]) > factor:
            return {tuple(sorted(note.key for note in members)) for _, members in clusters}
        (one, mine), (other, theirs) = near
        clusters = [each for each in clusters if each not in near]
        clusters.append((Profile.of(one.stats + other.stats), mine + theirs))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("factor", [1.2, 2.5, 40.0])
def test_groups_are_those_of_the_definition(seed, factor):
    found = {each.keys for each in group(notes(seed), factor=factor)}
    assert found == slow_groups(notes(seed), factor)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("most", [1, 3, 8, 100])
def test_the_factor_grows_step_by_step_until_there_are_few_enough_groups(seed, most):
    factor, steps = SAME_FACTOR, 0
    while len(expected := group(notes(seed), factor=factor)) > most:
        factor, steps = factor * FACTOR_GROWTH, steps + 1
    assert steps > 2 or most > 3
    found = group_to_limit(notes(seed), most)
    assert [each.keys for each in found] == [each.keys for each in expected]
    assert all(a.stats == b.stats for a, b in zip(found, expected, strict=True))


def test_a_ratio_is_the_mean_loss_over_the_usual_one():
    profiles = [Profile.of(note.stats) for note in notes(0)]
    for a in profiles:
        for b in profiles:
            assert loss_ratio(a, b) == pytest.approx(slow_ratio(a, b), rel=1e-6, abs=1e-9)


def test_a_checkpoint_can_end_the_work():
    calls = []

    def checkpoint():
        calls.append(1)
        if len(calls) == 40:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        group_to_limit(notes(0), 1, checkpoint=checkpoint)
    assert len(calls) == 40
