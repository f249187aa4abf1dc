"""Measurements for the latency table: one step of each method, all training of a pair (torch).

X (k, n) is what the device learns, Y what its peer learnt; both in [−1, 1]. The training time of
back-propagation is that of one step times the number of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn

from edgemerge import Detector, Projection, Stats
from edgemerge.paper import backprop
from edgemerge.paper.dataset import Array
from edgemerge.paper.numpy_os_elm import PublishedElm, TextbookElm, hidden_layer, solve
from edgemerge.paper.settings import (
    CHUNK_ROWS,
    FEDERATED,
    NETWORKS,
    ROUNDS,
    DeviceFactory,
    Network,
    adopt_all,
    anomaly_scores,
    device_factories,
    shared_by,
    trained_detector,
)
from edgemerge.paper.timing import (
    ALL_ROUNDS,
    DEFERRED,
    EPOCH_PER_ROUND,
    EPOCHS_IN_ALL,
    IN_CHUNKS,
    MERGE,
    ONE_BY_ONE,
    ONE_ROUND,
    OURS,
    PAIR,
    PREDICT,
    PUBLISHED,
    READY_FOR_LOSS,
    READY_FOR_SCORE,
    SUMS_FROM_P,
    SUMS_KEPT,
    TEXTBOOK,
    TRAIN,
    Step,
    TimedCall,
    best_times,
    call_each,
)
from edgemerge.paper.trial import Trial

SAMPLES_PER_TURN = 256  # samples one by one in a turn: covers one fresh solve of P
GRADIENT_STEPS = 64  # of back-propagation in a turn
MERGES_PER_TURN = 8  # in a turn


Times = dict[Step, float]  # seconds
Runs = Iterator[tuple[Step, Callable[[], object], int]]


def measure_steps(layer: Projection, X: Array, Y: Array, seconds: float) -> Times:
    """Time every step of all methods in turn; all rounds of averaging are computed from one."""
    told = Stats.of(layer, Y)
    runs = [
        *our_steps(layer, X, told),
        *numpy_steps(layer, X, told),
        *federated_steps(layer.n_hidden, X),
    ]
    contestants = [TimedCall(step.job, step.method, run, units) for step, run, units in runs]
    times = dict(zip((step for step, _, _ in runs), best_times(contestants, seconds), strict=True))
    times[Step(MERGE, FEDERATED, ALL_ROUNDS)] = ROUNDS * times[Step(MERGE, FEDERATED, ONE_ROUND)]
    return times


def our_steps(layer: Projection, X: Array, told: Stats) -> Runs:
    """Give our steps; each has a detector of its own."""
    rows, k = list(X[:SAMPLES_PER_TURN]), len(X[:SAMPLES_PER_TURN])
    d = [trained_detector(layer, X) for _ in range(7)]
    d[3].score(X[0])  # leaves P at hand, as every device has it that learns as it goes
    yield Step(TRAIN, OURS, DEFERRED), partial(call_each, d[0].learn, rows), k
    yield Step(TRAIN, OURS, READY_FOR_LOSS), partial(learn_each, d[1].learn, d[1].loss, rows), k
    yield Step(TRAIN, OURS, READY_FOR_SCORE), partial(learn_each, d[2].learn, d[2].score, rows), k
    yield Step(PREDICT, OURS, READY_FOR_LOSS), partial(call_each, d[3].loss, rows), k
    yield Step(PREDICT, OURS, READY_FOR_SCORE), partial(call_each, d[4].score, rows), k
    yield (
        Step(MERGE, OURS, READY_FOR_LOSS),
        partial(merge_each, d[5], told, d[5].loss, X[0]),
        MERGES_PER_TURN,
    )
    yield (
        Step(MERGE, OURS, READY_FOR_SCORE),
        partial(merge_each, d[6], told, d[6].score, X[0]),
        MERGES_PER_TURN,
    )


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
    for _ in range(MERGES_PER_TURN):
        detector.adopt(told)
        ask(x)


def numpy_steps(layer: Projection, X: Array, told: Stats) -> Runs:
    """Give OS-ELM in NumPy: the published style, and the shorter one for one sample."""
    own, hidden, k = Stats.of(layer, X), hidden_layer(layer), len(X[:SAMPLES_PER_TURN])
    first = own.solve()
    style = PublishedElm(hidden, first.P, first.B)
    book, wide = TextbookElm(hidden, first.P, first.B), list(X[:SAMPLES_PER_TURN, None])
    still = PublishedElm(hidden, first.P, first.B)
    yield Step(TRAIN, PUBLISHED), partial(call_each, style.learn, wide), k
    yield Step(PREDICT, PUBLISHED), partial(call_each, still.loss, wide), k
    yield Step(MERGE, PUBLISHED, SUMS_KEPT), partial(add_and_solve, own, told), MERGES_PER_TURN
    yield Step(MERGE, PUBLISHED, SUMS_FROM_P), partial(merge_from_p, still, told), MERGES_PER_TURN
    yield Step(TRAIN, TEXTBOOK), partial(call_each, book.learn, list(X[:SAMPLES_PER_TURN])), k
    yield Step(PREDICT, TEXTBOOK), partial(call_each, book.loss, list(X[:SAMPLES_PER_TURN])), k


def add_and_solve(own: Stats, told: Stats) -> None:
    """Merge in the published style when a device kept its own sums, several times."""
    for _ in range(MERGES_PER_TURN):
        solve(own.U + told.U, own.V + told.V)


def merge_from_p(style: PublishedElm, told: Stats) -> None:
    """Merge in the published style when own sums have to be worked out first, several times."""
    for _ in range(MERGES_PER_TURN):
        style.merged(told.U, told.V)


def federated_steps(n_hidden: int, X: Array) -> Runs:
    """Give the steps of BP-NN3-FL with k = 1; readings are tensors before the clock starts."""
    backprop.use_one_thread()
    rng, network = torch.Generator().manual_seed(0), Network((n_hidden,), batch=1, epochs=1)
    net, still, shared, *two = (backprop.build(network, X.shape[1], rng) for _ in range(5))
    rows = list(backprop.tensor(X[:GRADIENT_STEPS] * 0.5 + 0.5)[:, None])
    train = partial(backprop.step, net, backprop.adam(net))
    yield Step(TRAIN, FEDERATED), partial(call_each, train, rows), len(rows)
    yield Step(PREDICT, FEDERATED), partial(call_each, partial(loss, still), rows), len(rows)
    yield Step(MERGE, FEDERATED, ONE_ROUND), partial(average_rounds, shared, two), MERGES_PER_TURN


def loss(net: nn.Module, x: Tensor) -> float:
    """Give the mean squared error of one reading (1, n)."""
    with torch.no_grad():
        return float(nn.functional.mse_loss(net(x), x))


def average_rounds(shared: nn.Module, two: Sequence[nn.Module]) -> None:
    """Average two networks that came, and load the mean into the first, several times."""
    for _ in range(MERGES_PER_TURN):
        backprop.average_into(shared, two, [1, 1])
        backprop.average_into(two[0], [shared], [1])


PAIR_STEPS = 200  # of back-propagation in a turn
AVERAGES_PER_TURN = 8  # in a turn
STEP, AVERAGE = Step(PAIR, "BP-NN3", "step"), Step(PAIR, FEDERATED, "average")
Feed = Callable[[Callable[[Any], object], Array], None]


def measure_pair(trial: Trial, a: int, b: int, seconds: float) -> Times:
    """Time one pair: OS-ELM merged, banks, BP-NN3, and BP-NN3-FL in both readings."""
    X, Y = trial.learnt(a), trial.learnt(b)
    network = NETWORKS[trial.data.name]["BP-NN3"]
    contestants = [*device_runs(trial, (X, Y)), *backprop_runs(network, trial, a)]
    found = best_times(contestants, seconds)
    times = {Step(PAIR, c.way, c.job): time for c, time in zip(contestants, found, strict=True)}
    step, mean = times.pop(STEP), times.pop(AVERAGE)
    return times | total_times(network, (len(X), len(Y)), step=step, mean=mean)


def total_times(network: Network, counts: Sequence[int], *, step: float, mean: float) -> Times:
    """Work out the time of all training from that of a step and of one round's averaging."""
    k, epochs = network.batch, network.epochs
    together = ceil(sum(counts) / k) * epochs
    in_all = sum(ceil(count * epochs / k) for count in counts)
    per_round = sum(ceil(count / k) for count in counts) * ROUNDS
    return {
        Step(PAIR, "BP-NN3", EPOCHS_IN_ALL): together * step,
        Step(PAIR, FEDERATED, EPOCHS_IN_ALL): in_all * step + ROUNDS * mean,
        Step(PAIR, FEDERATED, EPOCH_PER_ROUND): per_round * step + ROUNDS * mean,
    }


def device_runs(trial: Trial, parts: tuple[Array, Array]) -> Iterator[TimedCall]:
    """Give OS-ELM and the banks, fed with many rows together and one by one."""
    feeds: dict[str, Feed] = {IN_CHUNKS: learn_in_chunks, ONE_BY_ONE: call_each}
    for how, feed in feeds.items():
        for method, make in device_factories(trial).items():
            yield TimedCall(how, method, partial(train_and_merge, make, parts, feed))


def learn_in_chunks(learn: Callable[[Any], object], rows: Array) -> None:
    """Hand many rows in together."""
    for start in range(0, len(rows), CHUNK_ROWS):
        learn(rows[start : start + CHUNK_ROWS])


def train_and_merge(make: DeviceFactory, parts: tuple[Array, Array], feed: Feed) -> None:
    """Let two devices learn, exchange what they know both ways, and be ready."""
    pair = make(), make()
    for device, rows in zip(pair, parts, strict=True):
        feed(device.learn, rows)
    sent = [shared_by(device, name) for device, name in zip(pair, "ab", strict=True)]
    for device, told in zip(pair, reversed(sent), strict=True):
        adopt_all(device, told)
        anomaly_scores(device, parts[0][:1])


def backprop_runs(network: Network, trial: Trial, pattern: int) -> Iterator[TimedCall]:
    """Give one step of back-propagation, and the averaging and loading of one round."""
    backprop.use_one_thread()
    readings = trial.data.between_0_and_1(trial.split.learn[pattern])
    rng, rows = torch.Generator().manual_seed(0), backprop.tensor(readings)
    net, shared, *two = (backprop.build(network, rows.shape[1], rng) for _ in range(4))
    optimiser = backprop.adam(net)

    def steps() -> None:
        for order in torch.randint(len(rows), (PAIR_STEPS, network.batch), generator=rng):
            backprop.step(net, optimiser, rows[order])

    def averages() -> None:
        for _ in range(AVERAGES_PER_TURN):
            for client in two:
                backprop.average_into(client, [shared], [1])
            backprop.average_into(shared, two, [1, 1])

    yield TimedCall(STEP.what, STEP.method, steps, PAIR_STEPS)
    yield TimedCall(AVERAGE.what, AVERAGE.method, averages, AVERAGES_PER_TURN)
