"""What the address of the merge page asks for; whatever makes no sense counts as not asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlencode

from edgemerge.core.contribution import Key
from edgemerge.core.errors import UnknownError

TO = ("selected", "all")
LONGEST = 200  # characters of what is searched for


class Query(Protocol):
    """Names with their values, as they stand in an address."""

    def get(self, key: str, default: str) -> str:
        """Give one value."""
        ...

    def getlist(self, key: str) -> Sequence[str]:
        """Give all values."""
        ...


@dataclass(frozen=True)
class Wanted:
    """The selection, and which part of the page is looked at."""

    sources: tuple[str, ...] = ()
    to: str = "selected"
    find: str = ""
    page: int = 1
    done: int = 0
    previewing: bool = False
    at_once: bool = False  # the matrix in the page itself, for browsers without scripts

    @classmethod
    def of(cls, query: Query) -> Wanted:
        """Read an address."""
        sources = tuple(dict.fromkeys(query.getlist("source")))
        to, only = query.get("to", ""), query.get("only", "")
        return cls(
            sources=sources,
            to=to if to in TO else TO[0],
            find=plain(query.get("find", "")),
            page=number(query.get("page", "")) or 1,
            done=number(query.get("done", "")),
            previewing=bool(sources) and to in TO and only != "matrix",
            at_once=query.get("matrix", "") == "now",
        )

    @property
    def search(self) -> str:
        """Give what leads back to this selection."""
        asked = [("source", source) for source in self.sources]
        return urlencode(asked + [("find", self.find)] * bool(self.find))


def plain(text: str) -> str:
    """Give a text to search for, without what no name can have."""
    return "".join(letter for letter in text if letter.isprintable())[:LONGEST].strip()


def number(text: str) -> int:
    """Give a number that may stand in an address; 0 if it is none.

    >>> number("12"), number("-1"), number("٣"), number("9" * 40)
    (12, 0, 0, 0)
    """
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        return 0
    return int(text)


def key_of(text: str) -> Key:
    """Read device/incarnation/pattern.

    >>> key_of("pump-1/0/full load")
    ('pump-1', 0, 'full load')
    """
    device, _, rest = text.partition("/")
    incarnation, _, pattern = rest.partition("/")
    if not (device and pattern and (number(incarnation) or incarnation == "0")):
        raise UnknownError(
            f"found {plain(text)!r}, expected device/incarnation/pattern: take it from the table"
        )
    return device, number(incarnation), pattern
