"""Events: what a bank tells about its patterns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["new", "split", "moved", "gone", "joined", "retired"]


@dataclass(frozen=True)
class Event:
    """Something happened to a pattern, at a time counted in samples.

    new: samples that nothing explained turned out to be a pattern. split: it was parted in two,
    `other` is the new part. moved: recent samples lie elsewhere than what was learnt. gone: it
    has not been seen for long. joined: `other` was added into it. retired: it made room.
    """

    kind: Kind
    pattern: str
    at: int
    other: str = ""
