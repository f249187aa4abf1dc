"""Reads the samples of a chunk, some rows at a time, whatever kind of file it is of."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import PurePath
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgemerge.bulk.chunk import Chunk
from edgemerge.core.errors import SampleError
from edgemerge.core.projection import Projection

Array = NDArray[np.float64]

KINDS = {".csv": "csv_file", ".npy": "npy_file", ".parquet": "parquet_file", ".pq": "parquet_file"}


def read(chunk: Chunk, projection: Projection) -> Iterator[Array]:
    """Give the samples of a chunk, (k, n) at a time; a value that is missing is NaN."""
    kind = kind_of(chunk.path)
    return iter(kind.read(chunk, projection.names or ()))


def kind_of(path: str) -> ModuleType:
    """Give the module that reads such a file; one that needs a package is imported only here."""
    name = KINDS.get(PurePath(path).suffix.lower())
    if name is None:
        raise SampleError(f"found {path}, expected a file of samples: {', '.join(KINDS)}")
    return import_module(f"edgemerge.bulk.{name}")


def finite(X: NDArray[Any]) -> NDArray[Any]:
    """Give the rows that have a number everywhere."""
    good = np.isfinite(X).all(1)
    return X if good.all() else X[good]
