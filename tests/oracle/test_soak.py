"""Long runs: a stuck sensor, a long stream, constant cost and memory."""

import sys

import numpy as np
import pytest

from edgemerge import Detector, Projection, Stats


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("blocks", [10, pytest.param(100, marks=pytest.mark.long)])  # of 10 000
def test_very_many_samples_of_a_stuck_sensor_leave_a_sound_readout(blocks):
    rng = np.random.default_rng(0)
    pump = Detector(Projection(n_inputs=6, n_hidden=12, activation="sigmoid"), forgetting=0.99)
    pump.learn_and_score(rng.uniform(-1.0, 1.0, (2000, 6)))
    stuck = np.tile(rng.uniform(-1.0, 1.0, 6), (10_000, 1))
    for _ in range(blocks):
        scores = pump.learn_and_score(stuck)
    assert np.isfinite(scores).all()
    readout = pump.readout
    assert np.linalg.eigvalsh(readout.P).min() > 0.0
    assert np.abs(readout.P).max() < 1e6
    assert np.abs(readout.B).max() < 1e3
    assert pump.score(stuck[0]) < 2.0
    assert pump.score(-stuck[0]) > 100.0
    pump.learn(rng.uniform(-1.0, 1.0, (500, 6)))  # and it learns again when the sensor is freed
    assert pump.score(rng.uniform(-1.0, 1.0, (500, 6))).mean() < 2.0


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("activation", ["identity", "tanh"])
def test_after_a_hundred_thousand_samples_the_readout_is_that_of_lstsq(activation):
    rng = np.random.default_rng(1)
    mixing = rng.normal(0.0, 0.3, (20, 60))
    X = np.tanh(rng.normal(size=(100_000, 20)) @ mixing + rng.normal(0.0, 0.05, (100_000, 60)))
    shared = Projection(n_inputs=60, n_hidden=32, activation=activation)
    pump = Detector(shared)
    pump.learn_and_score(X[:50_000])
    pump.learn(X[50_000:])
    H, T = shared.hidden(X), shared.grid.rows(X)
    readout = pump.readout
    left = np.vstack([H, np.sqrt(readout.ridge) * np.eye(32)])
    B = np.linalg.lstsq(left, np.vstack([T, np.zeros((32, 60))]), rcond=None)[0]
    assert np.abs(readout.B - B).max() < 1e-6 * np.abs(B).max()
    assert pump.loss(X[:2000]) == pytest.approx(((T - H @ B) ** 2).mean(1)[:2000], rel=1e-6)
    assert pump.own == Stats.of(shared, X)


def test_a_detector_of_561_inputs_and_128_hidden_values_takes_at_most_4_megabytes():
    shared = Projection(n_inputs=561, n_hidden=128)
    pump = Detector(shared)
    rows = np.random.default_rng(0).uniform(-1, 1, (300, 561))
    pump.learn(rows)
    pump.adopt(Stats.of(shared, rows))
    pump.score(rows[0])
    for x in rows[:63]:
        pump.learn(x)
    assert size(pump) <= 4e6


def size(thing, seen=None):
    """Add up the bytes of everything reachable, arrays included."""
    seen = set() if seen is None else seen
    if id(thing) in seen:
        return 0
    seen.add(id(thing))
    own = thing.nbytes if isinstance(thing, np.ndarray) and thing.base is None else 0
    own += sys.getsizeof(thing) if not isinstance(thing, np.ndarray) else 0
    if isinstance(thing, np.ndarray):
        return own + (size(thing.base, seen) if thing.base is not None else 0)
    parts = thing.values() if isinstance(thing, dict) else getattr(thing, "__dict__", {}).values()
    if isinstance(thing, list | tuple):
        parts = thing
    return own + sum(size(part, seen) for part in parts)
