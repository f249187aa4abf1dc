"""The paper's settings for each data set, and the detectors and banks built from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Literal

import numpy as np

from edgemerge import Bank, Contribution, Detector, Projection, Stats
from edgemerge.paper.dataset import Array, Dataset, Trial

FEDERATED = "BP-NN3-FL"
BASELINES = ("BP-NN3", "BP-NN5", FEDERATED)  # trained by back-propagation
FORMS = ("exact", "float32", "root16")  # of contributions, from wide to narrow
ROUNDS = 50  # of federated averaging
CHUNK_ROWS = 512  # samples that a device is handed together; the bits are those of one by one
LEARNING_RATE = 0.001  # Adam's usual one; the paper names none


@dataclass(frozen=True)
class Layer:
    """The hidden layer of an OS-ELM autoencoder; its weights are uniform, one epoch, k = 1."""

    activation: Literal["identity", "sigmoid", "tanh", "relu"]
    n_hidden: int
    low: float | None = None  # of the input range; None takes that of the data set
    width: float | None = None  # of the weights; None lets the projection choose

    def projection(self, dataset: Dataset, seed: int) -> Projection:
        """Build the projection that all devices of one trial share."""
        return Projection(
            n_inputs=dataset.n_inputs,
            n_hidden=self.n_hidden,
            seed=seed,
            activation=self.activation,
            width=self.width,
            low=dataset.low if self.low is None else self.low,
            high=dataset.high,
        )


@dataclass(frozen=True)
class Network:
    """An autoencoder trained by back-propagation: ReLU inside, sigmoid at its end, MSE, Adam."""

    hidden: tuple[int, ...]
    batch: int
    epochs: int

    def parameters(self, n_inputs: int) -> int:
        """Count weights and biases.

        >>> Network((256,), batch=8, epochs=20).parameters(561)
        288049
        """
        sizes = (n_inputs, *self.hidden, n_inputs)
        return sum((a + 1) * b for a, b in pairwise(sizes))


@dataclass(frozen=True)
class Exchange:
    """How devices with banks learn, and in which form their contributions travel."""

    layer: Layer
    max_patterns: int
    form: str

    def bank(self, projection: Projection) -> Bank:
        """Return a device's bank; it rejects no sample, as in the paper."""
        return Bank(projection, max_patterns=self.max_patterns, reject_above=None)


LAYERS = {
    "driving": Layer("sigmoid", 16),
    "har": Layer("identity", 128),
    "mnist": Layer("identity", 64),
}

NETWORKS = {
    "har": {"BP-NN3": Network((256,), 8, 20), "BP-NN5": Network((128, 256, 128), 8, 20)},
    "mnist": {"BP-NN3": Network((64,), 32, 5), "BP-NN5": Network((64, 32, 64), 8, 10)},
}

# One instance for each pattern, kept apart, and our score: what differs from the paper.
SAME_SIZE_BANKS = {
    dataset: Exchange(layer, max_patterns=1, form="exact") for dataset, layer in LAYERS.items()
}

# Within a hundredth of the bytes of federated averaging, and HAR a twentieth of its time.
BEST_BANKS = {
    "har": Exchange(Layer("identity", 64), max_patterns=8, form="root16"),
    "mnist": Exchange(Layer("sigmoid", 56, low=-1.0, width=0.5), max_patterns=4, form="root16"),
}

BANKS = {"bank": SAME_SIZE_BANKS, "ours": BEST_BANKS}


# The devices of a pair whose time and bytes are measured: a detector at the paper's N, or a bank.

Device = Detector | Bank
DeviceFactory = Callable[[], Device]


def device_factories(trial: Trial) -> dict[str, DeviceFactory]:
    """Return a factory for each method; all devices of a method share a projection."""
    data, seed = trial.data, trial.number("layer")
    after: DeviceFactory = partial(Detector, LAYERS[data.name].projection(data, seed))
    exchanges = {method: each[data.name] for method, each in BANKS.items() if data.name in each}
    return {"after": after} | {
        method: partial(exchange.bank, exchange.layer.projection(data, seed))
        for method, exchange in exchanges.items()
    }


def device_settings(dataset: str) -> str:
    """Return the settings of a data set's devices as text."""
    return f"{LAYERS[dataset]}, banks {[exchanges.get(dataset) for exchanges in BANKS.values()]}"


def trained_detector(layer: Projection, X: Array) -> Detector:
    """Return a detector that has learnt X and is ready for a loss."""
    detector = Detector(layer)
    detector.learn(X)
    detector.loss(X[0])
    return detector


def adopt_all(device: Device, received: Sequence[Contribution]) -> None:
    """Let a device adopt contributions in place of those it adopted before."""
    if isinstance(device, Bank):
        device.adopt(received)
    else:
        device.adopt(Stats.total(device.projection, [each.stats for each in received]))


def anomaly_scores(device: Device, X: Array) -> Array:
    """Return how unusual each sample is: a detector's loss, as in the paper, or a bank's score."""
    return np.asarray(device.score(X) if isinstance(device, Bank) else device.loss(X))
