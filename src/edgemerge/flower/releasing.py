"""Releasing: what of a device may leave now, and under which revision.

The gate is the agent's: a pattern leaves again only after enough samples have entered it. What is
held back is not missing, for what left last is given again. The same sums leave under the same
revision, so that a repeat is one; others under a higher one: the time in milliseconds, so that it
rises even if what was remembered is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from edgemerge.core.stats import Stats
from edgemerge.privacy.gate import Decision, Gate, Seen

MS = 1000  # in a second


class Mark(NamedTuple):
    """How far a pattern has come, as its file tells it."""

    life: str  # the same while samples only enter
    entered: int  # how many there are, as far as that can be told; more only if samples entered


class Pattern(NamedTuple):
    """A pattern as it is now."""

    stats: Stats
    mark: Mark


@dataclass(frozen=True)
class Past:
    """What a device remembers of its releases, as it was when it looked last."""

    incarnation: int = 0
    revision: int = 0
    left: Mapping[str, Stats] = field(default_factory=dict)  # by pattern
    marks: Mapping[str, Mark] = field(default_factory=dict)
    gate: Mapping[str, Any] = field(default_factory=lambda: Gate().state())


class Release(NamedTuple):
    """What is remembered from now on, with all that leaves in it, and what is held back and why."""

    past: Past
    held: tuple[str, ...] = ()


def release(past: Past, patterns: Mapping[str, Pattern], least: float, revision: int) -> Release:
    """Let out what the gate lets out; a revision that something new leaves under is at hand.

    With `least` 0 there is no gate.
    """
    own = {name: pattern.stats for name, pattern in patterns.items()}
    if own == past.left:
        return Release(past)
    gate = _looked(past, patterns)
    decision = gate.decide(least) if least else Decision(tuple(own), tuple(sorted(gate.gone)))
    left = {n: stats for n, stats in past.left.items() if n not in decision.withdrawn}
    left |= {name: own[name] for name in decision.released}
    gate.passed(decision)
    marks = {name: pattern.mark for name, pattern in patterns.items()}
    number = past.revision if left == past.left else revision
    same = {name for name, stats in own.items() if left.get(name) == stats}
    held = tuple(words for words in decision.held if words.rpartition(": ")[0] not in same)
    return Release(Past(past.incarnation, number, left, marks, gate.state()), held)


def revision_after(past: Past, now: float) -> int:
    """Give the next revision at a time in seconds."""
    return max(past.revision + 1, int(now * MS))


def _looked(past: Past, patterns: Mapping[str, Pattern]) -> Gate:
    """Let the gate go on from the last look: lives are told apart by being the same object."""
    then = {name: Seen(object(), mark.entered, 0.0) for name, mark in past.marks.items()}
    gate = Gate.of(past.gate, then)
    gate.look({name: _seen(name, each, past, then) for name, each in patterns.items()})
    return gate


def _seen(name: str, pattern: Pattern, past: Past, then: Mapping[str, Seen]) -> Seen:
    mark, last, count = pattern.mark, past.marks.get(name), pattern.stats.count
    if last is not None and last.life == mark.life and last.entered <= mark.entered:
        return Seen(then[name].life, mark.entered, count)
    return Seen(object(), 0, count)  # of a life that began since, nobody knows what entered it
