"""Which contributions an answer holds, and whether it would give a single device away.

A fleet may say that no sum is told of fewer than so many devices, the asker not counted, since it
can take its own away. What an answer leaves out counts too: it is the difference to the total.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

from edgemerge.core.errors import DeniedError
from edgemerge.exchange.protocol import Wish
from edgemerge.server.contributions import Entry
from edgemerge.server.fleets import Fleet

Groups = dict[int, list[Entry]]


def choose(wish: Wish, entries: list[Entry]) -> list[Entry]:
    """Give those that are wanted, in the order of their keys."""
    me, life = wish.device, wish.incarnation
    chosen = [  # what all wishes have in common, in one go: fleets are large
        entry
        for entry in entries
        if entry.samples > 0
        and not (entry.device == me and (life is None or entry.incarnation == life))
    ]
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


def must_be_enough(wish: Wish, entries: list[Entry], chosen: list[Entry], least: int) -> None:
    """Refuse a sum of so few devices, or so few short of the total, that it would give one away."""
    if least <= 1:
        return
    wanted = {entry.key for entry in chosen}
    left_out = (entry for entry in entries if entry.samples > 0 and entry.key not in wanted)
    for words, some in (("would be of", chosen), ("would leave out", left_out)):
        count = len(devices_in(some, wish))
        if 0 < count < least:
            raise DeniedError(
                f"this sum {words} {count} devices beside you; this fleet tells nothing about "
                f"fewer than {least}"
            )


def told_groups(wish: Wish, groups: Groups, least: int) -> Groups:
    """Leave out patterns of too few devices, and then so many that those hide among others."""
    enough = {part: len(devices_in(inside, wish)) for part, inside in groups.items()}
    told = {part: groups[part] for part in groups if not 0 < enough[part] < least}
    while told and 0 < len(_left_out(wish, groups, told)) < least:
        told.popitem()  # the smallest
    return told


def _left_out(wish: Wish, groups: Groups, told: Groups) -> set[str]:
    return devices_in((e for part in groups if part not in told for e in groups[part]), wish)


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
