"""Selection: which contributions to merge. Small rules that combine with `&`, `|`, `~`, `then`.

>>> rule = everyone(without="pump-3") & ~named("pump-9")
>>> from edgemerge.core.projection import Projection
>>> shared = Projection(n_inputs=2, n_hidden=3)
>>> notes = [Contribution(f"pump-{i}", Stats.empty(shared), 1) for i in (9, 3, 1)]
>>> rule(notes)
[Contribution(pump-1/normal, incarnation 0, revision 1, 0 samples)]
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from edgemerge.core.contribution import Contribution, Key
from edgemerge.core.errors import SettingError
from edgemerge.core.likeness import FACTOR, Profile, explains
from edgemerge.core.stats import Stats

Notes = list[Contribution]


@dataclass(frozen=True)
class Selection:
    """A rule that chooses among contributions; what it gives is in the order of their keys."""

    choose: Callable[[Notes], Iterable[Contribution]]

    def __call__(self, contributions: Iterable[Contribution]) -> Notes:
        """Choose; the order in which they are given makes no difference."""
        notes = sorted(contributions, key=_identity)
        return sorted(self.choose(notes), key=_identity)

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
    _must_be_some(k)
    return Selection(lambda notes: sorted(notes, key=_size)[:k])


def freshest(k: int, *, age: Mapping[Key, float] | None = None) -> Selection:
    """The k newest: by `age` (any unit; unknown is oldest), or without it by revision."""
    _must_be_some(k)
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
        for note in sorted(notes, key=_size):
            cost = bytes_each if isinstance(bytes_each, int) else bytes_each[note.key]
            if cost <= left:
                chosen.append(note)
                left -= cost
        return chosen

    return Selection(choose)


def explained_by(mine: Stats | Profile, *, factor: float = FACTOR) -> Selection:
    """Those whose data the readout of my sums explains; `~explained_by(mine)` are news to me."""
    me = Profile.of(mine)
    return Selection(lambda notes: [n for n in notes if explains(me, n.stats) <= factor])


def _identity(note: Contribution) -> tuple[Key, int]:
    return note.key, note.revision


def _size(note: Contribution) -> tuple[float, Key]:
    return -note.stats.count, note.key


def _among(notes: Notes, chosen: Notes) -> Notes:
    kept = {_identity(note) for note in chosen}
    return [note for note in notes if _identity(note) in kept]


def _without(notes: Notes, chosen: Notes) -> Notes:
    dropped = {_identity(note) for note in chosen}
    return [note for note in notes if _identity(note) not in dropped]


def _must_be_some(k: int) -> None:
    if k < 1:
        raise SettingError(f"found k={k}, expected at least 1")
