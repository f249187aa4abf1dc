"""The inbox: a thread reads the source ahead, by no more than there is room."""

from __future__ import annotations

from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import Any

from edgemerge.agent.parts import Reading, Source

ROOM = 256  # readings
LOOK_S = 0.2


class Inbox:
    """Readings from a source, to be taken with a time limit; a full inbox makes the source wait."""

    def __init__(self, source: Source, position: Any) -> None:
        """Start to read from a position on."""
        self._source, self._position = source, position
        self._queue: Queue[Reading | None] = Queue(ROOM)
        self._stop = Event()
        self.ended = False
        self.error: Exception | None = None
        self._thread = Thread(target=self._read, name="reader", daemon=True)
        self._thread.start()

    def take(self, timeout_s: float) -> Reading | None:
        """Give the next reading; None if there is none yet, or `ended` says that none will come."""
        try:
            reading = self._queue.get(timeout=timeout_s)
        except Empty:
            return None
        self.ended = reading is None
        return reading

    @property
    def skipped(self) -> int:
        """The readings that the source itself could not make sense of."""
        return int(getattr(self._source, "skipped", 0))

    def close(self) -> None:
        """Stop to read; a source that does not let go is left behind."""
        self._stop.set()
        self._thread.join(5 * LOOK_S)

    def _read(self) -> None:
        try:
            for reading in self._source.read(self._stop, self._position):
                self._put(reading)
                if self._stop.is_set():
                    return
        except Exception as error:  # noqa: BLE001 - told by the loop, in its thread
            self.error = error
        self._put(None)

    def _put(self, reading: Reading | None) -> None:
        while not self._stop.is_set():
            try:
                self._queue.put(reading, timeout=LOOK_S)
            except Full:
                continue
            return
