"""The agent's loop: judge, deliver; between samples run commands, sync, save and report."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from threading import Event
from typing import Any

from edgemerge.agent.background import ReadAhead
from edgemerge.agent.control import ControlSocket, Request
from edgemerge.agent.judge import Judge
from edgemerge.agent.quality import DataQuality, ProblemEvent
from edgemerge.agent.reports import DeviceReporter
from edgemerge.agent.reviewer import DECISION_HANDLERS, Reviewer
from edgemerge.agent.sinks import Sink
from edgemerge.agent.sources import Reading
from edgemerge.agent.state import AgentState, StateSaver
from edgemerge.agent.sync import AnswerCallback, Synchronizer, iso_time
from edgemerge.core.errors import EdgemergeError

MAX_SCORED_ROWS = 1000  # scored for one command: detection waits meanwhile

logger = logging.getLogger(__name__)


@dataclass
class Agent:
    """The parts of an agent, and the commands that it runs between two samples."""

    memory: AgentState
    inbox: ReadAhead
    judge: Judge
    keeper: StateSaver
    syncing: Synchronizer | None
    sinks: list[Sink]
    reviews: Reviewer
    reporting: DeviceReporter | None = None
    quality: DataQuality | None = None

    def tend(self, requests: Iterable[Request]) -> None:
        """Run the commands that have arrived by the control socket or a sink."""
        for request in requests:
            self._carry_out(request.command, request.answer)
        for sink in self.sinks:
            for request in getattr(sink, "commands", list)():
                command = request if isinstance(request, dict) else {"command": request}
                self._carry_out(command, _log_answer)

    def status(self) -> dict[str, Any]:
        """Return the agent's status as plain JSON."""
        memory = self.memory
        found = {name: getattr(memory, name) for name in ("device", "incarnation", "revision")}
        found |= {"samples": memory.index, "alarms": memory.alarms, "learning": memory.learning}
        found |= {"skipped": memory.skipped + memory.skipped_ahead, "patterns": _patterns(memory)}
        found["problems"] = [each.plain() for each in self.quality.problems] if self.quality else []
        found |= {"waiting": memory.learner.buffered, "saved": self.keeper.trouble or "ok"}
        found |= {"monitor": self._monitor_status(), "reviews": self.reviews.plain()}
        if memory.settings.version:
            found["settings"] = asdict(memory.settings)
        if self.reviews.configuration is not None and self.reviews.configuration.seen:
            found["configuration"] = self.reviews.configuration.plain()
        if memory.desired is not None:
            found |= {"desired": memory.desired, "followed": memory.followed}
        return found | (self.syncing.plain() if self.syncing else {"exchange": "none"})

    def _monitor_status(self) -> dict[str, Any]:
        """Return the monitor's status; of each fault it also says whether it is shared."""
        found = self.judge.status()
        for pattern in found["patterns"]:
            if pattern["status"] == "fault":
                pattern["sharing"] = (
                    self.syncing.sharing_of(pattern["name"])
                    if self.syncing
                    else "stays on this device: it has no exchange"
                )
        return found

    def _carry_out(self, command: dict[str, Any], answer: AnswerCallback) -> None:
        do = self._commands().get(str(command.get("command")).replace("-", "_"))
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

    def _commands(
        self,
    ) -> dict[str, Callable[[dict[str, Any], AnswerCallback], dict[str, Any] | None]]:
        return {
            "status": lambda _command, _answer: self.status(),
            "sync": self._sync,
            "undo": self._undo,
            "trust": self._trust,
            "save": self._save,
            "score": self._score,
            "learn": self._learn,
            **dict.fromkeys(DECISION_HANDLERS, self._decide),
        }

    def _decide(self, command: dict[str, Any], _answer: AnswerCallback) -> dict[str, Any]:
        return self.reviews.command(command)

    def _sync(self, _command: dict[str, Any], answer: AnswerCallback) -> dict[str, Any] | None:
        if self.syncing is None:
            return {"error": "this agent has no exchange: configure one in [exchange]"}
        self.syncing.begin(answer)
        return None

    def _undo(self, _command: dict[str, Any], answer: AnswerCallback) -> dict[str, Any] | None:
        if self.syncing is None:
            return {"error": "this agent has no exchange, so nothing was merged"}
        self.syncing.undo(answer)
        return None

    def _trust(self, command: dict[str, Any], _answer: AnswerCallback) -> dict[str, Any]:
        if self.syncing is None:
            return {"error": "this agent has no exchange: configure one in [exchange]"}
        done = self.syncing.decide(command)
        logger.info("decided about a peer", extra={"values": {"done": done}})
        return {"done": done}

    def _save(self, _command: dict[str, Any], _answer: AnswerCallback) -> dict[str, Any]:
        return {"saved": "ok"} if self.keeper.save() else {"error": self.keeper.trouble}

    def _score(self, command: dict[str, Any], _answer: AnswerCallback) -> dict[str, Any]:
        rows = command.get("rows")
        if not isinstance(rows, list):
            return {"error": 'expected "rows": a list of samples'}
        if len(rows) > MAX_SCORED_ROWS:
            return {
                "error": f"found {len(rows)} rows, expected {MAX_SCORED_ROWS} at most: ask again"
            }
        scores = self.judge.scores(rows)
        limit = self.judge.limit
        alarms = [score is not None and score > limit for score in scores]
        return {"scores": scores, "alarms": alarms, "ready": self.memory.monitor.ready}

    def _learn(self, command: dict[str, Any], _answer: AnswerCallback) -> dict[str, Any]:
        on = command.get("on")
        if not isinstance(on, bool):
            return {"error": 'expected "on": true or false'}
        self.memory.monitor.paused = not on
        self.keeper.save()
        return {"learning": on}


def _patterns(memory: AgentState) -> dict[str, float]:
    detectors = memory.learner.detectors
    return {name: float(f"{each.count:.6g}") for name, each in detectors.items()}


def _log_answer(found: dict[str, Any]) -> None:
    logger.info("a command was run", extra={"values": found})


def _log_problem(event: ProblemEvent) -> None:
    problem = event.problem
    values = {"problem": problem.name, "since": iso_time(problem.since)}
    if event.ended is None:
        values["words"] = problem.words
        logger.warning("a problem with the data began", extra={"values": values})
    else:
        logger.info("a problem with the data has ended", extra={"values": values})


POLL_S = 0.1  # longest wait for a reading before the loop does other work
SAVING_POLL_S = 0.005  # likewise, while something waits for the state to be saved
STATUS_INTERVAL_S = 10.0  # between two reports to the sinks
NEWS_INTERVAL_S = 1.0  # likewise, if something has happened
FINAL_SYNC_TIMEOUT_S = 60.0  # for the last exchange, after the source has ended


class Loop:
    """The agent's loop. Everything that touches the learner runs in its thread."""

    def __init__(
        self, agent: Agent, control: ControlSocket, *, steady: Callable[[], float]
    ) -> None:
        """Run an agent; `steady` is a monotonic clock."""
        self._agent, self._control, self._steady = agent, control, steady
        self._report_due = self._reported = steady()
        self._first_index = agent.memory.index

    def run(self, stop: Event, *, sync_at_end: bool) -> None:
        """Process readings until the source ends or `stop` is set; then sync, save and report."""
        inbox = self._agent.inbox
        while not (stop.is_set() or inbox.ended):
            reading = inbox.take(self._poll_s)
            if reading is not None:
                self.process_reading(reading)
            self.tend()
        self._tend_quality()
        if inbox.ended and inbox.error is None:
            self._log_end()
        if sync_at_end and not stop.is_set():
            self.sync(stop)
        self._agent.keeper.save()
        self.report()
        if self._agent.reporting is not None:
            self._agent.reporting.leave(self._agent.status)

    def _log_end(self) -> None:
        """Log what a file had: an agent that has read it before finds nothing new in it."""
        memory = self._agent.memory
        values = {"new_samples": memory.index - self._first_index, "samples": memory.index}
        values |= {"in_alarm": memory.alarms, "skipped": memory.skipped + memory.skipped_ahead}
        logger.info("the source has ended", extra={"values": values})

    @property
    def _poll_s(self) -> float:
        return SAVING_POLL_S if self._agent.keeper.busy else POLL_S

    def process_reading(self, reading: Reading) -> None:
        """Judge a reading and deliver the verdict."""
        verdict = self._agent.judge.judge(reading)
        if verdict is not None:
            for sink in self._agent.sinks:
                sink.verdict(verdict)
            if self._agent.reporting is not None:
                self._agent.reporting.verdict(verdict)
            self._handle_news()
        self._agent.keeper.count()

    def _handle_news(self) -> None:
        """Log what has happened and report it soon; save patterns before they are reviewed."""
        news = self._agent.judge.news()
        if news:
            self._report_due = min(self._report_due, self._reported + NEWS_INTERVAL_S)
        if any(not each.kind.startswith("episode") for each in news):
            self._agent.keeper.begin()

    def _tend_quality(self) -> None:
        """Log and deliver problems of the data that begin or end."""
        inbox, quality = self._agent.inbox, self._agent.quality
        self._agent.judge.count_skipped(inbox.skipped)
        if quality is None:
            return
        events = quality.tend(
            skipped=inbox.skipped_before, why=inbox.why_skipped, waiting=lambda: inbox.waiting
        )
        for event in events:
            _log_problem(event)
            for sink in self._agent.sinks:
                deliver = getattr(sink, "problem", None)
                if deliver is not None:
                    deliver(self._agent.memory.device, event)
        if events:
            self._report_due = min(self._report_due, self._reported + NEWS_INTERVAL_S)
            if self._agent.reporting is not None:
                self._agent.reporting.hurry()

    def tend(self) -> None:
        """Run commands; sync, save and report if due. Nothing here waits."""
        self._tend_quality()
        self._agent.tend(self._control.requests())
        if self._agent.syncing is not None:
            self._agent.syncing.tend()
        if self._agent.reviews.tend() and self._agent.reporting is not None:
            self._agent.reporting.hurry()
        self._agent.keeper.tend()
        if self._agent.reporting is not None:
            self._agent.reporting.tend(self._agent.status)
        if self._steady() >= self._report_due:
            self.report()

    def sync(self, stop: Event) -> None:
        """Exchange once more and wait for it, at most `FINAL_SYNC_TIMEOUT_S`."""
        syncing = self._agent.syncing
        if syncing is None:
            return
        ended = Event()
        syncing.begin(lambda _found: ended.set())
        end = self._steady() + FINAL_SYNC_TIMEOUT_S
        while not (stop.is_set() or ended.is_set()) and self._steady() < end:
            self.tend()
            ended.wait(self._poll_s)

    def report(self) -> None:
        """Send the agent's status to the sinks."""
        self._reported = self._steady()
        self._report_due = self._reported + STATUS_INTERVAL_S
        for sink in self._agent.sinks:
            sink.status(self._agent.status())
