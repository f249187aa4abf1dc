"""The ledger: contributions, which is newest, which to merge, and what merging gives.

A `Contribution` is stats with device, incarnation, pattern and revision. The `Ledger` keeps the
newest of each key. A `Selection` chooses among contributions; selections combine with `&`, `|`, `~`
and `then`. `Merged` is the sum of several contributions with the origin of each.

>>> rule = everyone(without="pump-3") & ~named("pump-9")
>>> shared = Projection(n_inputs=2, n_hidden=3)
>>> notes = [Contribution(f"pump-{i}", Stats.empty(shared), 1) for i in (9, 3, 1)]
>>> rule(notes)
[Contribution(pump-1/normal, incarnation 0, revision 1, 0 samples)]
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from edgemerge.core.errors import RejectedError, SettingError, UnknownError, must_be
from edgemerge.core.projection import Projection, as_int
from edgemerge.core.stats import Stats

Key = tuple[str, int, str]


def must_be_name(word: str, value: str) -> None:
    """Refuse a name that could not be told apart from another, or not be shown."""
    must_be(value, str, f"name the {word}")
    if not (value and len(value) <= 200 and value.isprintable()):
        raise SettingError(f"found {word} {value!r}, expected 1 to 200 printable characters")


@dataclass(frozen=True)
class Contribution:
    """What one device has seen of one pattern: stats with their origin.

    The revision rises with every share. The incarnation rises when a device starts again from
    nothing; both its old and its new samples then count, as they were all seen.
    """

    device: str
    stats: Stats
    revision: int
    pattern: str = "normal"
    incarnation: int = 0

    def __post_init__(self) -> None:
        """Refuse an origin that could not be told apart from another."""
        for word, value in (("device", self.device), ("pattern", self.pattern)):
            must_be_name(word, value)
        for word, number in (("revision", self.revision), ("incarnation", self.incarnation)):
            object.__setattr__(self, word, as_int(word, number))
            if not 0 <= number < 2**63:
                raise SettingError(f"found {word} {number}, expected 0 to 2⁶³ − 1")

    @property
    def key(self) -> Key:
        """Device, incarnation and pattern: what a newer revision replaces."""
        return self.device, self.incarnation, self.pattern

    def __repr__(self) -> str:
        """Show where it comes from and how much it holds."""
        return (
            f"Contribution({self.device}/{self.pattern}, incarnation {self.incarnation}, "
            f"revision {self.revision}, {self.stats.count:g} samples)"
        )


Notes = list[Contribution]


@dataclass(frozen=True)
class Selection:
    """A rule that chooses among contributions; what it gives is in the order of their keys."""

    choose: Callable[[Notes], Iterable[Contribution]]

    def __call__(self, contributions: Iterable[Contribution]) -> Notes:
        """Choose; the order in which they are given makes no difference."""
        notes = sorted(contributions, key=_key_and_revision)
        return sorted(self.choose(notes), key=_key_and_revision)

    def __and__(self, other: Selection) -> Selection:
        """Those that both choose, each from all."""
        return Selection(lambda notes: _among(_among(notes, self(notes)), other(notes)))

    def __or__(self, other: Selection) -> Selection:
        """Those that either chooses."""
        return Selection(lambda notes: _among(notes, [*self(notes), *other(notes)]))

    def __invert__(self) -> Selection:
        """Those that it does not choose."""
        return Selection(lambda notes: _without(notes, self(notes)))

    def then(self, other: Selection) -> Selection:
        """Those that the other chooses from what this one has left: `a.then(largest(3))`."""
        return Selection(lambda notes: other(self(notes)))


def everyone(*, without: str | Collection[str] = ()) -> Selection:
    """All, except some devices, such as oneself."""
    left_out = {without} if isinstance(without, str) else set(without)
    return Selection(lambda notes: [note for note in notes if note.device not in left_out])


def named(*devices: str) -> Selection:
    """Those of certain devices."""
    return Selection(lambda notes: [note for note in notes if note.device in devices])


def largest(k: int) -> Selection:
    """The k that hold most samples."""
    _must_be_positive(k)
    return Selection(lambda notes: sorted(notes, key=_largest_first)[:k])


def freshest(k: int, *, age: Mapping[Key, float] | None = None) -> Selection:
    """The k newest: by `age` (any unit; unknown is oldest), or without it by revision."""
    _must_be_positive(k)
    ages = age or {}

    def order(note: Contribution) -> tuple[float, int, int]:
        return ages.get(note.key, float("inf")), -note.incarnation, -note.revision

    return Selection(lambda notes: sorted(notes, key=order)[:k])


def fitting(
    deadline_s: float,
    *,
    bytes_per_s: float,
    bytes_each: int | Mapping[Key, int],
    solve_s: float = 0,
) -> Selection:
    """Those that can be fetched and solved before the deadline, largest first."""
    if not (bytes_per_s > 0.0 and solve_s >= 0.0):
        raise SettingError(
            f"found bytes_per_s={bytes_per_s}, solve_s={solve_s}, expected above 0, and 0 or more"
        )

    def choose(notes: Notes) -> Notes:
        chosen, left = [], (deadline_s - solve_s) * bytes_per_s
        for note in sorted(notes, key=_largest_first):
            cost = bytes_each if isinstance(bytes_each, int) else bytes_each[note.key]
            if cost <= left:
                chosen.append(note)
                left -= cost
        return chosen

    return Selection(choose)


def _key_and_revision(note: Contribution) -> tuple[Key, int]:
    return note.key, note.revision


def _largest_first(note: Contribution) -> tuple[float, Key]:
    return -note.stats.count, note.key


def _among(notes: Notes, chosen: Notes) -> Notes:
    kept = {_key_and_revision(note) for note in chosen}
    return [note for note in notes if _key_and_revision(note) in kept]


def _without(notes: Notes, chosen: Notes) -> Notes:
    dropped = {_key_and_revision(note) for note in chosen}
    return [note for note in notes if _key_and_revision(note) not in dropped]


def _must_be_positive(k: int) -> None:
    if k < 1:
        raise SettingError(f"found k={k}, expected at least 1")


class Ledger:
    """A replicated map: put in any order, any number of times, the newest of each key stays.

    >>> shared = Projection(n_inputs=2, n_hidden=3)
    >>> ledger = Ledger(shared)
    >>> ledger.put(Contribution("pump-3", Stats.of(shared, [[0.1, 0.2]]), revision=1))
    True
    >>> ledger.put(Contribution("pump-3", Stats.of(shared, [[0.1, 0.2]]), revision=1))
    False
    >>> ledger.total()
    Stats(3 hidden, 2 outputs, 1 samples)
    """

    def __init__(self, projection: Projection, *, n_outputs: int | None = None) -> None:
        """Start empty; `n_outputs` is for another target than the sample itself."""
        must_be(projection, Projection, "build one that all devices share")
        self.projection = projection
        self.n_outputs = projection.n_inputs if n_outputs is None else n_outputs
        self._newest: dict[Key, Contribution] = {}

    def put(self, contribution: Contribution) -> bool:
        """Keep a contribution unless it is late or repeated; say whether it was kept.

        The same revision with other numbers is refused: somebody tells two stories.
        """
        must_be(contribution, Contribution, "share() makes one from a detector")
        contribution.stats.must_be_compatible(self.projection, self.n_outputs)
        known = self._newest.get(contribution.key)
        if known and contribution.revision == known.revision and contribution.stats != known.stats:
            raise RejectedError(
                f"{contribution.device} sent revision {known.revision} of {contribution.pattern} "
                "twice with different numbers: raise the revision with every share"
            )
        if known and contribution.revision <= known.revision:
            return False
        self._newest[contribution.key] = contribution
        return True

    def merge(self, other: Ledger) -> None:
        """Take over whatever the other ledger knows better."""
        for contribution in other:
            self.put(contribution)

    def drop(self, device: str) -> None:
        """Forget a device, as if it had never been heard."""
        keys = [key for key in self._newest if key[0] == device]
        if not keys:
            raise UnknownError(f"no contribution of {device!r}; known: {self.devices}")
        for key in keys:
            del self._newest[key]

    def total(
        self,
        *,
        without: str | Collection[str] = (),
        devices: str | Collection[str] | None = None,
        pattern: str | None = None,
    ) -> Stats:
        """Sum up afresh: of all or some devices, without some, of all or one pattern."""
        left_out = {without} if isinstance(without, str) else set(without)
        wanted = {devices} if isinstance(devices, str) else set(devices or ())
        if wanted - set(self.devices):
            raise UnknownError(
                f"no contribution of {sorted(wanted - set(self.devices))}; known: {self.devices}"
            )
        chosen = (
            c.stats
            for c in self
            if c.device not in left_out
            and (devices is None or c.device in wanted)
            and pattern in (None, c.pattern)
        )
        return Stats.total(self.projection, chosen, n_outputs=self.n_outputs)

    @property
    def devices(self) -> list[str]:
        """The devices heard of, in order."""
        return sorted({key[0] for key in self._newest})

    def __iter__(self) -> Iterator[Contribution]:
        """Go through the contributions in the order of their keys: the same on every replica."""
        return (self._newest[key] for key in sorted(self._newest))

    def __len__(self) -> int:
        """Count the contributions."""
        return len(self._newest)

    def __repr__(self) -> str:
        """Show how much is in it."""
        samples = sum(c.stats.count for c in self)
        return (
            f"Ledger({len(self.devices)} devices, {len(self)} contributions, {samples:g} samples)"
        )


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
class MergedPart:
    """The exact sum of some contributions, and which they are, in the order of their keys."""

    stats: Stats
    origins: tuple[Origin, ...]

    @classmethod
    def of(cls, contributions: Iterable[Contribution], projection: Projection) -> MergedPart:
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
class Merged:
    """One sum of everything asked for, or one for each pattern: what to adopt.

    >>> shared = Projection(n_inputs=2, n_hidden=3)
    >>> note = Contribution("pump-3", Stats.of(shared, [[0.1, 0.2]]), revision=1)
    >>> told = Merged(shared, (MergedPart.of([note], shared),))
    >>> told.total, [part.devices for part in told.parts]
    (Stats(3 hidden, 2 outputs, 1 samples), [['pump-3']])
    """

    projection: Projection
    parts: tuple[MergedPart, ...] = ()

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
            isinstance(other, Merged)
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
