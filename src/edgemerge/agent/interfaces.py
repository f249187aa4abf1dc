"""Interfaces of an agent's exchangeable parts: readings, verdicts, sources, features and sinks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from threading import Event
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Reading:
    """What the sensors measured at one time, (k,); `position` is where to resume after it.

    The position is plain JSON, or None where a source cannot go back (standard input, MQTT). The
    names are those of the values, where the source knows them. `skipped` counts the rows before it
    that the source could not read. `arrived` is when it was read, if it has no time of its own.
    """

    values: Array
    at: float | None = None
    position: Any = None
    names: tuple[str, ...] | None = None
    skipped: int = 0
    arrived: float | None = None

    @property
    def time(self) -> float | None:
        """When it was measured, or else read."""
        return self.arrived if self.at is None else self.at


@dataclass(frozen=True)
class Verdict:
    """What the agent makes of one sample; `why` names the inputs that carry an alarm.

    `score` is None while too little is known. `alarm` says that an episode is open, `episode` is
    its number, and `level` the recent score that is held against the limit. `carried` has some
    more inputs, each with how many times its loss is what is usual for it. In an alarm `fault`
    is the name of the known fault that it is most like, and `like` says so in words, or that it is
    like none of them.
    """

    device: str
    index: int
    at: float
    score: float | None
    limit: float
    alarm: bool
    pattern: str | None = None
    why: tuple[str, ...] = ()
    carried: tuple[tuple[str, float], ...] = ()
    ready: bool = True
    level: float = 0.0
    episode: int | None = None
    fault: str | None = None
    like: str | None = None


class Source(Protocol):
    """Where readings come from.

    A source may have `skipped` (rows that it could not read), `why_skipped` (of the last one) and
    `waiting` (what it waits for, in words).
    """

    def read(self, stop: Event, position: Any = None) -> Iterator[Reading]:
        """Return readings from a position on, until there are no more or `stop` is set.

        A source that waits for more checks `stop` at least five times a second.
        """
        ...


class Features(Protocol):
    """Turns readings into samples."""

    def push(self, values: Array) -> Array | None:
        """Add a reading (k,); return a sample (n,) when one is complete."""
        ...

    def state(self) -> Any:
        """Return what `resume` needs, as plain JSON."""
        ...

    def resume(self, state: Any) -> None:
        """Restore a saved state."""
        ...


class Sink(Protocol):
    """Where verdicts go. Errors are logged and counted; they never stop detection."""

    def verdict(self, verdict: Verdict) -> None:
        """Deliver a verdict without waiting for the network."""
        ...

    def status(self, status: dict[str, Any]) -> None:
        """Deliver the status of the agent, as plain JSON."""
        ...

    def close(self) -> None:
        """Deliver what waits within a second or two, then close."""
        ...
