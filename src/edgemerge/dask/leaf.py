"""What a worker does: sum up a bundle of chunks, or add some parts."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import add
from typing import Any, Literal

from distributed import Worker, get_worker

from edgemerge.bulk.part import BadRows, Part, Read, part_of
from edgemerge.core.errors import MismatchError, SampleError
from edgemerge.core.projection import Projection
from edgemerge.dask.bundling import Bundle

BadChunks = Literal["refuse", "leave out"]


@dataclass(frozen=True)
class Leaf:
    """Sums up chunks on a worker, as the one who asks for it would have done."""

    settings: str  # of the projection
    fingerprint: str
    bad_rows: BadRows
    bad_chunks: BadChunks
    read: Read

    def __call__(self, bundle: Bundle) -> Part:
        """Give the part of some chunks; an error names chunk and worker."""
        projection = built(self.settings)
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
            if self.bad_chunks == "leave out":
                return Part.without(projection, chunk, words)
            raise SampleError(words) from error


@lru_cache(maxsize=8)
def built(settings: str) -> Projection:
    """Build the projection that the settings describe, once in each process."""
    return Projection(**json.loads(settings))


def added(*parts: Part) -> Part:
    """Add parts, on a worker that has some of them already."""
    return reduce(add, parts)


async def end(dask_worker: Worker) -> None:
    """End this worker, though a thread of it hangs, if it has a nanny who starts another."""
    if dask_worker.nanny is not None:  # else this may be the process of the one who asks
        os._exit(1)
