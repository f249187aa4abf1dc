"""Histories in files: the same samples as CSV, .npy or Parquet, written by others' libraries."""

import csv
import operator
from functools import reduce
from pathlib import Path

import numpy as np
import pandas as pd

from edgemerge import Projection
from edgemerge.bulk import Part, chunks_of, part_of
from edgemerge.bulk.chunk import read_chunk

SHARED = Projection(n_inputs=4, n_hidden=6, seed=3)
NAMES = ("flow", "pressure", "heat", "hum")


def history(rows=600, inputs=4, seed=0):
    return np.random.default_rng(seed).normal(0.0, 0.3, (rows, inputs))


FOUR = history(rows=40)


def whole(chunks, shared=SHARED, **choice):
    """All of them as one part, in this process."""
    return reduce(
        operator.add, (part_of(shared, c, **choice) for c in chunks), Part.nothing(shared)
    )


def rows_in(path, *, columns=(), chunk_bytes=100):
    chunks = chunks_of(path, columns=columns, chunk_bytes=chunk_bytes)
    found = [X for chunk in chunks for X in read_chunk(chunk, SHARED)]
    return np.vstack(found) if found else np.empty((0, len(columns) or 4))


def in_csv(X, path: Path, *, header=NAMES, end="\n", mark="") -> Path:
    """Numbers as Python writes them: the shortest that reads back to the same."""
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(mark)
        writer = csv.writer(file, lineterminator=end)
        if header:
            writer.writerow(header[: X.shape[1]])
        writer.writerows(X.tolist())
    return path


def in_npy(X, path: Path) -> Path:
    np.save(path, X)
    return path


def in_parquet(X, path: Path, *, group=50, header=NAMES, **options) -> Path:
    frame = pd.DataFrame(X, columns=header[: X.shape[1]])
    frame.to_parquet(path, row_group_size=group, **options)
    return path
