"""Readings at a given speed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Event
from time import monotonic
from typing import Any

from edgemerge.agent.parts import Reading, Source


class Paced:
    """Another source, at most `rate_hz` readings a second; late ones are not made up for."""

    def __init__(
        self, source: Source, rate_hz: float, clock: Callable[[], float] = monotonic
    ) -> None:
        """Slow that source down."""
        self._source, self._gap_s, self._clock = source, 1.0 / rate_hz, clock

    @property
    def skipped(self) -> int:
        """The rows that the source has skipped."""
        return int(getattr(self._source, "skipped", 0))

    def read(self, stop: Event, position: Any = None) -> Iterator[Reading]:
        """Give its readings, each not before its time."""
        due = self._clock()
        for reading in self._source.read(stop, position):
            now = self._clock()
            if stop.wait(max(0.0, due - now)):
                return
            due = max(due, now) + self._gap_s
            yield reading
