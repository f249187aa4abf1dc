"""The speed benchmark runs, and its contestants do the same thing. How fast is never asserted."""

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edgemerge import Detector, Projection

ROOT = Path(__file__).parents[1]
SAME = 1e-6  # relative: P is followed for 300 samples in float64, with a condition up to 1e6


@pytest.mark.long
def test_the_benchmark_runs_and_writes_what_it_says(tmp_path):
    command = [sys.executable, "-m", "benchmarks", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "score one, then learn it, of published" in done.stdout
    with (tmp_path / "speed.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {"edgemerge", "NumPy, published style", "NumPy, textbook"} <= {r["way"] for r in rows}
    assert all(float(row["us"]) > 0.0 for row in rows)
    assert (tmp_path / "speed.png").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.parametrize("n_hidden", [16, 64])
def test_the_contestants_give_the_same_losses(n_hidden):
    peers = pytest.importorskip("benchmarks.peers")
    speed = pytest.importorskip("benchmarks.speed")
    X = speed.samples(50, 600)
    shared = Projection.of_data(X, n_hidden=n_hidden)
    ridge = 1e-2 * n_hidden
    ours = Detector(shared, ridge=ridge)
    ours.learn(X[:300])
    rows, first = shared.grid.rows(X), ours.readout
    published = peers.PublishedElm(shared.project, first.P, first.B)
    textbook = peers.TextbookElm(shared.project, first.P, first.B)
    losses = []
    for x, row in zip(X[300:], rows[300:], strict=True):
        losses.append((ours.loss(x), published.loss(row[None]), textbook.loss(row)))
        ours.learn(x)
        published.learn(row[None])
        textbook.learn(row)
    mine, theirs, book = np.array(losses).T
    assert theirs == pytest.approx(mine, rel=SAME)
    assert book == pytest.approx(mine, rel=SAME)


@pytest.mark.slow
def test_merging_in_the_published_style_gives_our_readout():
    peers = pytest.importorskip("benchmarks.peers")
    speed = pytest.importorskip("benchmarks.speed")
    X = speed.samples(50, 600)
    shared = Projection.of_data(X, n_hidden=16)
    a, b = Detector(shared, ridge=0.0), Detector(shared, ridge=0.0)
    a.learn(X[:300])
    b.learn(X[300:])
    a.adopt(b.own)
    P, B = peers.merge_published(a.own + b.own)
    row = shared.grid.rows(X)[0]
    loss = float(np.mean((row - shared.project(row) @ B) ** 2))
    assert a.loss(X[0]) == pytest.approx(loss, rel=SAME)
    assert pytest.approx(P, rel=1e-6, abs=1e-6) == a.readout.P
