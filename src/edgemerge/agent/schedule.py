"""When an exchange or a report is due: intervals, jitter, and a growing delay after failures."""

from __future__ import annotations

from math import inf
from random import Random

SYNC_FIRST_DELAY_S = 2.0  # the first wait after a failure
SYNC_MAX_DELAY_S = 900.0  # the longest
SYNC_DELAY_GROWTH = 2.0


class SyncSchedule:
    """A time that is due, by any clock that does not jump; jitter comes from the device's name.

    >>> schedule = SyncSchedule(3600.0, 0.1, "pump-3")
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
        longest = min(self._every_s, SYNC_MAX_DELAY_S)
        grown = SYNC_FIRST_DELAY_S * SYNC_DELAY_GROWTH ** min(self._failures, 60)
        wait = longest if hopeless else min(grown, longest)
        wait *= 1.0 - 0.5 * self._random.random()
        self._failures += 1
        self.next = now + max(wait, min(retry_s or 0.0, SYNC_MAX_DELAY_S)) if self._every_s else inf


REPORT_MIN_GAP_S = 1.0  # from one report to the next, however urgent it is
REPORT_FIRST_DELAY_S, REPORT_MAX_DELAY_S = (
    1.0,
    60.0,
)  # the first wait after a failure, and the longest
MAX_RETRY_AFTER_S = 3600.0


class ReportSchedule:
    """A time that is due, by a clock that does not jump; jitter comes from the device's name.

    >>> rhythm = ReportSchedule(1.0, "pump-3")
    >>> rhythm.begun(now=100.0)
    >>> rhythm.succeeded(now=100.1, every_s=5.0)
    >>> rhythm.due(104.9), rhythm.due(105.0)
    (False, True)
    """

    def __init__(self, every_s: float, device: str) -> None:
        """Be due at once, and then every so often, or as seldom as the server wishes."""
        self._own_s = self._every_s = every_s
        self._random = Random(device)
        self._begun, self._next = -inf, -inf
        self._urgent = False
        self.failures = 0

    @property
    def every_s(self) -> float:
        """The time from one report to the next, as things are."""
        return max(self._every_s, self._late_s() if self.failures else 0.0)

    def due(self, now: float) -> bool:
        """Say whether it is time."""
        hurry = self._urgent and not self.failures and now >= self._begun + REPORT_MIN_GAP_S
        return hurry or now >= self._next

    def mark_urgent(self) -> None:
        """Be due as soon as may be; while nobody answers, that makes no difference."""
        self._urgent = True

    def begun(self, now: float) -> None:
        """Take note that a report is on its way."""
        self._begun, self._urgent = now, False

    def succeeded(self, now: float, every_s: float | None) -> None:
        """Be due after the next interval: our own, or a longer one that the server asks for."""
        self.failures = 0
        self._every_s = max(self._own_s, every_s or 0.0)
        self._next = max(self._begun + self._every_s, now)

    def failed(self, now: float, retry_s: float | None = None) -> None:
        """Be due after a while that doubles; not before `retry_s`."""
        self.failures += 1
        wait = self.every_s * (1.0 - 0.5 * self._random.random())
        self._next = now + max(wait, min(retry_s or 0.0, MAX_RETRY_AFTER_S))

    def pause(self, now: float, wait_s: float) -> None:
        """Be due after that time: trying sooner is of no use."""
        self.failures += 1
        self._next = now + wait_s

    def _late_s(self) -> float:
        return min(REPORT_FIRST_DELAY_S * 2.0 ** min(self.failures, 60), REPORT_MAX_DELAY_S)
