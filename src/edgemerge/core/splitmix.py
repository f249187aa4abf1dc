"""SplitMix64, our own source of random weights: equal seeds, equal numbers, in every language."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
BIAS_KEY = (1 << 64) - 1  # the stream of the bias; inputs count from 0


def mix(z: Words) -> Words:
    """Scramble 64-bit words; this is the output function of SplitMix64."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def words(seed: int, keys: Words, count: int) -> Words:
    """Give `count` words for each key, (k, count): one stream a key, none depends on another."""
    with np.errstate(over="ignore"):  # wrapping at 2⁶⁴ is the algorithm
        start = mix(mix(np.array([seed], dtype=np.uint64) + GOLDEN) + keys)
        steps = np.arange(1, count + 1, dtype=np.uint64) * GOLDEN
        return mix(start[:, None] + steps)


def uniform(seed: int, keys: Words, count: int) -> NDArray[np.float64]:
    """Give numbers in [−1, 1) on a grid of 2⁻⁵², (k, count)."""
    high = (words(seed, keys, count) >> np.uint64(11)).astype(np.float64)
    return high * 2.0**-52 - 1.0


def weights(
    seed: int, keys: Iterable[int], count: int, width: float, bits: int
) -> NDArray[np.float64]:
    """Give uniform weights in [−width, width] on a grid of 2⁻ᵇⁱᵗˢ, (k, count)."""
    drawn = uniform(seed, np.array(list(keys), dtype=np.uint64), count)
    found = np.asarray(np.rint(drawn * (width * 2.0**bits)) * 2.0**-bits)
    found.setflags(write=False)  # the agreement does not change
    return found


def key_of(name: str) -> int:
    """Turn an input's name into the key of its stream."""
    return int.from_bytes(sha256(name.encode()).digest()[:8], "little")
