"""One step of each method, timed: train on one sample, predict one, merge one peer's knowledge.

X (k, n) is what the device learns, Y what its peer learnt; both in [−1, 1].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from edgemerge import Detector, Projection, Stats
from edgemerge.paper import backprop
from edgemerge.paper.dataset import Array
from edgemerge.paper.published import Published, Textbook, plain_hidden, solved
from edgemerge.paper.settings import ROUNDS, Network
from edgemerge.paper.stopwatch import Contestant, each, race
from edgemerge.paper.timed import (
    ALL_ROUNDS,
    ASIDE,
    FL,
    FROM_P,
    LOSS,
    MERGE,
    ONE_ROUND,
    OURS,
    OWN_SUMS,
    PREDICT,
    SCORE,
    STYLE,
    TEXTBOOK,
    TRAIN,
    Step,
)

SINGLES = 256  # samples one by one in a turn: covers one fresh solve of P
STEPS = 64  # of back-propagation in a turn
MERGES = 8  # in a turn


Times = dict[Step, float]  # seconds
Runs = Iterator[tuple[Step, Callable[[], object], int]]


def measure(layer: Projection, X: Array, Y: Array, seconds: float) -> Times:
    """Time every step of all methods in turn; all rounds of averaging are computed from one."""
    told = Stats.of(layer, Y)
    runs = [*ours(layer, X, told), *numpy_ways(layer, X, told), *averaging(layer.n_hidden, X)]
    contestants = [Contestant(step.job, step.method, run, units) for step, run, units in runs]
    times = dict(zip((step for step, _, _ in runs), race(contestants, seconds), strict=True))
    times[Step(MERGE, FL, ALL_ROUNDS)] = ROUNDS * times[Step(MERGE, FL, ONE_ROUND)]
    return times


def taught(layer: Projection, X: Array) -> Detector:
    """Give a detector that has learnt X and is ready."""
    detector = Detector(layer)
    detector.learn(X)
    detector.loss(X[0])
    return detector


def ours(layer: Projection, X: Array, told: Stats) -> Runs:
    """Give our steps; each has a detector of its own."""
    rows, k = list(X[:SINGLES]), len(X[:SINGLES])
    d = [taught(layer, X) for _ in range(7)]
    d[3].score(X[0])  # leaves P at hand, as every device has it that learns as it goes
    yield Step(TRAIN, OURS, ASIDE), partial(each, d[0].learn, rows), k
    yield Step(TRAIN, OURS, LOSS), partial(learn_each, d[1].learn, d[1].loss, rows), k
    yield Step(TRAIN, OURS, SCORE), partial(learn_each, d[2].learn, d[2].score, rows), k
    yield Step(PREDICT, OURS, LOSS), partial(each, d[3].loss, rows), k
    yield Step(PREDICT, OURS, SCORE), partial(each, d[4].score, rows), k
    yield Step(MERGE, OURS, LOSS), partial(merge_each, d[5], told, d[5].loss, X[0]), MERGES
    yield Step(MERGE, OURS, SCORE), partial(merge_each, d[6], told, d[6].score, X[0]), MERGES


def learn_each(
    learn: Callable[[Any], object], ask: Callable[[Any], object], rows: Sequence[Array]
) -> None:
    """Learn each sample and bring the readout up to date: asking about no sample does that."""
    nothing = rows[0][None][:0]
    for x in rows:
        learn(x)
        ask(nothing)


def merge_each(detector: Detector, told: Stats, ask: Callable[[Array], object], x: Array) -> None:
    """Adopt what came and give a first answer, which is counted too, several times."""
    for _ in range(MERGES):
        detector.adopt(told)
        ask(x)


def numpy_ways(layer: Projection, X: Array, told: Stats) -> Runs:
    """Give OS-ELM in NumPy: the published style, and the shorter one for one sample."""
    own, hidden, k = Stats.of(layer, X), plain_hidden(layer), len(X[:SINGLES])
    first = own.solve()
    style = Published(hidden, first.P, first.B)
    book, wide = Textbook(hidden, first.P, first.B), list(X[:SINGLES, None])
    still = Published(hidden, first.P, first.B)
    yield Step(TRAIN, STYLE), partial(each, style.learn, wide), k
    yield Step(PREDICT, STYLE), partial(each, still.loss, wide), k
    yield Step(MERGE, STYLE, OWN_SUMS), partial(add_and_solve, own, told), MERGES
    yield Step(MERGE, STYLE, FROM_P), partial(merge_from_p, still, told), MERGES
    yield Step(TRAIN, TEXTBOOK), partial(each, book.learn, list(X[:SINGLES])), k
    yield Step(PREDICT, TEXTBOOK), partial(each, book.loss, list(X[:SINGLES])), k


def add_and_solve(own: Stats, told: Stats) -> None:
    """Merge in the published style when a device kept its own sums, several times."""
    for _ in range(MERGES):
        solved(own.U + told.U, own.V + told.V)


def merge_from_p(style: Published, told: Stats) -> None:
    """Merge in the published style when own sums have to be worked out first, several times."""
    for _ in range(MERGES):
        style.merged(told.U, told.V)


def averaging(n_hidden: int, X: Array) -> Runs:
    """Give the steps of BP-NN3-FL with k = 1; readings are tensors before the clock starts."""
    backprop.one_thread()
    rng, network = torch.Generator().manual_seed(0), Network((n_hidden,), batch=1, epochs=1)
    net, still, shared, *two = (backprop.build(network, X.shape[1], rng) for _ in range(5))
    rows = list(backprop.tensor(X[:STEPS] * 0.5 + 0.5)[:, None])
    train = partial(backprop.step, net, backprop.adam(net))
    yield Step(TRAIN, FL), partial(each, train, rows), len(rows)
    yield Step(PREDICT, FL), partial(each, partial(loss, still), rows), len(rows)
    yield Step(MERGE, FL, ONE_ROUND), partial(rounds, shared, two), MERGES


def loss(net: nn.Module, x: Tensor) -> float:
    """Give the mean squared error of one reading (1, n)."""
    with torch.no_grad():
        return float(nn.functional.mse_loss(net(x), x))


def rounds(shared: nn.Module, two: Sequence[nn.Module]) -> None:
    """Average two networks that came, and load the mean into the first, several times."""
    for _ in range(MERGES):
        backprop.average(shared, two, [1, 1])
        backprop.average(two[0], [shared], [1])
