"""Which contributions an answer holds, and whether it would give a single device away.

A fleet may say that no sum is told of fewer than so many devices, the asker not counted, since it
can take its own away. Patterns that are left out hide among others, or they would be the difference
to the total.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

from edgemerge.core.errors import DeniedError
from edgemerge.exchange.protocol import Wish
from edgemerge.server.contributions import Entry
from edgemerge.server.fleets import Fleet
from edgemerge.server.merges.choices import Rules

Groups = dict[int, list[Entry]]


def choose(wish: Wish, entries: list[Entry], rules: Rules) -> list[Entry]:
    """Give those that are wanted and that operators let through, in the order of their keys."""
    me, life = wish.device, wish.incarnation
    chosen = [  # what all wishes have in common, in one go: fleets are large
        entry
        for entry in entries
        if entry.samples > 0
        and not (entry.device == me and (life is None or entry.incarnation == life))
    ]
    if not rules.silent(me):
        chosen = [entry for entry in chosen if rules.let(entry.key, me)]
    if wish.is_picky:
        chosen = [entry for entry in chosen if wish.wants(entry.key, entry.samples)]
    if wish.largest is not None:
        chosen = sorted(chosen, key=lambda entry: (-entry.samples, entry.key))[: wish.largest]
        chosen.sort(key=lambda entry: entry.key)
    return chosen


def by_part(entries: list[Entry]) -> Groups:
    """Sort contributions into their patterns, the largest first."""
    found: Groups = {}
    for entry in entries:
        if entry.part:
            found.setdefault(entry.part, []).append(entry)
    sizes = {part: sum(entry.samples for entry in inside) for part, inside in found.items()}
    return {part: found[part] for part in sorted(found, key=lambda part: (-sizes[part], part))}


def must_be_enough(wish: Wish, chosen: list[Entry], least: int) -> None:
    """Refuse a sum of so few devices that it would give one of them away."""
    count = len(devices_in(chosen, wish)) if least > 1 else least
    if 0 < count < least:
        raise DeniedError(
            f"this sum would be of {count} devices beside you; this fleet tells nothing about "
            f"fewer than {least}"
        )


def told_groups(wish: Wish, groups: Groups, least: int) -> Groups:
    """Leave out patterns of too few devices, and then so many that those hide among others.

    The asker's own do not matter, so asking in another way about them tells nothing new.
    """
    others = {part: [e for e in groups[part] if e.device != wish.device] for part in groups}
    count = {part: len(devices_in(others[part], wish)) for part in groups}
    size = {part: sum(entry.samples for entry in others[part]) for part in groups}
    told = sorted((part for part in groups if count[part] >= least), key=lambda p: (size[p], p))
    while told and 0 < len(_left_out(wish, others, told)) < least:
        told.pop(0)  # the smallest
    return {part: groups[part] for part in groups if part in told or not count[part]}


def _left_out(wish: Wish, others: Groups, told: list[int]) -> set[str]:
    return devices_in((e for part in others if part not in told for e in others[part]), wish)


def devices_in(entries: Iterable[Entry], wish: Wish) -> set[str]:
    """Name the devices, but not the one that asks."""
    return {entry.device for entry in entries} - {wish.device or ""}


def tag_of(fleet: Fleet, groups: Groups) -> str:
    """Give the tag of an answer: it depends on what is in it, and on nothing else."""
    words = sha256(fleet.body)
    for chosen in groups.values():
        words.update(b"/")
        words.update(" ".join([entry.mark for entry in chosen]).encode())
    return words.hexdigest()
