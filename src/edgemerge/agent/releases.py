"""Releases: the contributions that leave together, in the order in which no sample counts twice."""

from __future__ import annotations

from edgemerge.agent.memory import Memory
from edgemerge.core.codec import encode
from edgemerge.core.contribution import Contribution
from edgemerge.core.stats import Stats
from edgemerge.privacy.gate import Decision, Gate


def release(memory: Memory, least: float) -> Decision:
    """Put what the gate lets through on its way; say what that is, and what it holds back.

    Counters and pending change together: save both before the first is pushed.
    """
    memory.gate.look(memory.learner.census())
    decision = memory.gate.decide(least)
    if not decision.released:
        return decision
    first, then = in_order(memory.gate, decision)
    own, nothing = memory.learner.own(), Stats.empty(memory.projection)
    for step in (dict.fromkeys(first, nothing), {name: own[name] for name in then}):
        memory.revision += bool(step)
        memory.pending += [encode(_note(memory, name, stats)) for name, stats in step.items()]
    memory.gate.passed(decision)
    return decision


def in_order(gate: Gate, decision: Decision) -> tuple[list[str], list[str]]:
    """Say what is emptied first, and what is pushed then.

    Patterns that are gone are emptied. Samples may have moved either way between two patterns that
    the exchange knows, so these are emptied too; a single one can only have lost some to new ones,
    and goes before them.
    """
    known = [name for name in decision.released if gate.tracks[name].released]
    mixed = [name for name in known if gate.tracks[name].moved]
    new = [name for name in decision.released if name not in known]
    return [*decision.withdrawn, *(mixed if len(mixed) > 1 else [])], [*known, *new]


def _note(memory: Memory, pattern: str, stats: Stats) -> Contribution:
    return Contribution(memory.device, stats, memory.revision, pattern, memory.incarnation)
