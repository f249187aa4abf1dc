"""Faults that this device shares and knows: released by the gate, withdrawn, and compared.

What a person named here is released like everything else, once it covers enough samples; undoing
the review, or another name, withdraws it with the next exchange. What others named is compared with
this device's patterns in the exchange's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from edgemerge.agent.state import AgentState, SharedFault, encoded, fault_census, wire_name
from edgemerge.core.errors import EdgemergeError, RejectedError, StaleError, UnavailableError
from edgemerge.core.faults import MAX_PER_DEVICE, FaultName, Faults, can_compare
from edgemerge.core.ledger import Contribution, Selection
from edgemerge.core.monitor import Monitor, OddPattern
from edgemerge.core.stats import Stats
from edgemerge.exchange.protocol import Exchange, shares_faults
from edgemerge.wire.codec import encode

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FaultJob:
    """Faults to push, in this order; then whose to pull, and patterns to compare with them.

    With `known`, the bytes of what this device knows, nothing is compared if they are unchanged.
    """

    push: tuple[Contribution, ...] = ()
    pull: Selection | None = None
    patterns: tuple[tuple[int, Stats], ...] = ()
    known: bytes = b""


@dataclass(frozen=True)
class FaultOutcome:
    """How many faults were pushed, what is known now if that is new, and the error if any."""

    pushed: int = 0
    faults: Faults | None = None
    names: dict[int, FaultName] = field(default_factory=dict)
    error: EdgemergeError | None = None


def exchange_faults(
    exchange: Exchange, job: FaultJob, checkpoint: Callable[[], object] = bool
) -> FaultOutcome:
    """Push and pull faults, and compare; an error is part of the outcome.

    Args:
        exchange: Where to push to and pull from.
        job: What to push, pull and compare.
        checkpoint: Called between comparisons; it may pause the work, or raise to end it.
    """
    pushed = 0
    try:
        if not shares_faults(exchange):
            raise UnavailableError("this exchange shares no faults")
        for contribution in job.push:
            exchange.push(contribution)
            pushed += 1
        if job.pull is None:
            return FaultOutcome(pushed)
        faults = exchange.pull_faults(job.pull)
        data = encode(faults)
        if data == job.known:
            return FaultOutcome(pushed)
        faults.keep_encoded(data).solve(checkpoint)
        names = {}
        for number, stats in job.patterns:
            checkpoint()
            names[number] = faults.compare(stats)
    except EdgemergeError as error:
        return FaultOutcome(pushed, error=error)
    return FaultOutcome(pushed, faults, names)


class FaultSharing:
    """Decides which faults of one agent are released and withdrawn; it does no input or output."""

    def __init__(self, memory: AgentState) -> None:
        """Share the faults of this agent's monitor."""
        self.memory = memory
        self.held: dict[str, str] = {}  # why a fault is not shared, by its name
        self.trouble = ""  # why faults were not exchanged the last time
        self._refused: dict[tuple[int, str], str] = {}  # reasons, by number and name

    def job(self, least: float | None, pull: Selection | None) -> FaultJob:
        """Queue what may be released, and return what to exchange.

        Args:
            least: The samples that a release must cover; None: release nothing.
            pull: Whose faults to pull; None: none.
        """
        memory, monitor = self.memory, self.memory.monitor
        if least is not None:
            self.release(least)
        patterns = tuple(
            (each.number, each.stats)
            for each in monitor.odd_patterns.values()
            if can_compare(each.stats.count, memory.projection)
        )
        known = encode(monitor.faults)
        return FaultJob(tuple(memory.pending_faults), pull, patterns, known)

    def release(self, least: float) -> None:
        """Queue withdrawals, then other names, then what the gate lets through.

        Args:
            least: The fresh samples that each release must cover.
        """
        memory = self.memory
        faults = named_faults(memory.monitor)
        memory.fault_gate.look(fault_census(memory.monitor, memory.shared_faults))
        self._withdraw(faults)
        self._give_back(faults)
        decision = memory.fault_gate.decide(least)
        shared = {n for n, each in memory.shared_faults.items() if each.name}
        released = [n for n in map(int, decision.released) if n in faults]
        free = MAX_PER_DEVICE - len(shared)
        new = [n for n in released if n not in shared][:free]
        released = [n for n in released if n in shared or n in new]
        for number in released:
            self._queue(faults[number], faults[number].stats)
        memory.fault_gate.record_release(replace(decision, released=tuple(map(str, released))))
        self._note_held(faults, least)

    def _withdraw(self, faults: dict[int, OddPattern]) -> None:
        """Queue an empty contribution for each name that no longer holds."""
        memory, nothing = self.memory, Stats.empty(self.memory.projection)
        for number, shared in list(memory.shared_faults.items()):
            fault = faults.get(number)
            if shared.name and (fault is None or wire_name(fault.name) != shared.name):
                self._push(shared.name, nothing, None)
                memory.shared_faults[number] = replace(shared, name="")
        kept = {each.number for each in memory.monitor.odd_patterns.values()}
        memory.shared_faults = {n: s for n, s in memory.shared_faults.items() if n in kept}

    def _give_back(self, faults: dict[int, OddPattern]) -> None:
        """Queue what was released before and is a fault again: the same sums reveal nothing new."""
        memory = self.memory
        for number, shared in list(memory.shared_faults.items()):
            fault = faults.get(number)
            if fault and not shared.name and (number, wire_name(fault.name)) not in self._refused:
                self._queue(fault, memory.decode_contribution(shared.data).stats)

    def share_again(self) -> None:
        """Queue all that is shared: the exchange was restored, and may have lost it."""
        memory, faults = self.memory, named_faults(self.memory.monitor)
        for number, shared in list(memory.shared_faults.items()):
            if shared.name and number in faults:
                self._queue(faults[number], memory.decode_contribution(shared.data).stats)

    def _queue(self, fault: OddPattern, stats: Stats) -> None:
        name = wire_name(fault.name)
        data = self._push(name, stats, fault.first)
        self.memory.shared_faults[fault.number] = SharedFault(data, name)

    def _push(self, name: str, stats: Stats, first: float | None) -> bytes:
        memory = self.memory
        memory.fault_revision += 1
        about = memory.device, stats, memory.fault_revision, name
        fault = encoded(Contribution(*about, kind="fault", first=first))
        memory.pending_faults.append(fault)
        return encode(fault)

    def _note_held(self, faults: dict[int, OddPattern], least: float) -> None:
        self.held = {}
        for number, fault in faults.items():
            shared = self.memory.shared_faults.get(number)
            if shared is None or not shared.name:
                track = self.memory.fault_gate.tracks[str(number)]
                few = f"{track.covered} of {least:.0f} samples"
                why = f"{MAX_PER_DEVICE} faults are shared" if track.covered >= least else few
                key = number, wire_name(fault.name)
                self.held[fault.name] = self._refused.get(key, why)

    def finish(self, outcome: FaultOutcome) -> None:
        """Take the outcome of an exchange: remove what arrived, and know what others named.

        Args:
            outcome: What `exchange_faults` returned.
        """
        memory = self.memory
        del memory.pending_faults[: outcome.pushed]
        error = outcome.error
        if isinstance(error, StaleError):  # an old copy of the state: go on after what is known
            memory.fault_revision = max(memory.fault_revision, error.newest)
            late, memory.pending_faults = memory.pending_faults, []
            for fault in late:
                self._push(fault.pattern, fault.stats, fault.first)
        elif isinstance(error, RejectedError) and memory.pending_faults:
            self._refuse(memory.pending_faults.pop(0), str(error))
        self.trouble = "" if error is None or isinstance(error, StaleError) else str(error)
        if self.trouble:
            logger.info("faults were not exchanged", extra={"values": {"why": self.trouble}})
        if outcome.faults is not None:
            memory.monitor.know_faults(outcome.faults, outcome.names)
            logger.info("known faults", extra={"values": {"faults": repr(outcome.faults)}})

    def _refuse(self, fault: Contribution, why: str) -> None:
        """Do not push a fault again under this name: the exchange refused it for good."""
        for number, shared in self.memory.shared_faults.items():
            if shared.name == fault.pattern and fault.samples:
                self._refused[number, fault.pattern] = why
                self.memory.shared_faults[number] = replace(shared, name="")
                self.held[self._names()[number]] = why

    def _names(self) -> dict[int, str]:
        return {number: each.name for number, each in named_faults(self.memory.monitor).items()}

    def sharing_of(self, name: str) -> str:
        """Return in words whether a fault of this device is shared, and if not, why.

        Args:
            name: The name of the fault.
        """
        memory, word = self.memory, wire_name(name)
        if word not in {shared.name for shared in memory.shared_faults.values()}:
            return f"stays on this device: {self.held.get(name, 'until the next exchange')}"
        if any(fault.pattern == word for fault in memory.pending_faults):
            return f"will be shared: {self.trouble or 'with the next exchange'}"
        return "shared"

    def plain(self) -> dict[str, Any]:
        """Return what is shared, held back and known, as plain JSON."""
        shared = sorted(s.name for s in self.memory.shared_faults.values() if s.name)
        held = [f"{name}: {why}" for name, why in self.held.items()]
        known = [fault.plain() for fault in self.memory.monitor.faults]
        return {"shared": shared, "held_back": held, "known": known, "trouble": self.trouble}


def named_faults(monitor: Monitor) -> dict[int, OddPattern]:
    """Return the patterns that a person called faults, by number.

    Args:
        monitor: The monitor that has them.
    """
    return {p.number: p for p in monitor.odd_patterns.values() if p.status == "fault"}
