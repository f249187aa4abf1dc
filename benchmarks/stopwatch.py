"""The stopwatch: runs contestants in turn, so that noise hits all, and keeps the best of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter, thread_time
from typing import NamedTuple

LEAST = 3  # rounds, however long they take


class Contestant(NamedTuple):
    """One way to do a job; a call of `run` does it `units` times."""

    job: str
    way: str
    run: Callable[[], object]
    units: int = 1


def race(contestants: Sequence[Contestant], seconds: float) -> list[float]:
    """Let all run in turn, again and again; give each one's best time for one unit, in seconds."""
    for contestant in contestants:
        contestant.run()  # warms up
    best = [float("inf")] * len(contestants)
    end, rounds = perf_counter() + seconds, 0
    while rounds < LEAST or perf_counter() < end:
        for i, contestant in enumerate(contestants):
            start = thread_time()
            contestant.run()
            best[i] = min(best[i], (thread_time() - start) / contestant.units)
        rounds += 1
    return best
