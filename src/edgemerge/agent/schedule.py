"""When an exchange or a report is due: intervals, jitter, and a growing delay after failures."""

from __future__ import annotations

from math import inf
from random import Random

from edgemerge.core.errors import DeniedError, EdgemergeError, UnknownError
from edgemerge.daemon import Backoff

SYNC_FIRST_DELAY_S, SYNC_MAX_DELAY_S = 2.0, 900.0  # after a failed exchange
REPORT_FIRST_DELAY_S, REPORT_MAX_DELAY_S = 2.0, 60.0  # after a failed report
REPORT_MIN_GAP_S = 1.0  # between two reports, however urgent
LASTING_ERROR_DELAYS_S: dict[type[EdgemergeError], float] = {  # a retry soon is useless
    DeniedError: 600.0,
    UnknownError: 3600.0,  # an older server without this route
}


def error_kind(error: EdgemergeError) -> type[EdgemergeError]:
    """Return the class of an error that lasts; `EdgemergeError` for all others."""
    kinds = (kind for kind in LASTING_ERROR_DELAYS_S if isinstance(error, kind))
    return next(kinds, EdgemergeError)


class SyncSchedule:
    """When the next exchange is due, by a monotonic clock; the device's name seeds the jitter.

    >>> schedule = SyncSchedule(3600.0, 0.1, "pump-3")
    >>> schedule.start(now=0.0)
    >>> 0.0 <= schedule.next < 3600.0
    True
    """

    def __init__(self, every_s: float, jitter: float, device: str) -> None:
        """Exchange every `every_s` seconds, give or take `jitter` of that; never with 0."""
        self._every_s, self._jitter = every_s, jitter
        self._random = Random(device)
        longest_s = min(every_s, SYNC_MAX_DELAY_S)
        self._backoff = Backoff(SYNC_FIRST_DELAY_S, longest_s, self._random, SYNC_MAX_DELAY_S)
        self.next = inf

    def start(self, now: float) -> None:
        """Be due at a random time within the first interval."""
        self._wait(now, self._random.random() * self._every_s)

    def due(self, now: float) -> bool:
        """Return whether it is time."""
        return now >= self.next

    def succeeded(self, now: float) -> None:
        """Be due after the next interval."""
        self._backoff.reset()
        spread = 1.0 + self._jitter * (2.0 * self._random.random() - 1.0)
        self._wait(now, self._every_s * spread)

    def failed(self, now: float, retry_s: float | None = None, *, hopeless: bool = False) -> None:
        """Be due after a growing delay, not before `retry_s`; after the longest if hopeless."""
        at_least_s = self._backoff.max_s if hopeless else 0.0
        self._wait(now, self._backoff.next(at_least_s=at_least_s, retry_after_s=retry_s))

    def _wait(self, now: float, wait_s: float) -> None:
        self.next = now + wait_s if self._every_s else inf


class ReportSchedule:
    """When the next report is due, by a monotonic clock; the device's name seeds the jitter.

    >>> schedule = ReportSchedule(1.0, "pump-3")
    >>> schedule.begun(now=100.0)
    >>> schedule.succeeded(now=100.1, every_s=5.0)
    >>> schedule.due(104.9), schedule.due(105.0)
    (False, True)
    """

    def __init__(self, every_s: float, device: str) -> None:
        """Be due at once, then every `every_s` seconds, or less often if the server asks."""
        self._own_s = self._every_s = every_s
        self._backoff = Backoff(REPORT_FIRST_DELAY_S, REPORT_MAX_DELAY_S, Random(device))
        self._begun, self._next = -inf, -inf
        self._urgent = False

    @property
    def failures(self) -> int:
        """The failures since the last success."""
        return self._backoff.failures

    @property
    def every_s(self) -> float:
        """The current time from one report to the next; longer after failures."""
        return max(self._every_s, self._backoff.delay_s)

    def due(self, now: float) -> bool:
        """Return whether it is time."""
        hurry = self._urgent and not self.failures and now >= self._begun + REPORT_MIN_GAP_S
        return hurry or now >= self._next

    def mark_urgent(self) -> None:
        """Be due as soon as allowed; after a failure this changes nothing."""
        self._urgent = True

    def begun(self, now: float) -> None:
        """Record that a report is being sent."""
        self._begun, self._urgent = now, False

    def succeeded(self, now: float, every_s: float | None) -> None:
        """Be due after the next interval: our own, or the server's if that is longer."""
        self._backoff.reset()
        self._every_s = max(self._own_s, every_s or 0.0)
        self._next = max(self._begun + self._every_s, now)

    def failed(self, now: float, retry_s: float | None = None) -> None:
        """Be due after a growing delay, not before `retry_s`."""
        self._next = now + self._backoff.next(at_least_s=self._every_s, retry_after_s=retry_s)

    def pause(self, now: float, wait_s: float) -> None:
        """Be due after `wait_s`: the error will last."""
        self._backoff.failures += 1
        self._next = now + wait_s
