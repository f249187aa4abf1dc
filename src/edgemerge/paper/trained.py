"""A pair of patterns as back-propagation learns it: both in one place, or averaged over two."""

from __future__ import annotations

from time import process_time

from torch import nn

from edgemerge.paper import backprop
from edgemerge.paper.plan import Rows
from edgemerge.paper.settings import LEARNING_RATE, NETWORKS, ROUNDS
from edgemerge.paper.splits import SHARES
from edgemerge.paper.trial import Trial

METHODS = ("BP-NN3", "BP-NN5", "BP-NN3-FL")


def settings(dataset: str, method: str) -> str:
    """Say what the rows of a method depend on."""
    network = NETWORKS[dataset][method.removesuffix("-FL")]
    rounds = f", {ROUNDS} rounds" if method.endswith("-FL") else ""
    return f"{network}{rounds}, rate {LEARNING_RATE}, {SHARES}"


def rows(trial: Trial, method: str, a: int, b: int) -> Rows:
    """Learn a pair and pass its exam; the order of the two does not matter, so both are told."""
    backprop.one_thread()
    start = process_time()
    net = learn(trial, method, a, b)
    seconds = process_time() - start
    readings = trial.data.between_0_and_1(trial.exam(a, b).rows)
    found = backprop.losses(net, readings)
    both = {(a, b), (b, a)}
    return [{**trial.row(method, pair, found), "seconds": seconds} for pair in sorted(both)]


def learn(trial: Trial, method: str, a: int, b: int) -> nn.Module:
    """Train a network on the two patterns; a pattern with itself is one pattern."""
    network = NETWORKS[trial.data.name][method.removesuffix("-FL")]
    parts = [trial.data.between_0_and_1(trial.split.learn[i]) for i in (a, b)]
    seed = trial.number(method, a, b)
    if method.endswith("-FL"):
        return backprop.train_apart(network, parts, rounds=ROUNDS, seed=seed)
    return backprop.train(network, parts[:1] if a == b else parts, seed)
