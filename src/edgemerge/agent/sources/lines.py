"""Bytes as lines of bounded length, and what becomes of the bad ones."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from time import monotonic
from typing import NamedTuple

from edgemerge.agent.sources.rows import BadRow, Form, Row

LONGEST = 65536
QUIET_S = 60.0

logger = logging.getLogger(__name__)


class Line(NamedTuple):
    """A line without its end, and the offset behind it; None if it was too long to keep."""

    text: bytes | None
    end: int


class Splitter:
    r"""Cuts a stream of bytes into lines, holding at most `longest` bytes of an unfinished one.

    >>> splitter = Splitter()
    >>> list(splitter.feed(b"a,b\r\n1,")), list(splitter.feed(b"2\n"))
    ([Line(text=b'a,b', end=5)], [Line(text=b'1,2', end=9)])
    """

    def __init__(self, offset: int = 0, longest: int = LONGEST) -> None:
        """Start at an offset of the stream."""
        self._rest = bytearray()
        self._read, self._longest = offset, longest
        self._too_long = False

    def feed(self, chunk: bytes) -> Iterator[Line]:
        """Give the lines that this chunk completes."""
        for part in _cut(chunk):
            self._read += len(part)
            self._keep(part)
            if part.endswith(b"\n"):
                yield self.rest()

    def rest(self) -> Line:
        """Give what there is of the unfinished line, as if it were complete."""
        text = None if self._too_long else bytes(self._rest).rstrip(b"\r\n")
        self._rest.clear()
        self._too_long = False
        return Line(text, self._read)

    def _keep(self, part: bytes) -> None:
        if self._too_long or len(self._rest) + len(part) > self._longest + 2:
            self._too_long = True
            self._rest.clear()
        else:
            self._rest += part


def _cut(chunk: bytes) -> list[bytes]:
    """Cut after each line feed only: a carriage return alone ends no line."""
    *complete, rest = chunk.split(b"\n")
    return [*(part + b"\n" for part in complete), rest]


class Reader:
    """Reads lines as rows; what is no row is counted in `skipped` and told now and then."""

    def __init__(self, form: Form, clock: Callable[[], float] = monotonic) -> None:
        """Read lines of this form."""
        self.form = form
        self.skipped = 0
        self._clock, self._quiet_until = clock, -1e300

    def row(self, line: bytes | None) -> Row | None:
        """Give the row in a line, or None."""
        try:
            if line is None:
                raise BadRow("the line is too long")
            return self.form.row(line.decode())
        except BadRow as error:
            self.skip(str(error))
        except UnicodeDecodeError:
            self.skip("not UTF-8")
        return None

    def skip(self, why: str) -> None:
        """Count a line that is no row; say so, but not for each of many."""
        self.skipped += 1
        now = self._clock()
        if now >= self._quiet_until:
            self._quiet_until = now + QUIET_S
            values = {"why": why, "skipped": self.skipped}
            logger.warning("a row was skipped", extra={"values": values})
