"""The stopwatch: runs contestants in turn, so that noise hits all, and keeps the best of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter, process_time
from typing import Any, NamedTuple

LEAST = 3  # rounds, however long they take


class Contestant(NamedTuple):
    """One way to do a job; a call of `run` does it `units` times."""

    job: str
    way: str
    run: Callable[[], object]
    units: int = 1


def race(contestants: Sequence[Contestant], seconds: float) -> list[float]:
    """Let all run in turn, again and again; give each one's best time for one unit, in seconds.

    It is the CPU's time, of all threads together: nobody gains by taking a second core.
    """
    for contestant in contestants:
        contestant.run()  # warms up
    best = [float("inf")] * len(contestants)
    end, rounds = perf_counter() + seconds, 0
    while rounds < LEAST or perf_counter() < end:
        for i, contestant in enumerate(contestants):
            start = process_time()
            contestant.run()
            best[i] = min(best[i], (process_time() - start) / contestant.units)
        rounds += 1
    return best


def each(call: Callable[[Any], object], rows: Iterable[Any]) -> None:
    """Call with each of the rows."""
    for x in rows:
        call(x)
