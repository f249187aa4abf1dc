"""Grouping: thousands of contributions come down to a handful of patterns, whatever their order.

The largest come first, and equal ones in the order of their keys: so the groups depend on what
there is, not on how it came. Each joins the group that explains it best, or starts one; at last,
groups that explain each other are joined, nearest first. Costs k·G comparisons for k contributions
in G groups, and G² at the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edgemerge.core.contribution import Contribution, Key
from edgemerge.core.likeness import FACTOR, Profile, explains
from edgemerge.core.stats import Stats


@dataclass(frozen=True, eq=False, repr=False)
class Group:
    """Contributions of one kind: their exact sum, and where it comes from."""

    members: tuple[Contribution, ...]
    stats: Stats

    @property
    def keys(self) -> tuple[Key, ...]:
        """The keys of the members, in order."""
        return tuple(member.key for member in self.members)

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that had a part in it, in order."""
        return tuple(sorted({member.device for member in self.members}))

    def __repr__(self) -> str:
        """Show how much went in."""
        return f"Group({len(self.members)} contributions, {self.stats.count:g} samples)"


def group(contributions: Iterable[Contribution], *, factor: float = FACTOR) -> list[Group]:
    """Put contributions that explain each other's data together; the largest group comes first.

    >>> from edgemerge.core.projection import Projection
    >>> shared = Projection(n_inputs=2, n_hidden=2, activation="identity")
    >>> line = [[k / 50, k / 50] for k in range(-50, 50)]
    >>> cross = [[k / 50, -k / 50] for k in range(-50, 50)]
    >>> rows = {"a": line, "b": cross[::2], "c": line[::2]}
    >>> notes = [Contribution(name, Stats.of(shared, rows[name]), 1) for name in rows]
    >>> [found.devices for found in group(notes)]
    [('a', 'c'), ('b',)]
    """
    groups: list[_Growing] = []
    for note in sorted(
        contributions, key=lambda note: (-note.stats.count, note.key, note.revision)
    ):
        if note.stats.count:
            _place(note, groups, factor)
    _join(groups, factor)
    ordered = (tuple(sorted(found.members, key=lambda note: note.key)) for found in groups)
    made = [Group(members, _total(members)) for members in ordered]
    return sorted(made, key=lambda found: (-found.stats.count, found.keys))


class _Growing:
    """A group on its way, with its profile."""

    def __init__(self, profile: Profile, members: list[Contribution]) -> None:
        self.profile, self.members = profile, members

    def with_(self, other: _Growing) -> _Growing:
        stats = self.profile.stats + other.profile.stats
        return _Growing(Profile.of(stats), self.members + other.members)

    def apart(self, other: _Growing) -> float:
        a, b = self.profile, other.profile
        return max(explains(a, b), explains(b, a))


def _place(note: Contribution, groups: list[_Growing], factor: float) -> None:
    one = _Growing(Profile.of(note.stats), [note])
    ratios = [explains(known.profile, one.profile) for known in groups]
    best = min(ratios, default=factor)
    if ratios and best <= factor:
        i = ratios.index(best)
        groups[i] = groups[i].with_(one)
    else:
        groups.append(one)


def _join(groups: list[_Growing], factor: float) -> None:
    apart = {(a, b): a.apart(b) for i, a in enumerate(groups) for b in groups[:i]}
    while apart:
        (a, b), nearest = min(apart.items(), key=lambda item: item[1])
        if nearest > factor:
            return
        apart = {pair: ratio for pair, ratio in apart.items() if not {a, b} & set(pair)}
        groups[:] = [known for known in groups if known not in (a, b)]
        both = a.with_(b)
        apart |= {(both, known): both.apart(known) for known in groups}
        groups.append(both)


def _total(members: tuple[Contribution, ...]) -> Stats:
    stats = [member.stats for member in members]
    return sum(stats[1:], start=stats[0])
