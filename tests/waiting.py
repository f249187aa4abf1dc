"""Waiting for what other threads and processes do: one deadline and one loop for all tests."""

from collections.abc import Callable
from time import monotonic, sleep
from typing import Any

DEADLINE_S = 120.0  # for one thing, on a machine that is very busy; a test has 300 s in all


def until(found: Callable[..., Any], what: str = "it", deadline_s: float = DEADLINE_S) -> Any:
    """Wait until something is true, and return it."""
    end = monotonic() + deadline_s
    while not (result := found()):
        assert monotonic() < end, f"waited {deadline_s:g} s for {what}"
        sleep(0.01)
    return result
