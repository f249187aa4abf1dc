"""Best match and nearest pair: the first of equals, and nothing beyond the factor."""

import numpy as np
import pytest

from edgemerge.core.projection import Projection
from edgemerge.core.similarity import (
    Profile,
    alike,
    best_match,
    distance,
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
    assert best_match({"twin": A, "a": A}, A, 2.5, distance) == "twin"
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
