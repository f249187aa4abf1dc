"""Memory: what a process has taken at its peak, and how fast the machine reads and adds."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time

import numpy as np

from edgemerge.core.stats import Stats
from edgemerge.scale.made_up import Fleet

BIG = 2**22  # numbers in an array that no cache holds: 32 MB
ENOUGH, MOST = 2**26, 4096  # bytes of sums to add up, and how many at most
LEAST = 3  # repetitions, however long they take
STATUS = Path("/proc/self/status")


def peak_bytes() -> tuple[int, int]:
    """Give this process's id and the most memory that it has had; 0 where nobody tells."""
    if STATUS.exists():  # getrusage would count what the process had before it was this program
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return os.getpid(), 1024 * int(line.split()[1])
    if sys.platform == "win32":
        return os.getpid(), 0
    import resource  # noqa: PLC0415 (not on every platform)

    unit = 1 if sys.platform == "darwin" else 1024
    return os.getpid(), unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def bandwidth(seconds: float) -> float:
    """Measure the bytes that memory moves in a second: two reads and a write, the best of several.

    It is one thread's CPU time, so that neighbours do not count.
    """
    a, b, c = np.ones(BIG), np.ones(BIG), np.ones(BIG)
    return 3 * 8 * BIG / best(lambda: np.add(a, b, out=c), seconds)


def sums_per_second(fleet: Fleet, seconds: float) -> float:
    """Measure how many stats are added up in a second, from memory: the best of several."""
    count = max(2, min(MOST, ENOUGH // fleet.plan.stats_bytes))
    parts = [fleet.contribution(i % fleet.plan.devices, 2).stats for i in range(count)]
    return count / best(lambda: Stats.total(fleet.projection, parts), seconds)


def best(call: Callable[[], object], seconds: float) -> float:
    """Call again and again; give the shortest CPU time of one call."""
    call()  # warms up
    found, times, end = float("inf"), 0, perf_counter() + seconds
    while times < LEAST or perf_counter() < end:
        start = process_time()
        call()
        found, times = min(found, process_time() - start), times + 1
    return max(found, 1e-9)
