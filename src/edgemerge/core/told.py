"""What an exchange tells: sums of other devices' contributions, each with where it comes from."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from edgemerge.core.contribution import Contribution, Key
from edgemerge.core.errors import EdgemergeError, FormatError
from edgemerge.core.packing import Words
from edgemerge.core.projection import Projection
from edgemerge.core.stats import Stats


class Origin(NamedTuple):
    """Which contribution went into a sum, and at which revision."""

    device: str
    incarnation: int
    pattern: str
    revision: int

    @classmethod
    def of(cls, contribution: Contribution) -> Origin:
        """Give the origin of a contribution."""
        return cls(*contribution.key, contribution.revision)

    @property
    def key(self) -> Key:
        """Device, incarnation and pattern."""
        return self.device, self.incarnation, self.pattern


@dataclass(frozen=True, eq=False)
class Part:
    """The exact sum of some contributions, and which they are, in the order of their keys."""

    stats: Stats
    origins: tuple[Origin, ...]

    @classmethod
    def of(cls, contributions: Iterable[Contribution], projection: Projection) -> Part:
        """Add contributions up, in one place of memory."""
        notes = sorted(contributions, key=lambda note: note.key)
        stats = Stats.total(projection, (note.stats for note in notes))
        return cls(stats, tuple(map(Origin.of, notes)))

    @property
    def devices(self) -> list[str]:
        """The devices that had a part in it, in order."""
        return sorted({origin.device for origin in self.origins})

    def __repr__(self) -> str:
        """Show how much went in."""
        return f"Part({len(self.origins)} contributions, {self.stats.count:g} samples)"


@dataclass(frozen=True, eq=False)
class Told:
    """One sum of everything asked for, or one for each pattern: what to adopt.

    >>> shared = Projection(n_inputs=2, n_hidden=3)
    >>> note = Contribution("pump-3", Stats.of(shared, [[0.1, 0.2]]), revision=1)
    >>> told = Told(shared, (Part.of([note], shared),))
    >>> told.total, [part.devices for part in told.parts]
    (Stats(3 hidden, 2 outputs, 1 samples), [['pump-3']])
    """

    projection: Projection
    parts: tuple[Part, ...] = ()

    @property
    def total(self) -> Stats:
        """All parts added up: what a detector adopts."""
        return Stats.total(self.projection, (part.stats for part in self.parts))

    @property
    def contributions(self) -> list[Contribution]:
        """Each part under the name of its first origin: what a bank adopts."""
        return [
            Contribution(first.device, part.stats, first.revision, first.pattern, first.incarnation)
            for part in self.parts
            for first in part.origins[:1]
        ]

    @property
    def origins(self) -> tuple[Origin, ...]:
        """Everything that is in it, in the order of the keys."""
        return tuple(sorted(origin for part in self.parts for origin in part.origins))

    def __eq__(self, other: object) -> bool:
        """Compare bit for bit."""
        return (
            isinstance(other, Told)
            and self.projection == other.projection
            and [part.origins for part in self.parts] == [part.origins for part in other.parts]
            and all(a.stats == b.stats for a, b in zip(self.parts, other.parts, strict=True))
        )

    __hash__ = None  # type: ignore[assignment]  # holds arrays

    def __repr__(self) -> str:
        """Show how much was told."""
        parts, origins = len(self.parts), len(self.origins)
        samples = sum(part.stats.count for part in self.parts)
        return f"Told({parts} parts of {origins} contributions, {samples:g} samples)"


def told_words(told: Told) -> Words:
    """Write down where each part comes from."""
    return {f"{i}.origins": _written(part.origins) for i, part in enumerate(told.parts)}


def told_of(projection: Projection, words: Words, sums: list[Stats]) -> Told:
    """Give sums the origins that were written down."""
    parts = tuple(Part(s, _origins(words.get(f"{i}.origins", ""))) for i, s in enumerate(sums))
    if any(len(part.stats.C) != projection.n_inputs for part in parts):
        raise FormatError("found sums of another task, expected those of detectors")
    keys = [origin.key for part in parts for origin in part.origins]
    if len(set(keys)) < len(keys):
        raise FormatError("found a contribution in two sums, expected each in one")
    return Told(projection, parts)


def _written(origins: tuple[Origin, ...]) -> str:
    return json.dumps(origins, separators=(",", ":"))


def _origins(text: str) -> tuple[Origin, ...]:
    try:
        found = tuple(_origin(entry) for entry in json.loads(text))
    except (EdgemergeError, ValueError, TypeError, RecursionError) as error:
        raise FormatError(f"found origins {text[:80]!r}, expected a list of four each") from error
    if not found or list(found) != sorted(found):
        raise FormatError(
            "found origins out of order or none, expected them in order of their keys"
        )
    return found


def _origin(entry: Any) -> Origin:
    device, incarnation, pattern, revision = entry
    if not (isinstance(device, str) and isinstance(pattern, str)):
        raise FormatError("found a name that is not text")
    for number in (incarnation, revision):
        if not (type(number) is int and 0 <= number < 2**63):
            raise FormatError("found another number than a whole one from 0 to 2⁶³ − 1")
    return Origin(device, incarnation, pattern, revision)
