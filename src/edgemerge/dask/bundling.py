"""Bundles: small chunks that one task does one after the other, for a task costs milliseconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from edgemerge.bulk.listing import CHUNK_BYTES

MOST = 256  # chunks in a bundle
FAN_IN = 8  # sums that a worker adds at a time


@dataclass(frozen=True)
class Bundle:
    """Some chunks; `alone` if it is one that was tried before, with others about.

    `told` says that they were told to be done before, and what they gave was lost since.
    """

    chunks: tuple[Any, ...]
    alone: bool = False
    told: bool = False

    def __str__(self) -> str:
        """Name it for people."""
        more = f" and {len(self.chunks) - 1} more" if len(self.chunks) > 1 else ""
        return f"{self.chunks[0]}{more}"

    def apart(self, *, told: bool) -> Iterator[Bundle]:
        """Give each chunk by itself, to be tried once more."""
        told = told or self.told
        return (Bundle((chunk,), alone=True, told=told) for chunk in self.chunks)


def bundled(chunks: Iterable[Any]) -> Iterator[Bundle]:
    """Put small chunks together until they are as large as one; what has no size is by itself."""
    held: list[Any] = []
    size = 0
    for chunk in chunks:
        told = getattr(chunk, "bytes", None)
        more = told if isinstance(told, int) else CHUNK_BYTES
        if held and (size + more > CHUNK_BYTES or len(held) == MOST):
            yield Bundle(tuple(held))
            held, size = [], 0
        held.append(chunk)
        size += more
    if held:
        yield Bundle(tuple(held))
