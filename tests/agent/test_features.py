"""Features: what they compute, and that going on after a restart changes no bit."""

import cmath
import json
from collections import Counter
from itertools import pairwise
from math import cos, log10, pi

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from edgemerge.agent.features import (
    STATISTICS,
    Raw,
    SlidingWindow,
    Spectrum,
    Statistics,
    Transitions,
)
from edgemerge.core.errors import SampleError, SettingError
from edgemerge.demo import data as pumps

TIGHT = 1e-9  # both sides are float64 sums of at most a few hundred terms

values = st.floats(-200.0, 200.0, allow_subnormal=False)
streams = st.integers(1, 3).flatmap(
    lambda k: st.lists(st.lists(values, min_size=k, max_size=k), min_size=1, max_size=40)
)


@st.composite
def makers(draw):
    """Give a function that makes the same features again and again."""
    kind = draw(st.sampled_from(["raw", "window", "spectrum", "transitions"]))
    length = draw(st.integers(4, 12))
    step = draw(st.none() | st.integers(1, length))
    if kind == "raw":
        return Raw
    if kind == "window":
        chosen = draw(st.lists(st.sampled_from(sorted(STATISTICS)), min_size=1, unique=True))
        return lambda: SlidingWindow(Statistics(chosen), length, step)
    if kind == "spectrum":
        bands = draw(st.integers(1, length // 2))
        return lambda: SlidingWindow(
            Spectrum(length=length, rate_hz=10.0, bands=bands), length, step
        )
    states = draw(st.integers(2, 15))
    return lambda: SlidingWindow(Transitions(states=states, low=-50.0, high=100.0), length, step)


def samples(features, rows):
    found = [features.push(np.array(row)) for row in rows]
    return [sample for sample in found if sample is not None]


@given(makers(), streams, st.data())
def test_going_on_from_a_state_changes_no_bit(make, rows, data):
    cut = data.draw(st.integers(0, len(rows)))
    whole = samples(make(), rows)
    before, after = make(), make()
    first = samples(before, rows[:cut])
    after.resume(json.loads(json.dumps(before.state())))
    assert [x.tobytes() for x in first + samples(after, rows[cut:])] == [x.tobytes() for x in whole]


@given(makers(), streams)
def test_samples_have_the_promised_length_and_as_many_names(make, rows):
    features = make()
    k = len(rows[0])
    names = features.names([f"channel {i}" for i in range(k)])
    assert len(set(names)) == len(names) == features.n_outputs(k)
    for sample in samples(features, rows):
        assert sample.shape == (features.n_outputs(k),)
        assert np.isfinite(sample).all()


@given(st.integers(2, 9), st.data(), st.integers(0, 60))
def test_windows_come_as_often_as_step_says(length, data, count):
    step = data.draw(st.integers(1, length))
    features = SlidingWindow(Statistics(["last", "min"]), length, step)
    found = samples(features, [[float(i)] for i in range(count)])
    ends = range(length - 1, count, step)
    assert [x.tolist() for x in found] == [[end, end - length + 1] for end in ends]


def test_other_settings_than_before_begin_a_new_window():
    old = SlidingWindow(Statistics(["mean"]), 4)
    samples(old, [[1.0]] * 3)
    new = SlidingWindow(Statistics(["mean"]), 5)
    new.resume(old.state())
    assert samples(new, [[2.0]] * 4) == []


def test_a_reading_of_another_length_is_refused():
    features = SlidingWindow(Statistics(), 4)
    features.push(np.zeros(2))
    with pytest.raises(SampleError, match="expected as many values as before"):
        features.push(np.zeros(3))


def test_statistics_are_what_their_names_say():
    x = [3.0, -1.0, 4.0, -2.0]
    found = dict(zip(STATISTICS, Statistics(list(STATISTICS)).of(np.array([x]).T)[0], strict=True))
    assert found == pytest.approx(
        {
            "mean": 1.0,
            "std": (26 / 4) ** 0.5,
            "min": -2.0,
            "max": 4.0,
            "median": 1.0,
            "range": 6.0,
            "rms": (30 / 4) ** 0.5,
            "slope": np.polyfit(range(4), x, 1)[0],
            "crossings": 1.0,
            "last": -2.0,
        },
        rel=TIGHT,
    )


def slow_levels(x, rate_hz, bands, low_hz, high_hz):
    """Sum the transform up term by term, and sort its bins into bands by comparing."""
    n = len(x)
    power = [[] for _ in range(bands)]
    tapered = [value * (0.5 - 0.5 * cos(2 * pi * i / (n - 1))) for i, value in enumerate(x)]
    for k in range(1, n // 2 + 1):
        total = sum(v * cmath.exp(-2j * pi * k * i / n) for i, v in enumerate(tapered))
        for band in range(bands):
            width = (high_hz - low_hz) / bands
            lower, upper = low_hz + band * width, low_hz + (band + 1) * width
            if lower + 1e-9 < k * rate_hz / n <= upper + 1e-9:
                power[band].append(abs(total * 4 / n) ** 2)
    return [10 * log10(max(sum(each) / len(each), 1e-20)) for each in power]


@given(
    st.integers(0, 2**32),
    st.sampled_from([8, 15, 32]),
    st.integers(1, 4),
    st.sampled_from([(0.0, 50.0), (12.5, 37.5), (0.0, 25.0), (25.0, 50.0)]),
)
def test_spectrum_agrees_with_a_transform_written_out(seed, length, bands, ends):
    try:
        spectrum = Spectrum(
            length=length, rate_hz=100.0, bands=bands, low_hz=ends[0], high_hz=ends[1]
        )
    except SettingError:
        assume(False)
    window = np.random.default_rng(seed).normal(size=(length, 2))
    slow = [slow_levels(window[:, i], 100.0, bands, *ends) for i in range(2)]
    np.testing.assert_allclose(spectrum.of(window), slow, rtol=0, atol=1e-6)


def test_spectrum_agrees_with_the_levels_of_the_simulated_pump(monkeypatch):
    monkeypatch.setattr(pumps, "SENSOR_NOISE", 0.0)
    monkeypatch.setattr(pumps, "_casing_response", np.ones_like)
    rng = np.random.default_rng(3)
    window = rng.normal(size=(pumps.WINDOW, 1))
    spectrum = Spectrum(length=512, rate_hz=1024.0, bands=64)
    found = spectrum.of(window)
    np.testing.assert_allclose(found, pumps._levels(window.T, rng), rtol=0, atol=TIGHT)


def test_a_sine_of_amplitude_one_is_zero_decibels_in_its_bin():
    t = np.arange(256) / 256.0
    window = np.sin(2 * pi * 32.0 * t)[:, None]
    levels = Spectrum(length=256, rate_hz=256.0, bands=128).of(window)[0]
    assert levels.argmax() == 31  # the band that ends at 32 Hz
    assert levels[31] == pytest.approx(0.0, abs=0.1)  # Hann over 255, not 256, intervals


def test_silence_is_a_finite_level():
    levels = Spectrum(length=16, rate_hz=16.0, bands=4).of(np.zeros((16, 1)))
    assert levels.tolist() == [[-200.0] * 4]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"bands": 33}, "take fewer bands or longer windows"),
        ({"high_hz": 60.0}, "within 0 to 50 Hz"),
        ({"low_hz": 40.0, "high_hz": 30.0}, "within 0 to 50 Hz"),
    ],
)
def test_a_spectrum_that_cannot_be_is_refused(settings, words):
    with pytest.raises(SettingError, match=words):
        Spectrum(length=64, rate_hz=100.0, **settings)


def slow_table(x, states, low, high):
    """Count each pair of neighbours, and divide by the times that its first was left."""
    levels = [max(0, min(states - 1, int((v - low) // ((high - low) / states)))) for v in x]
    pairs = Counter(pairwise(levels))
    left = Counter(levels[:-1])
    return [pairs[a, b] / left[a] if left[a] else 0.0 for a in range(states) for b in range(states)]


@given(st.lists(st.integers(-40, 200), min_size=2, max_size=60))
def test_transitions_agree_with_a_count_of_pairs(speeds):
    found = Transitions(states=15, low=0.0, high=150.0).of(np.array(speeds, dtype=float)[:, None])
    assert found[0].tolist() == slow_table(speeds, 15, 0.0, 150.0)


def test_the_paper_has_225_inputs_for_one_speed():
    features = SlidingWindow(Transitions(), 60)
    assert features.n_outputs(1) == 225
    assert features.names(["speed"])[:2] == ("speed 0>0", "speed 0>1")


def test_wrong_settings_are_refused():
    with pytest.raises(SettingError, match="expected some of mean"):
        Statistics(["mean", "mode"])
    with pytest.raises(SettingError, match="a step from 1 to the length"):
        SlidingWindow(Statistics(), 4, 5)
    with pytest.raises(SettingError, match="low below high"):
        Transitions(low=1.0, high=1.0)
