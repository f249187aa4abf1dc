"""Readings from a file, once through or for as long as it grows.

A position is the offset behind a row, with what tells whether the file is still the same one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any

from edgemerge.agent.parts import Reading
from edgemerge.agent.sources.lines import LONGEST, Line, Reader
from edgemerge.agent.sources.opened import Opened, find_rotated
from edgemerge.agent.sources.rows import Form
from edgemerge.core.errors import SettingError

LOOK_S = 0.2

logger = logging.getLogger(__name__)


class File:
    """The rows of a file, from the first or from a position to the last."""

    def __init__(self, path: Path, form: Form, *, longest: int = LONGEST) -> None:
        """Read that file."""
        self._path, self._longest = path, longest
        self._reader = Reader(form)

    @property
    def skipped(self) -> int:
        """The lines that were no rows."""
        return self._reader.skipped

    def read(self, stop: Event, position: Any = None) -> Iterator[Reading]:
        """Give readings; a file that is not the one of the position is read from its start."""
        try:
            file = Opened(self._path, self._longest)
        except OSError as error:
            raise SettingError(f"source.path {self._path}: {error.strerror}") from error
        with closing(file):
            _begin(self._reader.form, file, position)
            yield from _readings(file.lines(), file, self._reader, stop)
            yield from _readings([file.rest()], file, self._reader, stop)


class Tail:
    """The rows of a file that grows; a new file in its place, or a cut one, is begun anew.

    A row counts once its line is complete. Of a file that was moved away, what is left is read
    first; after a restart it is looked for beside the path, as path.1 and the like.
    """

    def __init__(
        self, path: Path, form: Form, *, longest: int = LONGEST, at_end: bool = False
    ) -> None:
        """Follow that file; `at_end` leaves out what is there already, if there is no position."""
        self._path, self._longest, self._at_end = path, longest, at_end
        self._reader = Reader(form)

    @property
    def skipped(self) -> int:
        """The lines that were no rows."""
        return self._reader.skipped

    def read(self, stop: Event, position: Any = None) -> Iterator[Reading]:
        """Give readings until `stop` is set, waiting for the file and for its lines."""
        at_end = self._at_end and position is None
        while not stop.is_set():
            file = self._open(position)
            if file is None:
                at_end = False  # what appears later is new, all of it
                stop.wait(LOOK_S)
                continue
            with closing(file):
                if at_end:
                    self._pass_over(file)
                yield from self._follow(file, stop)
            position, at_end = None, False
            self._reader.form.begin()

    def _open(self, position: Any) -> Opened | None:
        """Open the file of the position where it is now, or the one at the path from its start."""
        try:
            file = Opened(self._path, self._longest)
        except OSError:
            file = None
        if position is None:
            return file
        if file is None or not file.go_on(position, copied=False):
            rotated = find_rotated(self._path, position, self._longest)
            if rotated is not None and file is not None:
                file.close()
            file = rotated or file
        if file is not None:
            _begin(self._reader.form, file, position)
        return file

    def _pass_over(self, file: Opened) -> None:
        """Leave out what is there, but for the header."""
        first = next(file.lines(), None)
        if first is not None:
            self._reader.row(first.text)
        file.to_end()

    def _follow(self, file: Opened, stop: Event) -> Iterator[Reading]:
        """Give what is there and what is added, until the file is cut or another in its place."""
        moved = False
        while not stop.is_set():
            if file.is_cut():
                logger.info("the file was cut", extra={"values": {"path": self._path}})
                return
            yield from _readings(file.lines(), file, self._reader, stop)
            if moved:  # and what was still written to it before is read now
                return self._leave(file)
            moved = file.is_moved(self._path)
            if not moved:
                stop.wait(LOOK_S)

    def _leave(self, file: Opened) -> None:
        logger.info("another file is in its place", extra={"values": {"path": self._path}})
        rest = file.rest()
        if rest.text != b"":
            self._reader.skip("the last line of a file that was moved away is not complete")


def _begin(form: Form, file: Opened, position: Any) -> None:
    """Let the form know where in the file it begins."""
    if position is None:
        form.begin()
    elif file.go_on(position):
        names = position["header"]
        form.go_on(None if names is None else tuple(names))
    else:
        logger.warning("the file is another one than before: it is read from its start")
        form.begin()


def _readings(
    lines: Iterable[Line], file: Opened, reader: Reader, stop: Event
) -> Iterator[Reading]:
    for line in lines:
        row = reader.row(line.text)
        if row is not None:
            position = file.position(line.end, reader.form.header)
            yield Reading(row.values, row.at, position, row.names)
        if stop.is_set():
            return
