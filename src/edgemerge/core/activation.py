"""The four activations on a grid: exact, and equal to the last bit on every machine.

A pre-activation z is rounded to the grid first. Identity and relu are then exact; sigmoid and tanh
are looked up in a table with one entry for every grid point, so no machine's `exp` is asked at run
time, and none of the entries lies near enough to a rounding boundary for libraries to disagree.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Activation = Literal["identity", "sigmoid", "tanh", "relu"]
ACTIVATIONS: tuple[str, ...] = get_args(Activation)


def smooth(name: str, z: Array) -> Array:
    """Compute sigmoid or tanh in floating point, off the grid."""
    return np.tanh(z) if name == "tanh" else 1.0 / (1.0 + np.exp(-z))


@lru_cache
def table(name: str, bits: int) -> Array:
    """List a smooth activation at every grid point where it is not yet flat, from −edge to edge."""
    edge = int((bits + 3) * 2**bits)  # past it both functions round to their limits
    z = np.arange(-edge, edge + 1, dtype=np.float64) * 2.0**-bits
    return np.rint(smooth(name, z) * 2.0**bits) * 2.0**-bits


BOUNDS = {"sigmoid": (0.0, 1.0), "tanh": (-1.0, 1.0)}  # what a hidden value can be at most
