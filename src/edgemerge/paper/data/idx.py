"""The idx format of the MNIST files: a magic number, the sizes, then one byte for each entry."""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgemerge.paper.data.about import again
from edgemerge.paper.data.errors import DamagedDataError

BYTES = 8  # the format's code for entries of one byte without sign


def parse(data: bytes, *, n_dims: int, path: Path) -> NDArray[np.uint8]:
    """Read an array of so many dimensions; anything that is not exactly that is refused.

    >>> parse(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), n_dims=1, path=Path("labels"))
    array([7, 9], dtype=uint8)
    """
    magic = bytes([0, 0, BYTES, n_dims])
    if data[:4] != magic:
        raise _odd(path, f"the first bytes {data[:4].hex(' ') or 'missing'}", magic.hex(" "))
    start = 4 + 4 * n_dims
    if len(data) < start:
        raise _odd(path, f"{len(data)} bytes", f"a header of {start}")
    sizes = [int.from_bytes(data[at : at + 4], "big") for at in range(4, start, 4)]
    if len(data) != start + prod(sizes):
        said = " × ".join(map(str, sizes))
        raise _odd(path, f"{len(data)} bytes", f"{start + prod(sizes)} for {said} entries")
    return np.frombuffer(data, np.uint8, offset=start).reshape(sizes)


def _odd(path: Path, found: str, expected: str) -> DamagedDataError:
    return DamagedDataError(
        f"{path} is no whole idx file: found {found}, expected {expected}",
        f"delete it and {again('mnist')}",
        path,
    )
