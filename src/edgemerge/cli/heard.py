"""What was heard in files: contributions, ledgers, sums that an exchange told, and bare sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from edgemerge.core.admission import admit
from edgemerge.core.codec import read
from edgemerge.core.contribution import Contribution
from edgemerge.core.errors import EdgemergeError, FormatError, MismatchError, RejectedError
from edgemerge.core.ledger import Ledger
from edgemerge.core.projection import Projection
from edgemerge.core.stats import Stats
from edgemerge.core.told import Part, Told
from edgemerge.files import LIMIT, load


class Heard:
    """Everything in some files, each contribution once: of two revisions the newer stays."""

    def __init__(self, projection: Projection, without: Collection[str] = ()) -> None:
        """Start with nothing; contributions of the devices in `without` are left out."""
        self.projection, self.without = projection, set(without)
        self.ledger = Ledger(projection)
        self.parts: list[Part] = []
        self.bare: list[Stats] = []

    def take(self, path: Path) -> None:
        """Take in a file; words about what is wrong name it."""
        try:
            thing, form = opened(path)
            self._take(thing, form)
        except FormatError:  # has the path already
            raise
        except EdgemergeError as error:
            raise type(error)(f"{path}: {error}") from error

    def _take(self, thing: Any, form: str) -> None:
        match thing:
            case Contribution():
                self._put([thing], form)
            case Ledger():
                self._put(thing, form)
            case Told():
                self._fits(thing.projection)
                self._told(thing.parts)
            case Stats():
                self._fits(thing.projection)
                self.bare.append(thing)
            case _:
                raise MismatchError(
                    f"found a {type(thing).__name__.lower()}, expected a contribution or ledger: "
                    "`edgemerge share` makes contributions"
                )

    def _put(self, notes: Iterable[Contribution], form: str) -> None:
        for note in notes:
            self._fits(note.stats.projection)
            admit(note, projection=self.projection, form=form)
            if note.device not in self.without:
                self.ledger.put(note)

    def _told(self, parts: Iterable[Part]) -> None:
        for part in parts:
            mine = self.without & set(part.devices)
            if mine:
                raise RejectedError(
                    f"found a sum with {min(mine)} in it, which cannot be taken out: "
                    "ask the exchange for one without it"
                )
            self.parts.append(part)

    def _fits(self, projection: Projection) -> None:
        self.projection.must_equal(projection)

    def must_be_apart(self) -> None:
        """Refuse sums that share a contribution with another sum or file."""
        keys = [note.key for note in self.ledger]
        keys += [origin.key for part in self.parts for origin in part.origins]
        twice = {key for key, times in Counter(keys).items() if times > 1}
        if twice:
            device, incarnation, pattern = min(twice)
            raise RejectedError(
                f"found {device}/{pattern}, incarnation {incarnation}, in a sum and once more "
                "beside it, expected it once: leave one of the two files out"
            )

    @property
    def contributions(self) -> list[Contribution]:
        """What a bank adopts."""
        return [*self.ledger, *Told(self.projection, tuple(self.parts)).contributions]

    @property
    def total(self) -> Stats:
        """What a detector adopts."""
        stats = [note.stats for note in self.ledger] + [part.stats for part in self.parts]
        return Stats.total(self.projection, [*stats, *self.bare])

    @property
    def devices(self) -> list[str]:
        """The devices that are in it, in order."""
        told = (device for part in self.parts for device in part.devices)
        return sorted({*self.ledger.devices, *told})


def opened(path: Path) -> tuple[Any, str]:
    """Load a file, and say in which form its sums were written."""
    thing = load(path)
    if isinstance(thing, Contribution):
        return read(path.read_bytes(), limit=LIMIT, projection=thing.stats.projection)
    return thing, "exact"
