"""Remembering: what left a device, kept beside its state or for a run, as bytes and back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np

from edgemerge.core.codec import decode, encode
from edgemerge.core.errors import EdgemergeError, FormatError
from edgemerge.core.packing import pack, unpack
from edgemerge.exchange.locking import locked
from edgemerge.files import LIMIT, write
from edgemerge.flower.releasing import Mark, Past

ALONE_S = 10.0  # to wait for others that read or write the same folder
PLAIN = ("incarnation", "revision", "marks", "gate")


class Memory(Protocol):
    """Where a device keeps what left it."""

    def recall(self) -> Past:
        """Give what is remembered; the empty past if there is none."""
        ...

    def remember(self, past: Past) -> None:
        """Keep it, before anything leaves."""
        ...


class Beside:
    """Keeps it in a file beside the state, so that it survives restarts."""

    def __init__(self, state: Path) -> None:
        """Keep it under the name of the state with `.release` behind."""
        self._path = state.with_name(f"{state.name}.release")

    def recall(self) -> Past:
        """Read the file, if it is there."""
        try:
            return past_of(self._path.read_bytes())
        except FileNotFoundError:
            return Past()
        except FormatError as error:
            raise FormatError(
                f"{self._path}: {error}: remove it, and what leaves next counts as the first"
            ) from error

    def remember(self, past: Past) -> None:
        """Write the file, atomically."""
        write(to_bytes(past), self._path)


@contextmanager
def alone(path: Path | None) -> Iterator[None]:
    """Keep other runs, and whoever else locks its folder, away from a file."""
    if path is None:
        yield
        return
    with locked(path.parent, ALONE_S):
        yield


def to_bytes(past: Past) -> bytes:
    """Write all of it down."""
    plain = {name: getattr(past, name) for name in PLAIN} | {"left": list(past.left)}
    sums = {str(i): encode(stats) for i, stats in enumerate(past.left.values())}
    tensors = {name: np.frombuffer(data, np.int8) for name, data in sums.items()}
    return pack({"kind": "release", "past": json.dumps(plain)}, tensors)


def past_of(data: bytes) -> Past:
    """Read it back; anything else is a FormatError."""
    words, tensors = unpack(data, LIMIT)
    try:
        plain = json.loads(words["past"])
        left = [decode(array.tobytes(), limit=LIMIT) for array in tensors.values()]
        marks = {name: Mark(*mark) for name, mark in plain["marks"].items()}
        named = dict(zip(plain["left"], left, strict=True))
        return Past(plain["incarnation"], plain["revision"], named, marks, plain["gate"])
    except (EdgemergeError, ValueError, TypeError, KeyError) as error:
        raise FormatError(f"found no memory of releases ({error!r})") from error
