"""When to raise the alarm."""

import numpy as np
import pytest

from edgemerge.core.errors import SampleError, SettingError
from edgemerge.core.limit import Threshold, loss_shift
from edgemerge.core.projection import Projection
from edgemerge.core.stats import Stats

VALUES = np.random.default_rng(0).exponential(1.0, 60_000)
LEARNING = [{"quantile": 0.99}, {"sigmas": 4.0}]


def fed(threshold, values):
    return np.array([threshold.update(value) for value in values])


def test_a_fixed_limit_is_four_times_the_usual_unless_told():
    assert Threshold().limit == 4.0
    assert fed(Threshold(limit=2.0), [2.0, 2.1, np.inf]).tolist() == [False, True, True]


@pytest.mark.parametrize("way", LEARNING)
def test_until_the_window_is_full_there_is_no_alarm(way):
    threshold = Threshold(**way, window=100)
    assert not fed(threshold, [*VALUES[:98], 1e9]).any()
    assert not threshold.ready
    assert threshold.limit == np.inf
    threshold = Threshold(**way, window=100)
    fed(threshold, VALUES[:100])
    assert threshold.ready
    assert threshold.update(1e9)


def test_the_quantile_is_the_value_that_the_share_lies_above():
    threshold = Threshold(quantile=0.9, window=100)
    fed(threshold, np.arange(1.0, 101.0))
    assert threshold.limit == 90.0


def test_the_limit_by_sigmas_is_mean_and_spread():
    threshold = Threshold(sigmas=3.0, window=500)
    fed(threshold, VALUES[:500])
    assert threshold.limit == pytest.approx(VALUES[:500].mean() + 3.0 * VALUES[:500].std())


@pytest.mark.slow
@pytest.mark.parametrize("way", LEARNING)
def test_the_share_of_alarms_stays_for_ever(way):
    alarms = fed(Threshold(**way), VALUES)
    shares = [part.mean() for part in np.array_split(alarms[500:], 3)]
    assert all(0.007 < share < 0.018 for share in shares), shares


@pytest.mark.parametrize("way", LEARNING)
def test_an_anomaly_does_not_raise_the_limit_and_relearning_accepts_it(way):
    threshold = Threshold(**way)
    fed(threshold, VALUES[:500])
    before = threshold.limit
    assert fed(threshold, np.full(2000, 50.0)).all()
    assert threshold.limit == before
    threshold.relearn()
    assert not fed(threshold, 50.0 + VALUES[:500]).any()
    assert 50.0 < threshold.limit < 60.0


def test_votes_ask_for_k_of_the_last_n():
    threshold = Threshold(limit=1.0, votes=(2, 3))
    values = [2.0, 0.0, 0.0, 2.0, 2.0, 0.0, 0.0, 2.0]
    assert fed(threshold, values).tolist() == [False] * 4 + [True, True, False, False]
    threshold.relearn()
    assert not threshold.update(2.0)


@pytest.mark.parametrize("way", [*LEARNING, {"limit": 3.0}])
@pytest.mark.parametrize("factor", [0.25, 8.0])
def test_rescaling_is_like_having_seen_the_scaled_values(way, factor):
    rescaled, scaled = Threshold(**way), Threshold(**way)
    fed(rescaled, VALUES[:700])
    rescaled.rescale(factor)
    if "limit" in way:
        scaled.rescale(factor)
    fed(scaled, factor * VALUES[:700])
    assert rescaled.limit == pytest.approx(scaled.limit, rel=1e-12)
    later = factor * VALUES[700:1500]
    assert fed(rescaled, later).tolist() == fed(scaled, later).tolist()


@pytest.mark.parametrize("way", LEARNING)
def test_after_rescaling_what_was_normal_before_is_an_anomaly_and_does_not_enter(way):
    threshold = Threshold(**way)
    fed(threshold, VALUES[:500])
    before = threshold.limit
    threshold.rescale(0.25)
    assert fed(threshold, np.full(20, before)).all()
    assert threshold.limit == 0.25 * before


def test_not_a_number_is_no_score():
    threshold = Threshold()
    with pytest.raises(SampleError, match="found NaN"):
        threshold.update(float("nan"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"limit": 1.0, "sigmas": 2.0}, "one way"),
        ({"limit": 0.0}, "limit=0.0"),
        ({"limit": float("nan")}, "limit=nan"),
        ({"quantile": 1.0}, "quantile=1.0"),
        ({"sigmas": -1.0}, "sigmas=-1.0"),
        ({"sigmas": 3.0, "window": 2}, "window=2"),
        ({"quantile": 0.999, "window": 500}, "1000 at least"),
        ({"votes": (3, 2)}, "votes"),
        ({"votes": (0, 2)}, "votes"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, words):
    with pytest.raises(SettingError, match=words):
        Threshold(**settings)


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_a_factor_that_cannot_be_is_refused(factor):
    with pytest.raises(SettingError, match="above 0"):
        Threshold().rescale(factor)


def test_the_shift_of_the_loss_after_a_merge_is_known_without_a_sample():
    shared, rng = Projection(n_inputs=12, n_hidden=8, seed=1), np.random.default_rng(0)
    mine, theirs = rng.normal(0.0, 0.4, (2, 3, 12))
    own = Stats.of(shared, rng.normal(0.0, 0.7, (300, 3)) @ mine)
    fresh = Stats.of(shared, rng.normal(0.0, 0.7, (3000, 3)) @ mine)
    others = Stats.of(shared, rng.normal(0.0, 0.7, (900, 3)) @ theirs)
    before, after = own.solve(), (own + others).solve()
    truth = fresh.mean_loss(after) / fresh.mean_loss(before)
    assert truth > 2.0
    assert loss_shift(own, before, after) == pytest.approx(truth, rel=0.1)
    assert loss_shift(own, before, before) == 1.0


def test_repr_is_one_line():
    assert repr(Threshold(votes=(2, 3))) == "Threshold(limit 4, 2 of 3)"
