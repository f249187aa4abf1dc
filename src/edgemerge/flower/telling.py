"""Telling: each device is told the sum of the others, without its own, to the last bit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from edgemerge.core.ledger import Ledger
from edgemerge.core.told import Part, Told
from edgemerge.exchange.protocol import Wish
from edgemerge.flower.collecting import Answer, Origin


def tellings(ledger: Ledger, answers: Iterable[Answer]) -> Iterator[tuple[Answer, Told]]:
    """Say for each answer what to tell: one sum for a detector, one for each pattern for a bank.

    The sum of the others is the sum of all less one's own: sums are exact, so that this is the
    same as adding the others up, in a time that grows with the devices and not with their square.
    """
    notes = [note for note in ledger if note.stats.count]
    whole = Part.of(notes, ledger.projection)
    for answer in answers:
        if answer.grouped:
            wish = Wish(device=answer.device, incarnation=answer.incarnation, grouped=True)
            yield answer, wish.of(notes, ledger.projection)
        else:
            mine = [note for note in answer.notes if note.stats.count]
            own = Part.of(mine, ledger.projection)
            yield answer, _without(whole, own, answer.origin, ledger)


def _without(whole: Part, own: Part, origin: Origin, ledger: Ledger) -> Told:
    others = tuple(each for each in whole.origins if each[:2] != origin)
    parts = (Part(whole.stats - own.stats, others),) if others else ()
    return Told(ledger.projection, parts)
