"""The paper's settings: which layers, batches and epochs were used on which data set."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from edgemerge import Bank, Projection
from edgemerge.paper.dataset import Dataset

ROUNDS = 50  # of federated averaging
STRIP = 512  # samples that a device is handed together; the bits are those of one by one
LEARNING_RATE = 0.001  # Adam's usual one; the paper names none


@dataclass(frozen=True)
class Layer:
    """The hidden layer of an OS-ELM autoencoder; its weights are uniform, one epoch, k = 1."""

    activation: Literal["identity", "sigmoid", "tanh", "relu"]
    n_hidden: int
    low: float | None = None  # of the input range, if it is not that of the data set
    width: float = 0.0  # of the weights; 0 is the projection's own choice

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
        """Make the bank of one device; as in the paper, it is given nothing that it must reject."""
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

SAME_N = {  # one instance for each pattern, kept apart, and our score: what differs from the paper
    dataset: Exchange(layer, max_patterns=1, form="exact") for dataset, layer in LAYERS.items()
}

BEST = {  # within a hundredth of the bytes of federated averaging, and HAR a twentieth of its time
    "har": Exchange(Layer("identity", 64), max_patterns=8, form="root16"),
    "mnist": Exchange(Layer("sigmoid", 56, low=-1.0, width=0.5), max_patterns=4, form="root16"),
}

BANKS = {"bank": SAME_N, "ours": BEST}
