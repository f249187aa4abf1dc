"""The arithmetic of cost: bytes of one device in a day, by sums, by averaging and by raw samples.

Lengths of sums are those of messages that were really encoded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from edgemerge.core.codec import encode
from edgemerge.core.contribution import Contribution
from edgemerge.core.projection import Projection
from edgemerge.core.stats import Stats
from edgemerge.core.sums import limit

FLOAT32 = 4
WAYS = 2  # what goes up comes down


@cache
def message_bytes(n_inputs: int, n_hidden: int, form: str = "exact") -> int:
    """Give the length of a contribution on the wire; it does not depend on what was seen.

    >>> [message_bytes(561, 128, form) for form in ("exact", "float32", "root16")]
    [650176, 325432, 166113]
    """
    shared = Projection(n_inputs=n_inputs, n_hidden=n_hidden, seed=7)
    rows = np.random.default_rng(7).uniform(-1.0, 1.0, (2 * n_hidden, n_inputs))
    return len(encode(Contribution("device-0000001", Stats.of(shared, rows), 1), form))


@dataclass(frozen=True, kw_only=True)
class Device:
    """One device of a fleet: what it sees in a day, and how often it shares."""

    n_inputs: int
    n_hidden: int
    samples: float
    shares: float
    value_bytes: int = FLOAT32  # of one input, sent raw

    def sums(self, form: str = "exact") -> float:
        """Bytes of a day by sums: a contribution up and the sum of the others down."""
        return WAYS * self.shares * message_bytes(self.n_inputs, self.n_hidden, form)

    def averaging(self, rounds: float) -> float:
        """Bytes of a day by federated averaging of an autoencoder n, N, n, in float32."""
        weights = 2 * self.n_inputs * self.n_hidden + self.n_hidden + self.n_inputs
        return WAYS * rounds * FLOAT32 * weights

    def raw(self) -> float:
        """Bytes of a day by sending every sample up; what comes back is not counted."""
        return self.samples * self.n_inputs * self.value_bytes

    def break_even(self, form: str = "exact") -> float:
        """Samples between two shares, below which raw samples are fewer bytes than sums."""
        sums = WAYS * message_bytes(self.n_inputs, self.n_hidden, form)
        return sums / (self.n_inputs * self.value_bytes)


def most_samples(grid_bits: int) -> float:
    """Give the samples, with values in [−1, 1], after which the range of exact sums is full.

    >>> f"{most_samples(12):.2g}"
    '5.4e+08'
    """
    return limit(2.0 ** (-2 * grid_bits))
