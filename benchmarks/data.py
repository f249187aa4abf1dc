"""Data sets for the benchmarks: each class of each set in turn is what is normal, the rest is odd.

HAR and MNIST are not ours to pass on: they are read from the folder that EDGEMERGE_DATA names.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgemerge.comparison.datasets import BUNDLED, STREAMED, bundled_set

Array = NDArray[np.float64]

TRAIN = 0.6  # of the normal rows
MOST_ODD = 2000  # odd rows kept of one task
DIRTIEST = 0.1  # share for which odd rows are set aside, so that every share has one test part


class Task(NamedTuple):
    """One class of a data set as normal, (k, n), against all other classes."""

    source: str
    name: str
    normal: Array
    odd: Array


class Split(NamedTuple):
    """Rows to learn, a share of them odd, and rows to tell apart: label 1 is odd."""

    task: Task
    seed: int
    train: Array
    test: Array
    label: Array


def tasks(*, quick: bool = False) -> Iterator[Task]:
    """Yield every task with data; `quick` yields one of each source that comes with a package."""
    for source, X, y in sources(quick=quick):
        for name in np.unique(y)[: 1 if quick else None]:
            yield Task(source, f"{source}-{name}", X[y == name], X[y != name])


def splits(task: Task, seeds: Sequence[int], share: float = 0.0) -> Iterator[Split]:
    """Cut a task, once for each seed, so that `share` of the rows to learn are odd."""
    for seed in seeds:
        rng = np.random.default_rng(seed)
        normal = rng.permutation(task.normal)
        odd = rng.permutation(task.odd)[:MOST_ODD]
        k = int(TRAIN * len(normal))
        aside, dirt = (round(k * s / (1.0 - s)) for s in (DIRTIEST, share))
        train = rng.permutation(np.vstack([normal[:k], odd[:dirt]]))
        test = np.vstack([normal[k:], odd[aside:]])
        label = np.repeat([0.0, 1.0], [len(normal) - k, len(odd) - aside])
        yield Split(task, seed, train, test, label)


def sources(*, quick: bool) -> Iterator[tuple[str, Array, NDArray[Any]]]:
    """Yield name, rows and classes of every set at hand."""
    for name in (*BUNDLED, *STREAMED):
        yield name, *bundled_set(name)
    folder = os.environ.get("EDGEMERGE_DATA")
    if folder and not quick:
        yield "HAR", *_har(Path(folder) / "har" / "har.npz")
        yield "MNIST", *_mnist(Path(folder) / "mnist")


def _har(path: Path) -> tuple[Array, NDArray[Any]]:
    with np.load(path) as parts:
        X, y = (np.concatenate([parts[f"{a}_train"], parts[f"{a}_test"]]) for a in "Xy")
    return X.astype(np.float64), y


def _mnist(folder: Path) -> tuple[Array, NDArray[Any]]:
    images = _idx(folder / "t10k-images-idx3-ubyte.gz")
    return images.reshape(len(images), -1) / 255.0, _idx(folder / "t10k-labels-idx1-ubyte.gz")


def _idx(path: Path) -> NDArray[np.uint8]:
    data = gzip.decompress(path.read_bytes())
    shape = np.frombuffer(data, ">i4", data[3], 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape)
