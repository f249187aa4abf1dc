"""How long all of one pair's training takes, of both devices together, in CPU time.

Steps of back-propagation are timed, and their time is multiplied by the number of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import ceil
from typing import Any

import torch

from edgemerge.paper import backprop
from edgemerge.paper.dataset import Array
from edgemerge.paper.learners import Make, adopt, makers, oddness, share
from edgemerge.paper.settings import NETWORKS, ROUNDS, STRIP, Network
from edgemerge.paper.stopwatch import Contestant, each, race
from edgemerge.paper.timed import FL, IN_ALL, PAIR, PER_ROUND, ROWS, SINGLY, Step
from edgemerge.paper.trial import Trial

STEPS = 200  # of back-propagation in a turn
AVERAGES = 8  # in a turn
STEP, AVERAGE = Step(PAIR, "BP-NN3", "step"), Step(PAIR, FL, "average")

Times = dict[Step, float]  # seconds
Feed = Callable[[Callable[[Any], object], Array], None]


def measure(trial: Trial, a: int, b: int, seconds: float) -> Times:
    """Time one pair: OS-ELM merged, banks, BP-NN3, and BP-NN3-FL in both readings."""
    X, Y = trial.learnt(a), trial.learnt(b)
    network = NETWORKS[trial.data.name]["BP-NN3"]
    contestants = [*devices(trial, (X, Y)), *gradients(network, trial, a)]
    found = race(contestants, seconds)
    times = {Step(PAIR, c.way, c.job): time for c, time in zip(contestants, found, strict=True)}
    step, mean = times.pop(STEP), times.pop(AVERAGE)
    return times | computed(network, (len(X), len(Y)), step=step, mean=mean)


def computed(network: Network, counts: Sequence[int], *, step: float, mean: float) -> Times:
    """Work out the time of all training from that of a step and of one round's averaging."""
    k, epochs = network.batch, network.epochs
    together = ceil(sum(counts) / k) * epochs
    in_all = sum(ceil(count * epochs / k) for count in counts)
    per_round = sum(ceil(count / k) for count in counts) * ROUNDS
    return {
        Step(PAIR, "BP-NN3", IN_ALL): together * step,
        Step(PAIR, FL, IN_ALL): in_all * step + ROUNDS * mean,
        Step(PAIR, FL, PER_ROUND): per_round * step + ROUNDS * mean,
    }


def devices(trial: Trial, parts: tuple[Array, Array]) -> Iterator[Contestant]:
    """Give OS-ELM and the banks, fed with many rows together and one by one."""
    feeds: dict[str, Feed] = {ROWS: in_strips, SINGLY: each}
    for how, feed in feeds.items():
        for method, make in makers(trial).items():
            yield Contestant(how, method, partial(train, make, parts, feed))


def in_strips(learn: Callable[[Any], object], rows: Array) -> None:
    """Hand many rows in together."""
    for start in range(0, len(rows), STRIP):
        learn(rows[start : start + STRIP])


def train(make: Make, parts: tuple[Array, Array], feed: Feed) -> None:
    """Let two devices learn, exchange what they know both ways, and be ready."""
    pair = make(), make()
    for device, rows in zip(pair, parts, strict=True):
        feed(device.learn, rows)
    sent = [share(device, name) for device, name in zip(pair, "ab", strict=True)]
    for device, told in zip(pair, reversed(sent), strict=True):
        adopt(device, told)
        oddness(device, parts[0][:1])


def gradients(network: Network, trial: Trial, pattern: int) -> Iterator[Contestant]:
    """Give one step of back-propagation, and the averaging and loading of one round."""
    backprop.one_thread()
    readings = trial.data.between_0_and_1(trial.split.learn[pattern])
    rng, rows = torch.Generator().manual_seed(0), backprop.tensor(readings)
    net, shared, *two = (backprop.build(network, rows.shape[1], rng) for _ in range(4))
    optimiser = backprop.adam(net)

    def steps() -> None:
        for order in torch.randint(len(rows), (STEPS, network.batch), generator=rng):
            backprop.step(net, optimiser, rows[order])

    def averages() -> None:
        for _ in range(AVERAGES):
            for client in two:
                backprop.average(client, [shared], [1])
            backprop.average(shared, two, [1, 1])

    yield Contestant(STEP.what, STEP.method, steps, STEPS)
    yield Contestant(AVERAGE.what, AVERAGE.method, averages, AVERAGES)
