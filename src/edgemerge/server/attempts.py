"""Wrong attempts to sign in: a few in a minute are answered in words, more are told to wait.

A good token is looked at first and always gets in: tokens cannot be guessed, and otherwise any
stranger could keep the operators out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import ceil
from threading import Lock
from time import monotonic

from edgemerge.core.errors import AwayError

MOST = 10
WITHIN_S = 60.0


class TooManyError(AwayError):
    """More wrong attempts than are answered; `retry_s` says when another is."""


class Attempts:
    """The wrong attempts of the last minute, over all who try; any thread may call."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        """Start with none."""
        self._clock, self._lock = clock, Lock()
        self._wrong: deque[float] = deque(maxlen=MOST)

    def note_wrong(self) -> None:
        """Count a wrong attempt, or refuse to go into it."""
        with self._lock:
            now = self._clock()
            wait = self._wrong[0] + WITHIN_S - now if len(self._wrong) == MOST else 0.0
            if wait <= 0.0:
                self._wrong.append(now)
                return
        raise TooManyError(
            f"found more than {MOST} wrong attempts within a minute: try again in {ceil(wait)} s",
            retry_s=float(ceil(wait)),
        )
