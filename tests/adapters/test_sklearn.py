"""The estimators for scikit-learn: our laws on top of its own checks."""

import pickle

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from edgemerge.core.detector import Detector
from edgemerge.core.errors import (
    EdgemergeError,
    KindError,
    MismatchError,
    SampleError,
    SettingError,
)
from edgemerge.core.limit import Calibration, scores_without_each
from edgemerge.core.projection import Projection
from edgemerge.core.stats import Stats
from edgemerge.sklearn import OSELMClassifier, OSELMDetector, OSELMRegressor

DETECTOR = OSELMDetector(n_hidden=16, low=-2.0, high=2.0, robust=False)
REGRESSOR = OSELMRegressor(n_hidden=16, low=-2.0, high=2.0, y_low=-5.0, y_high=5.0)
CLASSIFIER = OSELMClassifier(n_hidden=16, low=-2.0, high=2.0)
LEARNERS = pytest.mark.parametrize("learner", [DETECTOR, REGRESSOR, CLASSIFIER], ids=repr)
SAMPLING = 0.4  # three deviations of a rate of 0.02 from 4 000 rows, measured with 8 000
ROUNDING = 1e-9  # of float64 in a product of matrices of condition 1e5
seeds = st.integers(0, 2**32 - 1)


def drawn(seed, rows=60, inputs=3):
    """Rows, and targets that serve as numbers and as the classes 0, 1, 2 alike."""
    rng = np.random.default_rng(seed)
    X = rng.normal(0.0, 1.0, (rows, inputs))
    return X, np.digitize(X[:, 0], [-0.5, 0.5]), rng


def taught(learner, X, y, **weights):
    learner = clone(learner)
    if isinstance(learner, OSELMClassifier):
        return learner.partial_fit(X, y, classes=[0, 1, 2], **weights)
    return learner.fit(X, y, **weights)


@pytest.mark.slow
@LEARNERS
@given(seed=seeds, cut=st.integers(1, 59))
@settings(max_examples=20)
def test_merging_is_like_having_fitted_everything(learner, seed, cut):
    X, y, _ = drawn(seed)
    here, there = taught(learner, X[:cut], y[:cut]), taught(learner, X[cut:], y[cut:])
    everything = taught(learner, X, y)
    assert here.merge(there).stats_ == everything.stats_
    method = "score_samples" if learner is DETECTOR else "predict"
    merged, fitted = (getattr(one, method)(X) for one in (here, everything))
    assert merged == pytest.approx(fitted, rel=ROUNDING)


@pytest.mark.slow
@LEARNERS
@given(seed=seeds, cuts=st.lists(st.integers(1, 59), max_size=3))
@settings(max_examples=20)
def test_partial_fit_in_pieces_is_fit(learner, seed, cuts):
    X, y, _ = drawn(seed)
    first, *rest = np.split(np.arange(60), sorted(set(cuts)))
    pieces = taught(learner, X[first], y[first])
    for part in rest:
        pieces.partial_fit(X[part], y[part])
    assert pieces.stats_ == taught(learner, X, y).stats_


@pytest.mark.slow
@pytest.mark.parametrize("robust", [True, False])
@given(seed=seeds)
@settings(max_examples=20)
def test_a_weight_of_two_is_the_row_twice_and_of_none_is_no_row(robust, seed):
    X, _, rng = drawn(seed)
    weights = rng.integers(0, 4, 60)
    detector = OSELMDetector(n_hidden=16, robust=robust, contamination=0.1)
    weighted = clone(detector).fit(X, sample_weight=weights)
    repeated = clone(detector).fit(X.repeat(weights, axis=0))
    assert weighted.stats_ == repeated.stats_
    assert weighted.offset_ == pytest.approx(repeated.offset_, rel=1e-6)  # scores in float32
    assert np.array_equal(weighted.predict(X), repeated.predict(X))


@pytest.mark.parametrize("learner", [REGRESSOR, CLASSIFIER], ids=repr)
def test_weights_are_repeats_for_targets_too(learner):
    X, y, rng = drawn(3)
    weights = rng.integers(0, 4, 60)
    repeated = taught(learner, X.repeat(weights, axis=0), y.repeat(weights))
    assert taught(learner, X, y, sample_weight=weights).stats_ == repeated.stats_


@LEARNERS
def test_a_pickled_estimator_knows_the_same(learner):
    X, y, _ = drawn(0)
    before = taught(learner, X, y)
    after = pickle.loads(pickle.dumps(before))  # noqa: S301  # our own bytes
    assert after.stats_ == before.stats_
    assert np.array_equal(after.predict(X), before.predict(X))
    assert not hasattr(clone(before), "stats_")


@LEARNERS
def test_estimators_of_other_ranges_do_not_merge(learner):
    X, y, _ = drawn(0)
    mine, its = taught(learner, X, y), taught(clone(learner).set_params(high=3.0), X, y)
    with pytest.raises(MismatchError, match="every device must build the same Projection"):
        mine.merge(its)


@LEARNERS
def test_an_estimator_that_learnt_nothing_does_not_merge(learner):
    X, y, _ = drawn(0)
    with pytest.raises(NotFittedError):
        taught(learner, X, y).merge(clone(learner))


def test_targets_of_other_ranges_or_classes_do_not_merge():
    X, y, _ = drawn(0)
    wide = clone(REGRESSOR).set_params(y_high=90.0)
    with pytest.raises(MismatchError, match="give every estimator the same y_low, y_high"):
        taught(REGRESSOR, X, y).merge(taught(wide, X, y))
    fewer = clone(CLASSIFIER).fit(X[y < 2], y[y < 2])
    with pytest.raises(MismatchError, match="classes in its first partial_fit"):
        taught(CLASSIFIER, X, y).merge(fewer)


@LEARNERS
def test_estimators_that_were_fitted_on_other_columns_do_not_merge(learner):
    X, y, _ = drawn(0)
    frame = pd.DataFrame(X, columns=["flow", "heat", "noise"])
    mine = taught(learner, frame, y)
    before = mine.stats_
    for other, found in (
        (frame[["flow", "noise", "heat"]], "'noise' as column 1 of the other, expected 'heat'"),
        (
            frame.rename(columns={"noise": "hum"}),
            "'hum' as column 2 of the other, expected 'noise'",
        ),
    ):
        with pytest.raises(
            MismatchError, match=f"found {found}: .* same columns in the same order"
        ):
            mine.merge(taught(learner, other, y))
    assert mine.stats_ == before
    with pytest.raises(MismatchError, match="which differs in n_inputs"):
        mine.merge(taught(learner, frame[["flow", "heat"]], y))
    everything = taught(learner, pd.concat([frame, frame, frame]), np.tile(y, 3))
    assert mine.merge(taught(learner, frame, y)).merge(taught(learner, X, y)).stats_ == (
        everything.stats_  # an array goes by position
    )


@LEARNERS
@pytest.mark.parametrize("other", [DETECTOR, REGRESSOR, CLASSIFIER, "core", 5], ids=repr)
def test_an_estimator_of_another_class_does_not_merge(learner, other):
    X, y, _ = drawn(0)
    mine = taught(learner, X, y)
    its = mine.stats_ if other == "core" else other if other == 5 else taught(other, X, y)
    kind = type(learner).__name__
    if type(its) is type(mine):
        assert mine.merge(its).stats_.count == 120
        return
    with pytest.raises(KindError, match=f"found {type(its).__name__}, expected {kind}: merge"):
        mine.merge(its)


@LEARNERS
def test_no_random_state_is_the_default_seed(learner):
    X, y, _ = drawn(0)
    default = taught(learner, X, y)
    for same in (None, np.int64(0)):
        assert taught(clone(learner).set_params(random_state=same), X, y).stats_ == default.stats_
    for seed, words in (
        (np.random.RandomState(0), "expected a whole number"),
        (1.5, "expected a whole number"),
        (-1, "expected 0 to 2⁶⁴ − 1, or None"),
    ):
        with pytest.raises(EdgemergeError, match=f"found random_state=.*{words}"):
            taught(clone(learner).set_params(random_state=seed), X, y)


def test_the_score_is_that_of_the_core():
    X, _, _ = drawn(0)
    fitted = clone(DETECTOR).fit(X)
    plain = Detector.resume(Stats.of(fitted.stats_.projection, X))
    assert -fitted.score_samples(X) == pytest.approx(plain.score(X), rel=ROUNDING)
    assert -fitted.score_samples(X[:1]) == pytest.approx(fitted.detector_.score(X[0]), rel=ROUNDING)


@pytest.mark.parametrize("share", [0.02, 0.1, 0.5])
def test_contamination_is_the_share_of_outliers(share):
    X, _, _ = drawn(0, rows=200)
    assert (OSELMDetector(contamination=share).fit_predict(X) == -1).mean() == share


@pytest.mark.slow
@pytest.mark.parametrize("robust", [True, False])
@pytest.mark.parametrize("rate", [0.02, 0.1])
def test_without_contamination_the_rate_of_false_alarms_is_kept(rate, robust):
    rows, fresh = drawn(2, rows=4000)[0], drawn(3, rows=8000)[0]
    detector = OSELMDetector(false_alarms=rate, robust=robust).fit(rows)
    assert (detector.predict(fresh) == -1).mean() == pytest.approx(rate, rel=SAMPLING)
    detector = clone(detector)
    for part in np.array_split(rows, 5):
        detector.partial_fit(part)
    assert (detector.predict(fresh) == -1).mean() == pytest.approx(rate, rel=SAMPLING)


def test_too_few_rows_promise_nothing_and_have_a_limit_from_four_to_six():
    X, _, _ = drawn(0, rows=99)
    few = OSELMDetector(n_hidden=8, false_alarms=0.01, robust=False).fit(X[:98])
    assert -6.0 <= few.offset_ <= -4.0
    enough = clone(few).fit(X)
    highest = scores_without_each(enough.detector_, X, np.ones(99)).max()
    assert highest <= -enough.offset_ < 1.1 * highest  # a bin's width above the highest score
    assert enough.offset_ == pytest.approx(
        -scores_without_each(enough.detector_, X, np.ones(99)).max(), rel=0.05
    )


def test_a_score_without_a_row_is_that_of_a_detector_that_never_saw_it():
    X, _, rng = drawn(0, rows=200)
    weights = rng.integers(1, 4, 200).astype(float)
    shared = Projection(n_inputs=3, n_hidden=16, low=-2.0, high=2.0)
    known = Stats.of(shared, X, weights=weights)
    ridge = known.ridge
    found = scores_without_each(Detector.resume(known, ridge=ridge), X, weights)
    for i in range(0, 200, 10):
        without = Detector.resume(known - Stats.of(shared, X[i : i + 1]), ridge=ridge)
        level = Detector.resume(known, ridge=ridge).known.level()
        look = without.known.look(shared.to_grid(X[i]), shared.hidden(X[i]))
        expected = level.score(look.squares / 3, look.leverage)
        assert found[i] == pytest.approx(expected, rel=1e-6)  # P is solved anew


def test_merging_adds_the_counts_that_the_limit_comes_from():
    X, _, _ = drawn(0, rows=400)
    here, there = (clone(DETECTOR).fit(rows) for rows in (X[:100], X[100:]))
    here.merge(there)
    counts = here.calibration_
    assert (counts.older + counts.newer).samples == 400
    assert here.offset_ == -counts.limit(0.02)


def test_a_pickle_without_counts_learns_on_and_merges():
    X, _, _ = drawn(0, rows=400)
    old, new = (clone(DETECTOR).fit(X) for _ in range(2))
    del old.calibration_
    old.__dict__.pop("false_alarms")
    before = old.offset_
    assert new.merge(old).stats_.count == 800
    assert old.offset_ == before
    old.partial_fit(X)
    assert (old.calibration_.older + old.calibration_.newer).samples == 400


def test_one_wild_row_does_not_blind_the_detector():
    rows, fresh = drawn(0, rows=500)[0], drawn(1, rows=200)[0]
    rows[7] = 1e5
    detector = OSELMDetector().fit(rows)
    far = fresh[:50] + 10.0
    assert -detector.score_samples(far).max() > 20.0 * -detector.score_samples(fresh).mean()
    assert (detector.predict(far) == -1).all()
    assert (detector.predict(fresh) == -1).mean() < 0.05


def test_a_robust_fit_leaves_out_what_is_far_out_in_most_inputs():
    X, _, rng = drawn(0, rows=190, inputs=6)
    odd = rng.normal(4.0, 0.1, (10, 6))
    detector = OSELMDetector(low=-2.0, high=2.0, contamination=0.05)
    dirty = clone(detector).fit(np.vstack([X, odd]))
    assert dirty.stats_.count == 200 - 16  # 8 %
    assert (dirty.predict(odd) == -1).all()
    naive = clone(detector).set_params(robust=False).fit(np.vstack([X, odd]))
    assert dirty.score_samples(odd).max() < 3.0 * naive.score_samples(odd).min()


def test_robust_partial_fit_does_not_learn_what_is_eight_times_as_odd():
    X, _, _ = drawn(0, rows=600)
    detector = OSELMDetector(n_hidden=32, low=-2.0, high=2.0).partial_fit(X)
    before = detector.stats_
    detector.partial_fit(np.full((5, 3), 9.0))
    assert detector.stats_ == before
    detector.partial_fit(np.zeros((1, 3)))
    assert detector.stats_.count == before.count + 1


@pytest.mark.parametrize(
    ("estimator", "words"),
    [
        (OSELMDetector(contamination=0.7), "expected 'auto' or up to 0.5"),
        (OSELMDetector(false_alarms=1.0), "false_alarms=1.0, expected a rate between 0 and 1"),
        (OSELMDetector(n_hidden=0), "n_hidden=0, expected 1 to 65536"),
        (OSELMRegressor(y_low=2.0, y_high=1.0), "expected low below high"),
        (
            OSELMRegressor(y_high=np.inf),
            "y_high=inf, expected low below high, at a finite distance",
        ),
        (OSELMRegressor(y_low=-np.inf), "y_low=-inf, .* at a finite distance"),
        (OSELMRegressor(y_low=-1e308, y_high=1e308), "y_high=1e[+]308, .* at a finite distance"),
        (OSELMDetector(contamination=None), "contamination=None, expected 'auto' or up to 0.5"),
        (OSELMDetector(contamination="x"), "contamination='x', expected 'auto' or up to 0.5"),
        (OSELMDetector(contamination=[0.1]), r"contamination=\[0.1\], expected 'auto' or up"),
        (OSELMDetector(contamination=np.nan), "contamination=nan, expected 'auto' or up to 0.5"),
        (OSELMDetector(robust="no"), "found robust='no', expected True or False"),
        (OSELMDetector(robust=None), "found robust=None, expected True or False"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(estimator, words):
    X, y, _ = drawn(0)
    with pytest.raises(SettingError, match=words):
        estimator.fit(X, y)


def test_classes_must_be_named_first():
    X, y, _ = drawn(0)
    with pytest.raises(SettingError, match="expected all of them in the first partial_fit"):
        clone(CLASSIFIER).partial_fit(X, y)
    with pytest.raises(SampleError, match="name them all first"):
        clone(CLASSIFIER).partial_fit(X, y, classes=[0, 1])


def test_the_default_is_cosine_with_a_size_by_rows():
    X, _, _ = drawn(0, rows=600)
    sizes = [OSELMDetector().partial_fit(X[:k]).stats_.projection.n_hidden for k in (30, 500, 600)]
    assert sizes == [128, 128, 256]  # 8 % of the rows are left out before they are counted
    old = OSELMDetector(activation="tanh").fit(X).stats_.projection
    assert (old.activation, old.n_hidden) == ("tanh", 128)


def test_with_a_given_range_the_projection_does_not_depend_on_the_rows():
    X, _, _ = drawn(0, rows=600)
    agreed = OSELMDetector(low=-4.0, high=4.0)
    one, other = clone(agreed).fit(X[:40]), clone(agreed).fit(3.0 * X)
    assert one.stats_.projection == other.stats_.projection
    low = OSELMDetector(low=-9.0).fit(X).stats_.projection
    assert low.low == -9.0
    assert len(low.high) == 3


def test_fewer_rows_than_hidden_values_are_warned_of():
    X, _, _ = drawn(0, rows=128)
    with pytest.warns(UserWarning, match="found 60 rows for n_hidden=61: scores are rough"):
        OSELMDetector(n_hidden=61).fit(X[:60])
    with pytest.warns(UserWarning, match=r"found 127 rows for n_hidden=128.*a smaller n_hidden"):
        OSELMDetector().fit(X[:127])
    with pytest.warns(UserWarning, match="found 64 rows for n_hidden=128"):
        OSELMDetector().fit(X, sample_weight=np.full(128, 0.5))
    OSELMDetector().fit(X)


def test_few_rows_of_which_more_may_come_are_not_warned_of():
    X, _, _ = drawn(0)
    OSELMDetector(n_hidden=61, low=-4.0, high=4.0).fit(X)  # may be merged
    OSELMDetector().partial_fit(X).partial_fit(X)


def test_wild_rows_do_not_widen_the_range_and_tails_do():
    X, _, _ = drawn(0, rows=50)  # too few to tell wild values by themselves
    X[0], X[1] = 1e4, X.max(0) + 0.5
    wild, every = (OSELMDetector(robust=r).partial_fit(X).stats_.projection for r in (True, False))
    tails = OSELMDetector().partial_fit(X[1:]).stats_.projection
    assert np.array_equal(tails.high, X[1])  # although the row is left out
    assert (np.asarray(wild.high) - X[1:].min(0) < 2.0 * np.ptp(X[1:], axis=0)).all()
    assert max(every.high) == 1e4


def test_one_glitch_of_one_input_does_not_blind_the_detector_to_it():
    rows, fresh = (drawn(seed, rows=300, inputs=5)[0] for seed in (0, 1))
    rows[7, 2] = 1e5
    fresh[:50, 2] += 10.0
    scores = -OSELMDetector().fit(rows).score_samples(fresh)
    assert scores[:50].min() > np.quantile(scores[50:], 0.95)
    assert np.median(scores[:50]) > 10.0 * np.median(scores[50:])


def test_the_range_of_an_input_that_is_mostly_constant_knows_its_rare_values():
    X, _, _ = drawn(0, rows=300, inputs=4)
    X[:, 1] = 0.0
    X[:6] += 5.0  # left out, and the only ones with another value
    X[:6, 1] = 1.0
    projection = OSELMDetector().fit(X).stats_.projection
    low, high = np.asarray(projection.low), np.asarray(projection.high)
    assert (low[1], high[1]) == (0.0, 1.0)


ACTIVATIONS = pytest.mark.parametrize("activation", ["cosine", "tanh"])


def in_pieces(seed, activation):
    """Return a detector that got three causes of nine inputs in ten pieces, and fresh rows."""
    rng = np.random.default_rng(seed)
    mixing = np.random.default_rng(99).normal(size=(3, 9))
    rows = rng.normal(size=(1200, 3)) @ mixing + 0.2 * rng.normal(size=(1200, 9))
    detector = OSELMDetector(false_alarms=0.05, activation=activation)
    for part in np.split(rows[:600], 10):
        detector.partial_fit(part)
    return detector, rows[600:]


@pytest.mark.slow
@ACTIVATIONS
def test_partial_fit_keeps_its_promise_and_does_not_cut_off_the_tail(activation):
    found = [in_pieces(seed, activation) for seed in range(6)]
    rates = [(detector.predict(fresh) == -1).mean() for detector, fresh in found]
    assert 0.04 < np.mean(rates) < 0.065
    learnt = [detector.stats_.count / 600 for detector, _ in found]
    assert np.mean(learnt) > 0.95  # the first piece alone leaves out 8 % of its rows


@pytest.mark.slow
@ACTIVATIONS
def test_earlier_counts_fall_with_the_scores_of_new_rows(activation, monkeypatch):
    followed = in_pieces(1, activation)[0].offset_
    factors = []
    monkeypatch.setattr(Calibration, "rescale", lambda _, factor: factors.append(factor))
    assert -in_pieces(1, activation)[0].offset_ > -followed
    assert np.prod(factors) < 0.9


def test_explanations_name_the_input_that_moved_and_keep_the_frame():
    rng = np.random.default_rng(0)
    load = rng.normal(0.0, 1.0, (600, 1))
    X = load * [1.0, 2.0, -1.0, 0.5] + rng.normal(0.0, 0.1, (600, 4))
    frame = pd.DataFrame(X, columns=["flow", "heat", "noise", "current"])
    detector = OSELMDetector().fit(frame)
    odd = frame[:40].set_index(pd.Index(range(100, 140)))
    odd["noise"] += 1.5
    found = detector.explain(odd)
    assert list(found.columns) == list(detector.feature_names_in_)
    assert list(found.index) == list(odd.index)
    assert (found.idxmax(axis=1) == "noise").mean() > 0.95
    plain = OSELMDetector().fit(X).explain(odd.to_numpy())
    assert np.array_equal(plain, found.to_numpy())
    with pytest.raises(NotFittedError):
        OSELMDetector().explain(X)
    with pytest.raises(ValueError, match="feature names"):
        detector.explain(odd[["heat", "flow", "noise", "current"]])
