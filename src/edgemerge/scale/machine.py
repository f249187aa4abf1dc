"""Measurements of this machine: peak memory of a process, memory bandwidth, sums per second."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time

import numpy as np

from edgemerge.core.stats import Stats
from edgemerge.scale.simulated_devices import SimulatedFleet

ARRAY_LENGTH = 2**22  # numbers in an array larger than the cache: 32 MB
SUM_BYTES, MAX_SUMS = 2**26, 4096  # bytes of sums to add up, and how many at most
MIN_REPEATS = 3  # however long they take
PROC_STATUS = Path("/proc/self/status")


def peak_bytes() -> tuple[int, int]:
    """Return this process's id and its peak memory; 0 where the system does not report it."""
    # getrusage would count what the process had before it was this program
    if PROC_STATUS.exists():
        lines = PROC_STATUS.read_text().splitlines()
        peak = next(line for line in lines if line.startswith("VmHWM"))
        return os.getpid(), 1024 * int(peak.split()[1])
    if sys.platform == "win32":
        return os.getpid(), 0
    import resource  # noqa: PLC0415 (not on every platform)

    unit = 1 if sys.platform == "darwin" else 1024
    return os.getpid(), unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def memory_bandwidth(seconds: float) -> float:
    """Return the bytes moved in a second by two reads and a write, the best of several.

    It is measured in one thread's CPU time, so that other processes do not count.
    """
    a, b, c = np.ones(ARRAY_LENGTH), np.ones(ARRAY_LENGTH), np.ones(ARRAY_LENGTH)
    return 3 * 8 * ARRAY_LENGTH / best_time(lambda: np.add(a, b, out=c), seconds)


def sums_per_second(fleet: SimulatedFleet, seconds: float) -> float:
    """Return how many stats are added up in a second, from memory: the best of several."""
    count = max(2, min(MAX_SUMS, SUM_BYTES // fleet.plan.stats_bytes))
    parts = [fleet.contribution(i % fleet.plan.devices, 2).stats for i in range(count)]
    return count / best_time(lambda: Stats.total(fleet.projection, parts), seconds)


def best_time(call: Callable[[], object], seconds: float) -> float:
    """Call a function repeatedly; return the shortest CPU time of one call."""
    call()  # warms up
    found, times, end = float("inf"), 0, perf_counter() + seconds
    while times < MIN_REPEATS or perf_counter() < end:
        start = process_time()
        call()
        found, times = min(found, process_time() - start), times + 1
    return max(found, 1e-9)
