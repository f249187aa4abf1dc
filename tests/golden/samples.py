"""Seeded samples from whole numbers and single operations: the same bits on every machine."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

STEP = np.uint64(0x9E3779B97F4A7C15)


def words(seed: int, count: int) -> NDArray[np.uint64]:
    """Draw 64-bit words with SplitMix64."""
    with np.errstate(over="ignore"):  # wrapping at 2⁶⁴ is the algorithm
        z = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * STEP
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def uniform(seed: int, *shape: int) -> Array:
    """Draw numbers in [0, 1) on a grid of 2⁻⁵³."""
    drawn = words(seed, int(np.prod(shape))) >> np.uint64(11)
    return drawn.astype(np.float64).reshape(shape) * 2.0**-53


def bell(seed: int, *shape: int) -> Array:
    """Draw numbers about 0 with a spread of about 1; no call whose order of sums may vary."""
    a, b, c = (uniform(seed * 4 + i, *shape) for i in (1, 2, 3))
    return np.asarray(2.0 * (a + b + c - 1.5))


def machine(place: float, rows: int, seed: int, inputs: int = 6) -> Array:
    """Give samples of one mode of a machine: two causes behind its inputs, and some noise."""
    mixing = 0.3 * (uniform(int(1000 + 100 * place), 2, inputs) - 0.5)
    causes, noise = bell(2 * seed + 1, rows, 2), 0.02 * bell(2 * seed + 2, rows, inputs)
    return np.asarray(place + causes[:, :1] * mixing[0] + causes[:, 1:] * mixing[1] + noise)


def mixed(*modes: tuple[float, int, int], inputs: int = 6) -> Array:
    """Give stretches of several modes, one after the other: (place, rows, seed) each."""
    return np.vstack([machine(*mode, inputs=inputs) for mode in modes])
