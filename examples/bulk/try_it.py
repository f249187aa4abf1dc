"""A history in three kinds of files, summed up by two workers, one of which is killed on the way.

Run it with `make bulk`. It writes about 480 MB into a folder of its own, sums them up on a Dask
cluster on this machine, once more in this process, one file after the other, and compares.
"""

import argparse
import os
import signal
import tempfile
from collections.abc import Callable
from functools import reduce
from operator import add
from pathlib import Path
from time import monotonic

import numpy as np
import pyarrow as pa
from distributed import Client
from numpy.typing import NDArray
from pyarrow import csv, parquet
from rich.progress import Progress

from edgemerge import Detector, Projection
from edgemerge.bulk import Chunk, Part, chunks_of, part_of
from edgemerge.dask import local_client, summed_up
from edgemerge.scale.machine import peak_bytes

INPUTS = 128
ROWS = 60_000  # of a month, in one file
MONTHS = 9


def main() -> None:
    """Write, sum up twice, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="of each of nine files")
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as folder:
        for month in range(MONTHS):
            write(pump(rows, seed=month), Path(folder) / f"2026-{month + 1:02}")
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
        print(f"wrote {MONTHS} files, {size / 1e6:.0f} MB")
        compare(folder, shared=Projection(n_inputs=INPUTS, low=-6.0, high=6.0))


def compare(folder: str, shared: Projection) -> None:
    """Sum up by two workers and by this process; the digests must be equal."""
    chunks = chunks_of(folder)
    start = monotonic()
    many = by_workers(shared, chunks)
    print(f"two workers, one killed: {describe(many)}, {monotonic() - start:.1f} s")
    one = reduce(add, (part_of(shared, chunk) for chunk in chunks))
    print(f"one process, in turn:    {describe(one)}")
    if many != one:
        raise SystemExit("NOT EQUAL: this is a bug, or a fault of the machine")
    print("equal to the last bit")
    detector = Detector.resume(many.stats)
    usual, odd = pump(500, seed=99), pump(500, seed=99) + np.linspace(0.0, 3.0, INPUTS)
    scores = (f"{detector.score(X).mean():.1f}" for X in (usual, odd))
    print("mean score of fresh samples {}, of odd ones {}".format(*scores))


def by_workers(shared: Projection, chunks: list[Chunk]) -> Part:
    """Sum up on a cluster of this machine, and kill a worker on the way."""
    with Progress(transient=True) as bar, local_client(workers=2) as client:
        task = bar.add_task("Summing up", total=sum(chunk.bytes for chunk in chunks))
        before = memory(client)
        kill_one = once(lambda: os.kill(min(client.run(os.getpid).values()), signal.SIGKILL))

        def advance(chunk: Chunk) -> None:
            bar.advance(task, chunk.bytes)
            kill_one()

        part = summed_up(client, shared, chunks, advance=advance)
        peak = memory(client)
    print(f"memory of a worker: {before:.0f} MB before, {peak:.0f} MB at most")
    return part


def memory(client: Client) -> float:
    """Return the most that any worker has had so far, in MB."""
    found = client.run(peak_bytes, on_error="ignore")  # one may be dead just now
    return max((peak for _, peak in found.values()), default=0) / 1e6


def once(act: Callable[[], None]) -> Callable[[], None]:
    """Return a function that acts the first time it is called."""
    left = [act]
    return lambda: left.pop()() if left else None


def describe(part: Part) -> str:
    """Return what is in a part, and the start of its digest."""
    return f"{part.stats.count:,.0f} samples in {part.chunks} chunks, {part.stats.digest[:16]}"


def pump(rows: int, seed: int) -> NDArray[np.float32]:
    """Make up a vibration spectrum every few seconds: a few causes behind many inputs."""
    mixing = np.random.default_rng(7).normal(0.0, 0.5, (6, INPUTS))
    rng = np.random.default_rng([7, seed])
    noise = rng.normal(0.0, 0.1, (rows, INPUTS))
    return (rng.normal(size=(rows, 6)) @ mixing + noise).astype(np.float32)


def write(X: NDArray[np.float32], path: Path) -> None:
    """Write a month: as CSV, .npy or Parquet, in turn."""
    kind = int(path.name[-2:]) % 3
    if kind == 0:
        np.save(path.with_suffix(".npy"), X)
        return
    table = pa.table(list(X.T), names=[f"bin-{i}" for i in range(INPUTS)])
    if kind == 1:
        csv.write_csv(table, path.with_suffix(".csv"))
    else:
        parquet.write_table(table, path.with_suffix(".parquet"), row_group_size=20_000)


if __name__ == "__main__":
    main()
