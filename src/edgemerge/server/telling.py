"""What a fleet tells who asks: a total, or a sum for each pattern, without the asker's own."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from time import monotonic
from typing import TypeVar

from edgemerge.core.codec import encode
from edgemerge.core.errors import AwayError
from edgemerge.core.stats import Stats
from edgemerge.core.told import Part, Told
from edgemerge.exchange.protocol import Wish
from edgemerge.server import contributions, fleets, kept, patterns
from edgemerge.server.choosing import by_part, choose, must_be_enough, tag_of, told_groups
from edgemerge.server.contributions import Entry, SumsError
from edgemerge.server.fleets import Fleet
from edgemerge.server.merges.choices import Rules, Ruling
from edgemerge.server.store.database import Database, FullError, Transaction
from edgemerge.server.store.writer import Writer

T = TypeVar("T")
KEPT = 16  # fleets, and answers, that are remembered
MANY = 16  # changes that a pull adds up by itself; above that the kept sums are brought up to date
SLICE_S = 0.25  # how long grouping may hold up writing
PATIENCE_S = 10.0  # how long a pull waits for grouping


@dataclass(frozen=True)
class Answer:
    """What is told, as bytes, and the tag that stays the same while it would be the same."""

    tag: str
    data: bytes | None


@dataclass(frozen=True)
class Snapshot:
    """A fleet's contributions at one epoch, their total, and who may be told which of them."""

    epoch: int
    entries: list[Entry]
    total: Stats
    rules: Rules


class Teller:
    """Answers pulls; an unchanged answer costs neither sums nor bytes."""

    def __init__(self, database: Database, writer: Writer) -> None:
        """Remember nothing yet."""
        self._database, self._writer = database, writer
        self.ruling = Ruling()
        self._snapshots: OrderedDict[str, Snapshot] = OrderedDict()
        self._answers: OrderedDict[str, bytes] = OrderedDict()
        self._lock = Lock()

    def total(self, name: str, wish: Wish, least: int, known: str | None) -> Answer:
        """Give the sum of what is wanted; `known` is the tag that the asker has already."""
        return self.mended(name, lambda: self._total(name, wish, least, known))

    def patterns(self, name: str, wish: Wish, least: int, known: str | None) -> Answer:
        """Give a sum for each pattern of what is wanted."""
        return self.mended(name, lambda: self._patterns(name, wish, least, known))

    def mended(self, name: str, tell: Callable[[], T]) -> T:
        """Tell; if the kept sums are damaged, they are summed up afresh from the contributions."""
        try:
            return tell()
        except SumsError as error:
            why = error
        self._writer.write(lambda tx: kept.rebuild(tx, name, why))
        return tell()

    def _total(self, name: str, wish: Wish, least: int, known: str | None) -> Answer:
        self.catch_up(name)
        with self._database.reading() as tx:
            fleet = fleets.get(tx, name)
            now = self.snapshot(tx, fleet)
            chosen = choose(wish, now.entries, now.rules)
            must_be_enough(wish, chosen, least)
            tag = tag_of(fleet, {0: chosen})
            data = self._remembered(tag, known)
            if data is None and tag != known:
                stats = kept.some(tx, fleet.projection, now.total, now.entries, chosen)
                data = self._encoded(tag, fleet, [(stats, chosen)])
        return Answer(tag, data)

    def catch_up(self, name: str) -> None:
        """Bring the kept sums up to date, if that is more than a pull can add up by the way."""
        with self._database.reading() as tx:
            some = len(contributions.behind(tx, name, MANY + 1))
        end = monotonic() + PATIENCE_S
        with suppress(FullError):  # a full disk makes pulls slow, not impossible
            while some > MANY:
                some = self._writer.write(lambda tx: kept.fold(tx, fleets.get(tx, name), MANY + 1))
                if monotonic() > end:
                    raise AwayError(f"{name} has many changes to add up: try again", retry_s=2.0)

    def _patterns(self, name: str, wish: Wish, least: int, known: str | None) -> Answer:
        self.place(name)
        return self._writer.write(lambda tx: self._grouped(tx, name, wish, least, known))

    def place(self, name: str) -> None:
        """Group what has changed, in slices that let others write in between."""
        end = monotonic() + PATIENCE_S
        while not self._writer.write(lambda tx: _place(tx, name)):
            if monotonic() > end:
                raise AwayError(f"{name} has many changes to group: try again", retry_s=5.0)

    def _grouped(
        self, tx: Transaction, name: str, wish: Wish, least: int, known: str | None
    ) -> Answer:
        fleet = fleets.get(tx, name)
        patterns.place(tx, fleet, PATIENCE_S)  # what came since; usually nothing
        entries = contributions.every(tx, name)
        chosen = choose(wish, entries, self.ruling.rules(tx, name))
        groups = told_groups(wish, by_part(chosen), least)
        tag = tag_of(fleet, groups)
        data = self._remembered(tag, known)
        if data is None and tag != known:
            sums, inside = kept.load(tx, fleet), by_part(entries)
            kept.must_add_up(sums, entries)
            data = self._encoded(
                tag,
                fleet,
                [
                    (kept.some(tx, fleet.projection, sums[part], inside[part], chosen), chosen)
                    for part, chosen in groups.items()
                ],
            )
        return Answer(tag, data)

    def snapshot(self, tx: Transaction, fleet: Fleet) -> Snapshot:
        """Give a fleet as it is now; while its epoch stays, from memory."""
        with self._lock:
            found = self._snapshots.get(fleet.fleet)
        if found is None or found.epoch != fleet.epoch:
            entries = contributions.every(tx, fleet.fleet)
            rules = self.ruling.rules(tx, fleet.fleet)
            found = Snapshot(fleet.epoch, entries, kept.total(tx, fleet, entries), rules)
            with self._lock:
                self._snapshots[fleet.fleet] = found
                while len(self._snapshots) > KEPT:
                    self._snapshots.popitem(last=False)
        return found

    def _remembered(self, tag: str, known: str | None) -> bytes | None:
        with self._lock:
            return None if tag == known else self._answers.get(tag)

    def _encoded(self, tag: str, fleet: Fleet, sums: list[tuple[Stats, list[Entry]]]) -> bytes:
        parts = (
            Part(stats, tuple(entry.origin for entry in chosen)) for stats, chosen in sums if chosen
        )
        data = encode(Told(fleet.projection, tuple(parts)))
        with self._lock:
            self._answers[tag] = data
            while len(self._answers) > KEPT:
                self._answers.popitem(last=False)
        return data


def _place(tx: Transaction, name: str) -> bool:
    return patterns.place(tx, fleets.get(tx, name), SLICE_S)
