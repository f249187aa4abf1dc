"""Cuts and exams: nothing is learnt that is asked, and shares are what the paper says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgemerge.paper.dataset import (
    eval_set,
    rng_for,
    split_by_origin,
    split_by_person,
    split_by_sample,
)
from tests.paper.toys import toy

seeds = st.integers(0, 2**32 - 1)
cuts = pytest.mark.parametrize("cut", [split_by_sample, split_by_origin, split_by_person])


@cuts
@given(seed=seeds, samples=st.integers(10, 60), origins=st.integers(2, 9))
def test_every_sample_is_on_one_side_of_the_cut_under_its_own_pattern(cut, seed, samples, origins):
    data = toy(samples=samples, origins=origins)
    found = cut(data, rng_for(seed))
    for i, (learn, keep) in enumerate(zip(found.learn, found.keep, strict=True)):
        assert sorted([*learn, *keep]) == list(data.rows(data.patterns[i]))
        assert len(learn)
        assert len(keep)


@given(seed=seeds, samples=st.integers(10, 60))
def test_by_sample_four_of_five_are_learnt(seed, samples):
    found = split_by_sample(toy(samples=samples), rng_for(seed))
    assert {len(learn) for learn in found.learn} == {round(0.8 * samples)}


@given(seed=seeds, origins=st.integers(2, 9))
def test_by_origin_no_trip_is_on_both_sides(seed, origins):
    data = toy(origins=origins)
    found = split_by_origin(data, rng_for(seed))
    for learn, keep in zip(found.learn, found.keep, strict=True):
        assert not set(data.origin[learn]) & set(data.origin[keep])


def test_by_origin_keeps_a_fifth_of_the_trips():
    data = toy(samples=100, origins=10)
    for keep in split_by_origin(data, rng_for(3)).keep:
        assert len(set(data.origin[keep])) == 2


@given(seed=seeds, people=st.integers(2, 9))
def test_by_person_nobody_who_is_asked_has_taught_any_pattern(seed, people):
    data = toy(origins=people)
    found = split_by_person(data, rng_for(seed))
    taught, asked = (
        set(data.origin[np.concatenate(side)].tolist()) for side in (found.learn, found.keep)
    )
    assert not taught & asked
    assert len(asked) == max(1, round(0.2 * people))


@cuts
def test_samples_to_learn_come_in_no_particular_order(cut):
    learn = cut(toy(), rng_for(1)).learn[0]
    assert list(learn) != sorted(learn)


@given(seed=seeds, a=st.integers(0, 3), b=st.integers(0, 3))
def test_an_exam_asks_for_all_kept_normals_and_a_tenth_as_many_odd_ones(seed, a, b):
    data = toy()
    cut = split_by_sample(data, rng_for(seed))
    found = eval_set(cut, {a, b}, rng_for(seed, "exam"))
    normal, odd = found.rows[~found.odd], found.rows[found.odd]
    assert sorted(normal) == sorted(np.concatenate([cut.keep[i] for i in {a, b}]))
    assert len(odd) == max(1, round(0.1 * len(normal)))
    assert not set(data.y[odd]) & {a, b}
    kept = np.concatenate(cut.keep)
    assert set(odd) <= set(kept)
    assert len(set(found.rows)) == len(found.rows)


def test_odd_samples_come_from_all_other_patterns():
    data = toy(samples=500)
    found = eval_set(split_by_sample(data, rng_for(1)), {0, 1}, rng_for(2))
    assert set(data.y[found.rows[found.odd]]) == {2, 3}


def test_each_purpose_has_its_own_chance():
    first = {rng_for(seed, *words).random() for seed in (1, 2) for words in [(), (1,), ("1", 2)]}
    assert len(first) == 6
    assert rng_for(1, "har", 2).random() == rng_for(1, "har", 2).random()
