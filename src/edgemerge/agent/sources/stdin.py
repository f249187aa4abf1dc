"""Readings from standard input; what was read once cannot be read again."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from threading import Event
from typing import Any

from edgemerge.agent.parts import Reading
from edgemerge.agent.sources.lines import LONGEST, Reader, Splitter
from edgemerge.agent.sources.rows import Form

LOOK_S = 0.2
CHUNK = 65536


class Stdin:
    """Lines from a pipe or terminal, until it is closed."""

    def __init__(self, form: Form, *, handle: int | None = None, longest: int = LONGEST) -> None:
        """Read from file handle 0, or another."""
        self._reader = Reader(form)
        self._handle = handle
        self._longest = longest

    @property
    def skipped(self) -> int:
        """The lines that were no rows."""
        return self._reader.skipped

    def read(self, stop: Event, position: Any = None) -> Iterator[Reading]:  # noqa: ARG002 - there is no going back
        """Give readings until the input ends or `stop` is set."""
        handle = sys.stdin.fileno() if self._handle is None else self._handle
        splitter = Splitter(longest=self._longest)
        while not stop.is_set():
            if not _ready(handle):
                continue
            chunk = os.read(handle, CHUNK)
            lines = splitter.feed(chunk) if chunk else [splitter.rest()]
            for line in lines:
                row = self._reader.row(line.text)
                if row is not None:
                    yield Reading(row.values, row.at, names=row.names)
            if not chunk:
                return


def _ready(handle: int) -> bool:
    """Wait a little for input; Windows cannot wait for pipes, there the next read waits."""
    if sys.platform == "win32":
        return True
    return bool(select.select([handle], [], [], LOOK_S)[0])
