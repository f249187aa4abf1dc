"""Reception: who may report, and how often, decided in memory within microseconds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, inf
from threading import Lock
from time import monotonic

from edgemerge.core.errors import AwayError
from edgemerge.server.tokens import Caller, hashed

REMEMBERED_S = 10.0  # after which it is looked up again whether a token still works
MOST = 10_000  # devices that are remembered
BURST, PER_SECOND = 5.0, 2.0  # of one device
ALL_BURST, ALL_PER_SECOND = 200.0, 200.0  # of all


class OftenError(AwayError):
    """More reports than are taken; `retry_s` says when the next will be."""


@dataclass
class Bucket:
    """Room for some reports, which comes back with time."""

    burst: float
    per_second: float
    room: float
    at: float

    def take(self, now: float) -> float:
        """Use room for one; give how long it takes until there is some, 0 if there was."""
        self.room = min(self.burst, self.room + (now - self.at) * self.per_second)
        self.at = now
        if self.room < 1.0:
            return (1.0 - self.room) / self.per_second
        self.room -= 1.0
        return 0.0


class Reception:
    """Devices whose tokens were found good a moment ago, and how often each has reported."""

    def __init__(self, *, clock: Callable[[], float] = monotonic, most: int = MOST) -> None:
        """Start with nobody."""
        self._clock, self._most, self._lock = clock, most, Lock()
        self._known: OrderedDict[str, tuple[Caller, float]] = OrderedDict()
        self._buckets: OrderedDict[Caller, Bucket] = OrderedDict()
        self._all = Bucket(ALL_BURST, ALL_PER_SECOND, ALL_BURST, clock())

    def known(self, token: str) -> Caller | None:
        """Say whose token it is, if it was found good a moment ago."""
        with self._lock:
            caller, until = self._known.get(hashed(token), (None, -inf))
            return caller if self._clock() < until else None

    def remember(self, token: str, caller: Caller) -> None:
        """Remember for a moment that a token is good."""
        with self._lock:
            mark = hashed(token)
            self._known[mark] = (caller, self._clock() + REMEMBERED_S)
            self._known.move_to_end(mark)
            if len(self._known) > self._most:
                self._known.popitem(last=False)

    def forget(self, fleet: str) -> None:
        """Forget the devices of a fleet."""
        with self._lock:
            for mark in [mark for mark, (who, _) in self._known.items() if who.fleet == fleet]:
                del self._known[mark]

    def admit(self, caller: Caller) -> None:
        """Let a report of a device pass, or say when the next may."""
        with self._lock:
            now = self._clock()
            wait = self._bucket(caller, now).take(now) or self._all.take(now)
        if wait:
            raise OftenError(
                "found more reports than are taken: report as often as the last answer said",
                retry_s=float(ceil(wait)),
            )

    def _bucket(self, caller: Caller, now: float) -> Bucket:
        bucket = self._buckets.setdefault(caller, Bucket(BURST, PER_SECOND, BURST, now))
        self._buckets.move_to_end(caller)
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        return bucket
