"""The server's logic without Flower: admit replies into the ledger, sum up for each device, report.

A reply is all that a device has seen, in one revision: it is accepted as a whole or not at all, and
a pattern that it no longer names is removed.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from edgemerge.core.errors import CapacityError, EdgemergeError, FormatError, RejectedError
from edgemerge.core.ledger import (
    Contribution,
    Ledger,
    Merged,
    MergedPart,
    Selection,
    must_be_name,
)
from edgemerge.core.projection import Projection
from edgemerge.core.stats import Stats
from edgemerge.exchange.protocol import merge
from edgemerge.exchange.stored_contributions import must_be_current
from edgemerge.files import save, write_atomically
from edgemerge.flower.fields import Fields, bytes_list_field, check_format, int_field, text_field
from edgemerge.wire.admission import admit
from edgemerge.wire.codec import MAX_BYTES, decode_with_form

Origin = tuple[str, int]  # device and incarnation
Newest = dict[Origin, dict[str, Contribution]]  # by pattern

ACCEPTED, HELD_BACK, FAILED = "in the sum", "held back", "failed"
MAX_TEXT = 400  # characters of a node's message that are shown


class NodeReply(NamedTuple):
    """What came of asking a node: fields, or words that say why there are none."""

    node: int
    fields: Fields = {}  # noqa: RUF012 - never changed
    problem: str = ""


class DeviceReply(NamedTuple):
    """What a device gave, opened but not yet admitted."""

    node: int
    device: str
    incarnation: int
    revision: int
    grouped: bool
    contributions: tuple[Contribution, ...]
    held: str = ""  # what is not in it yet, and why

    @property
    def origin(self) -> Origin:
        """Whose it is."""
        return self.device, self.incarnation


@dataclass(frozen=True)
class NodeStatus:
    """What became of one node in one round."""

    node: int
    device: str  # "" if it is not known
    state: str
    words: str = ""
    samples: float = 0.0


@dataclass(frozen=True)
class AdmissionRules:
    """What an answer must be to count."""

    devices: Collection[str] | None = None  # those that may contribute; None: all
    no_forgetting: bool = False  # refuse sums that fall: no device forgets, or has a bank
    limit: int = MAX_BYTES  # bytes of one contribution


class RoundResult(NamedTuple):
    """What came of one round of asking."""

    answers: list[DeviceReply]  # those that count
    standings: list[NodeStatus]  # of all nodes, in their order


def accept_replies(
    ledger: Ledger, heard: Iterable[NodeReply], rules: AdmissionRules
) -> RoundResult:
    """Put valid replies into the ledger; return them, and the status of every node.

    If a device answers from two nodes, its newest revision counts and the other is reported.
    """
    opened = [_read_reply(each, ledger.projection, rules.limit) for each in heard]
    standings = [each for each in opened if isinstance(each, NodeStatus)]
    answers = [each for each in opened if isinstance(each, DeviceReply)]
    known, taken = _newest_by_device(ledger), []
    for answer in sorted(answers, key=lambda a: (a.origin, -a.revision, a.node)):
        standing = _accept(answer, ledger, known, rules)
        if standing.state == ACCEPTED:
            taken.append(answer)
        elif taken and taken[-1].origin == answer.origin:
            standing = _name_duplicate(standing, taken[-1].node)
        standings.append(standing)
    return RoundResult(taken, sorted(standings, key=lambda standing: standing.node))


def _read_reply(heard: NodeReply, projection: Projection, limit: int) -> DeviceReply | NodeStatus:
    """Read what a node sent; an error becomes a status with the reason."""
    if heard.problem:
        return NodeStatus(heard.node, "", FAILED, one_safe_line(heard.problem))
    device = ""
    try:
        check_format(heard.fields)
        device = one_safe_line(text_field(heard.fields, "device"))
        problem, held = (
            one_safe_line(text_field(heard.fields, name)) for name in ("problem", "held")
        )
        if problem or (held and not bytes_list_field(heard.fields, "contributions")):
            return NodeStatus(heard.node, device, FAILED if problem else HELD_BACK, problem or held)
        return _parse_reply(heard, held, projection, limit)
    except EdgemergeError as error:
        return NodeStatus(
            heard.node, device, FAILED, f"not understood: {one_safe_line(str(error))}"
        )


def one_safe_line(words: str) -> str:
    """Return a node's text as one printable line of at most about MAX_TEXT characters."""
    line = " ".join(words.split())
    plain = "".join(letter if letter.isprintable() else "?" for letter in line)
    half = MAX_TEXT // 2  # the reason stands at the beginning, or at the end of a traceback
    return plain if len(plain) <= MAX_TEXT else f"{plain[:half]} … {plain[-half:]}"


def _parse_reply(heard: NodeReply, held: str, projection: Projection, limit: int) -> DeviceReply:
    fields = heard.fields
    device = text_field(fields, "device")
    must_be_name("device", device)
    revision, incarnation = int_field(fields, "revision"), int_field(fields, "incarnation")
    contributions = tuple(
        _parse_contribution(data, projection, limit)
        for data in bytes_list_field(fields, "contributions")
    )
    for each in contributions:
        if (each.device, each.incarnation, each.revision) != (device, incarnation, revision):
            raise FormatError(f"found {each} in the answer of {device}, revision {revision}")
    if len({each.pattern for each in contributions}) < len(contributions):
        raise FormatError("found a pattern twice in one answer, expected each once")
    grouped = bool(int_field(fields, "grouped"))
    return DeviceReply(heard.node, device, incarnation, revision, grouped, contributions, held)


def _parse_contribution(data: bytes, projection: Projection, limit: int) -> Contribution:
    found, form = decode_with_form(data, limit=limit, projection=projection)
    if not isinstance(found, Contribution) or form != "exact":
        raise FormatError(
            f"found {type(found).__name__} in the form {form}, "
            "expected a contribution in the form exact"
        )
    return found


def _newest_by_device(ledger: Ledger) -> Newest:
    known: Newest = {}
    for each in ledger:
        known.setdefault((each.device, each.incarnation), {})[each.pattern] = each
    return known


def _accept(
    answer: DeviceReply, ledger: Ledger, known: Newest, rules: AdmissionRules
) -> NodeStatus:
    last = known.get(answer.origin, {})
    contributions = [*answer.contributions, *_removed_patterns(answer, last, ledger.projection)]
    try:
        new = [
            _admit_newer(each, last.get(each.pattern), ledger.projection, rules)
            for each in contributions
        ]
    except RejectedError as error:
        return NodeStatus(
            answer.node, answer.device, FAILED, f"not admitted: {one_safe_line(str(error))}"
        )
    for each in contributions:
        ledger.put(each)
    known[answer.origin] = {each.pattern: each for each in contributions}
    samples = sum(each.stats.count for each in contributions)
    words = "has seen nothing yet" if not samples else "" if any(new) else "as before"
    held = f"{HELD_BACK}: {answer.held}" if answer.held else ""
    return NodeStatus(
        answer.node, answer.device, ACCEPTED, "; ".join(filter(None, (words, held))), samples
    )


def _name_duplicate(standing: NodeStatus, node: int) -> NodeStatus:
    advice = f"node {node} answers as {standing.device} too: give each its own `device`"
    return replace(standing, words=f"{advice}; {standing.words}")


def _removed_patterns(
    answer: DeviceReply, last: dict[str, Contribution], shared: Projection
) -> list[Contribution]:
    patterns = sorted(set(last) - {each.pattern for each in answer.contributions})
    return [
        Contribution(
            answer.device, Stats.empty(shared), answer.revision, pattern, answer.incarnation
        )
        for pattern in patterns
    ]


def _admit_newer(
    new: Contribution, last: Contribution | None, projection: Projection, rules: AdmissionRules
) -> bool:
    before = last if rules.no_forgetting else None
    admit(new, projection=projection, last=before, devices=rules.devices)
    return must_be_current(new, last)


def sums_of_others(
    ledger: Ledger, answers: Iterable[DeviceReply]
) -> Iterator[tuple[DeviceReply, Merged]]:
    """Yield each answer with what the others have seen: one sum, or one per pattern for a bank.

    The sum of the others is the sum of all minus the device's own. Sums are exact, so this equals
    adding the others up, in a time that grows with the devices and not with their square.
    """
    contributions = [each for each in ledger if each.stats.count]
    whole = MergedPart.of(contributions, ledger.projection)
    for answer in answers:
        if answer.grouped:
            others = Selection(receiver=answer.device, incarnation=answer.incarnation)
            yield answer, merge(contributions, ledger.projection, others, grouped=True)
        else:
            mine = [each for each in answer.contributions if each.stats.count]
            own = MergedPart.of(mine, ledger.projection)
            yield answer, _without(whole, own, answer.origin, ledger)


def _without(whole: MergedPart, own: MergedPart, origin: Origin, ledger: Ledger) -> Merged:
    others = tuple(each for each in whole.origins if each[:2] != origin)
    parts = (MergedPart(whole.stats - own.stats, others),) if others else ()
    return Merged(ledger.projection, parts)


COMPLETED, RUNNING = "well", "not yet: it goes on, or was ended from outside"
RESULT_FILE, TOTAL_FILE = "result.json", "total.safetensors"
FILE_MODE = 0o644


@dataclass
class RunResult:
    """Grows from round to round; the standings are those of all nodes that were asked."""

    ledger: Ledger
    rounds: list[list[NodeStatus]] = field(default_factory=list)
    not_adopted: dict[int, str] = field(default_factory=dict)  # in the last round, by node
    ended: str = RUNNING  # then WELL, or why it ended early

    @property
    def total(self) -> Stats:
        """The exact sum of everything in the ledger."""
        return self.ledger.total()

    @property
    def last(self) -> list[NodeStatus]:
        """The standings of the last round."""
        return self.rounds[-1] if self.rounds else []

    @property
    def failed(self) -> list[NodeStatus]:
        """The nodes that failed in the last round."""
        return [each for each in self.last if each.state == FAILED]

    def took(self, standings: Iterable[NodeStatus]) -> None:
        """Add a round; a device that a node was before is named even if it does not answer now."""
        before = {each.node: each.device for each in self.last if each.device}
        named = (
            replace(each, device=each.device or before.get(each.node, "")) for each in standings
        )
        self.rounds.append(list(named))
        self.not_adopted = {}

    def plain(self) -> dict[str, Any]:
        """Return everything as plain JSON."""
        total = self._sum()
        return {
            "ended": self.ended,
            "projection": self.ledger.projection.fingerprint,
            "digest": None if total is None else total.digest,
            "samples": sum(each.stats.count for each in self.ledger),
            "devices": list(self._devices()),
            "failed": list(map(_status_as_json, self.failed)),
            "not_adopted": {str(node): words for node, words in self.not_adopted.items()},
            "rounds": [list(map(_status_as_json, standings)) for standings in self.rounds],
        }

    def table(self) -> str:
        """Return the last round and the sum as lines for the log."""
        rows = [("NODE", "DEVICE", "STATE", "SAMPLES", "")]
        rows += [
            (str(s.node), s.device or "?", s.state, f"{s.samples:g}", self._words(s))
            for s in self.last
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
        return "\n".join([*lines, self._summary()])

    def write(self, folder: Path) -> None:
        """Write the result into a folder, and the sum if the run ended well; it may be new."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.ended == COMPLETED:
            save(self.total, folder / TOTAL_FILE)
        else:
            (folder / TOTAL_FILE).unlink(missing_ok=True)
        text = json.dumps(self.plain(), indent=1, ensure_ascii=False)
        write_atomically(text.encode(), folder / RESULT_FILE, mode=FILE_MODE)

    def _devices(self) -> Iterator[dict[str, Any]]:
        for each in self.ledger:
            words = ("device", "incarnation", "pattern", "revision")
            if each.stats.count:
                yield {word: getattr(each, word) for word in words} | {"samples": each.stats.count}

    def _words(self, standing: NodeStatus) -> str:
        words = [standing.words]
        if standing.state != ACCEPTED and standing.device in self.ledger.devices:
            words.append("what it gave before stays in the sum")
        if standing.node in self.not_adopted:
            words.append(f"did not adopt: {self.not_adopted[standing.node]}")
        return "; ".join(filter(None, words))

    def _sum(self) -> Stats | None:
        """Return the sum, or None if it would not be exact; `ended` has the reason then."""
        try:
            return self.total
        except CapacityError:
            return None

    def _summary(self) -> str:
        total, devices = self._sum(), sorted({each["device"] for each in self._devices()})
        samples = sum(each.stats.count for each in self.ledger)
        digest = "no exact sum" if total is None else f"digest {total.digest[:16]}"
        names = ", ".join(devices) or "none"
        return f"{samples:g} samples of {len(devices)} devices, {digest}: {names}"


def _status_as_json(standing: NodeStatus) -> dict[str, Any]:
    return asdict(standing) | {"node": str(standing.node)}  # too large for some readers of JSON
