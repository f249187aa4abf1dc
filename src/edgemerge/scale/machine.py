"""What this machine has: the memory that processes take, and how fast it moves and adds."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time

import numpy as np

from edgemerge.core.stats import Stats
from edgemerge.scale.simulated_devices import SimulatedFleet

ARRAY_LENGTH = 2**22  # numbers in an array that no cache holds: 32 MB
SUM_BYTES, MAX_SUMS = 2**26, 4096  # bytes of sums to add up, and how many at most
MIN_REPEATS = 3  # repetitions, however long they take
PROC_STATUS = Path("/proc/self/status")


def peak_bytes() -> tuple[int, int]:
    """Give this process's id and the most memory that it has had; 0 where nobody tells."""
    if (
        PROC_STATUS.exists()
    ):  # getrusage would count what the process had before it was this program
        line = next(
            line for line in PROC_STATUS.read_text().splitlines() if line.startswith("VmHWM")
        )
        return os.getpid(), 1024 * int(line.split()[1])
    if sys.platform == "win32":
        return os.getpid(), 0
    import resource  # noqa: PLC0415 (not on every platform)

    unit = 1 if sys.platform == "darwin" else 1024
    return os.getpid(), unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def memory_bandwidth(seconds: float) -> float:
    """Measure the bytes that memory moves in a second: two reads and a write, the best of several.

    It is one thread's CPU time, so that neighbours do not count.
    """
    a, b, c = np.ones(ARRAY_LENGTH), np.ones(ARRAY_LENGTH), np.ones(ARRAY_LENGTH)
    return 3 * 8 * ARRAY_LENGTH / best_time(lambda: np.add(a, b, out=c), seconds)


def sums_per_second(fleet: SimulatedFleet, seconds: float) -> float:
    """Measure how many stats are added up in a second, from memory: the best of several."""
    count = max(2, min(MAX_SUMS, SUM_BYTES // fleet.plan.stats_bytes))
    parts = [fleet.contribution(i % fleet.plan.devices, 2).stats for i in range(count)]
    return count / best_time(lambda: Stats.total(fleet.projection, parts), seconds)


def best_time(call: Callable[[], object], seconds: float) -> float:
    """Call again and again; give the shortest CPU time of one call."""
    call()  # warms up
    found, times, end = float("inf"), 0, perf_counter() + seconds
    while times < MIN_REPEATS or perf_counter() < end:
        start = process_time()
        call()
        found, times = min(found, process_time() - start), times + 1
    return max(found, 1e-9)
