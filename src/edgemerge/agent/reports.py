"""Reports to the server: which verdicts to include, what a report contains, when it is sent.

Everything but the sending runs in the loop's thread and takes microseconds. A report that was sent
and not answered is dropped, except the description of the merged sum: it is repeated.
Times come from a monotonic clock; a report gives them as time of day.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple

from edgemerge.agent.background import (
    LASTING_ERROR_DELAYS_S,
    ReportOutcome,
    ReportSchedule,
    Worker,
    error_kind,
)
from edgemerge.agent.config import ReportConfig
from edgemerge.agent.judge import Verdict
from edgemerge.agent.sources import Reading
from edgemerge.agent.state import AgentState, merged_digest
from edgemerge.agent.sync import Clocks, Synchronizer
from edgemerge.core.detector import NORMAL
from edgemerge.core.errors import EdgemergeError, UnavailableError, UnknownError
from edgemerge.exchange.client import (
    MAX_NAME_CHARS,
    MAX_NUMBER,
    MAX_REASONS,
    MAX_REPORT_ALARMS,
    MAX_REPORT_EPISODES,
    MAX_REPORT_ORIGINS,
    MAX_REPORT_PATTERNS,
    MAX_REPORT_POINTS,
    MAX_REPORT_PROBLEMS,
    MAX_TEXT_CHARS,
    MAX_TIMESTAMP,
    MAX_UNIT_CHARS,
    MAX_VALUES,
    ReportAnswer,
    was_not_sent,
)

RECENT_VERDICTS = 1000  # verdicts among which patterns are counted
SLOTS_PER_REPORT = 10  # points between two reports
MIN_SLOT_S, MAX_SLOT_S = 0.1, 15.0  # of a slot
ALARM_SLOT_S = 1.0  # of a slot of alarms: an alarm that lasts is reported once a second


class TimedVerdict(NamedTuple):
    """A verdict and its time."""

    at: float
    verdict: Verdict

    @property
    def weight(self) -> tuple[bool, float]:
        """What counts when only one can be kept: an alarm first, then the score."""
        return self.verdict.alarm, self.verdict.score or 0.0


class ReportBatch(NamedTuple):
    """Points and alarms of one report, oldest first."""

    points: tuple[TimedVerdict, ...] = ()
    alarms: tuple[TimedVerdict, ...] = ()


class ReportBuffer:
    """Keeps the most important verdict of each time slot; when full, the oldest is dropped."""

    def __init__(self) -> None:
        """Start empty."""
        self._points: deque[TimedVerdict] = deque(maxlen=MAX_REPORT_POINTS)
        self._alarms: deque[TimedVerdict] = deque(maxlen=MAX_REPORT_ALARMS)
        self._slot_s = MIN_SLOT_S
        self._point_slot = self._alarm_slot = -1.0  # the slots of the newest
        self._recent: deque[str | None] = deque(maxlen=RECENT_VERDICTS)
        self.newest: Verdict | None = None

    def add(self, verdict: Verdict, now: float) -> bool:
        """Add a verdict; return whether an alarm begins with it."""
        begins = verdict.alarm and not (self.newest is not None and self.newest.alarm)
        self.newest = verdict
        self._recent.append(verdict.pattern)
        if verdict.score is None:  # too little is known: there is nothing to show
            return begins
        judged = TimedVerdict(now, verdict)
        self._point_slot = _put_in_slot(self._points, judged, self._slot_s, self._point_slot)
        if verdict.alarm:
            self._alarm_slot = _put_in_slot(self._alarms, judged, ALARM_SLOT_S, self._alarm_slot)
        return begins

    def space(self, every_s: float) -> None:
        """Choose slots so that ten fit between two reports, and an hour of them into one report."""
        self._slot_s = min(max(every_s / SLOTS_PER_REPORT, MIN_SLOT_S), MAX_SLOT_S)

    def take(self) -> ReportBatch:
        """Return what waits and clear it."""
        taken = ReportBatch(tuple(self._points), tuple(self._alarms))
        self._points.clear()
        self._alarms.clear()
        return taken

    def requeue(self, taken: ReportBatch) -> None:
        """Put back what was not sent, before what is newer, as far as there is room."""
        self._points = deque([*taken.points, *self._points], maxlen=MAX_REPORT_POINTS)
        self._alarms = deque([*taken.alarms, *self._alarms], maxlen=MAX_REPORT_ALARMS)

    def used(self) -> Counter[str | None]:
        """Count the recent verdicts of each pattern."""
        return Counter(self._recent)

    def __len__(self) -> int:
        """Count the points that wait."""
        return len(self._points)


def _put_in_slot(
    kept: deque[TimedVerdict], judged: TimedVerdict, slot_s: float, newest: float
) -> float:
    """Append, or keep the one of higher weight within the newest slot; return the slot."""
    slot = judged.at // slot_s
    if slot != newest or not kept:
        kept.append(judged)
    elif judged.weight > kept[-1].weight:
        kept[-1] = judged
    return slot


MAX_ODD_PATTERNS = 48
MAX_EPISODE_INPUTS, MAX_INPUT_CHARS = 3, 60
MAX_LIKE_CHARS = 200
STATUS_COUNTS = ("samples", "alarms", "skipped", "learning", "incarnation", "revision")

JsonObject = dict[str, Any]


def describe_status(
    memory: AgentState, points: ReportBuffer, status: Mapping[str, Any], synced: float | None
) -> JsonObject:
    """Return the status part of a report."""
    learner, used = memory.learner, points.used()
    patterns: list[JsonObject] = [
        {
            "pattern": printable(name, MAX_NAME_CHARS),
            "own": rounded(each.own_count),
            "told": rounded(each.known.others_count),
            "used": used[name if learner.grouped else None],
        }
        for name, each in learner.detectors.items()
    ]
    found = {name: status[name] for name in STATUS_COUNTS}
    found["learnt"] = sum(each["own"] for each in patterns)
    newest = points.newest
    found["pattern"] = None if newest is None else pattern_name(memory, newest.pattern)
    patterns.sort(key=lambda each: each["own"] + each["told"], reverse=True)
    found["patterns"] = [each for each in patterns if each["pattern"]][:MAX_REPORT_PATTERNS]
    found |= {
        name: printable(str(status.get(name, "")), MAX_TEXT_CHARS) for name in ("exchange", "told")
    }
    found["synced"] = None if synced is None else timestamp(synced)
    return found | {"saved": printable(str(status["saved"]), MAX_TEXT_CHARS)}


def describe_problems(problems: Sequence[Mapping[str, Any]]) -> list[JsonObject]:
    """Return the problems with the data, so that they fit."""
    return [
        {
            "name": printable(each["name"], MAX_NAME_CHARS),
            "since": timestamp(each["since"]),
            "words": printable(each["words"], MAX_TEXT_CHARS),
        }
        for each in problems[:MAX_REPORT_PROBLEMS]
    ]


def describe_merge(memory: AgentState, shift: float | None) -> JsonObject:
    """Describe the merged sum held. This decodes it, so call it only when it has changed."""
    merged = memory.decode_merged(memory.merged)
    origins = [
        each._replace(
            device=printable(each.device, MAX_NAME_CHARS),
            pattern=printable(each.pattern, MAX_NAME_CHARS),
        )
        for each in merged.origins[:MAX_REPORT_ORIGINS]
    ]
    return {
        "digest": merged_digest(memory.merged),
        "samples": rounded(sum(part.stats.count for part in merged.parts)),
        "devices": len({origin.device for origin in merged.origins}),
        "shift": None if shift is None else rounded(shift),
        "origins": [each._asdict() for each in origins if each.device and each.pattern],
    }


def describe_monitor(status: Mapping[str, Any]) -> JsonObject:
    """Return the monitor's status with the newest episodes and patterns, so that it fits."""
    monitor = dict(status)
    for name, most in (("episodes", MAX_REPORT_EPISODES), ("patterns", MAX_ODD_PATTERNS)):
        monitor[name] = [_with_few_inputs(each) for each in monitor[name][-most:]]
    return monitor


def _with_few_inputs(each: Mapping[str, Any]) -> JsonObject:
    inputs = [(printable(name, MAX_INPUT_CHARS), rounded(share)) for name, share in each["inputs"]]
    like = each.get("like")
    found = {**each, "inputs": inputs[:MAX_EPISODE_INPUTS]}
    found["like"] = like and printable(like["words"], MAX_LIKE_CHARS)
    return found | {"fault": like and like["name"] and printable(like["name"], MAX_NAME_CHARS)}


def describe_point(judged: TimedVerdict, at: float, *, detailed: bool = False) -> JsonObject:
    """Return a point; without limit or alarm the keys are left out.

    With `detailed`, for servers that take it, there are also the alarm level and the episode.
    """
    verdict = judged.verdict
    found: JsonObject = {"at": timestamp(at), "score": rounded(verdict.score or 0.0)}
    if isfinite(verdict.limit):
        found["threshold"] = rounded(verdict.limit)
    if detailed:
        found |= {"ready": verdict.ready, "level": rounded(verdict.level)}
        found["episode"] = verdict.episode
    return found | ({"alarm": True} if verdict.alarm else {})


def describe_alarm(
    judged: TimedVerdict, at: float, memory: AgentState, *, detailed: bool = False
) -> JsonObject:
    """Return an alarm with the inputs that carry it."""
    verdict = judged.verdict
    why = [
        (printable(name, MAX_NAME_CHARS), rounded(factor))
        for name, factor in verdict.carried[:MAX_REASONS]
    ]
    return {
        **describe_point(judged, at, detailed=detailed),
        "sample": verdict.index,
        "pattern": pattern_name(memory, verdict.pattern),
        "why": [{"input": name, "factor": factor} for name, factor in why if name],
    }


def describe_values(
    reading: Reading | None, names: Sequence[str], units: Sequence[str]
) -> list[JsonObject]:
    """Return the values of the last reading, each with its name and unit.

    >>> import numpy as np
    >>> describe_values(Reading(np.array([2.5, np.nan])), ["pressure"], ["bar"])
    [{'name': 'pressure', 'value': 2.5, 'unit': 'bar'}, {'name': '2', 'value': None, 'unit': ''}]
    """
    values = [] if reading is None else reading.values[:MAX_VALUES].tolist()
    called = list(reading.names if reading and reading.names else names)[: len(values)]
    called += [str(i + 1) for i in range(len(called), len(values))]
    known = [*units[: len(values)], *[""] * (len(values) - len(units))]
    return [
        {
            "name": printable(str(name), MAX_NAME_CHARS) or str(i + 1),
            "value": float(f"{value:.6g}") if isfinite(value) else None,
            "unit": printable(unit, MAX_UNIT_CHARS),
        }
        for i, (name, value, unit) in enumerate(zip(called, values, known, strict=True))
    ]


def pattern_name(memory: AgentState, pattern: str | None) -> str | None:
    """Return the name under which a pattern is shown; a detector's is "normal"."""
    if pattern is None and not memory.learner.grouped:
        return NORMAL
    return printable(pattern or "", MAX_NAME_CHARS) or None


def printable(text: str, most: int) -> str:
    r"""Cut text to what can be printed, and to so many characters.

    >>> printable("pump\x1b[2J\ud800 3", 8)
    'pump[2J '
    """
    return "".join(filter(str.isprintable, text[: 10 * most]))[:most]


def rounded(number: float) -> float:
    """Return a number with six digits, from 0 to the highest that is taken.

    >>> rounded(1.23456789), rounded(-1.0), rounded(float("inf")), rounded(float("nan"))
    (1.23457, 0.0, 1e+300, 0.0)
    """
    return float(f"{min(max(0.0, number), MAX_NUMBER):.6g}")


def timestamp(at: float) -> float:
    """Return a time of day to the millisecond, as far as the clock makes sense.

    >>> timestamp(1000.12345), timestamp(-5.0), timestamp(1e30) < 1e11
    (1000.123, 0.0, True)
    """
    return round(min(max(0.0, at), MAX_TIMESTAMP - 1.0), 3)


FOLLOW_RETRY_S = 60.0  # until an exchange for the operator's choice is tried again
FINAL_REPORT_TIMEOUT_S = 0.9  # for the last report

logger = logging.getLogger(__name__)

StatusFunction = Callable[[], dict[str, Any]]


class DeviceReporter:
    """Reports what is new when due; only the last report waits for its answer."""

    def __init__(
        self,
        memory: AgentState,
        syncing: Synchronizer | None,
        worker: Worker[dict[str, Any], ReportOutcome],
        config: ReportConfig,
        *,
        clocks: Clocks,
        values: Callable[[], list[JsonObject]] | None = None,
    ) -> None:
        """Report through `worker`, as often as `config` says; with `values` also the readings."""
        self._values = values
        self._memory, self._syncing, self._worker = memory, syncing, worker
        self._config, self._clocks = config, clocks
        self._points, self._schedule = ReportBuffer(), ReportSchedule(config.every_s, memory.device)
        self._points.space(config.every_s)
        self._held: bytes | None = None  # the merged sum when we last looked
        self._merge: tuple[float, dict[str, Any]] | None = None  # not received by the server yet
        self._in_flight: tuple[ReportBatch, object] = ReportBatch(), None
        self._trouble: type[EdgemergeError] | None = None
        # The last answer says what the server takes; older ones refuse unknown keys.
        self._answer = ReportAnswer(monitor=_knows_reviews(memory.desired))
        self._followed, self._follow_due = 0, 0.0  # the choice of a server without desired states

    def change(self, config: ReportConfig) -> None:
        """Report as often as another configuration says, from the next report on."""
        self._config = config
        self._schedule.change(config.every_s)

    def verdict(self, verdict: Verdict) -> None:
        """Add a verdict to the next report."""
        if self._points.add(verdict, self._clocks.steady()):
            self._schedule.mark_urgent()

    def hurry(self) -> None:
        """Send the next report as soon as allowed."""
        self._schedule.mark_urgent()

    def tend(self, status: StatusFunction) -> None:
        """Take the answer to a report, and send the next one if due; never wait."""
        self._look()
        outcome = self._worker.outcome()
        if outcome is not None:
            self._handle_outcome(outcome)
        if not self._worker.busy and self._schedule.due(self._clocks.steady()):
            self._send(status)

    def leave(self, status: StatusFunction) -> None:
        """Send the last report, unless the server refuses reports; wait less than a second."""
        end = self._clocks.steady() + FINAL_REPORT_TIMEOUT_S
        outcome = self._worker.outcome(FINAL_REPORT_TIMEOUT_S)
        if outcome is not None:
            self._handle_outcome(outcome)
        if not self._worker.busy and self._trouble not in LASTING_ERROR_DELAYS_S:
            self._look()
            self._send(status, leaving=True)
            self._worker.outcome(max(0.0, end - self._clocks.steady()))

    def close(self) -> None:
        """End the thread."""
        self._worker.close()

    def _look(self) -> None:
        """Describe the merged sum if it has changed since the last call."""
        held, first = self._memory.merged, self._held is None
        if held is self._held:
            return
        self._held = held
        merge = describe_merge(self._memory, self._syncing.shift if self._syncing else None)
        if merge["samples"] or not first:
            self._merge = self._clocks.steady(), merge

    def _send(self, status: StatusFunction, *, leaving: bool = False) -> None:
        now, sent = self._clocks.steady(), self._clocks.wall()
        last, found = self._syncing.last if self._syncing else None, status()
        report: dict[str, Any] = {
            "sent": timestamp(sent),
            "status": describe_status(self._memory, self._points, found, last),
        }
        if self._answer.desired is not None:
            report["status"]["desired"] = self._memory.followed
        if self._answer.problems:
            report["status"]["problems"] = describe_problems(found["problems"])
        if self._answer.monitor:
            report["status"] |= {
                "monitor": describe_monitor(found["monitor"]),
                "reviews": found["reviews"],
            }
        if self._answer.settings:
            settings = self._memory.settings
            known = {"version": settings.version, "refused": settings.refused}
            report["status"]["settings"] = known
            if self._values is not None:
                report["status"]["values"] = self._values()
        if self._answer.configuration and "configuration" in found:
            report["status"]["configuration"] = found["configuration"]
        if not self._schedule.failures:  # after a failure try with a short report first
            report |= self._news(sent - now)
        self._worker.send(report | ({"leaving": True} if leaving else {}))
        self._schedule.begun(now)

    def _news(self, shift_s: float) -> dict[str, Any]:
        """Return what is new; `shift_s` turns monotonic times into times of day."""
        taken = self._points.take()
        self._in_flight = taken, self._merge
        detailed = self._answer.monitor
        found: dict[str, Any] = {
            "points": [
                describe_point(each, each.at + shift_s, detailed=detailed) for each in taken.points
            ],
            "alarms": [
                describe_alarm(each, each.at + shift_s, self._memory, detailed=detailed)
                for each in taken.alarms
            ],
        }
        if self._merge is not None:
            found["merge"] = {"at": timestamp(self._merge[0] + shift_s), **self._merge[1]}
        return found

    def _handle_outcome(self, outcome: ReportOutcome) -> None:
        (taken, merge), self._in_flight = self._in_flight, (ReportBatch(), None)
        if outcome.desired is not None:
            self._memory.desired = outcome.desired.plain()
            # Without the configuration: the address of a sink may be a secret.
            wanted = outcome.desired
            devices = "all others" if wanted.devices is None else wanted.devices
            values: dict[str, Any] = {"revision": wanted.revision, "adopt_from": devices}
            if wanted.excluded:
                values["excluded"] = wanted.excluded
            logger.info("new desired state", extra={"values": values})
        if outcome.error is None:
            self._handle_answer(outcome.answer)
            if merge is self._merge:
                self._merge = None
        else:
            self._failed(outcome.error, taken)
        self._points.space(self._schedule.every_s)

    def _handle_answer(self, answer: ReportAnswer) -> None:
        self._schedule.succeeded(self._clocks.steady(), answer.every_s)
        if self._trouble is not None:
            self._trouble = None
            logger.info("the server accepts reports again")
        if answer.problems and not self._answer.problems:
            self.hurry()  # it may not know that there are any
        takes_monitor = answer.monitor or _knows_reviews(self._memory.desired)
        self._answer = answer._replace(monitor=takes_monitor)
        wanted = answer.choice if answer.desired is None else answer.desired
        if wanted is not None and self._config.follow:
            self._follow(wanted)

    def _failed(self, error: EdgemergeError, taken: ReportBatch) -> None:
        if was_not_sent(error):
            self._points.requeue(taken)
        self._answer = ReportAnswer()  # it may be an older server now
        now, kind = self._clocks.steady(), error_kind(error)
        if kind in LASTING_ERROR_DELAYS_S:
            self._schedule.pause(now, LASTING_ERROR_DELAYS_S[kind])
        else:
            retry_s = error.retry_s if isinstance(error, UnavailableError) else None
            self._schedule.failed(now, retry_s)
        if self._trouble is kind:  # log it only when it begins or its kind changes
            return
        self._trouble = kind
        values = {"values": {"why": error}}
        if isinstance(error, UnknownError):
            logger.info("the server does not accept reports: not sending any", extra=values)
        else:
            logger.warning("a report did not reach the server", extra=values)

    def _follow(self, revision: int) -> None:
        """Exchange when the operator's choices changed; retry after a while if that fails."""
        now = self._clocks.steady()
        followed = self._followed if self._answer.desired is None else self._memory.followed
        if revision == followed or self._syncing is None or now < self._follow_due:
            return
        self._follow_due = now + FOLLOW_RETRY_S
        self._syncing.begin(lambda found: self._exchanged(found, revision))

    def _exchanged(self, found: dict[str, Any], revision: int) -> None:
        if found["exchange"] == "ok":
            self._followed, self._follow_due = revision, 0.0
            if self._answer.desired is not None:
                self._memory.followed = revision


def _knows_reviews(desired: Any) -> bool:
    return isinstance(desired, dict) and "reviews" in desired
