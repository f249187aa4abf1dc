"""When to exchange: at intervals with jitter, and after a failure sooner at first, then later."""

from __future__ import annotations

from math import inf
from random import Random

SOON_S = 2.0  # the first wait after a failure
LONGEST_S = 900.0  # the longest
GROWTH = 2.0


class Schedule:
    """A time that is due, by any clock that does not jump; jitter comes from the device's name.

    >>> schedule = Schedule(3600.0, 0.1, "pump-3")
    >>> schedule.start(now=0.0)
    >>> 0.0 <= schedule.next < 3600.0
    True
    """

    def __init__(self, every_s: float, jitter: float, device: str) -> None:
        """Be due every so often; with 0, never."""
        self._every_s, self._jitter = every_s, jitter
        self._random = Random(device)
        self._failures = 0
        self.next = inf

    def start(self, now: float) -> None:
        """Be due within the first interval, devices at different times."""
        self.next = now + self._random.random() * self._every_s if self._every_s else inf

    def due(self, now: float) -> bool:
        """Say whether it is time."""
        return now >= self.next

    def succeeded(self, now: float) -> None:
        """Be due after the next interval."""
        self._failures = 0
        spread = 1.0 + self._jitter * (2.0 * self._random.random() - 1.0)
        self.next = now + self._every_s * spread if self._every_s else inf

    def failed(self, now: float, retry_s: float | None = None, *, hopeless: bool = False) -> None:
        """Be due after a while that grows; not before `retry_s`, and late if it is hopeless."""
        longest = min(self._every_s, LONGEST_S)
        grown = SOON_S * GROWTH ** min(self._failures, 60)
        wait = longest if hopeless else min(grown, longest)
        wait *= 1.0 - 0.5 * self._random.random()
        self._failures += 1
        self.next = now + max(wait, min(retry_s or 0.0, LONGEST_S)) if self._every_s else inf
