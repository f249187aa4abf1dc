"""Samples with names are matched by them, wherever samples enter."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from edgemerge import Bank, Detector, Projection, Stats, elm
from edgemerge.core.errors import SampleError

COLUMNS = ["heat", "noise", "current"]
FRAME = pd.DataFrame(np.random.default_rng(0).normal(0.0, 0.3, (200, 3)), columns=COLUMNS)
NAMED = Projection.of_data(FRAME, n_hidden=8, seed=7)
SWAPPED = FRAME[["current", "heat", "noise"]]
READINGS = FRAME.to_numpy()
ROW = READINGS[5]
ONE = {
    "dict": {"noise": ROW[1], "current": ROW[2], "heat": ROW[0]},
    "series": SWAPPED.iloc[5],
    "named tuple": list(SWAPPED.itertuples(index=False))[5],
}
MANY = {
    "frame": SWAPPED,
    "dict": dict(SWAPPED.items()),
    "series": [row for _, row in SWAPPED.iterrows()],
    "named tuples": list(SWAPPED.itertuples(index=False)),
    "dicts": SWAPPED.to_dict("records"),
    "Arrow table": pa.Table.from_pandas(SWAPPED),
    "Arrow batch": pa.RecordBatch.from_pandas(SWAPPED),
}
LEARNERS = [Detector, lambda shared: Detector(shared, reject_above=8.0), Bank]


def same(found, expected):
    assert type(found) is type(expected)
    assert np.array_equal(found, expected)


def test_a_projection_of_a_frame_keeps_its_column_names():
    assert NAMED.names == tuple(COLUMNS)
    assert Projection.of_data(FRAME, names=None).names is None
    assert Projection.of_data(FRAME, names=["a", "b", "c"]).names == ("a", "b", "c")
    assert Projection.of_data(dict(FRAME.items()), n_hidden=8, seed=7) == NAMED


def test_labels_that_are_not_text_are_no_names():
    plain = pd.DataFrame(READINGS)
    assert Projection.of_data(plain) == Projection.of_data(READINGS)
    same(NAMED.to_grid(plain), NAMED.to_grid(READINGS))
    same(NAMED.to_grid(pd.Series(ROW)), NAMED.to_grid(ROW))


@pytest.mark.parametrize("make", LEARNERS)
@pytest.mark.parametrize("carried", MANY.values(), ids=MANY)
def test_reordered_columns_give_the_same_scores(make, carried):
    plain, named = make(NAMED), make(NAMED)
    plain.learn(READINGS[:120])
    named.learn(SWAPPED[:120])
    same(named.learn_and_score(SWAPPED[120:]), plain.learn_and_score(READINGS[120:]))
    same(named.score(carried), plain.score(READINGS))


@pytest.mark.parametrize("make", LEARNERS)
@pytest.mark.parametrize("x", ONE.values(), ids=ONE)
def test_one_sample_with_names_is_one_sample(make, x):
    plain, named = make(NAMED), make(NAMED)
    for learner, some in ((plain, ROW), (named, x)):
        learner.learn(FRAME)
        learner.learn(some)
    same(named.score(x), plain.score(ROW))
    same(named.explain(x), plain.explain(ROW))
    same(named.learn_and_score(x), plain.learn_and_score(ROW))
    if make is Bank:
        assert named.closest(x) == plain.closest(ROW)
    else:
        same(named.loss(x), plain.loss(ROW))


def test_sums_hidden_values_and_batch_training_match_names_too():
    assert Stats.of(NAMED, SWAPPED) == Stats.of(NAMED, READINGS)
    same(NAMED.hidden(SWAPPED), NAMED.hidden(READINGS))
    same(NAMED.hidden(ONE["dict"]), NAMED.hidden(ROW))
    for by in ("svd", "qr", "normal"):
        same(elm(NAMED, SWAPPED, by=by), elm(NAMED, READINGS, by=by))


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (FRAME.drop(columns="noise"), "'noise' is missing, expected the columns 'heat'"),
        (FRAME.assign(speed=1.0), "'speed' is unknown"),
        (FRAME.rename(columns={"noise": "loud"}), "'noise' is missing and 'loud' is unknown, exp"),
        (FRAME[["current"]], "'heat', 'noise' are missing, expected"),
        (list(FRAME.head().itertuples()), "'Index' is unknown"),
        ([{"heat": 1.0, "noise": 2.0}], "'current' is missing"),
        (pd.concat([FRAME, FRAME["heat"]], axis=1), "'heat' is there twice"),
        ({"heat": 1.0, "noise": 2.0}, "'current' is missing"),
        (FRAME.iloc[0].drop("heat"), "'heat' is missing"),
        ({"heat": 1.0, "noise": "loud", "current": 0.0}, "must be 3 numbers"),
        ({"heat": [1.0], "noise": [1.0, 2.0], "current": [0.0]}, "must be 3 numbers"),
        (FRAME.assign(noise="loud"), "found 'loud' at input 'noise' of row 0, but"),
    ],
)
@pytest.mark.parametrize("make", LEARNERS)
def test_a_missing_or_extra_column_is_named(make, samples, words):
    learner = make(NAMED)
    for use in (learner.learn, learner.score, learner.learn_and_score):
        with pytest.raises(SampleError, match=words):
            use(samples)
    assert repr(learner) == repr(make(NAMED))


def test_columns_of_a_dict_are_columns():
    square = {"heat": [0.1, 0.2, 0.3], "noise": [0.4, 0.5, 0.6], "current": [0.7, 0.8, 0.9]}
    same(NAMED.to_grid(square), NAMED.to_grid(np.array(list(square.values())).T))


def test_a_projection_without_names_refuses_nothing_new():
    plain = Projection(n_inputs=3, n_hidden=8)
    same(plain.to_grid(SWAPPED), plain.to_grid(SWAPPED.to_numpy()))
    same(plain.to_grid(SWAPPED.iloc[0]), plain.to_grid(SWAPPED.to_numpy()[0]))
    with pytest.raises(SampleError, match="build the projection with `names`"):
        plain.to_grid(ONE["dict"])


def test_explanations_have_the_order_of_the_projection():
    learner = Detector(NAMED)
    learner.learn(FRAME)
    same(learner.explain(SWAPPED[:3]), learner.explain(READINGS[:3]))


def test_each_row_of_a_list_is_matched_by_its_own_names():
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in READINGS[:4].tolist()]
    rows[1] = dict(reversed(rows[1].items()))
    same(NAMED.to_grid(rows), NAMED.to_grid(READINGS[:4]))
    same(NAMED.to_grid([READINGS[0], rows[1]]), NAMED.to_grid(READINGS[:2]))
    assert Projection.of_data(rows, n_hidden=8) == Projection.of_data(FRAME[:4], n_hidden=8)
    with pytest.raises(SampleError, match="build the projection with `names`"):
        Projection(n_inputs=3, n_hidden=8).to_grid(rows)


def test_columns_with_several_levels_are_matched_too():
    levels = pd.MultiIndex.from_product([["pump"], COLUMNS])
    frame = pd.DataFrame(READINGS, columns=levels)
    shared = Projection.of_data(frame, n_hidden=8)
    same(shared.to_grid(frame[list(levels[::-1])]), shared.to_grid(frame))
    with pytest.raises(SampleError, match="are unknown, expected the columns 'heat'"):
        NAMED.to_grid(frame)
