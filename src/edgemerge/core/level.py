"""The level: what loss is usual for a readout, from sums alone, and the score relative to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

SPARE = 1e-6  # keeps f and 1 − f/c above 0 where all hidden values are 0, or pinned down


def effective(own: Any, others: float, fade: float) -> Any:
    """Count samples as a mean over them counts: (Σw)²/Σw² for weights that fade.

    A fading sum remembers 1/(1 − fade) samples, but its mean is as steady as one of twice as many.
    """
    return own * (1.0 + fade) / (2.0 - own * (1.0 - fade)) + others


class Level(NamedTuple):
    """Numbers for one readout, or arrays with one entry for each of several in a row.

    `loss` is the sum of all losses; `weight` the samples in that sum; `count` how many samples
    that is worth; `floor` the rounding of the grid, below which no
    loss means anything. `largest` is `max`, or `numpy.maximum` for arrays.
    """

    loss: Any
    freedom: Any
    weight: Any
    count: Any
    floor: float
    largest: Callable[[Any, Any], Any] = max

    @property
    def spare(self) -> Any:
        """The share of the samples that is left after fitting, 1 − f/c."""
        return self.largest(1.0 - self.freedom / self.count, SPARE)

    @property
    def usual(self) -> Any:
        """The loss that fresh samples of the same kind have."""
        return self.largest(self.loss / self.weight / self.spare**2, self.floor)  # M11

    def score(self, loss: Any, leverage: Any) -> Any:
        """Say how odd samples are: 1 is as usual, 4 is four times as odd."""
        strange = leverage * self.spare * self.count / self.largest(self.freedom, SPARE)
        return 0.5 * (loss / self.usual + strange)  # M11
