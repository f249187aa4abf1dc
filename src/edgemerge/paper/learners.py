"""The devices of a pair that are timed and weighed: a detector at the paper's N, or a bank (ours).

Both share, adopt and judge, so that what is measured of one can be measured of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from edgemerge import Bank, Contribution, Detector, Stats
from edgemerge.paper.dataset import Array
from edgemerge.paper.settings import BANKS, LAYERS

if TYPE_CHECKING:
    from edgemerge.paper.trial import Trial

Device = Detector | Bank
Make = Callable[[], Device]


def makers(trial: Trial) -> dict[str, Make]:
    """Give what makes a device of each method; all devices of a method share a projection."""
    data, seed = trial.data, trial.number("layer")
    found: dict[str, Make] = {"after": partial(Detector, LAYERS[data.name].projection(data, seed))}
    for method, exchanges in BANKS.items():
        if exchange := exchanges.get(data.name):
            found[method] = partial(exchange.bank, exchange.layer.projection(data, seed))
    return found


def settings(dataset: str) -> str:
    """Say what the devices of a data set depend on."""
    banks = [exchanges.get(dataset) for exchanges in BANKS.values()]
    return f"{LAYERS[dataset]}, banks {banks}"


def share(device: Device, name: str) -> list[Contribution]:
    """Give what a device sends: one contribution, or one for each pattern of a bank."""
    sent = device.share(name, revision=1)
    return [sent] if isinstance(sent, Contribution) else sent


def adopt(device: Device, told: Sequence[Contribution]) -> None:
    """Let a device take in what came; whatever was told before is forgotten."""
    if isinstance(device, Bank):
        device.adopt(told)
    else:
        device.adopt(Stats.total(device.projection, [note.stats for note in told]))


def oddness(device: Device, X: Array) -> Array:
    """Say how unusual samples are: the paper's loss, or our score."""
    return np.asarray(device.score(X) if isinstance(device, Bank) else device.loss(X))
