"""Laws of Stats: sums add, subtract and compare exactly, in any order and grouping."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgemerge import Projection, Stats
from edgemerge.core.errors import CapacityError, MismatchError, SampleError, SettingError
from edgemerge.core.stats import Capacity
from tests.cases import parts, projections, samples


@given(parts(count=2))
def test_merging_equals_having_seen_everything(case):
    projection, (mine, theirs) = case
    merged = Stats.of(projection, mine) + Stats.of(projection, theirs)
    assert merged == Stats.of(projection, np.vstack([mine, theirs]))


@given(parts(count=1, min_rows=1), st.randoms())
def test_order_grouping_and_batching_do_not_change_a_bit(case, random):
    projection, (X,) = case
    order = list(range(len(X)))
    random.shuffle(order)
    cuts = sorted(random.sample(range(len(X) + 1), k=min(3, len(X))))
    pieces = [Stats.of(projection, part) for part in np.split(X[order], cuts)]
    random.shuffle(pieces)
    total = sum(pieces, start=Stats.empty(projection))
    assert total == Stats.of(projection, X)
    assert total.digest == Stats.of(projection, X).digest


@given(parts(count=3))
def test_adding_is_associative_and_commutative(case):
    projection, sets = case
    a, b, c = (Stats.of(projection, X) for X in sets)
    assert (a + b) + c == a + (b + c)
    assert a + b == b + a
    assert a + Stats.empty(projection) == a


@given(parts(count=2))
def test_taking_back_leaves_what_was_there(case):
    projection, (mine, theirs) = case
    a, b = Stats.of(projection, mine), Stats.of(projection, theirs)
    assert a + b - b == a
    assert a - a == Stats.empty(projection)


@given(parts(count=1, min_rows=1, max_rows=12), st.data())
def test_a_whole_weight_equals_repeating_the_row(case, data):
    projection, (X,) = case
    weights = data.draw(st.lists(st.integers(0, 3), min_size=len(X), max_size=len(X)))
    assert Stats.of(projection, X, weights=weights) == Stats.of(
        projection, np.repeat(X, weights, axis=0)
    )


@given(parts(count=2), st.floats(0.0, 4.0))
def test_weighed_sums_lie_on_the_grid_and_still_add_exactly(case, weight):
    projection, (mine, theirs) = case
    a, b = Stats.of(projection, mine) * weight, Stats.of(projection, theirs)
    for array in (*a.arrays, np.array(a.count)):
        assert np.array_equal(array / projection.quantum, np.rint(array / projection.quantum))
    assert a + b - b == a
    assert b * 1.0 == b
    assert b * 2.0 == b + b


@given(parts(count=1, min_rows=2), st.integers(1, 3))
def test_other_targets_obey_the_same_laws(case, outputs):
    projection, (X,) = case
    T = np.random.default_rng(len(X)).uniform(-1.0, 1.0, (len(X), outputs))
    whole = Stats.of(projection, X, T)
    assert whole == Stats.of(projection, X[:1], T[:1]) + Stats.of(projection, X[1:], T[1:])
    assert whole.V.shape == (projection.n_hidden, outputs)


@given(parts(count=1, min_rows=1), projections())
def test_sums_of_other_projections_are_refused(case, other):
    projection, (X,) = case
    if other != projection:
        with pytest.raises(MismatchError, match="every device must build the same Projection"):
            Stats.of(projection, X) + Stats.empty(other)


def test_sums_of_other_tasks_are_refused():
    projection = Projection(n_inputs=3, n_hidden=4)
    with pytest.raises(MismatchError, match="add only sums of the same task"):
        Stats.empty(projection) + Stats.empty(projection, n_outputs=1)


@given(parts(count=1, min_rows=1))
def test_passing_the_exact_range_is_an_error_and_never_a_loss(case):
    projection, (X,) = case
    stats = Stats.of(projection, X)
    while max(stats.U.max(), stats.S.max(), stats.count) < 2.0**52 * projection.quantum:
        stats = stats + stats
    with pytest.raises(CapacityError, match="fewer grid_bits"):
        stats + stats
    assert np.array_equal(stats.U / projection.quantum, np.rint(stats.U / projection.quantum))


@given(parts(count=2), st.floats(0.0, 2.0))
def test_equal_sums_have_equal_digests(case, weight):
    projection, (mine, theirs) = case
    a, b = Stats.of(projection, mine) * weight, Stats.of(projection, theirs) * weight
    assert (a + b - b).digest == a.digest
    assert (a + Stats.empty(projection)).digest == a.digest


def test_the_count_of_samples_is_bounded_too():
    quiet = Projection(n_inputs=1, n_hidden=1, activation="relu", grid_bits=16, seed=1)
    nothing = Stats.of(quiet, [[0.0]])
    with pytest.raises(CapacityError, match="up to which sums are exact"):
        nothing * 2.0**21


@given(projections(), st.sampled_from((np.nan, np.inf, -np.inf)), st.data())
def test_a_sample_that_is_not_finite_is_refused_with_its_place(projection, bad, data):
    X = data.draw(samples(projection, min_rows=1))
    row, column = len(X) // 2, projection.n_inputs - 1
    X[row, column] = bad
    name = column if projection.names is None else repr(projection.names[column])
    place = re.escape(f"at input {name} of row {row}")
    with pytest.raises(SampleError, match=rf"{place}.*drop or repair"):
        Stats.of(projection, X)


def test_bad_arguments_are_refused_with_what_to_do():
    projection = Projection(n_inputs=3, n_hidden=4)
    with pytest.raises(SampleError, match=r"shape \(2,\), expected \(3,\)"):
        Stats.of(projection, [1.0, 2.0])
    with pytest.raises(SampleError, match="must be 3 numbers"):
        Stats.of(projection, ["a", "b", "c"])
    with pytest.raises(SampleError, match="expected 1 rows of finite"):
        Stats.of(projection, [[0.0, 0.0, 0.0]], T=[[1.0], [2.0]])
    with pytest.raises(SampleError, match="expected 1 finite numbers of 0 or more"):
        Stats.of(projection, [[0.0, 0.0, 0.0]], weights=[-1.0])
    with pytest.raises(SettingError, match="expected a finite number of 0 or more"):
        Stats.empty(projection) * -1.0
    with pytest.raises(TypeError):
        Stats.empty(projection) + 1


@given(parts(count=1, min_rows=1))
def test_the_room_that_is_reckoned_with_is_never_too_small(case):
    projection, (X,) = case
    rows, room = projection.grid.rows(X), Capacity(projection)
    assert room.loads(rows) >= Stats.of(projection, X).largest
    assert room.load(rows[0]) >= Stats.of(projection, X[0]).largest
