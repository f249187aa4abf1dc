"""Other ways to do the jobs: OS-ELM in NumPy as published and as in textbooks, and other packages.

x is (1, n) for the published style, (n,) otherwise; P (N, N), B (N, n).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.jobs import (
    BOTH,
    BY_RIVER,
    LEARN,
    LEARN_ROWS,
    MERGE_LOSS,
    MERGE_SCORE,
    PREQUENTIAL,
    PREQUENTIAL_ROWS,
    PUBLISHED,
    SCORE,
    TEXTBOOK,
)
from edgemerge import Stats
from edgemerge.paper.timing import PublishedElm, TextbookElm, TimedCall, call_each, hidden_layer

Array = NDArray[np.float64]

TORCH = "PyTorch BP-NN3 (Adam, float32)"
RIVER = "River HalfSpaceTrees"
FOREST = "scikit-learn IsolationForest"
PYOD = "PyOD PCA"
LODA = "PyOD LODA"


def merge_published(stats: Stats) -> tuple[Array, Array]:
    """Solve merged sums in the published style; the adding itself is not counted."""
    P: Array = np.linalg.inv(stats.U).astype(float, copy=False)
    return P, np.linalg.inv(stats.U) @ stats.V


def both(learn: Callable[[Any], object], score: Callable[[Any], object], rows: list[Any]) -> None:
    """Learn each of the rows and score the next."""
    for x, fresh in zip(rows, rows[1:] + rows[:1], strict=True):
        learn(x)
        score(fresh)


def single(
    way: str, learn: Callable[[Any], object], score: Callable[[Any], object], rows: list[Any]
) -> Iterator[TimedCall]:
    """Yield the jobs of a method that takes samples one by one."""
    k = len(rows)
    yield TimedCall(LEARN, way, partial(call_each, learn, rows), k)
    yield TimedCall(SCORE, way, partial(call_each, score, rows), k)
    for job in (BOTH, PREQUENTIAL):
        yield TimedCall(job, way, partial(both, learn, score, rows), k)


def numpy_peers(stats: Stats, rows: Array) -> Iterator[TimedCall]:
    """Yield OS-ELM in NumPy in both styles, starting from stats."""
    first, hidden = stats.solve(), hidden_layer(stats.projection)
    published = PublishedElm(hidden, first.P, first.B)
    wide = list(rows[:, None, :])
    yield from single(PUBLISHED, published.learn, published.loss, wide)
    yield TimedCall(LEARN_ROWS, PUBLISHED, partial(call_each, published.learn, wide), len(wide))
    run = partial(both, published.learn, published.loss, wide)
    yield TimedCall(PREQUENTIAL_ROWS, PUBLISHED, run, len(wide))
    for job in (MERGE_LOSS, MERGE_SCORE):
        yield TimedCall(job, PUBLISHED, partial(call_each, merge_published, [stats] * 8), 8)
    textbook = TextbookElm(hidden, first.P, first.B)
    yield from single(TEXTBOOK, textbook.learn, textbook.loss, list(rows))


def torch_peer(rows: Array, n_hidden: int) -> Iterator[TimedCall]:
    """Yield one gradient step, and one prediction, of an autoencoder of the same size."""
    torch = import_module("torch")
    torch.set_num_threads(1)
    n = rows.shape[1]
    net = torch.nn.Sequential(
        torch.nn.Linear(n, n_hidden),
        torch.nn.ReLU(),
        torch.nn.Linear(n_hidden, n),
        torch.nn.Sigmoid(),
    )
    optimizer, mse = torch.optim.Adam(net.parameters()), torch.nn.MSELoss()

    def learn(x: Any) -> None:
        optimizer.zero_grad()
        mse(net(x), x).backward()
        optimizer.step()

    def score(x: Any) -> float:
        with torch.no_grad():
            return float(mse(net(x), x))

    batches = [torch.tensor(x[None], dtype=torch.float32) for x in rows[:32] * 0.5 + 0.5]
    yield from single(TORCH, learn, score, batches)


def river_peer(rows: Array, n_hidden: int) -> Iterator[TimedCall]:
    """Yield River's streaming detector and ours for River, with their dicts made beforehand."""
    trees = import_module("river.anomaly").HalfSpaceTrees(seed=0)
    dicts = [dict(enumerate(map(float, x))) for x in rows * 0.5 + 0.5]
    for x in dicts * 2:  # the first window of 250 only fills the trees
        trees.learn_one(x)
    yield from single(RIVER, trees.learn_one, trees.score_one, dicts)
    ours = import_module("edgemerge.river").OSELMDetector(n_hidden=n_hidden)
    for x in dicts * 2:
        ours.learn_one(x)
    yield from single(BY_RIVER, ours.learn_one, ours.score_one, dicts)


def forest_peer(rows: Array) -> Iterator[TimedCall]:
    """Yield a forest that can score one row; it cannot learn one."""
    forest = import_module("sklearn.ensemble").IsolationForest(random_state=0).fit(rows)
    yield TimedCall(SCORE, FOREST, lambda: forest.score_samples(rows[:1]))


def loda_peer(rows: Array) -> Iterator[TimedCall]:
    """Yield LODA, which PySAD streams, as PyOD fits it; PyOD cannot learn one row."""
    loda = import_module("pyod.models.loda").LODA().fit(rows)
    yield TimedCall(SCORE, LODA, lambda: loda.decision_function(rows[:1]))


def pyod_peer(rows: Array) -> Iterator[TimedCall]:
    """Yield a linear detector that can score one row; it cannot learn one."""
    pca = import_module("pyod.models.pca").PCA(n_components=8).fit(rows)
    yield TimedCall(SCORE, PYOD, lambda: pca.decision_function(rows[:1]))


def packages(rows: Array, n_hidden: int) -> tuple[list[TimedCall], list[str]]:
    """Return the peers that are installed, and a remark for each that is not."""
    makers: dict[str, Callable[[], Iterator[TimedCall]]] = {
        TORCH: partial(torch_peer, rows, n_hidden),
        RIVER: partial(river_peer, rows, n_hidden),
        FOREST: partial(forest_peer, rows),
        PYOD: partial(pyod_peer, rows),
        LODA: partial(loda_peer, rows),
    }
    found: list[TimedCall] = []
    remarks = []
    for way, make in makers.items():
        try:
            found += make()
        except ModuleNotFoundError as error:
            remarks.append(f"{way} is left out: {error.name} is not installed")
    return found, remarks
