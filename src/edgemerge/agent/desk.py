"""The desk: commands that come in over the control socket or a sink, and the status."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from edgemerge.agent.control import Request
from edgemerge.agent.inbox import Inbox
from edgemerge.agent.judging import Judge
from edgemerge.agent.keeping import Keeper
from edgemerge.agent.memory import Memory
from edgemerge.agent.parts import Sink
from edgemerge.agent.reporting import Reporting
from edgemerge.agent.syncing import Answer, Syncing
from edgemerge.core.detector import Detector
from edgemerge.core.errors import EdgemergeError

MOST_ROWS = 1000  # scored for one command: detection waits meanwhile

logger = logging.getLogger(__name__)


@dataclass
class Desk:
    """Carries out commands between two samples, in the thread of the loop."""

    memory: Memory
    inbox: Inbox
    judge: Judge
    keeper: Keeper
    syncing: Syncing | None
    sinks: list[Sink]
    reporting: Reporting | None = None

    def tend(self, requests: Iterable[Request]) -> None:
        """Carry out what has come in."""
        for request in requests:
            self._carry_out(request.command, request.answer)
        for sink in self.sinks:
            for word in getattr(sink, "commands", list)():
                self._carry_out({"command": word}, _log_answer)

    def status(self) -> dict[str, Any]:
        """Say how the agent is doing, as plain JSON."""
        memory = self.memory
        found = {name: getattr(memory, name) for name in ("device", "incarnation", "revision")}
        found |= {"samples": memory.index, "alarms": memory.alarms, "learning": memory.learning}
        found |= {"skipped": memory.skipped + self.inbox.skipped, "patterns": _patterns(memory)}
        found |= {"waiting": _waiting(memory), "saved": self.keeper.trouble or "ok"}
        return found | (self.syncing.plain() if self.syncing else {"exchange": "none"})

    def _carry_out(self, command: dict[str, Any], answer: Answer) -> None:
        do = self._commands().get(str(command.get("command")))
        if do is None:
            known = ", ".join(self._commands())
            answer({"error": f"found the command {command.get('command')!r}, known are {known}"})
            return
        try:
            found = do(command, answer)
        except (EdgemergeError, ArithmeticError, ValueError, TypeError) as error:
            found = {"error": str(error)}
        if found is not None:
            answer(found)

    def _commands(self) -> dict[str, Callable[[dict[str, Any], Answer], dict[str, Any] | None]]:
        return {
            "status": lambda _command, _answer: self.status(),
            "sync": self._sync,
            "undo": self._undo,
            "save": self._save,
            "score": self._score,
            "learn": self._learn,
        }

    def _sync(self, _command: dict[str, Any], answer: Answer) -> dict[str, Any] | None:
        if self.syncing is None:
            return {"error": "this agent has no exchange: say one in [exchange]"}
        self.syncing.begin(answer)
        return None

    def _undo(self, _command: dict[str, Any], _answer: Answer) -> dict[str, Any]:
        if self.syncing is None:
            return {"error": "this agent has no exchange, so nothing was merged"}
        return {"told": self.syncing.undo()}

    def _save(self, _command: dict[str, Any], _answer: Answer) -> dict[str, Any]:
        return {"saved": "ok"} if self.keeper.save() else {"error": self.keeper.trouble}

    def _score(self, command: dict[str, Any], _answer: Answer) -> dict[str, Any]:
        rows = command.get("rows")
        if not isinstance(rows, list):
            return {"error": 'expected "rows": a list of samples'}
        if len(rows) > MOST_ROWS:
            return {"error": f"found {len(rows)} rows, expected {MOST_ROWS} at most: ask again"}
        scores = self.judge.scores(rows)
        return {"scores": scores, "alarms": [score > self.judge.limit for score in scores]}

    def _learn(self, command: dict[str, Any], _answer: Answer) -> dict[str, Any]:
        on = command.get("on")
        if not isinstance(on, bool):
            return {"error": 'expected "on": true or false'}
        self.memory.learning = on
        self.keeper.save()
        return {"learning": on}


def _waiting(memory: Memory) -> int:
    """Count the samples that a bank has put aside until their block is full."""
    thing = memory.learner.thing
    return 0 if isinstance(thing, Detector) else len(thing.waiting)


def _patterns(memory: Memory) -> dict[str, float]:
    thing = memory.learner.thing
    if isinstance(thing, Detector):
        return {"normal": float(f"{thing.count:.6g}")}
    return {name: float(f"{thing[name].count:.6g}") for name in thing}


def _log_answer(found: dict[str, Any]) -> None:
    logger.info("a command was carried out", extra={"values": found})
