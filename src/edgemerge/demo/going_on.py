"""After the demo: the devices go on, with something odd now and then, so that the page lives.

Nobody learns any more: what is odd would become usual in the course of an afternoon.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgemerge.demo.fleet import Fleet
from edgemerge.demo.material import Material

Array = NDArray[np.float64]

EACH_S = 0.5  # as long as the windows of the pumps
CALM = (30, 90)  # samples between two faults
ODD = (10, 24)  # samples of a fault
KEPT = 1000  # scores that are remembered of each agent
ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


def go_on(fleet: Fleet, material: Material, *, seed: int, stop: Event) -> None:
    """Feed every agent about two samples a second, until it is time to stop."""
    for rows in readings(material, np.random.default_rng(seed)):
        for device, agent in fleet.agents.items():
            agent.feed(rows[device])
            del agent.scores[:-KEPT]
        if stop.wait(EACH_S):
            return


def readings(material: Material, rng: np.random.Generator) -> Iterator[dict[str, Array]]:
    """Give one row for each device, (1, n), for ever: mostly normal, at times one device odd."""
    parts = {
        kind: np.array_split(rows, len(material.normal)) for kind, rows in material.odd.items()
    }
    while True:
        for _ in range(rng.integers(*CALM)):
            yield _normal(material, rng)
        sick, kind = rng.integers(len(material.normal)), str(rng.choice(list(parts)))
        for _ in range(rng.integers(*ODD)):
            yield _normal(material, rng) | {
                list(material.normal)[sick]: _any(parts[kind][sick], rng)
            }


def _normal(material: Material, rng: np.random.Generator) -> dict[str, Array]:
    return {device: _any(rows, rng) for device, rows in material.normal.items()}


def _any(rows: Array, rng: np.random.Generator) -> Array:
    return rows[[rng.integers(len(rows))]]


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let a closed terminal, or whoever ends this program, end it as Ctrl-C does."""

    def interrupt(_number: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
