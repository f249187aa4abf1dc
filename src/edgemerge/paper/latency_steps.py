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
from edgemerge.paper.dataset import Array, Trial
from edgemerge.paper.hyperparameters import (
    CHUNK_ROWS,
    FEDERATED,
    NETWORKS,
    ROUNDS,
    DeviceFactory,
    Network,
    adopt_all,
    anomaly_scores,
    device_factories,
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
    PublishedElm,
    Step,
    TextbookElm,
    TimedCall,
    best_times,
    call_each,
    hidden_layer,
    solve,
)

SAMPLES_PER_TURN = 256  # samples one by one in a turn: covers one fresh solve of P
GRADIENT_STEPS = 64  # of back-propagation in a turn
MERGES_PER_TURN = 8


Times = dict[Step, float]  # seconds
Runs = Iterator[tuple[Step, Callable[[], object], int]]


def measure_steps(layer: Projection, X: Array, Y: Array, seconds: float) -> Times:
    """Time every step of all methods in turn; all rounds of averaging are computed from one.

    Ours learns a sample when it predicts the next one, so its training is both without the latter.
    """
    others = Stats.of(layer, Y)
    runs = [*our_steps(layer, X, others), *numpy_steps(layer, X, others)]
    runs += federated_steps(layer.n_hidden, X)
    calls = [TimedCall(step.job, step.method, run, units) for step, run, units in runs]
    times = dict(zip((step for step, _, _ in runs), best_times(calls, seconds), strict=True))
    times[Step(MERGE, FEDERATED, ALL_ROUNDS)] = ROUNDS * times[Step(MERGE, FEDERATED, ONE_ROUND)]
    for what in (READY_FOR_LOSS, READY_FOR_SCORE):
        times[Step(TRAIN, OURS, what)] -= times[Step(PREDICT, OURS, what)]
    return times


def our_steps(layer: Projection, X: Array, others: Stats) -> Runs:
    """Yield our steps; each has a detector of its own."""
    rows, k = list(X[:SAMPLES_PER_TURN]), len(X[:SAMPLES_PER_TURN])
    d = [trained_detector(layer, X) for _ in range(7)]
    d[3].score(X[0])  # leaves P at hand, as every device has it that learns as it goes
    yield Step(TRAIN, OURS, DEFERRED), partial(call_each, d[0].learn, rows), k
    yield Step(TRAIN, OURS, READY_FOR_LOSS), partial(learn_each, d[1].learn, d[1].loss, rows), k
    yield Step(TRAIN, OURS, READY_FOR_SCORE), partial(learn_each, d[2].learn, d[2].score, rows), k
    yield Step(PREDICT, OURS, READY_FOR_LOSS), partial(call_each, d[3].loss, rows), k
    yield Step(PREDICT, OURS, READY_FOR_SCORE), partial(call_each, d[4].score, rows), k
    for what, merger, ask in (
        (READY_FOR_LOSS, d[5], d[5].loss),
        (READY_FOR_SCORE, d[6], d[6].score),
    ):
        merge = partial(merge_each, merger, others, ask, X[0])
        yield Step(MERGE, OURS, what), merge, MERGES_PER_TURN


def learn_each(
    learn: Callable[[Any], object], ask: Callable[[Any], object], rows: Sequence[Array]
) -> None:
    """Learn each sample, and ask for the result of the one before, with the new readout."""
    for x, before in zip(rows, [rows[-1], *rows[:-1]], strict=True):
        learn(x)
        ask(before)


def merge_each(detector: Detector, others: Stats, ask: Callable[[Array], object], x: Array) -> None:
    """Adopt a peer's stats and compute one result, several times."""
    for _ in range(MERGES_PER_TURN):
        detector.adopt(others)
        ask(x)


def numpy_steps(layer: Projection, X: Array, others: Stats) -> Runs:
    """Yield OS-ELM in NumPy: the published style, and the textbook's for one sample."""
    own, hidden, k = Stats.of(layer, X), hidden_layer(layer), len(X[:SAMPLES_PER_TURN])
    first, wide, rows = own.solve(), list(X[:SAMPLES_PER_TURN, None]), list(X[:SAMPLES_PER_TURN])
    learner, unchanged = (PublishedElm(hidden, first.P, first.B) for _ in range(2))
    textbook = TextbookElm(hidden, first.P, first.B)

    def add_and_solve() -> None:
        for _ in range(MERGES_PER_TURN):
            solve(own.U + others.U, own.V + others.V)

    def merge_from_p() -> None:
        for _ in range(MERGES_PER_TURN):
            unchanged.merged(others.U, others.V)

    yield Step(TRAIN, PUBLISHED), partial(call_each, learner.learn, wide), k
    yield Step(PREDICT, PUBLISHED), partial(call_each, unchanged.loss, wide), k
    yield Step(MERGE, PUBLISHED, SUMS_KEPT), add_and_solve, MERGES_PER_TURN
    yield Step(MERGE, PUBLISHED, SUMS_FROM_P), merge_from_p, MERGES_PER_TURN
    yield Step(TRAIN, TEXTBOOK), partial(call_each, textbook.learn, rows), k
    yield Step(PREDICT, TEXTBOOK), partial(call_each, textbook.loss, rows), k


def federated_steps(n_hidden: int, X: Array) -> Runs:
    """Yield the steps of BP-NN3-FL with k = 1; samples become tensors before the clock starts."""
    backprop.use_one_thread()
    rng, network = torch.Generator().manual_seed(0), Network((n_hidden,), batch=1, epochs=1)
    net, unchanged, shared, *two = (backprop.build(network, X.shape[1], rng) for _ in range(5))
    rows = list(backprop.tensor(X[:GRADIENT_STEPS] * 0.5 + 0.5)[:, None])
    train = partial(backprop.step, net, backprop.adam(net))

    def loss(x: Tensor) -> float:
        with torch.no_grad():
            return float(nn.functional.mse_loss(unchanged(x), x))

    def average_rounds() -> None:
        for _ in range(MERGES_PER_TURN):
            backprop.average_into(shared, two, [1, 1])
            backprop.average_into(two[0], [shared], [1])

    yield Step(TRAIN, FEDERATED), partial(call_each, train, rows), len(rows)
    yield Step(PREDICT, FEDERATED), partial(call_each, loss, rows), len(rows)
    yield Step(MERGE, FEDERATED, ONE_ROUND), average_rounds, MERGES_PER_TURN


PAIR_STEPS = 200  # of back-propagation in a turn
AVERAGES_PER_TURN = 8
STEP, AVERAGE = Step(PAIR, "BP-NN3", "step"), Step(PAIR, FEDERATED, "average")
Feed = Callable[[Callable[[Any], object], Array], None]


def measure_pair(trial: Trial, a: int, b: int, seconds: float) -> Times:
    """Time one pair: OS-ELM merged, banks, BP-NN3, and BP-NN3-FL in both readings."""
    X, Y = trial.learnt(a), trial.learnt(b)
    network = NETWORKS[trial.data.name]["BP-NN3"]
    calls = [*device_runs(trial, (X, Y)), *backprop_runs(network, trial, a)]
    found = zip(calls, best_times(calls, seconds), strict=True)
    times = {Step(PAIR, call.way, call.job): time for call, time in found}
    step, mean = times.pop(STEP), times.pop(AVERAGE)
    return times | total_times(network, (len(X), len(Y)), step=step, mean=mean)


def total_times(network: Network, counts: Sequence[int], *, step: float, mean: float) -> Times:
    """Compute the time of all training from that of a step and of one round's averaging."""
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
    """Yield the training of OS-ELM and of the banks, in chunks and one by one."""
    feeds: dict[str, Feed] = {IN_CHUNKS: learn_in_chunks, ONE_BY_ONE: call_each}
    for how, feed in feeds.items():
        for method, make in device_factories(trial).items():
            yield TimedCall(how, method, partial(train_and_merge, make, parts, feed))


def learn_in_chunks(learn: Callable[[Any], object], rows: Array) -> None:
    """Learn rows in chunks."""
    for start in range(0, len(rows), CHUNK_ROWS):
        learn(rows[start : start + CHUNK_ROWS])


def train_and_merge(make: DeviceFactory, parts: tuple[Array, Array], feed: Feed) -> None:
    """Let two devices learn, merge both ways, and compute a first result."""
    pair = make(), make()
    for device, rows in zip(pair, parts, strict=True):
        feed(device.learn, rows)
    sent = [device.share(name, revision=1) for device, name in zip(pair, "ab", strict=True)]
    for device, received in zip(pair, reversed(sent), strict=True):
        adopt_all(device, received)
        anomaly_scores(device, parts[0][:1])


def backprop_runs(network: Network, trial: Trial, pattern: int) -> Iterator[TimedCall]:
    """Yield one step of back-propagation, and the averaging and loading of one round."""
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
