"""What the demo finds out: how each device judges, before and after merging once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

THRESHOLD = 4.0  # four times as odd as usual: alarm


@dataclass(frozen=True)
class Scores:
    """Scores of samples of one kind: the mean, where nine of ten lie, the share of alarms."""

    mean: float
    low: float
    high: float
    alarms: float

    @classmethod
    def of(cls, scores: Array) -> Scores:
        """Sum up the scores of many samples."""
        low, high = np.quantile(scores, [0.05, 0.95])
        alarms = np.mean(scores > THRESHOLD)
        return cls(float(scores.mean()), float(low), float(high), float(alarms))


@dataclass(frozen=True)
class Row:
    """One device, before or after merging; `auc` is for telling what is odd from any normal."""

    device: str
    pattern: str
    merged: bool
    scores: Mapping[str, Scores]
    auc: float


@dataclass(frozen=True)
class Outcome:
    """Everything that the demo shows; `curves` are (3, k): low, mean and high of each kind."""

    name: str
    seed: int
    odd: tuple[str, ...]
    rows: list[Row]
    curves: Mapping[str, Array] = field(default_factory=dict)
    hidden: int = 0
    inputs: int = 0
    samples: int = 0
    bytes_sums: int = 0
    seconds: float = 0.0

    @property
    def bytes_samples(self) -> int:
        """The bytes that the samples of one device take."""
        return self.samples * self.inputs * np.float64().nbytes

    def told(self, *, merged: bool) -> list[Row]:
        """Give the rows from before or from after merging."""
        return [row for row in self.rows if row.merged is merged]


def row_of(
    device: str,
    pattern: str,
    normal: Mapping[str, Array],
    odd: Mapping[str, Array],
    *,
    merged: bool,
) -> Row:
    """Sum up how a device scores every device's normal samples, and each kind of odd ones."""
    peers = np.concatenate([scores for name, scores in normal.items() if name != device])
    groups = {"own": normal[device], "peers": peers} | dict(odd)
    return Row(
        device=device,
        pattern=pattern,
        merged=merged,
        scores={group: Scores.of(scores) for group, scores in groups.items()},
        auc=roc_auc(np.concatenate([*normal.values()]), np.concatenate([*odd.values()])),
    )


def roc_auc(normal: Array, odd: Array) -> float:
    """How often an odd sample scores above a normal one; a tie counts half.

    >>> roc_auc(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0]))
    0.75
    """
    ranked = np.sort(normal)
    below = np.searchsorted(ranked, odd, "left") + np.searchsorted(ranked, odd, "right")
    return float(below.mean() / (2 * len(ranked)))
