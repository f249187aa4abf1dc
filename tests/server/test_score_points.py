"""Laws of a score's history: the newest 600 by time, whatever the order, the batches, the way."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgemerge.server.reports import model
from edgemerge.server.reports.model import (
    MAX_POINTS,
    NO_POINTS,
    MinuteSummary,
    PointSequence,
    ScorePoint,
    merge_points,
    newest_points,
    pack_points,
    points_to_server_clock,
    unpack_points,
)
from edgemerge.server.reports.model import new_points as not_in
from edgemerge.server.schemas import ReportedPoint
from tests.cases import examples
from tests.server.reporting import point

NOW = 1e6
numbers = st.integers(0, 2**32 - 1)


def table(seed, rows, moments=1500):
    """So many points at random moments, some of which are the same."""
    rng = np.random.default_rng(seed)
    found = np.empty((rows, 4))
    found[:, 0] = NOW - rng.integers(moments, size=rows)
    found[:, 1] = rng.integers(3, size=rows)
    found[:, 2] = rng.choice([np.nan, 1.0, 2.0], rows)
    found[:, 3] = rng.integers(2, size=rows)
    return found


def same(one, other):
    return np.array_equal(one, other, equal_nan=True)


def expected(rows):
    """The slow way: the highest of each moment in a dictionary, then the last 600."""
    found = {}
    for row in sorted(
        rows.tolist(), key=lambda row: [row[1], np.nan_to_num(row[2], nan=9), row[3]]
    ):
        found[row[0]] = row
    return np.array([found[at] for at in sorted(found)][-MAX_POINTS:]).reshape(-1, 4)


@pytest.mark.slow
@examples(50)
@given(numbers, st.lists(st.integers(0, 300), min_size=1, max_size=6), st.randoms())
def test_a_ring_is_the_newest_by_time_whatever_the_order_and_the_batches(seed, sizes, random):
    rows = table(seed, sum(sizes))
    batches = np.split(rows, np.cumsum(sizes)[:-1])
    random.shuffle(batches)
    ring = NO_POINTS
    for batch in batches:
        ring = merge_points(ring, newest_points(batch))
    assert same(ring, expected(rows))


@given(numbers, numbers, st.integers(0, 800), st.integers(0, 800))
def test_uniting_is_commutative_and_idempotent(one, other, n, m):
    a, b = newest_points(table(one, n)), newest_points(table(other, m))
    assert same(merge_points(a, b), merge_points(b, a))
    assert same(merge_points(merge_points(a, b), b), merge_points(a, b))
    assert same(merge_points(a, a), a)


@given(st.tuples(numbers, numbers, numbers))
def test_uniting_is_associative(seeds):
    a, b, c = (newest_points(table(seed, 400)) for seed in seeds)
    assert same(merge_points(a, merge_points(b, c)), merge_points(merge_points(a, b), c))


@given(numbers, st.integers(0, 700))
def test_points_survive_their_bytes(seed, rows):
    ring = newest_points(table(seed, rows))
    assert same(unpack_points(pack_points(ring)), ring)
    assert len(pack_points(ring)) == 32 * len(ring)


@pytest.mark.parametrize("damaged", [b"x", b"x" * 31, np.full(4, np.nan).tobytes()])
def test_bytes_that_are_no_points_are_none(damaged):
    assert len(unpack_points(damaged)) == 0


def test_points_are_seen_as_points():
    seen = PointSequence(np.array([[1.0, 2.0, np.nan, 0.0], [3.0, 4.0, 5.0, 1.0]]))
    assert tuple(seen) == (ScorePoint(1.0, 2.0, None, False), ScorePoint(3.0, 4.0, 5.0, True))
    assert seen == list(seen)
    assert seen != tuple(seen)[:1]
    assert seen[-1] == ScorePoint(3.0, 4.0, 5.0, True)
    assert seen[:1] == (ScorePoint(1.0, 2.0, None, False),)
    assert (len(seen), repr(seen)) == (2, "Points(2)")


def test_times_are_moved_and_none_is_of_the_future_or_older_than_a_day():
    ats = [86_450.0, 86_410.0, 86_490.0, 49.0, 50.0]  # out of order, by a clock 1 000 behind
    found = points_to_server_clock(
        [ReportedPoint(**point(at)) for at in ats], shift=1000.0, now=87_450.0
    )
    assert found[:, 0].tolist() == [1050.0, 87_410.0, 87_450.0]


@examples(30)
@given(numbers, numbers)
def test_what_is_unknown_is_what_would_be_added(one, other):
    known, more = newest_points(table(one, 900, 900)), newest_points(table(other, 200, 1200))
    fresh = not_in(known, more)
    added = set(merge_points(known, more)[:, 0]) - set(known[:, 0])
    assert set(fresh[:, 0]) == added


@given(numbers, st.integers(1, 600), st.integers(0, 600))
def test_minutes_are_the_same_whatever_the_batches(seed, rows, cut):
    ring = newest_points(table(seed, rows))
    parts = model.merge_minutes(
        model.summarize_minutes(ring[:cut]), model.summarize_minutes(ring[cut:]).items()
    )
    whole = model.summarize_minutes(ring)
    assert sorted(parts) == sorted(whole) == sorted(set((ring[:, 0] // 60).astype(int)))
    for minute, one in whole.items():
        inside = ring[ring[:, 0] // 60 == minute]
        given_thresholds = inside[:, 2][~np.isnan(inside[:, 2])]
        assert one == MinuteSummary(
            minute * 60.0,
            len(inside),
            inside[:, 1].sum() / len(inside),
            inside[:, 1].max(),
            given_thresholds[-1] if len(given_thresholds) else None,
            inside[:, 3].sum(),
        )
        assert parts[minute]._replace(mean=one.mean) == one
        assert parts[minute].mean == pytest.approx(one.mean, rel=1e-12)


def test_minutes_of_the_largest_scores_stay_finite():
    rows = np.array([[60.0 + i, 1e300, np.nan, 0.0] for i in range(600)])
    whole = model.summarize_minutes(rows)
    for _ in range(3):
        whole = model.merge_minutes(whole, whole.items())
    assert all(np.isfinite(one.mean) and one.mean <= 1.0000001e300 for one in whole.values())
