"""What Dask workers run: sum up a bundle of chunks, add parts, sum up a collection."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import add
from typing import Any

from dask.delayed import delayed
from distributed import Worker, get_worker

from edgemerge.bulk.chunk import CHUNK_BYTES
from edgemerge.bulk.part import OnBadData, Part, Read, bad_data_choice, part_of
from edgemerge.core.errors import MismatchError, SampleError
from edgemerge.core.projection import Projection
from edgemerge.core.stats import Stats

MAX_BUNDLE = 256  # chunks
FAN_IN = 8  # sums that a worker adds at a time


@dataclass(frozen=True)
class Bundle:
    """Chunks that one task sums up.

    `alone`: a single chunk that is retried, after a bundle with it failed.
    `reported`: its progress was already reported, and its result was lost since.
    """

    chunks: tuple[Any, ...]
    alone: bool = False
    reported: bool = False

    def __str__(self) -> str:
        """Return the first chunk and how many more, for messages."""
        more = f" and {len(self.chunks) - 1} more" if len(self.chunks) > 1 else ""
        return f"{self.chunks[0]}{more}"

    def apart(self, *, reported: bool) -> Iterator[Bundle]:
        """Yield each chunk as a bundle of its own, to retry it."""
        reported = reported or self.reported
        return (Bundle((chunk,), alone=True, reported=reported) for chunk in self.chunks)


def make_bundles(chunks: Iterable[Any]) -> Iterator[Bundle]:
    """Group small chunks up to CHUNK_BYTES; a chunk without a size stays alone."""
    held: list[Any] = []
    size = 0
    for chunk in chunks:
        known = getattr(chunk, "bytes", None)
        more = known if isinstance(known, int) else CHUNK_BYTES
        if held and (size + more > CHUNK_BYTES or len(held) == MAX_BUNDLE):
            yield Bundle(tuple(held))
            held, size = [], 0
        held.append(chunk)
        size += more
    if held:
        yield Bundle(tuple(held))


@dataclass(frozen=True)
class SumTask:
    """Sum up chunks on a worker, with the client's projection and settings."""

    settings: str  # of the projection
    fingerprint: str
    bad_rows: OnBadData
    bad_chunks: OnBadData
    read: Read

    def __call__(self, bundle: Bundle) -> Part:
        """Return the part of some chunks; errors name chunk and worker."""
        projection = build_projection(self.settings)
        if projection.fingerprint != self.fingerprint:
            raise MismatchError(
                f"worker {get_worker().address}: found {projection}, expected one with "
                f"fingerprint {self.fingerprint[:8]}: install the same edgemerge on every worker"
            )
        return reduce(add, (self._part(projection, chunk) for chunk in bundle.chunks))

    def _part(self, projection: Projection, chunk: Any) -> Part:
        try:
            return part_of(projection, chunk, bad_rows=self.bad_rows, read=self.read)
        except SampleError as error:
            words = f"worker {get_worker().address}: {error}"
            if bad_data_choice("bad_chunks", self.bad_chunks) == "skip":
                return Part.without(projection, chunk, words)
            raise SampleError(words) from error


@lru_cache(maxsize=8)
def build_projection(settings: str) -> Projection:
    """Build the projection from its settings, once per process."""
    return Projection(**json.loads(settings))


def add_parts(*parts: Part) -> Part:
    """Add parts, on a worker that has some of them."""
    return reduce(add, parts)


async def exit_worker(dask_worker: Worker) -> None:
    """Exit this worker, even if a thread hangs, if a nanny restarts it."""
    if dask_worker.nanny is not None:  # else it may be the client's process
        os._exit(1)


def delayed_stats(projection: Projection, collection: Any) -> Any:
    """Return the stats of a Dask array or data frame, lazily: call `compute()` on any scheduler.

    Args:
        projection: The projection that all devices share.
        collection: A Dask array (k, n), or a data frame, of which the columns are used that the
            projection names, else all.
    """
    shared = delayed(projection)
    level = [delayed(partition_stats)(shared, each) for each in _partitions(collection)]
    while len(level) > 1:
        some = (level[i : i + FAN_IN] for i in range(0, len(level), FAN_IN))
        level = [delayed(add_stats)(shared, parts) for parts in some]
    return level[0]


def _partitions(collection: Any) -> list[Any]:
    if hasattr(collection, "rechunk"):  # an array, whose rows may be split too
        return list(collection.rechunk({1: -1}).to_delayed().ravel())
    return list(collection.to_delayed())


def partition_stats(projection: Projection, rows: Any) -> Stats:
    """Sum up one partition."""
    named = projection.names is not None and hasattr(rows, "columns")
    return Stats.of(projection, rows[list(projection.names or ())] if named else rows)


def add_stats(projection: Projection, parts: Iterable[Stats]) -> Stats:
    """Add stats."""
    return Stats.total(projection, parts)
