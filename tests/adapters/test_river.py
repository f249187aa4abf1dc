"""The detector for River: our laws, on samples with other features each time."""

import itertools
import math
import pickle
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from river import anomaly, compose, preprocessing

from edgemerge import river
from edgemerge.core.errors import KindError, MismatchError, SampleError, SettingError
from edgemerge.core.stats import Stats
from edgemerge.river import OSELMDetector, PromisedFilter
from tests.adapters.cards import CreditCard

ROUNDING = 1e-9  # of float64, where P was followed sample by sample


names = st.sampled_from("abcde")
samples = st.lists(st.dictionaries(names, st.floats(-2.0, 2.0), min_size=1), max_size=20)


def taught(*streams, **settings):
    detector = OSELMDetector(n_hidden=4, **settings)
    for x in itertools.chain(*streams):
        detector.learn_one(x)
    return detector


def merged(mine, its):
    detector = taught(mine)
    detector.merge(taught(its))
    return detector


@pytest.mark.slow
@given(samples, samples)
@settings(max_examples=50)
def test_merging_is_like_having_seen_everything_in_any_order(mine, its):
    assert merged(mine, its).stats == merged(its, mine).stats == taught(its, mine).stats


@pytest.mark.slow
@given(
    samples.filter(len),
    st.floats(0.01, 8.0),
    st.sampled_from(["identity", "sigmoid", "tanh", "relu", "cosine"]),
    st.integers(0, 3),
)
@settings(max_examples=50)
def test_sums_are_those_of_all_samples_whenever_their_features_appeared(
    stream, width, activation, seed
):
    detector = taught(stream, width=width, activation=activation, seed=seed)
    projection = detector._detector.projection
    rows = [[x.get(name, 0.0) for name in projection.names] for x in stream]
    assert detector.stats == Stats.of(projection, rows)


@pytest.mark.parametrize("width", [None, 0, 0.0, -1.0, math.nan, 1025.0, "wide"])
def test_a_width_that_is_not_fixed_is_refused_since_the_default_depends_on_the_features(width):
    advice = "above 0, at most 1024: .* so give a number, such as 1"
    with pytest.raises(SettingError, match=f"found width={width}, expected {advice}"):
        OSELMDetector(width=width)


def test_an_old_pickle_with_no_fixed_width_learns_no_new_feature():
    old = taught([{"a": 0.1}])
    old.width = None  # version 0.1 allowed it
    old.learn_one({"a": 0.2})
    before = old.stats
    with pytest.raises(SettingError, match="found width=None, expected above 0"):
        old.learn_one({"a": 0.1, "new": 0.2})
    assert old.stats == before


@pytest.mark.slow
@given(samples)
@settings(max_examples=50)
def test_an_absent_feature_is_one_in_the_middle_of_its_range(stream):
    known = {name for x in stream for name in x}
    full = [dict.fromkeys(known, 0.0) | x for x in stream]
    assert taught(stream).stats == taught(full).stats


@pytest.mark.slow
@given(samples, samples)
@settings(max_examples=50)
def test_scores_do_not_depend_on_when_a_feature_appeared(mine, its):
    here, there = taught(mine, its), taught(its, mine)
    for x in mine:
        assert here.score_one(x) == pytest.approx(there.score_one(x), rel=ROUNDING)


def test_features_never_learnt_say_nothing():
    detector = taught({"a": i / 10.0, "b": i * i / 100.0} for i in range(10))
    known, more = {"b": 0.2, "a": 0.1}, {"a": 0.1, "b": 0.2, "new": 9.0}
    assert detector.score_one(known) > 0.0
    assert detector.score_one(more) == pytest.approx(detector.score_one(known), rel=ROUNDING)


def test_while_warming_up_nothing_is_odd():
    detector = taught({"a": i / 10.0} for i in range(5))  # of 1.3 · 4
    assert detector.score_one({"a": 9.0}) == 0.0
    detector.learn_one({"a": 0.5})
    assert detector.score_one({"a": 9.0}) > 4.0


def test_before_the_first_sample_nothing_is_odd():
    detector = OSELMDetector()
    detector.learn_one({})
    detector.merge(OSELMDetector())
    assert detector.stats is None
    assert detector.score_one({}) == detector.score_one({"a": 1.0}) == 0.0


def test_a_pickled_detector_goes_on_where_it_was():
    stream = [{"a": 0.1, "b": 0.2}, {"a": 0.3}, {3: 0.5}]
    before = taught(stream)
    after = pickle.loads(pickle.dumps(before))  # noqa: S301  # our own bytes
    assert after.stats == before.stats
    for detector in (before, after):
        detector.learn_one({"c": 0.1})
    assert after.stats == before.stats
    assert before.clone().stats is None


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "blue", None])
def test_a_value_that_is_no_number_is_refused_and_nothing_changes(bad):
    detector = taught([{"a": 0.1}])
    before = detector.stats
    for x in ({"a": bad}, {"a": 0.1, "new": bad}):
        with pytest.raises(SampleError, match="number"):
            detector.learn_one(x)
    assert detector.stats == before


def test_other_settings_do_not_merge():
    with pytest.raises(MismatchError, match="every device must build the same Projection"):
        taught([{"a": 0.1}]).merge(taught([{"a": 0.1}], seed=1))


def test_what_is_no_detector_of_river_does_not_merge():
    detector = taught([{"a": 0.1}])
    for other in (detector._detector, detector.stats, None):
        words = f"found {type(other).__name__}, expected OSELMDetector: merge detectors of River"
        with pytest.raises(KindError, match=words):
            detector.merge(other)


def test_more_features_than_weights_can_be_drawn_for_are_refused():
    with pytest.raises(SettingError, match="expected at most 4096"):
        OSELMDetector().learn_one({f"f{i}": 0.0 for i in range(4097)})


def test_what_is_rejected_is_not_learnt():
    draw = random.Random(0).gauss
    detector = taught(
        ({"a": draw(0.0, 0.1), "b": draw(0.0, 0.1)} for _ in range(200)), reject_above=4.0
    )
    before = detector.stats
    detector.learn_one({"a": 1.0, "b": -1.0})
    assert detector.stats == before


@pytest.mark.slow
def test_it_works_in_a_pipeline_with_a_quantile_filter():
    alarm = anomaly.QuantileFilter(OSELMDetector(width=0.5), q=0.95)
    model = compose.Pipeline(preprocessing.StandardScaler(), alarm)
    caught = []
    for x, odd in CreditCard().take(1000):
        caught.append((alarm.classify(model.score_one(x)), odd))
        model.learn_one(x)
    flagged, odd = np.array(caught[200:], dtype=bool).T
    assert flagged[odd].mean() > 0.9
    assert flagged[~odd].mean() < 0.1


@pytest.mark.slow
def test_the_filter_keeps_its_promise_and_spares_the_detector():
    draw = random.Random(0).gauss
    detector = OSELMDetector(n_hidden=8)
    alarm = PromisedFilter(detector, false_alarms=0.05)
    for _ in range(2000):
        alarm.learn_one({"a": draw(0.0, 0.3), "b": draw(0.0, 0.3)})
    fresh = [alarm.score_one({"a": draw(0.0, 0.3), "b": draw(0.0, 0.3)}) for _ in range(2000)]
    assert np.mean(list(map(alarm.classify, fresh))) == pytest.approx(0.05, rel=0.3)
    before, odd = detector.stats, {"a": 3.0, "b": -3.0}
    alarm.learn_one(odd)
    assert alarm.classify(alarm.score_one(odd))
    assert detector.stats == before
    careless = PromisedFilter(detector, protect_anomaly_detector=False)
    careless.learn_one(odd)
    assert detector.stats != before
    after = pickle.loads(pickle.dumps(alarm))  # noqa: S301  # our own bytes
    assert after.limit == alarm.limit


def test_a_filter_with_few_scores_has_a_limit_from_four_to_six():
    alarm = PromisedFilter(OSELMDetector(n_hidden=8), false_alarms=0.01)
    assert alarm.limit == 4.0
    draw = random.Random(0).gauss
    for _ in range(100):
        alarm.learn_one({"a": draw(0.0, 0.3), "b": draw(0.0, 0.3)})
    assert 4.0 <= alarm.limit <= 6.0
    with pytest.raises(SettingError, match="expected a rate between 0 and 1"):
        PromisedFilter(OSELMDetector(), false_alarms=0.0)


def test_rejected_samples_are_counted_on_through_merging_and_growing():
    here, there = (OSELMDetector(n_hidden=4, reject_above=4.0) for _ in range(2))
    for detector in (here, there):
        for i in range(40):
            detector.learn_one({"a": (i % 7) / 70.0, "b": (i % 5) / 50.0})
    here.learn_one({"a": 0.9, "b": -0.9})
    there.learn_one({"a": -0.9, "b": 0.9})
    before = here._detector.rejected + there._detector.rejected
    assert min(here._detector.rejected, there._detector.rejected) > 0
    here.merge(there)
    assert here._detector.rejected == before
    here.learn_one({"a": 0.01, "b": 0.02, "c": 0.0})
    assert here._detector.rejected == before


def test_an_absent_feature_is_in_the_middle_of_any_range():
    absent, given = OSELMDetector(low=10.0, high=20.0), OSELMDetector(low=10.0, high=20.0)
    for detector, last in ((absent, {"a": 12.0}), (given, {"a": 12.0, "b": 15.0})):
        detector.learn_one({"a": 11.0, "b": 16.0})
        detector.learn_one(last)
    assert absent.stats == given.stats


def test_the_old_name_still_works():
    assert river.Detector is OSELMDetector


def test_explanations_name_the_feature_that_moved_first():
    draw, detector = random.Random(0).gauss, OSELMDetector(n_hidden=16, seed=7)
    assert detector.explain_one({"heat": 0.1}) == {}
    for load in [draw(0.0, 0.3) for _ in range(400)]:
        x = {"heat": load, 7: draw(-load, 0.03), "noise": draw(load / 2, 0.03)}
        detector.learn_one(x)
        if detector.score_one(x) == 0.0:
            assert detector.explain_one(x) == {}
    found = detector.explain_one({"noise": 0.6, 7: -0.3, "heat": 0.3, "new": 9.0})
    assert next(iter(found)) == "noise"
    assert set(found) == {"heat", 7, "noise"}
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert found["noise"] > 50.0
    assert found["heat"] < 5.0
    assert next(iter(detector.explain_one({"heat": 0.3, "noise": 0.15}))) == 7  # absent counts as 0


def test_a_value_that_is_no_finite_number_is_named_by_its_feature():
    detector = OSELMDetector(n_hidden=4)
    with pytest.raises(SampleError, match="found nan at input 'flow', expected a finite number"):
        detector.learn_one({"heat": 1.0, "flow": math.nan})
    detector.learn_one({"heat": 1.0, "flow": 2.0})
    with pytest.raises(SampleError, match="found inf at input 'heat', expected a finite number"):
        detector.learn_one({"heat": math.inf, "flow": 2.0})
