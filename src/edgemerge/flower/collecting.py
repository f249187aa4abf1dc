"""Collecting: what nodes answered is opened, admitted and put into the ledger; pure functions.

An answer is all that a device has seen, in one revision: it is taken as a whole or not at all, and
a pattern that it no longer names is gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from edgemerge.core.admission import admit
from edgemerge.core.codec import read
from edgemerge.core.contribution import Contribution, must_be_name
from edgemerge.core.errors import EdgemergeError, FormatError, RejectedError
from edgemerge.core.ledger import Ledger
from edgemerge.core.parcel import LIMIT
from edgemerge.core.projection import Projection
from edgemerge.core.stats import Stats
from edgemerge.exchange.newest import must_be_newer
from edgemerge.flower.fields import Fields, must_be_ours, number, parcels, text

Origin = tuple[str, int]  # device and incarnation
Known = dict[Origin, dict[str, Contribution]]  # by pattern

IN, HELD, FAILED = "in the sum", "held back", "failed"


class Heard(NamedTuple):
    """What came of asking a node: fields, or words that say why there are none."""

    node: int
    fields: Fields = {}  # noqa: RUF012 - never changed
    problem: str = ""


class Answer(NamedTuple):
    """What a device gave, opened but not yet admitted."""

    node: int
    device: str
    incarnation: int
    revision: int
    grouped: bool
    notes: tuple[Contribution, ...]

    @property
    def origin(self) -> Origin:
        """Whose it is."""
        return self.device, self.incarnation


@dataclass(frozen=True)
class Standing:
    """What became of one node in one round."""

    node: int
    device: str  # "" if it is not known
    state: str
    words: str = ""
    samples: float = 0.0


@dataclass(frozen=True)
class Rules:
    """What an answer must be to count."""

    devices: Collection[str] | None = None  # those that may contribute; None: all
    growing: bool = False  # sums never fall: nobody forgets or moves samples between patterns
    limit: int = LIMIT  # bytes of one contribution


class Taken(NamedTuple):
    """What came of one round of asking."""

    answers: list[Answer]  # those that count
    standings: list[Standing]  # of all nodes, in their order


def take(ledger: Ledger, heard: Iterable[Heard], rules: Rules) -> Taken:
    """Put into the ledger whatever may be; say of every node what became of it.

    If a device answers from two nodes, its newest revision counts and the other is named.
    """
    opened = [_opened(each, ledger.projection, rules.limit) for each in heard]
    standings = [each for each in opened if isinstance(each, Standing)]
    answers = [each for each in opened if isinstance(each, Answer)]
    known, taken = _known(ledger), []
    for answer in sorted(answers, key=lambda a: (a.origin, -a.revision, a.node)):
        standings.append(_placed(answer, ledger, known, rules))
        if standings[-1].state == IN:
            taken.append(answer)
    return Taken(taken, sorted(standings, key=lambda standing: standing.node))


def _opened(heard: Heard, projection: Projection, limit: int) -> Answer | Standing:
    """Read what a node sent; whatever is wrong with it becomes words."""
    if heard.problem:
        return Standing(heard.node, "", FAILED, heard.problem)
    device = ""
    try:
        must_be_ours(heard.fields)
        device = text(heard.fields, "device")
        for state, name in ((FAILED, "problem"), (HELD, "held")):
            if words := text(heard.fields, name):
                return Standing(heard.node, device, state, words)
        return _answer(heard, device, projection, limit)
    except EdgemergeError as error:
        return Standing(heard.node, device, FAILED, f"not understood: {error}")


def _answer(heard: Heard, device: str, projection: Projection, limit: int) -> Answer:
    must_be_name("device", device)
    fields = heard.fields
    revision, incarnation = number(fields, "revision"), number(fields, "incarnation")
    notes = tuple(_note(data, projection, limit) for data in parcels(fields, "contributions"))
    for note in notes:
        if (note.device, note.incarnation, note.revision) != (device, incarnation, revision):
            raise FormatError(f"found {note} in the answer of {device}, revision {revision}")
    if len({note.pattern for note in notes}) < len(notes):
        raise FormatError("found a pattern twice in one answer, expected each once")
    grouped = bool(number(fields, "grouped"))
    return Answer(heard.node, device, incarnation, revision, grouped, notes)


def _note(data: bytes, projection: Projection, limit: int) -> Contribution:
    note, form = read(data, limit=limit, projection=projection)
    if not isinstance(note, Contribution) or form != "exact":
        found = f"{type(note).__name__} in the form {form}"
        raise FormatError(f"found {found}, expected a contribution in the form exact")
    return note


def _known(ledger: Ledger) -> Known:
    known: Known = {}
    for note in ledger:
        known.setdefault((note.device, note.incarnation), {})[note.pattern] = note
    return known


def _placed(answer: Answer, ledger: Ledger, known: Known, rules: Rules) -> Standing:
    last = known.get(answer.origin, {})
    notes = [*answer.notes, *_gone(answer, last, ledger.projection)]
    try:
        new = [_checked(note, last.get(note.pattern), ledger.projection, rules) for note in notes]
    except RejectedError as error:
        return Standing(answer.node, answer.device, FAILED, f"not admitted: {error}")
    for note in notes:
        ledger.put(note)
    known[answer.origin] = {note.pattern: note for note in notes}
    samples = sum(note.stats.count for note in notes)
    words = "has seen nothing yet" if not samples else "" if any(new) else "as before"
    return Standing(answer.node, answer.device, IN, words, samples)


def _gone(answer: Answer, last: dict[str, Contribution], shared: Projection) -> list[Contribution]:
    patterns = sorted(set(last) - {note.pattern for note in answer.notes})
    return [
        Contribution(
            answer.device, Stats.empty(shared), answer.revision, pattern, answer.incarnation
        )
        for pattern in patterns
    ]


def _checked(
    note: Contribution, last: Contribution | None, projection: Projection, rules: Rules
) -> bool:
    before = last if rules.growing else None
    admit(note, projection=projection, last=before, devices=rules.devices)
    return last is None or must_be_newer(note, last)
