"""The ledger: contributions, which is newest, which to merge, and what merging gives.

A `Contribution` is stats with device, incarnation, pattern and revision. The `Ledger` keeps the
newest of each key. A `Selection` says which contributions to merge; selections combine with `&`,
`|`, `~` and `then`. `Merged` is the sum of several contributions with the origin of each.

>>> rule = everyone(without="pump-3") & ~named("pump-9")
>>> shared = Projection(n_inputs=2, n_hidden=3)
>>> rule([Contribution(f"pump-{i}", Stats.empty(shared), 1) for i in (9, 3, 1)])
[Contribution(pump-1/normal, incarnation 0, revision 1, 0 samples)]
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from operator import attrgetter
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeVar

from edgemerge.core.errors import KindError, RejectedError, SettingError, UnknownError, must_be
from edgemerge.core.projection import Projection, as_int, as_number
from edgemerge.core.stats import Stats, outputs_of

Key = tuple[str, int, str]
Kind = Literal["normal", "fault"]
KINDS: tuple[Kind, ...] = ("normal", "fault")
Freshness = Literal["newer", "same", "stale", "contradicting"]


def must_be_name(word: str, value: str) -> None:
    """Raise SettingError unless a name has 1 to 200 printable characters."""
    must_be(value, str, f"name the {word}")
    if not (value and len(value) <= 200 and value.isprintable()):
        raise SettingError(f"found {word} {value!r}, expected 1 to 200 printable characters")


def must_be_kind_of_contribution(kind: object) -> None:
    """Raise SettingError unless there is such a kind of contributions."""
    if kind not in KINDS:
        raise SettingError(f"found kind {kind!r}, expected one of {KINDS}")


def must_count(stats: Stats) -> None:
    """Raise SettingError unless these may be sums of samples: a − b may count less than none."""
    if stats.count < 0.0:  # NaN is left to `admit`
        raise SettingError(
            f"found sums of {stats.count:g} samples, expected 0 or more: subtract only what a sum "
            "contains"
        )


@dataclass(frozen=True)
class Contribution:
    """What one device has seen of one pattern: stats with their origin.

    Args:
        device: Name of the device, 1 to 200 printable characters, unique in the fleet.
        stats: The sums of the samples that this device saw itself.
        revision: Raise it with every share: a higher revision replaces a lower one.
        pattern: Name of the pattern; "normal" (the default) for a detector that has only one.
        incarnation: 0 by default. Raise it when a device starts again without its old state.
            Contributions of both incarnations then count, since all their samples were seen.
        kind: "normal" (the default), or "fault" for samples that a person called so: `pattern` is
            then the name of the fault. A fault is never in a sum of what is normal.
        first: When the first sample of a fault came, in Unix seconds; None (the default) if that
            is not known, and for what is normal.

    Raises:
        SettingError: A name is empty or too long, a number is not in 0 to 2⁶³ − 1, or there is no
            such kind, or the sums have a count below 0.

    >>> Contribution("pump-3", Stats.empty(Projection(n_inputs=2, n_hidden=3)), revision=1)
    Contribution(pump-3/normal, incarnation 0, revision 1, 0 samples)
    """

    device: str
    stats: Stats
    revision: int
    pattern: str = "normal"
    incarnation: int = 0
    kind: Kind = "normal"
    first: float | None = None
    encoded: bytes | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the origin; `admit` checks the sums."""
        must_be_kind_of_contribution(self.kind)
        must_be(self.stats, Stats, "give the sums of its samples, such as `own` of a detector")
        if self.first is not None and not (
            self.kind == "fault" and isfinite(as_number("first", self.first, "seconds"))
        ):
            raise SettingError(f"found first={self.first}, expected seconds for a fault, else None")
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

    @property
    def samples(self) -> float:
        """The number of samples in it."""
        return self.stats.count

    @property
    def content(self) -> Stats:
        """What `Ledger.check` compares between two contributions of one revision."""
        return self.stats

    def keep_encoded(self, data: bytes) -> Self:
        """Keep the bytes that this was read from, so that `encode` returns them again.

        Args:
            data: The bytes, of the form "exact"; they are not checked.
        """
        object.__setattr__(self, "encoded", data)
        return self

    def __repr__(self) -> str:
        """Show origin and size."""
        fault = "fault, " if self.kind == "fault" else ""
        return (
            f"Contribution({self.device}/{self.pattern}, {fault}incarnation {self.incarnation}, "
            f"revision {self.revision}, {self.stats.count:g} samples)"
        )


def must_be_of_kind(contribution: Contribution, kind: Kind = "normal") -> None:
    """Raise RejectedError if a contribution is of another kind: faults are in no sum of normal.

    Everything that adds up, stores or adopts contributions calls this.

    Args:
        contribution: What is to be added, stored or adopted.
        kind: The kind that belongs there; "normal" by default.

    >>> shared = Projection(n_inputs=2, n_hidden=3)
    >>> must_be_of_kind(Contribution("pump-3", Stats.empty(shared), 1, "bearing", kind="fault"))
    Traceback (most recent call last):
    edgemerge.core.errors.RejectedError: pump-3, bearing: found fault, expected normal: ...
    """
    if contribution.kind != kind:
        raise RejectedError(
            f"{contribution.device}, {contribution.pattern}: found {contribution.kind}, expected "
            f"{kind}: faults and what is normal are shared apart, and never added up"
        )


def contributions_in(given: Any) -> list[Contribution]:
    """Return one contribution or several as a list; raise KindError for anything else.

    Args:
        given: A contribution, or a list or ledger of them, as `share` returns.
    """
    several = isinstance(given, Iterable) and not isinstance(given, Contribution)
    found = list(given) if several else [given]
    for each in found:
        if not isinstance(each, Contribution):
            raise KindError(
                f"found {type(each).__name__}, expected Merged, Stats or Contribution: give what "
                "an exchange returned, what peers share(), or the total of a ledger"
            )
    return found


class Keyed(Protocol):
    """What a `Selection` chooses among: contributions, their origins, or a server's records."""

    @property
    def key(self) -> Key:
        """Device, incarnation and pattern."""
        ...


T = TypeVar("T", bound=Keyed)
Rule = Callable[[list[Any]], Iterable[Any]]

_origin: Callable[[Any], Any] = attrgetter("key", "revision")


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which contributions to merge: a value to pull with, to total a ledger with, to combine.

    Without arguments it selects everything. `&`, `|`, `~` and `then` combine selections. The result
    has a `rule`, which works wherever contributions are at hand but cannot be sent to a server.

    Args:
        receiver: The device that will adopt the sum, whose own contributions are left out, so that
            nothing is counted twice. None leaves nothing out.
        incarnation: Leave out the receiver's own contributions of this incarnation only: what it
            saw in earlier ones comes back to it. None leaves out all of them.
        devices: Only contributions of these devices; None: of all, (): of none.
        without: No contributions of these devices; none by default.
        pattern: Only contributions of this pattern; None: of all patterns.
        largest: Only so many, those with most samples; None: no limit.
        rule: A function that chooses from a list of contributions, applied before `largest`; None
            (the default) keeps all.

    Raises:
        SettingError: `largest` is below 1.

    >>> Selection(receiver="pump-4", without=["pump-9"])
    Selection(receiver='pump-4', without=('pump-9',))
    """

    receiver: str | None = None
    incarnation: int | None = None
    devices: Collection[str] | None = None
    without: Collection[str] = ()
    pattern: str | None = None
    largest: int | None = None
    rule: Rule | None = None

    def __post_init__(self) -> None:
        """Make it hashable: collections become tuples, and one name a tuple of one."""
        for name in ("devices", "without"):
            names = getattr(self, name)
            if names is not None:
                given = (names,) if isinstance(names, str) else names
                must_be(given, Iterable, f"give the names of {name} in a list")
                object.__setattr__(self, name, tuple(given))
                for each in getattr(self, name):
                    must_be(each, str, f"give the names of {name} in a list")
        if self.rule is not None and not callable(self.rule):
            raise KindError(f"found rule={self.rule!r:.60}, expected a function that chooses")
        if self.largest is not None:
            object.__setattr__(self, "largest", _at_least_one("largest", self.largest, ", or None"))

    def __call__(self, contributions: Iterable[T]) -> list[T]:
        """Return the selected contributions in the order of their origins.

        Args:
            contributions: What to choose from, in any order.
        """
        chosen = sorted(self.matching(contributions), key=_origin)
        if self.rule is not None:
            chosen = sorted(self.rule(chosen), key=_origin)
        if self.largest is not None:
            chosen = sorted(_largest(self.largest, chosen), key=_origin)
        return chosen

    def matching(self, items: Iterable[T]) -> list[T]:
        """Return what is selected by its key, in the given order, ignoring `rule` and `largest`.

        Args:
            items: Anything with a `key`, such as contributions or origins.
        """
        devices = None if self.devices is None else frozenset(self.devices)
        without, receiver = frozenset(self.without), self.receiver

        def selected(key: Key) -> bool:
            device, incarnation, pattern = key
            return (
                not (device == receiver and self.incarnation in (None, incarnation))
                and (devices is None or device in devices)
                and device not in without
                and self.pattern in (None, pattern)
            )

        return [item for item in items if selected(item.key)]

    def __and__(self, other: Selection) -> Selection:
        """Return a selection of what both select from all."""
        return Selection(rule=partial(_both, self, other))

    def __or__(self, other: Selection) -> Selection:
        """Return a selection of what either selects."""
        return Selection(rule=partial(_either, self, other))

    def __invert__(self) -> Selection:
        """Return a selection of everything that this one leaves out."""
        return Selection(rule=partial(_neither, self))

    def then(self, other: Selection) -> Selection:
        """Return a selection of what `other` selects from this one's: `a.then(largest(3))`.

        Args:
            other: The selection to apply second.
        """
        return Selection(rule=partial(_one_after_another, self, other))

    def __repr__(self) -> str:
        """Show what it restricts."""
        found = {n: value for n, value in vars(self).items() if value != getattr(Selection, n)}
        return f"Selection({', '.join(f'{name}={value!r}' for name, value in found.items())})"


def everyone(*, without: str | Collection[str] = ()) -> Selection:
    """Select all contributions.

    Args:
        without: One device, or several, to leave out, such as the one that adopts the sum; none
            by default.

    >>> everyone(without="pump-3")
    Selection(without=('pump-3',))
    """
    return Selection(without=without)


def named(*devices: str) -> Selection:
    """Select the contributions of some devices.

    Args:
        devices: Their names; names that do not occur select nothing.

    >>> named("pump-1", "pump-3")
    Selection(devices=('pump-1', 'pump-3'))
    """
    return Selection(devices=devices)


def largest(k: int) -> Selection:
    """Select the contributions with most samples.

    Args:
        k: How many, at least 1.

    >>> largest(3)
    Selection(largest=3)
    """
    return Selection(largest=k)


def freshest(k: int, *, age: Mapping[Key, float] | None = None) -> Selection:
    """Select the newest contributions.

    Args:
        k: How many, at least 1.
        age: Age of each contribution by key, in any unit; those without one count as oldest. With
            None (the default) the highest incarnation and revision come first.

    Raises:
        SettingError: `k` is below 1.

    >>> none = Stats.empty(Projection(n_inputs=2, n_hidden=3))
    >>> given = [Contribution("pump-1", none, revision=1), Contribution("pump-3", none, revision=2)]
    >>> [each.device for each in freshest(1)(given)]
    ['pump-3']
    """
    return Selection(rule=partial(_freshest, _at_least_one("k", k), dict(age or {})))


def fitting(
    deadline_s: float,
    *,
    bytes_per_s: float,
    bytes_each: int | Mapping[Key, int],
    solve_s: float = 0,
) -> Selection:
    """Select the largest contributions that can be fetched and solved before a deadline.

    Args:
        deadline_s: Time for everything, in seconds.
        bytes_per_s: Speed of the link, in bytes a second, above 0.
        bytes_each: Size of every contribution in bytes, or of each by key.
        solve_s: Time to keep for solving the sum, in seconds; 0 (the default) keeps none.

    Raises:
        SettingError: `bytes_per_s` is not above 0, or `solve_s` is below 0.

    >>> none = Stats.empty(Projection(n_inputs=2, n_hidden=3))
    >>> given = [Contribution(f"pump-{i}", none, revision=1) for i in range(5)]
    >>> len(fitting(2.0, bytes_per_s=1000.0, bytes_each=600)(given))
    3
    """
    times = {"deadline_s": deadline_s, "bytes_per_s": bytes_per_s, "solve_s": solve_s}
    for name, value in times.items():
        as_number(name, value)
    if not (bytes_per_s > 0.0 and solve_s >= 0.0):
        raise SettingError(
            f"found bytes_per_s={bytes_per_s}, solve_s={solve_s}, expected above 0, and 0 or more"
        )
    return Selection(rule=partial(_fitting, (deadline_s - solve_s) * bytes_per_s, bytes_each))


def _at_least_one(name: str, value: Any, other: str = "") -> int:
    found = as_int(name, value)
    if found < 1:
        raise SettingError(f"found {name}={found}, expected at least 1{other}")
    return found


def _largest(k: int, items: list[Any]) -> list[Any]:
    return sorted(items, key=lambda item: (-item.samples, item.key))[:k]


def _freshest(k: int, ages: Mapping[Key, float], items: list[Any]) -> list[Any]:
    def order(item: Any) -> tuple[float, int, int]:
        return ages.get(item.key, float("inf")), -item.incarnation, -item.revision

    return sorted(items, key=order)[:k]


def _fitting(room: float, bytes_each: int | Mapping[Key, int], items: list[Any]) -> list[Any]:
    chosen = []
    for item in _largest(len(items), items):
        cost = bytes_each[item.key] if isinstance(bytes_each, Mapping) else bytes_each
        if cost <= room:
            chosen.append(item)
            room -= cost
    return chosen


def _both(one: Selection, two: Selection, items: list[Any]) -> list[Any]:
    first, second = ({_origin(item) for item in side(items)} for side in (one, two))
    return [item for item in items if _origin(item) in first & second]


def _either(one: Selection, two: Selection, items: list[Any]) -> list[Any]:
    chosen = {_origin(item) for item in [*one(items), *two(items)]}
    return [item for item in items if _origin(item) in chosen]


def _neither(one: Selection, items: list[Any]) -> list[Any]:
    chosen = {_origin(item) for item in one(items)}
    return [item for item in items if _origin(item) not in chosen]


def _one_after_another(one: Selection, two: Selection, items: list[Any]) -> list[Any]:
    return two(one(items))


class Revisioned(Protocol):
    """What `Ledger.check` compares: a `Contribution`, or a server's record of one."""

    @property
    def revision(self) -> int:
        """The number that rises with every share."""
        ...

    @property
    def content(self) -> object:
        """What must be equal (`==`) in two of the same revision: sums, or a digest."""
        ...


class Ledger:
    """The newest contribution of each device, incarnation and pattern.

    Contributions may be put in any order, and any number of times: the result is the same.

    Args:
        projection: What all devices share.
        n_outputs: Number of targets, for another target than the sample itself; None: n_inputs.
        kind: What it holds: "normal" (the default), or "fault".

    >>> shared = Projection(n_inputs=2, n_hidden=3)
    >>> ledger = Ledger(shared)
    >>> ledger.put(Contribution("pump-3", Stats.of(shared, [[0.1, 0.2]]), revision=1))
    True
    >>> ledger.put(Contribution("pump-3", Stats.of(shared, [[0.1, 0.2]]), revision=1))
    False
    >>> ledger.total()
    Stats(3 hidden, 2 outputs, 1 samples)
    """

    kind: Kind = "normal"  # of those in pickles of older versions, too

    def __init__(
        self, projection: Projection, *, n_outputs: int | None = None, kind: Kind = "normal"
    ) -> None:
        """Start empty."""
        must_be(projection, Projection, "build one that all devices share")
        must_be_kind_of_contribution(kind)
        self.projection, self.kind = projection, kind
        self.n_outputs = outputs_of(projection, n_outputs)
        self._newest: dict[Key, Contribution] = {}

    @staticmethod
    def check(new: Revisioned, known: Revisioned | None) -> Freshness:
        """Compare a contribution with the known one of its key; the higher revision wins.

        Args:
            new: What has arrived.
            known: The newest that is known under the same key, or None.

        Returns:
            "newer" if it replaces the known one, "same" if it repeats it, "stale" if its revision
            is lower, "contradicting" if it has the same revision with other content. Content is
            compared only when the revisions are equal.
        """
        if known is None or new.revision > known.revision:
            return "newer"
        if new.revision < known.revision:
            return "stale"
        return "same" if new.content == known.content else "contradicting"

    def put(self, contribution: Contribution) -> bool:
        """Keep a contribution if it is newer than the known one; return whether it was.

        Args:
            contribution: Of any device; its stats must be of this ledger's projection.

        Raises:
            RejectedError: The same revision is known with different sums, or it is of another kind.
            MismatchError: It was made with another projection.
            SettingError: Its count is below 0.
        """
        must_be(contribution, Contribution, "share() makes one from a detector")
        must_be_of_kind(contribution, self.kind)
        contribution.stats.must_be_compatible(self.projection, self.n_outputs)
        must_count(contribution.stats)
        freshness = self.check(contribution, self._newest.get(contribution.key))
        if freshness == "contradicting":
            raise RejectedError(
                f"{contribution.device} sent revision {contribution.revision} of "
                f"{contribution.pattern} twice with different numbers: "
                "raise the revision with every share"
            )
        if freshness == "newer":
            self._newest[contribution.key] = contribution
        return freshness == "newer"

    def get(self, key: Key) -> Contribution | None:
        """Return the newest contribution of a key, or None.

        Args:
            key: Device, incarnation and pattern.
        """
        return self._newest.get(key)

    def merge(self, other: Ledger) -> None:
        """Put every contribution of another ledger.

        Args:
            other: A ledger of the same projection.
        """
        for contribution in other:
            self.put(contribution)

    def drop(self, device: str) -> None:
        """Remove all contributions of a device.

        Args:
            device: Its name.

        Raises:
            UnknownError: There is none.
        """
        keys = [key for key in self._newest if key[0] == device]
        if not keys:
            raise UnknownError(f"no contribution of {device!r}; known: {self.devices}")
        for key in keys:
            del self._newest[key]

    def total(
        self,
        selection: Selection | None = None,
        *,
        without: str | Collection[str] = (),
        devices: str | Collection[str] | None = None,
        pattern: str | None = None,
    ) -> Stats:
        """Sum up the contributions, all or some of them.

        Args:
            selection: Which contributions; None: all. The other arguments restrict it further.
            without: One device, or several, to leave out; none by default.
            devices: One device, or several, to sum up; None: all.
            pattern: The pattern to sum up; None: all.

        Raises:
            UnknownError: A named device has no contribution.
        """
        more = Selection(devices=devices, without=without, pattern=pattern)
        first = Selection() if selection is None else selection
        must_be(first, Selection, "name devices as in total(devices=...) or total(without=...)")
        unknown = {*(first.devices or ()), *(more.devices or ())} - set(self.devices)
        if unknown:
            raise UnknownError(f"no contribution of {sorted(unknown)}; known: {self.devices}")
        chosen = (contribution.stats for contribution in more(first(self)))
        return Stats.total(self.projection, chosen, n_outputs=self.n_outputs)

    @property
    def devices(self) -> list[str]:
        """The names of all devices, sorted."""
        return sorted({key[0] for key in self._newest})

    def __iter__(self) -> Iterator[Contribution]:
        """Iterate over the contributions in the order of their keys."""
        return (self._newest[key] for key in sorted(self._newest))

    def __len__(self) -> int:
        """Count the contributions."""
        return len(self._newest)

    def __repr__(self) -> str:
        """Show its size."""
        samples = sum(c.stats.count for c in self)
        return (
            f"Ledger({len(self.devices)} devices, {len(self)} contributions, {samples:g} samples)"
        )


class Origin(NamedTuple):
    """Which contribution is in a sum, and at which revision."""

    device: str
    incarnation: int
    pattern: str
    revision: int

    @classmethod
    def of(cls, contribution: Contribution) -> Origin:
        """Return the origin of a contribution."""
        return cls(*contribution.key, contribution.revision)

    @property
    def key(self) -> Key:
        """Device, incarnation and pattern."""
        return self.device, self.incarnation, self.pattern


@dataclass(frozen=True, eq=False)
class MergedPart:
    """The exact sum of some contributions.

    Args:
        stats: The sum.
        origins: The contributions in it, in the order of their keys.

    >>> shared = Projection(n_inputs=2, n_hidden=3)
    >>> seen = Stats.of(shared, [[0.1, 0.2]])
    >>> pumps = [Contribution(f"pump-{i}", seen, revision=1) for i in (3, 1)]
    >>> part = MergedPart.of(pumps, shared)
    >>> part.devices, part.stats == seen + seen
    (['pump-1', 'pump-3'], True)
    """

    stats: Stats
    origins: tuple[Origin, ...]

    @classmethod
    def of(cls, contributions: Iterable[Contribution], projection: Projection) -> MergedPart:
        """Sum up contributions.

        Args:
            contributions: What to sum up, in any order.
            projection: What all devices share; needed when there is no contribution.
        """
        ordered = sorted(contributions, key=lambda each: each.key)
        for each in ordered:
            must_be_of_kind(each)
        stats = Stats.total(projection, (each.stats for each in ordered))
        return cls(stats, tuple(map(Origin.of, ordered)))

    @property
    def devices(self) -> list[str]:
        """The names of the devices in it, sorted."""
        return sorted({origin.device for origin in self.origins})

    def __repr__(self) -> str:
        """Show its size."""
        return f"MergedPart({len(self.origins)} contributions, {self.stats.count:g} samples)"


MAX_PATTERNS = 16  # with samples, that a fleet takes of one device and incarnation
MAX_PARTS = 64  # patterns in one answer to a pull: a bank compares each with all of its own


@dataclass(frozen=True, eq=False)
class Merged:
    """What a pull returns and a learner adopts: one sum, or one for each pattern.

    Args:
        projection: What all devices share.
        parts: The sums with their origins: none (the default), one, or one for each pattern.

    >>> shared = Projection(n_inputs=2, n_hidden=3)
    >>> share = Contribution("pump-3", Stats.of(shared, [[0.1, 0.2]]), revision=1)
    >>> merged = Merged(shared, (MergedPart.of([share], shared),))
    >>> merged.total, merged.parts[0].devices
    (Stats(3 hidden, 2 outputs, 1 samples), ['pump-3'])
    """

    projection: Projection
    parts: tuple[MergedPart, ...] = ()
    encoded: bytes | None = field(default=None, init=False, repr=False)

    def keep_encoded(self, data: bytes) -> Self:
        """Keep the bytes that this was read from, so that `encode` returns them again.

        Args:
            data: The bytes, of the form "exact"; they are not checked.
        """
        object.__setattr__(self, "encoded", data)
        return self

    @property
    def total(self) -> Stats:
        """The sum of all parts: what a detector adopts."""
        return Stats.total(self.projection, (part.stats for part in self.parts))

    @property
    def contributions(self) -> list[Contribution]:
        """One contribution per part, named after its first origin: what a bank adopts."""
        return [
            Contribution(first.device, part.stats, first.revision, first.pattern, first.incarnation)
            for part in self.parts
            for first in part.origins[:1]
        ]

    @property
    def origins(self) -> tuple[Origin, ...]:
        """The contributions in all parts, sorted."""
        return tuple(sorted(origin for part in self.parts for origin in part.origins))

    def __eq__(self, other: object) -> bool:
        """Compare origins and sums, bit for bit."""
        return (
            isinstance(other, Merged)
            and self.projection == other.projection
            and [part.origins for part in self.parts] == [part.origins for part in other.parts]
            and all(a.stats == b.stats for a, b in zip(self.parts, other.parts, strict=True))
        )

    __hash__ = None  # type: ignore[assignment]  # holds arrays

    def __repr__(self) -> str:
        """Show its size."""
        parts, origins = len(self.parts), len(self.origins)
        samples = sum(part.stats.count for part in self.parts)
        return f"Merged({parts} parts of {origins} contributions, {samples:g} samples)"
