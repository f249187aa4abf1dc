"""How fast is bulk training on Dask? Against what BLAS-3 alone does on as many cores.

Files of each kind are summed up by one worker and by as many as there are cores. The limit is the
bare products of the same rows, chunk by chunk in the cache, on one core, times the workers: no
reading, rounding, checking, sending or adding is in it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from distributed import Client
from numpy.typing import NDArray
from rich.table import Table

from benchmarks.limits import CHUNKS, rows_alone
from edgemerge import Projection
from edgemerge.bulk import Chunk, chunks_of
from edgemerge.dask import local_client, summed_up
from edgemerge.workers import available_cores

Floats = NDArray[np.float32]

SIZES = ((561, 128), (64, 64))
NUMBERS = {".npy": 2**27, ".parquet": 2**26, ".csv": 2**23}  # in a history
BLOCK = 1024  # rows whose products are timed for the limit
TIMES = 3  # the best counts


def run(*, quick: bool = False) -> list[dict[str, object]]:
    """Measure every kind of file at every size; `quick` only shows that all of it works."""
    most = available_cores()
    worker_counts = [1] if most == 1 else [1, most]
    with tempfile.TemporaryDirectory() as folder:
        paths = {
            size: [_written(Path(folder), kind, size, quick=quick) for kind in NUMBERS]
            for size in (SIZES[:1] if quick else SIZES)
        }
        return [row for workers in worker_counts for row in _measured(workers, paths)]


def _measured(
    workers: int, paths: dict[tuple[int, int], list[Path]]
) -> Iterator[dict[str, object]]:
    with local_client(workers=workers) as client:
        for (n, N), files in paths.items():
            projection = Projection(n_inputs=n, n_hidden=N)
            for path in files:
                ours, limit, rows = _raced(client, projection, chunks_of(path))
                yield {
                    "inputs": n,
                    "hidden": N,
                    "file": path.suffix,
                    "workers": workers,
                    "rows": rows,
                    "rows_per_s": round(rows / ours),
                    "MB_per_s": round(path.stat().st_size / ours / 1e6),
                    "of_limit": round(limit * rows / workers / ours, 3),
                }


def _raced(client: Client, projection: Projection, chunks: list[Chunk]) -> tuple[float, float, int]:
    """Return the best time of ours, that of the limit for one row, and the rows."""
    ours, limit, rows = np.inf, np.inf, 0.0
    for _ in range(TIMES):
        limit = min(limit, _limit(projection))
        start = perf_counter()
        rows = summed_up(client, projection, chunks).stats.count
        ours = min(ours, perf_counter() - start)
    return ours, limit, int(rows)


def _limit(projection: Projection) -> float:
    X = np.full((BLOCK, projection.n_inputs), 0.1)
    A = np.full((projection.n_inputs, projection.n_hidden), 1e-3)
    times = []
    for chunk in CHUNKS:
        for symmetric in (True, False):
            alone = rows_alone(X, A, chunk, symmetric=symmetric)
            start = perf_counter()
            alone()
            times.append(perf_counter() - start)
    return min(times) / BLOCK


def _written(folder: Path, kind: str, size: tuple[int, int], *, quick: bool) -> Path:
    n = size[0]
    rows = (2**14 if quick else NUMBERS[kind]) // n
    path = folder / f"history-{n}{kind}"
    X = np.random.default_rng(n).uniform(-1.0, 1.0, (rows, n)).astype(np.float32)
    if kind == ".npy":
        np.save(path, X)
        return path
    table = pa.table({f"x{i}": X[:, i] for i in range(n)})
    if kind == ".csv":
        pa.csv.write_csv(table, path)
    else:
        pa.parquet.write_table(table, path, row_group_size=2**22 // n, compression="zstd")
    return path


def shown(rows: list[dict[str, object]]) -> Table:
    """Show the share of the limit of every kind of file."""
    table = Table(
        title="Bulk training on Dask: rows a second, of one core's BLAS-3 limit × workers"
    )
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="left" if name == "file" else "right")
    for row in rows:
        table.add_row(
            *(f"{value:,}" if name != "file" else str(value) for name, value in row.items())
        )
    return table
