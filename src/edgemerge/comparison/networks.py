"""Autoencoders trained by back-propagation, as methods of the comparison; they need PyTorch.

Pooled: all rows in one place. Sent once: one for each device, the score is the lowest loss.
Averaged: federated averaging over 50 rounds.
"""

from __future__ import annotations

import numpy as np

from edgemerge.comparison import datasets
from edgemerge.comparison.datasets import DIGITS, HAR, MNIST, Fleet
from edgemerge.comparison.methods import VALUE_BYTES, Method, View, row_bytes, view_of
from edgemerge.paper import backprop
from edgemerge.paper.hyperparameters import LEARNING_RATE, NETWORKS, ROUNDS, Network

POOLED_NET, SENT_ONCE, AVERAGED = "network, pooled", "network, sent once", "network, averaged"

# The hidden layers are the paper's; with fewer rows than there, more epochs make up for it.
SIZES = {
    HAR: Network(NETWORKS[HAR]["BP-NN3"].hidden, batch=16, epochs=20),
    MNIST: Network(NETWORKS[MNIST]["BP-NN3"].hidden, batch=32, epochs=40),
    DIGITS: Network((32,), batch=8, epochs=40),
}


def settings(name: str) -> str:
    """Return the settings of a data set's networks as text."""
    sizes = f"{SIZES[name]}, {ROUNDS} rounds, rate {LEARNING_RATE}"
    return f"{sizes}, {datasets.SIZES}"


def pooled(fleet: Fleet, seed: int) -> tuple[list[View], float]:
    """Train one network on all rows."""
    net = backprop.train(SIZES[fleet.name], [fleet.rows], seed)
    return view_of(fleet, lambda X: backprop.losses(net, X)), row_bytes(fleet)


def sent_once(fleet: Fleet, seed: int) -> tuple[list[View], float]:
    """Train one network on each device, and take the lowest loss of all."""
    size = SIZES[fleet.name]
    nets = [backprop.train(size, [rows], seed + i) for i, rows in enumerate(fleet.learnt)]
    views = view_of(fleet, lambda X: np.min([backprop.losses(net, X) for net in nets], axis=0))
    return views, network_bytes(fleet)


def averaged(fleet: Fleet, seed: int) -> tuple[list[View], float]:
    """Train by federated averaging."""
    net = backprop.train_federated(SIZES[fleet.name], fleet.learnt, rounds=ROUNDS, seed=seed)
    return view_of(fleet, lambda X: backprop.losses(net, X)), ROUNDS * network_bytes(fleet)


def network_bytes(fleet: Fleet) -> float:
    """Return the bytes of one network's weights."""
    return VALUE_BYTES * SIZES[fleet.name].parameters(fleet.test.shape[1])


NETWORK_METHODS: dict[str, Method] = {POOLED_NET: pooled, SENT_ONCE: sent_once, AVERAGED: averaged}
