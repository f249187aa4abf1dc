"""Parts and stats are ordinary values that any engine can add and send about."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgemerge import Projection, Stats
from edgemerge.bulk import Part
from edgemerge.core.errors import MismatchError
from tests.cases import parts, projections

reasons = st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), max_size=3).map(tuple)


def part(projection, X, left_out, refused):
    return Part(Stats.of(projection, X), 1, left_out, tuple(sorted(refused)))


@pytest.mark.slow
@given(parts(count=3), st.tuples(*[st.integers(0, 5)] * 3), st.tuples(*[reasons] * 3))
def test_parts_add_in_any_order_and_grouping(case, counts, refused):
    projection, samples = case
    a, b, c = (part(projection, *given) for given in zip(samples, counts, refused, strict=True))
    assert (a + b) + c == c + (b + a) == a + (c + b)
    assert a + Part.nothing(projection) == a == Part.nothing(projection) + a
    assert (a + b + c).stats == Stats.of(projection, np.vstack(samples))
    assert (a + b + c).left_out == sum(counts)
    assert sorted((a + b + c).refused) == sorted(sum(refused, ()))
    assert (a + b + c).chunks == 3


def test_parts_that_differ_are_not_equal():
    shared = Projection(n_inputs=1)
    a = Part(Stats.of(shared, [[0.5]]))
    assert a != Part(Stats.of(shared, [[0.4]]))
    assert a != Part(a.stats, 2)
    assert a != Part(a.stats, left_out=1)
    assert a != Part(a.stats, refused=(("a", "b"),))
    assert a != a.stats


def test_a_part_is_told_in_one_line():
    shared = Projection(n_inputs=1)
    assert repr(Part(Stats.of(shared, [[0.5]]))) == "Part(1 chunk, 1 sample)"
    whole = Part(Stats.of(shared, [[0.5]] * 2000), 3, left_out=4)
    assert repr(whole) == "Part(3 chunks, 2,000 samples, 4 rows left out)"
    missing = Part.without(shared, "a.csv", "gone")
    assert (
        repr(whole + missing) == "Part(3 chunks, 2,000 samples, 4 rows left out, 1 chunk refused)"
    )


@given(parts(count=1), st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_stats_come_out_of_a_pickle_as_they_went_in(case, protocol):
    projection, (X,) = case
    before = Stats.of(projection, X)
    after = pickle.loads(pickle.dumps(before, protocol))  # noqa: S301  # our own bytes
    assert after == before
    assert after.digest == before.digest
    assert not any(array.flags.writeable for array in after.arrays)


@given(projections())
def test_a_projection_is_drawn_once_however_often_it_is_unpickled(projection):
    once, again = (pickle.loads(pickle.dumps(projection)) for _ in range(2))  # noqa: S301  # ours
    assert once == projection
    assert once is again
    assert copy.deepcopy(projection) == projection


def test_projections_whose_settings_are_equal_numbers_are_the_same():
    zero, minus = (Projection(n_inputs=2, low=low, high=1.0) for low in (0.0, [-0.0, 0.0]))
    assert zero == minus
    assert Projection(n_inputs=2, low=-0.0, high=1) == zero


def test_a_projection_that_comes_out_otherwise_elsewhere_is_refused(monkeypatch):
    data = pickle.dumps(Stats.of(Projection(n_inputs=2, seed=77), [[0.1, 0.2]]))
    monkeypatch.setattr("edgemerge.core.projection.FORMAT", 2)  # as another version would have it
    with pytest.raises(MismatchError, match="use one version for all"):
        pickle.loads(data)  # noqa: S301  # our own bytes
