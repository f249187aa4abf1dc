"""Collecting: what nodes answered is opened, admitted and put into the ledger; pure functions.

An answer is all that a device has seen, in one revision: it is taken as a whole or not at all, and
a pattern that it no longer names is gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
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
WORDS = 400  # characters that are shown of what a node says


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
    held: str = ""  # what is not in it yet, and why

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
        standing = _placed(answer, ledger, known, rules)
        if standing.state == IN:
            taken.append(answer)
        elif taken and taken[-1].origin == answer.origin:
            standing = _twin(standing, taken[-1].node)
        standings.append(standing)
    return Taken(taken, sorted(standings, key=lambda standing: standing.node))


def _opened(heard: Heard, projection: Projection, limit: int) -> Answer | Standing:
    """Read what a node sent; whatever is wrong with it becomes words."""
    if heard.problem:
        return Standing(heard.node, "", FAILED, shown(heard.problem))
    device = ""
    try:
        must_be_ours(heard.fields)
        device = shown(text(heard.fields, "device"))
        problem, held = (shown(text(heard.fields, name)) for name in ("problem", "held"))
        if problem or (held and not parcels(heard.fields, "contributions")):
            return Standing(heard.node, device, FAILED if problem else HELD, problem or held)
        return _answer(heard, held, projection, limit)
    except EdgemergeError as error:
        return Standing(heard.node, device, FAILED, f"not understood: {shown(str(error))}")


def shown(words: str) -> str:
    """Give what a node says in one line of bounded length, which no other line can hide in."""
    line = " ".join(words.split())
    plain = "".join(letter if letter.isprintable() else "?" for letter in line)
    half = WORDS // 2  # the reason stands at the beginning, or at the end of a traceback
    return plain if len(plain) <= WORDS else f"{plain[:half]} … {plain[-half:]}"


def _answer(heard: Heard, held: str, projection: Projection, limit: int) -> Answer:
    fields = heard.fields
    device = text(fields, "device")
    must_be_name("device", device)
    revision, incarnation = number(fields, "revision"), number(fields, "incarnation")
    notes = tuple(_note(data, projection, limit) for data in parcels(fields, "contributions"))
    for note in notes:
        if (note.device, note.incarnation, note.revision) != (device, incarnation, revision):
            raise FormatError(f"found {note} in the answer of {device}, revision {revision}")
    if len({note.pattern for note in notes}) < len(notes):
        raise FormatError("found a pattern twice in one answer, expected each once")
    grouped = bool(number(fields, "grouped"))
    return Answer(heard.node, device, incarnation, revision, grouped, notes, held)


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
        return Standing(answer.node, answer.device, FAILED, f"not admitted: {shown(str(error))}")
    for note in notes:
        ledger.put(note)
    known[answer.origin] = {note.pattern: note for note in notes}
    samples = sum(note.stats.count for note in notes)
    words = "has seen nothing yet" if not samples else "" if any(new) else "as before"
    held = f"{HELD}: {answer.held}" if answer.held else ""
    return Standing(answer.node, answer.device, IN, "; ".join(filter(None, (words, held))), samples)


def _twin(standing: Standing, node: int) -> Standing:
    advice = f"node {node} answers as {standing.device} too: give each its own `device`"
    return replace(standing, words=f"{advice}; {standing.words}")


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
