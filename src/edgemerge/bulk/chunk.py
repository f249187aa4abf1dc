"""A chunk: a stretch of a file that one worker reads and sums up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Unit = Literal["bytes", "rows", "row groups"]


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Which part of which file, `start` up to `stop`; small enough to be sent about.

    Lines of a CSV belong to the chunk in which they begin. `bytes` says how large it is, for
    showing how far the work has come. Without `columns` all are read, or those that the
    projection names.

    >>> print(Chunk(path="pump.npy", unit="rows", start=0, stop=5000, bytes=40000))
    pump.npy, rows 0 to 5,000
    """

    path: str
    unit: Unit
    start: int
    stop: int
    bytes: int
    columns: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Name it for people."""
        return f"{self.path}, {self.unit} {self.start:,} to {self.stop:,}"
