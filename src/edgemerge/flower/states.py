"""States: what a device has seen, read from a file; and what it adopts, written into it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from edgemerge.agent.learning import learner_of
from edgemerge.agent.memory import MAGIC
from edgemerge.core.bank import Bank
from edgemerge.core.contribution import Contribution
from edgemerge.core.detector import Detector
from edgemerge.core.errors import AwayError, SettingError
from edgemerge.core.state import to_bytes
from edgemerge.core.stats import Stats
from edgemerge.core.told import Told
from edgemerge.files import load, write
from edgemerge.flower.releasing import Mark, Pattern

NORMAL = "normal"
TRIES = 5  # to adopt between two writes of another program
MOVES = ("new", "split", "joined", "retired")  # events that say where samples are now
FORGETS = (
    "a detector that forgets does not say how many samples are new: use a bank, which does, or "
    "gate = 0 if they are nobody's secret"
)


class Given(NamedTuple):
    """What a device has seen, by pattern."""

    patterns: dict[str, Pattern]
    grouped: bool = False  # whether it wants patterns kept apart, as a bank does
    revision: int | None = None  # of a contribution in a file, which has its own
    advice: str = ""  # for when something is held back


def given_stats(stats: Stats, pattern: str = NORMAL) -> Given:
    """Give sums that nothing more is known of: samples have entered if their count rises."""
    mark = Mark("", int(stats.count))
    return Given({pattern: Pattern(stats, mark)} if stats.count else {})


def given_in(path: Path, device: str, incarnation: int) -> Given:
    """Give what is in the file of a detector, bank, stats or contribution; it is only read."""
    _must_not_be_an_agents(path)
    found = load(path)
    if isinstance(found, Stats):
        return given_stats(found)
    if isinstance(found, Contribution):
        _must_be_of(found, device, incarnation)
        return given_stats(found.stats, found.pattern)._replace(revision=found.revision)
    if isinstance(found, Detector):
        return _of_detector(found)
    if isinstance(found, Bank):
        return _of_bank(found)
    raise SettingError(
        f"{path}: found a {type(found).__name__.lower()}, expected a detector, bank, stats or "
        "contribution: `edgemerge learn` makes the first two"
    )


def adopt_in(path: Path, told: Told) -> bool:
    """Let the detector or bank in a file adopt; say whether there is one.

    What another program writes meanwhile is not lost: then it begins again from that.
    """
    for _ in range(TRIES):
        before = _stamp(path)
        found = load(path)
        if not isinstance(found, Detector | Bank):
            return False
        learner = learner_of(found)
        learner.adopt(told)
        data = to_bytes(learner.thing)
        if _stamp(path) == before:
            write(data, path)
            return True
    raise AwayError(f"{path} is being written by another program, again and again: stop that one")


def _of_detector(found: Detector) -> Given:
    given = given_stats(found.own)
    if found.forgetting == 1.0:
        return given
    patterns = {name: each._replace(mark=Mark("", 0)) for name, each in given.patterns.items()}
    return Given(patterns, advice=FORGETS)


def _of_bank(found: Bank) -> Given:
    """Give its patterns; samples that wait for their block are not in them yet."""
    learner = learner_of(found)
    own, census = learner.own(), learner.census()
    marks = {id(found[name]): _mark(found, name) for name in found}
    patterns = {name: Pattern(own[name], marks[id(seen.life)]) for name, seen in census.items()}
    return Given(patterns, grouped=True)


def _mark(bank: Bank, name: str) -> Mark:
    """Tell lives apart by the last thing that moved samples; at first it sifts them, twice."""
    state = bank.patterns
    moves = (e for e in state.events if e.kind in MOVES and name in (e.pattern, e.other))
    life = f"{state.settled:d}{state.sifted:d}"
    for event in moves:
        life = f"{event.kind} {event.at}"
    return Mark(life, state.instances[name].ring.seen)


def _must_be_of(found: Contribution, device: str, incarnation: int) -> None:
    if found.key[:2] != (device, incarnation):
        raise SettingError(
            f"found the state {found}, expected device {device}, incarnation {incarnation}: "
            "set `device` and `incarnation` of this node as in the file"
        )


def _must_not_be_an_agents(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(len(MAGIC)) == MAGIC:
            raise SettingError(
                f"{path} is the memory of an agent, which nobody else may change: let the agent "
                "share, or name a file that `edgemerge learn` made"
            )


def _stamp(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size
