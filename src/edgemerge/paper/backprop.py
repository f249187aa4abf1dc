"""Autoencoders trained by back-propagation in PyTorch: the paper's BP-NN3, BP-NN5 and BP-NN3-FL.

Weights start as Glorot's uniform ones and biases at 0, the defaults of the paper's library. X (k,
n) are readings between 0 and 1, for the sigmoid at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from time import process_time

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from edgemerge.paper.dataset import SPLIT_SETTINGS, Array, Trial
from edgemerge.paper.hyperparameters import LEARNING_RATE, NETWORKS, ROUNDS, Network
from edgemerge.paper.plan import Rows

Readings = NDArray[np.floating]


def use_one_thread() -> None:
    """Let torch use one thread: for layers of this size more of them wait for each other."""
    torch.set_num_threads(1)


def tensor(X: Readings) -> Tensor:
    """Return readings as a tensor of float32."""
    return torch.as_tensor(np.ascontiguousarray(X), dtype=torch.float32)


def build(network: Network, n_inputs: int, rng: torch.Generator) -> nn.Sequential:
    """Return an untrained network."""
    sizes = (n_inputs, *network.hidden, n_inputs)
    layers: list[nn.Module] = []
    for left, right in pairwise(sizes):
        linear = nn.Linear(left, right)
        nn.init.xavier_uniform_(linear.weight, generator=rng)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1], nn.Sigmoid())


def adam(net: nn.Module) -> torch.optim.Optimizer:
    """Return a new optimiser."""
    return torch.optim.Adam(net.parameters(), lr=LEARNING_RATE, fused=True)


def step(net: nn.Module, optimiser: torch.optim.Optimizer, batch: Tensor) -> None:
    """Train on one batch."""
    optimiser.zero_grad()
    nn.functional.mse_loss(net(batch), batch).backward()
    optimiser.step()


def epoch(
    net: nn.Module, optimiser: torch.optim.Optimizer, X: Tensor, *, batch: int, rng: torch.Generator
) -> None:
    """Train on all samples once, in random order."""
    for rows in X[torch.randperm(len(X), generator=rng)].split(batch):
        step(net, optimiser, rows)


def train(network: Network, parts: Sequence[Readings], seed: int) -> nn.Sequential:
    """Train on all readings together: BP-NN3 and BP-NN5."""
    rng = torch.Generator().manual_seed(seed)
    net = build(network, parts[0].shape[1], rng)
    optimiser, rows = adam(net), torch.cat([tensor(X) for X in parts])
    for _ in range(network.epochs):
        epoch(net, optimiser, rows, batch=network.batch, rng=rng)
    return net


class FederatedClient:
    """A client of federated averaging: its samples, its network and its optimiser."""

    def __init__(self, network: Network, X: Readings, rounds: int, rng: torch.Generator) -> None:
        """Divide the paper's epochs among the rounds."""
        self.rows, self.rounds = tensor(X), rounds
        self.net = build(network, X.shape[1], rng)
        self.optimiser = adam(self.net)
        orders = [torch.randperm(len(X), generator=rng) for _ in range(network.epochs)]
        self.batches = torch.cat(orders).split(network.batch)

    def train(self, start: nn.Module, turn: int) -> None:
        """Continue from the shared network with this round's batches."""
        average_into(self.net, [start], [1])
        cuts = [len(self.batches) * i // self.rounds for i in (turn, turn + 1)]
        for batch in self.batches[slice(*cuts)]:
            step(self.net, self.optimiser, self.rows[batch])


def train_federated(
    network: Network,
    parts: Sequence[Readings],
    *,
    rounds: int,
    seed: int,
    stay: Sequence[int] | None = None,
) -> nn.Sequential:
    """Train by federated averaging, BP-NN3-FL: in each round clients train, then are averaged.

    All rounds together are as many epochs as the network has when trained in one place. `stay` is
    the number of rounds of each client, by default all; at least one must stay to the end.
    """
    rng = torch.Generator().manual_seed(seed)
    shared = build(network, parts[0].shape[1], rng)
    clients = [FederatedClient(network, X, rounds, rng) for X in parts]
    last = [rounds] * len(parts) if stay is None else stay
    for turn in range(rounds):
        here = [client for client, end in zip(clients, last, strict=True) if turn < end]
        for client in here:
            client.train(shared, turn)
        average_into(shared, [client.net for client in here], [len(client.rows) for client in here])
    return shared


def average_into(shared: nn.Module, others: Sequence[nn.Module], counts: Sequence[int]) -> None:
    """Set a network to the mean of others, weighted by their numbers of samples."""
    weights = [count / sum(counts) for count in counts]
    found = [other.parameters() for other in others]
    with torch.no_grad():
        for place, *values in zip(shared.parameters(), *found, strict=True):
            place.zero_()
            for weight, value in zip(weights, values, strict=True):
                place.add_(value, alpha=weight)


def losses(net: nn.Module, X: Readings) -> Array:
    """Return the mean squared error of each reading (M9)."""
    rows = tensor(X)
    with torch.no_grad():
        return np.asarray(((net(rows) - rows) ** 2).mean(1), dtype=np.float64)


def training_settings(dataset: str, method: str) -> str:
    """Return the settings of a method as text."""
    network = NETWORKS[dataset][method.removesuffix("-FL")]
    rounds = f", {ROUNDS} rounds" if method.endswith("-FL") else ""
    return f"{network}{rounds}, rate {LEARNING_RATE}, {SPLIT_SETTINGS}"


def baseline_rows(trial: Trial, method: str, a: int, b: int) -> Rows:
    """Return the rows of a pair, in both orders: the order does not matter for training."""
    use_one_thread()
    start = process_time()
    net = train_pair(trial, method, a, b)
    seconds = process_time() - start
    found = losses(net, trial.data.between_0_and_1(trial.eval_set(a, b).rows))
    both = sorted({(a, b), (b, a)})
    return [{**trial.row(method, pair, found), "seconds": seconds} for pair in both]


def train_pair(trial: Trial, method: str, a: int, b: int) -> nn.Module:
    """Train a network on two patterns, or on one if both are the same."""
    network = NETWORKS[trial.data.name][method.removesuffix("-FL")]
    parts = [trial.data.between_0_and_1(trial.split.learn[i]) for i in (a, b)]
    seed = trial.number(method, a, b)
    if method.endswith("-FL"):
        return train_federated(network, parts, rounds=ROUNDS, seed=seed)
    return train(network, parts[:1] if a == b else parts, seed)
