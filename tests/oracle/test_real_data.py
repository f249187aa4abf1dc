"""Promises on the paper's own data sets, when EDGEMERGE_DATA names the folder that holds them."""

import gzip
import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from edgemerge import Detector, Projection, Stats
from tests.services.missing import NO_DATA

pytestmark = pytest.mark.slow

FOLDER = Path(os.environ.get("EDGEMERGE_DATA", "no such folder"))
needs_data = pytest.mark.skipif(not (FOLDER / "har" / "har.npz").exists(), reason=NO_DATA)


@cache
def har():
    with np.load(FOLDER / "har" / "har.npz") as parts:
        X = np.concatenate([parts["X_train"], parts["X_test"]]).astype(np.float64)
        return X, np.concatenate([parts["y_train"], parts["y_test"]])


@cache
def mnist():
    def idx(name):
        data = gzip.decompress((FOLDER / "mnist" / name).read_bytes())
        shape = np.frombuffer(data, ">i4", data[3], 4)
        return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape)

    X = idx("t10k-images-idx3-ubyte.gz").reshape(-1, 784) / 255.0
    return X, idx("t10k-labels-idx1-ubyte.gz")


@needs_data
def test_har_sums_are_equal_to_the_last_bit_however_they_are_made():
    X, _ = har()
    shared = Projection(n_inputs=561, n_hidden=128, seed=7, activation="identity")
    at_once = Stats.of(shared, X)
    rng = np.random.default_rng(0)
    shards = [Stats.of(shared, X[part]) for part in np.array_split(rng.permutation(len(X)), 37)]
    rng.shuffle(shards)
    row_by_row = Detector(shared)
    for x in X[rng.permutation(len(X))]:
        row_by_row.learn(x)
    for other in (sum(shards, start=Stats.empty(shared)), row_by_row.own):
        assert other == at_once
        assert other.digest == at_once.digest


@needs_data
@pytest.mark.parametrize("activation", ["identity", "tanh"])
def test_har_readout_agrees_with_lstsq(activation):
    X, _ = har()
    shared = Projection(n_inputs=561, n_hidden=64, activation=activation)
    pump = Detector(shared)
    pump.learn_and_score(X[:5000])  # followed in blocks
    H, T = shared.hidden(X[:5000]), shared.grid.rows(X[:5000])
    readout = pump.readout
    left = np.vstack([H, np.sqrt(readout.ridge) * np.eye(64)])
    B = np.linalg.lstsq(left, np.vstack([T, np.zeros((64, 561))]), rcond=None)[0]
    assert np.abs(readout.B - B).max() < 1e-8 * np.abs(B).max()
    slow = ((T - H @ B) ** 2).mean(1)
    assert pump.loss(X[:5000]) == pytest.approx(slow, rel=1e-6)


CASES = [
    (data, activation, n_hidden)
    for data in ("har", "mnist")
    for activation in ("identity", "tanh", "cosine")
    for n_hidden in (32, 64, 128)
]


@needs_data
@pytest.mark.parametrize(("data", "activation", "n_hidden"), CASES)
def test_fresh_normal_samples_score_about_one(data, activation, n_hidden):
    X, y = har() if data == "har" else mnist()
    low = -1.0 if data == "har" else 0.0
    shared = Projection(n_inputs=X.shape[1], n_hidden=n_hidden, activation=activation, low=low)
    rng = np.random.default_rng(1)
    alone, merged = [], []
    patterns = [rng.permutation(X[y == pattern]) for pattern in np.unique(y)]
    for rows, peer in zip(patterns, patterns[1:] + patterns[:1], strict=True):
        pump = Detector(shared)
        pump.learn(rows[: 2 * n_hidden])
        alone.append(pump.score(rows[2 * n_hidden :]).mean())
        pump.adopt(Stats.of(shared, peer[: 2 * n_hidden]))
        both = np.vstack([rows[2 * n_hidden :], peer[2 * n_hidden :]])
        merged.append(pump.score(both).mean())
    assert 0.9 < np.mean(alone) < 1.3
    assert 0.9 < np.mean(merged) < 1.3
