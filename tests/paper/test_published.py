"""OS-ELM in NumPy, the two plain ways: they give what the equations say, and what we give."""

import numpy as np
import pytest

from edgemerge import Detector, Projection, Stats
from edgemerge.core.projection import ACTIVATIONS
from edgemerge.paper.timing import PublishedElm, TextbookElm, hidden_layer, solve

SAME = 1e-6  # relative: P is followed for 100 samples in float64, with a condition up to 1e6
GRID = 2.0**-10  # the product's hidden values lie on a grid of 2⁻¹², after inputs that do too


def samples(k=200, n=12, seed=0):
    rng = np.random.default_rng(seed)
    mix = np.random.default_rng(99).normal(0, 0.3, (5, n))
    return np.clip(rng.normal(size=(k, 5)) @ mix + rng.normal(0, 0.05, (k, n)), -1, 1)


def layer(activation="identity"):
    return Projection(n_inputs=12, n_hidden=6, seed=3, activation=activation)


def first(hidden, X, ridge):
    H = hidden(X)
    P = np.linalg.inv(H.T @ H + ridge * np.eye(H.shape[1]))
    return P, P @ H.T @ X


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_the_hidden_layer_is_the_one_that_devices_share(activation):
    shared, X = layer(activation), samples()
    assert hidden_layer(shared)(X) == pytest.approx(shared.hidden(X), abs=GRID)


@pytest.mark.parametrize(("way", "wide"), [(PublishedElm, True), (TextbookElm, False)])
def test_learning_one_by_one_gives_what_solving_at_once_gives(way, wide):
    hidden, X, ridge = hidden_layer(layer()), samples(), 0.01
    learner = way(hidden, *first(hidden, X[:100], ridge))
    for x in X[100:]:
        learner.learn(x[None] if wide else x)
    root = np.sqrt(ridge) * np.eye(6)
    B = np.linalg.lstsq(np.vstack([hidden(X), root]), np.vstack([X, np.zeros((6, 12))]))[0]
    assert pytest.approx(B, rel=SAME, abs=SAME) == learner.B
    x = X[0]
    loss = np.mean((x - hidden(x) @ B) ** 2)
    assert learner.loss(x[None] if wide else x) == pytest.approx(loss, rel=SAME)


def test_several_rows_at_once_are_the_same_as_one_by_one():
    hidden, X = hidden_layer(layer()), samples()
    one, many = (PublishedElm(hidden, *first(hidden, X[:100], 0.01)) for _ in range(2))
    many.learn(X[100:120])
    for x in X[100:120]:
        one.learn(x[None])
    assert pytest.approx(many.P, rel=SAME, abs=SAME) == one.P


def test_what_is_sent_is_what_was_summed():
    hidden, X = hidden_layer(layer()), samples()
    U, V = PublishedElm(hidden, *first(hidden, X, 0.0)).sums()
    H = hidden(X)
    assert pytest.approx(H.T @ H, rel=SAME, abs=SAME) == U
    assert pytest.approx(H.T @ X, rel=SAME, abs=SAME) == V


def test_a_merge_is_like_having_seen_everything_and_leaves_the_learner_alone():
    hidden, X = hidden_layer(layer()), samples()
    mine, theirs = X[:100], X[100:]
    learner = PublishedElm(hidden, *first(hidden, mine, 0.0))
    before = learner.B.copy()
    H = hidden(theirs)
    P, B = learner.merged(H.T @ H, H.T @ theirs)
    P_all, B_all = first(hidden, X, 0.0)
    assert pytest.approx(P_all, rel=SAME, abs=SAME) == P
    assert pytest.approx(B_all, rel=SAME, abs=SAME) == B
    assert np.array_equal(learner.B, before)


def test_merged_sums_solved_plainly_give_our_loss():
    shared, X = layer(), samples()
    ours = Detector(shared, ridge=0.0)
    ours.learn(X[:100])
    ours.adopt(Stats.of(shared, X[100:]))
    stats = Stats.of(shared, X)
    _, B = solve(stats.U, stats.V)
    row = shared.grid.one(X[0])
    assert ours.loss(X[0]) == pytest.approx(np.mean((row - shared.project(row) @ B) ** 2), rel=SAME)


def test_a_learner_does_not_change_the_solution_that_it_started_from():
    hidden, X = hidden_layer(layer()), samples()
    P, B = first(hidden, X, 0.01)
    kept = P.copy(), B.copy()
    TextbookElm(hidden, P, B).learn(X[0])
    assert np.array_equal(P, kept[0])
    assert np.array_equal(B, kept[1])
