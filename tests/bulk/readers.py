"""Ways to read a chunk that the workers of a test use: slow, stuck, or deadly ones."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np


def made_up(chunk, projection):
    """The samples of a chunk that is only a number."""
    rng = np.random.default_rng(chunk)
    yield rng.normal(0.0, 0.3, (20, projection.n_inputs))


def slow(chunk, projection):
    time.sleep(0.02)
    return made_up(chunk, projection)


def stuck_at_5(chunk, projection):
    if chunk == 5:
        time.sleep(3600)
    return made_up(chunk, projection)


def stuck(chunk, _projection):
    time.sleep(3600)
    return chunk


def napping_at_5(chunk, projection):
    if chunk == 5:
        time.sleep(2.0)
    return made_up(chunk, projection)


def deadly_at_5(chunk, projection):
    if chunk == 5:
        os.kill(os.getpid(), 9)
    return made_up(chunk, projection)


@dataclass(frozen=True)
class Small:
    """A chunk of one byte, so that several are done by one task."""

    number: int
    bytes: int = 1

    def __str__(self) -> str:
        return f"small chunk {self.number}"


def deadly_small(chunk, projection):
    return deadly_at_5(chunk.number, projection)


class DeadlyOnce:
    """Ends its worker at one chunk, the first time that it is read."""

    def __init__(self, chunk: int, mark: Path) -> None:
        self.chunk, self.mark = chunk, mark

    def __call__(self, chunk, projection):
        if chunk == self.chunk and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), 9)
        return made_up(chunk, projection)


class DeadlyAgain:
    """Reads one chunk well at first, then ends four workers with it, then reads it well again."""

    def __init__(self, chunk: int, marks: Path) -> None:
        self.chunk, self.marks = chunk, marks

    def __call__(self, chunk, projection):
        if chunk == self.chunk:
            with self.marks.open("a") as file:
                file.write("x")
            if 2 <= len(self.marks.read_text()) <= 5:
                os.kill(os.getpid(), 9)
        return made_up(chunk, projection)


def broken(_chunk, _projection):
    raise ZeroDivisionError("a bug of the user's")
