"""Windows and spectra in a scikit-learn pipeline: the agent's numbers, to the last bit."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

from edgemerge.agent.features import STATISTICS, SlidingWindow, Spectrum, Statistics
from edgemerge.core.errors import SampleError, SettingError
from edgemerge.sklearn import OSELMDetector, SpectrumFeatures, WindowFeatures

RATE_HZ = 200.0


def pushed(window, readings):
    """Return what an agent makes of the readings, one after the other."""
    samples = [window.push(reading) for reading in readings]
    return np.array([sample for sample in samples if sample is not None])


@pytest.mark.slow
@given(
    seed=st.integers(0, 2**32 - 1),
    channels=st.integers(1, 3),
    length=st.integers(4, 20),
    share=st.floats(0.05, 1.0) | st.none(),
    fortran=st.booleans(),
)
@settings(max_examples=30)
def test_rows_are_the_samples_that_an_agent_makes(seed, channels, length, share, fortran):
    readings = np.random.default_rng(seed).normal(5.0, 3.0, (3 * length + seed % 7, channels))
    given_rows = np.asfortranarray(readings) if fortran else readings
    step = None if share is None else max(1, int(share * length))
    found = WindowFeatures(length=length, step=step, statistics=tuple(STATISTICS))
    expected = pushed(SlidingWindow(Statistics(tuple(STATISTICS)), length, step), readings)
    assert np.array_equal(found.fit_transform(given_rows), expected)
    bands = {"rate_hz": RATE_HZ, "bands": 2, "low_hz": 5.0, "high_hz": 100.0}
    levels = SpectrumFeatures(length=length, step=step, **bands)
    expected = pushed(SlidingWindow(Spectrum(length=length, **bands), length, step), readings)
    assert np.array_equal(levels.fit_transform(given_rows), expected)


def test_columns_are_named_after_the_channel_and_the_value():
    frame = pd.DataFrame(np.ones((8, 2)), columns=["flow", "heat"])
    found = WindowFeatures(length=4, statistics=("mean", "slope")).fit(frame)
    assert list(found.get_feature_names_out()) == [
        *("flow mean", "flow slope"),
        *("heat mean", "heat slope"),
    ]
    levels = SpectrumFeatures(rate_hz=8.0, length=4, bands=2).fit(np.ones((8, 1)))
    assert list(levels.get_feature_names_out()) == ["x0 0-2 Hz", "x0 2-4 Hz"]
    assert list(levels.get_feature_names_out(["x0"])) == ["x0 0-2 Hz", "x0 2-4 Hz"]


def test_a_data_frame_keeps_the_time_of_the_last_reading_of_each_window():
    times = pd.date_range("2026-11-17", periods=11, freq="s")
    frame = pd.DataFrame({"flow": np.arange(11.0)}, index=times)
    features = WindowFeatures(length=4, step=3, statistics=("last",)).set_output(transform="pandas")
    found = features.fit_transform(frame)
    assert list(found.index) == [times[3], times[6], times[9]]
    assert list(found["flow last"]) == [3.0, 6.0, 9.0]
    plain = WindowFeatures(length=4, step=3, statistics=("last",)).fit_transform(frame)
    assert type(plain) is np.ndarray  # unless asked for
    assert np.array_equal(plain, found)


@pytest.mark.slow
def test_a_pipeline_finds_a_new_tone_and_names_its_band():
    rng = np.random.default_rng(0)

    def vibration(seconds, tone=0.0):
        t = np.arange(int(RATE_HZ * seconds)) / RATE_HZ
        wave = np.sin(2 * np.pi * 12.0 * t) + tone * np.sin(2 * np.pi * 75.0 * t)
        return pd.DataFrame({"x": wave + rng.normal(0.0, 0.3, len(t))})

    levels = SpectrumFeatures(rate_hz=RATE_HZ, length=100, bands=10).set_output(transform="pandas")
    model = make_pipeline(levels, OSELMDetector())
    model.fit(vibration(300.0))
    assert np.mean(model.predict(vibration(60.0)) == -1) < 0.1
    odd = vibration(60.0, tone=1.0)
    assert np.mean(model.predict(odd) == -1) > 0.9
    detector = model.named_steps["oselmdetector"]
    shares = detector.explain(levels.transform(odd))
    assert shares.mean().idxmax() == "x 70-80 Hz"
    assert len(clone(model).fit(vibration(64.0, tone=1.0)).steps) == 2


def test_mistakes_say_what_to_do():
    short = np.ones((3, 2))
    with pytest.raises(SampleError, match=r"found 3 readings .* shorten the window"):
        WindowFeatures(length=4).fit(np.ones((8, 2))).transform(short)
    with pytest.raises(SettingError, match="expected some of mean"):
        WindowFeatures(statistics=("mode",)).fit(short)
    with pytest.raises(SettingError, match="a step from 1 to the length"):
        WindowFeatures(length=4, step=5).fit(short)
    with pytest.raises(SettingError, match="take fewer bands or longer windows"):
        SpectrumFeatures(length=4, bands=9).fit(short)
    for names in ("mean", None):
        words = rf"found statistics={names!r}, expected names in a tuple, such as \('mean',\)"
        with pytest.raises(SettingError, match=words):
            WindowFeatures(statistics=names).fit(short)
    for length, bands in ((0, 4), (1, 1), (-4, 4), (8, 0), (8, -1)):
        words = (
            f"found {bands} bands of windows of {length} readings, expected 1 or more of 2 or more"
        )
        with pytest.raises(SettingError, match=words):
            SpectrumFeatures(length=length, bands=bands).fit(short)
