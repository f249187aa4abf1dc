"""One agent: what it consists of, its loop, how it is started from its state, and how it ends.

The loop judges and delivers; between samples it runs commands, syncs, saves and reports. While it
runs, the fleet's configuration may change what needs no restart.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from threading import Event
from typing import Any, NamedTuple

from edgemerge.agent.background import (
    ReadAhead,
    SyncSchedule,
    exchange_worker,
    report_worker,
    save_worker,
)
from edgemerge.agent.config import Config, FleetConfiguration, MonitorConfig, with_fleet_tables
from edgemerge.agent.control import ControlSocket, Request
from edgemerge.agent.factory import (
    input_names,
    make_exchange,
    make_features,
    make_learner,
    make_monitor,
    make_quality,
    make_reports,
    make_sinks,
    make_source,
    quality_settings,
    server_access,
    tls_options,
)
from edgemerge.agent.judge import Judge, OutsideError
from edgemerge.agent.quality import DataQuality, ProblemEvent
from edgemerge.agent.reports import DeviceReporter, describe_values
from edgemerge.agent.reviewer import DECISION_HANDLERS, MAX_REASON_CHARS, Reviewer
from edgemerge.agent.sinks import Sink
from edgemerge.agent.sources import Reading
from edgemerge.agent.state import AgentState, AppliedSettings, StateFolder, StateSaver
from edgemerge.agent.sync import (
    MS_PER_S,
    AnswerCallback,
    Clocks,
    PeerDecisions,
    SharingPolicy,
    Synchronizer,
    iso_time,
)
from edgemerge.core.errors import EdgemergeError, SettingError, UnavailableError
from edgemerge.core.ledger import Merged
from edgemerge.core.projection import Projection
from edgemerge.core.trust import Trust
from edgemerge.daemon import Backoff, notify
from edgemerge.exchange.client import ReportClient
from edgemerge.exchange.configuration import SAMPLE_TABLES
from edgemerge.exchange.protocol import Exchange, is_masked
from edgemerge.privacy.gate import min_fresh_samples, min_unsolvable
from edgemerge.wire.codec import encode

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
            self._agent.judge.end()
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


FIRST_RETRY_S, MAX_RETRY_S = 2.0, 60.0  # for fetching the projection at the start
WRONG_SETTING = 2  # the exit code if the file is not as the configuration says
EXCHANGE_REFUSED, EXCHANGE_UNREACHABLE = 3, 4  # if the last exchange failed
NO_USABLE_DATA = 5  # if the source's file is missing, no row could be read, or samples do not fit
SAVE_TIMEOUT_S = 10.0  # for a state that is being written at the end
READY, STOPPING, NO_STATUS = "READY=1", "STOPPING=1", "STATUS="  # for systemd
WAITING = f"{READY}\nSTATUS=waiting for the projection of the fleet"
CLOSE_TIMEOUT_S = 1.0  # for a thread that may hang on the network; closing a peer takes 0.5 s


class Ending(NamedTuple):
    """How the run of a device ended: its exit code, and what went wrong."""

    code: int
    why: str = ""


def known_projection(
    config: Config, folder: StateFolder, memory: AgentState | None
) -> Projection | None:
    """Return the projection of the state, the configuration or the folder, in this order."""
    if memory is None:
        return config.projection or folder.projection()
    if config.projection is not None and config.projection != memory.projection:
        raise SettingError(
            f"{folder.path} holds what was learnt with {memory.projection}, and the configuration "
            f"has {config.projection}: change it back, or choose another state folder"
        )
    return memory.projection


def fetch_projection(
    exchange: Exchange | None, stop: Event, on_state: Callable[[str], None] = notify
) -> Projection | None:
    """Fetch the projection from the fleet, retrying until it works; None if `stop` is set first.

    Args:
        exchange: The fleet's server.
        stop: Set it to give up.
        on_state: Called with WAITING if the server cannot be reached: systemd would kill an agent
            that is not ready within 90 s. Afterwards that status is cleared.
    """
    backoff = Backoff(FIRST_RETRY_S, MAX_RETRY_S)
    while not stop.is_set():
        try:
            found: Projection = exchange.projection  # type: ignore[union-attr] # HTTP has it
        except UnavailableError as error:
            wait_s = backoff.next(retry_after_s=error.retry_s)
            values = {"why": error, "retry_s": round(wait_s, 1)}
            logger.warning(
                "the projection could not be fetched from the fleet", extra={"values": values}
            )
            on_state(WAITING)
            stop.wait(wait_s)
        else:
            on_state(NO_STATUS)
            return found
    return None


def new_state(config: Config, projection: Projection, clock: Callable[[], float]) -> AgentState:
    """Return the empty state of a new incarnation."""
    monitor = make_monitor(config, projection)
    now = max(0, int(clock() * MS_PER_S))
    memory = AgentState(config.device, now, monitor, merged=encode(Merged(projection)))
    values = {"device": memory.device, "incarnation": memory.incarnation}
    logger.info("a new incarnation begins", extra={"values": values})
    return memory


def check_state(memory: AgentState, config: Config) -> None:
    """Refuse the state of another device or kind of learner; warn of changed settings."""
    learner = memory.learner
    kind = type(learner).__name__.lower()
    for word, found, expected in (
        ("device", memory.device, config.device),
        ("learner.kind", kind, config.learner.kind),
    ):
        if found != expected:
            raise SettingError(
                f"{config.state} holds the state of {word} {found!r}, and the configuration has "
                f"{expected!r}: change it back, or choose another state folder"
            )
    kept, wanted = learner.options, make_learner(config, memory.projection).options
    changed = [name for name in kept if kept[name] != wanted[name]]
    if changed:
        values = {"changed": changed, "kept": {name: kept[name] for name in changed}}
        logger.warning(
            "settings of [learner] have changed: what was learnt keeps the ones it began with",
            extra={"values": values},
        )


def follow_settings(memory: AgentState, config: Config) -> None:
    """Let a restored monitor follow the configuration, and warn of settings that do harm."""
    given, monitor = config.monitor, memory.monitor
    before = monitor.options
    try:
        monitor.change(**given.options_with(asdict(memory.settings)))
    except SettingError as error:  # what the server set does not fit the file any more
        logger.warning("settings of the server were refused", extra={"values": {"why": error}})
        kept = AppliedSettings(version=memory.settings.version, refused=str(error))
        memory.settings = replace(kept, label=memory.settings.label)
        monitor.change(**given.options)
    changed = [name for name, value in monitor.options.items() if value != before[name]]
    if changed:
        logger.info("settings of [monitor] have changed", extra={"values": {"changed": changed}})
    if given.learn == "always":
        logger.warning('monitor.learn = "always": a fault that lasts will be learnt as normal')
    elif config.learner.reject_above is not None:
        logger.warning(
            'learner.reject_above has no effect: monitor.learn = "%s" decides what is learnt',
            given.learn,
        )


def _warn_of_gate(config: Config, projection: Projection) -> None:
    """Say what a lower gate than the default gives up."""
    gate = config.sync.gate
    if gate is None or gate * projection.n_hidden >= min_fresh_samples(projection):
        return
    solvable = gate * projection.n_hidden < min_unsolvable(projection)
    words = (
        "single samples can be recovered from what is shared"
        if solvable
        else "whether a sample was among those learnt can often be told from what is shared"
    )
    values = {"gate": gate, "default": min_fresh_samples(projection) / projection.n_hidden}
    logger.warning(f"sync.gate is lower than the default: {words}", extra={"values": values})


def run_one(
    own: Config,
    *,
    stop: Event,
    clock: Callable[[], float],
    sinks: Iterable[Sink],
    on_state: Callable[[str], None],
    may_pass: Callable[[float], bool] | None = None,
) -> Ending:
    """Run one device by its own configuration, and the fleet's below it."""
    with ExitStack() as ends:
        folder = StateFolder(own.state)
        ends.callback(folder.close)
        memory = folder.read()
        shared = known_projection(own, folder, memory)
        exchange = make_exchange(own, shared)
        held = FleetConfiguration.read(own.state)
        if held.refused:  # the device's own file may have changed, so look at it again
            held = replace(held, seen=0, refused="")
        if memory is None:
            held = fetch_configuration(own, stop, on_state, needed=shared is None) or held
        shared = shared or fetch_projection(exchange, stop, on_state)
        if shared is None:
            return Ending(0)
        if own.projection is None:
            folder.save_projection(shared)
        clocks = Clocks(clock, time.monotonic)
        parts = partial(_start_agent, memory, shared, folder, exchange, clocks, may_pass)
        config, agent, held = _start_with_fleet(own, held, parts, ends)
        if own.report.follow:
            configure = Reconfiguration(own, config, agent).apply
            agent.reviews.follow_configuration(held, own.state, configure)
        agent.sinks += sinks
        if not agent.sinks and agent.reporting is None:
            logger.warning(
                "No output is configured, so alarms will not be delivered. Add a [[sinks]] section."
            )
        return _run(config, agent, stop, clocks, ends, on_state)


def fetch_configuration(
    config: Config, stop: Event, on_state: Callable[[str], None] = notify, *, needed: bool
) -> FleetConfiguration | None:
    """Fetch the fleet's configuration before the first sample; None if there is none.

    Only then may it say what a sample is. With `needed` the server must be reached anyway, and is
    asked until it answers, while `on_state` is called with WAITING; else once.
    """
    if config.exchange.kind != "http" or not config.report.follow:
        return None
    url, fleet, token = server_access(config.exchange)
    backoff = Backoff(FIRST_RETRY_S, MAX_RETRY_S)
    client = ReportClient(url, fleet, config.device, token, **tls_options(config))
    with closing(client):
        while not stop.is_set():
            try:
                found = client.desired()
            except UnavailableError as error:
                words = "the fleet's configuration was not fetched"
                values: dict[str, Any] = {"why": error}
                if not needed:
                    logger.warning(words, extra={"values": values})
                    return None
                wait_s = backoff.next(retry_after_s=error.retry_s)
                words += ", and the agent waits: it has no projection yet"
                logger.warning(words, extra={"values": values | {"retry_s": round(wait_s, 1)}})
                on_state(WAITING)
                stop.wait(wait_s)
            except EdgemergeError:
                return None  # an older server, or a device that has not enrolled
            else:
                wanted = None if found is None else found.configuration
                if wanted is None:
                    return None
                version = wanted["version"]
                return FleetConfiguration(version, wanted.get("tables", {}), version)
    return None


def _start_with_fleet(
    own: Config,
    held: FleetConfiguration,
    parts: Callable[[Config, ExitStack], Agent],
    ends: ExitStack,
) -> tuple[Config, Agent, FleetConfiguration]:
    """Start with the fleet's configuration; by the device's own alone if that does not fit."""
    if held.tables and own.report.follow:
        try:
            config = with_fleet_tables(own, held.tables)
            with ExitStack() as begun:
                agent = parts(config, begun)
                ends.push(begun.pop_all())
        except Exception as error:  # noqa: BLE001 - whatever it is must not stop detection
            why = str(error)[:MAX_REASON_CHARS] or repr(error)
            values = {"version": held.version, "why": why}
            logger.warning("the fleet's configuration was refused", extra={"values": values})
            held = FleetConfiguration(seen=held.seen, refused=why)
        else:
            held.save(own.state)
            return config, agent, held
    agent = parts(own, ends)
    if held.seen:
        held.save(own.state)
    return own, agent, held


def _start_agent(
    memory: AgentState | None,
    shared: Projection,
    folder: StateFolder,
    exchange: Exchange | None,
    clocks: Clocks,
    may_pass: Callable[[float], bool] | None,
    config: Config,
    ends: ExitStack,
) -> Agent:
    memory = memory or new_state(config, shared, clocks.wall)
    check_state(memory, config)
    follow_settings(memory, config)
    return _build_agent(config, memory, folder, exchange, clocks, may_pass, ends)


def _build_agent(
    config: Config,
    memory: AgentState,
    folder: StateFolder,
    exchange: Exchange | None,
    clocks: Clocks,
    may_pass: Callable[[float], bool] | None,
    ends: ExitStack,
) -> Agent:
    source = make_source(config, memory.projection)
    features = make_features(config, memory.projection)
    if memory.features is not None:
        features.resume(memory.features)
    names = partial(input_names, config, memory.projection)
    worker = save_worker(folder)
    ends.callback(worker.close, SAVE_TIMEOUT_S)
    keeper = StateSaver(folder, memory, features, config.save, worker=worker, steady=clocks.steady)
    quality = make_quality(config, clocks)
    judge = Judge(memory, features, names, clocks.wall, quality)
    quality.range_words = judge.range_words
    follow = config.report.follow
    reviews = Reviewer(
        memory, judge, keeper, clock=clocks.wall, follow=follow, monitor=config.monitor
    )
    sinks = make_sinks(config) if may_pass is None else []  # else the handover makes them
    for sink in sinks:
        ends.callback(sink.close)
    syncing = None
    if exchange is not None:
        syncing = _build_sync(config, memory, exchange, keeper, clocks)
        ends.callback(syncing.close, CLOSE_TIMEOUT_S)
    reporting, reports = None, make_reports(config)
    if reports is not None:
        reporter = report_worker(reports, memory.desired and int(memory.desired["revision"]))
        values = partial(_read_values, config, judge) if config.report.report_values else None
        reporting = DeviceReporter(
            memory, syncing, reporter, config.report, clocks=clocks, values=values
        )
        ends.callback(reporting.close)
    inbox = ReadAhead(source, memory.position, may_pass=may_pass, clock=clocks.wall)
    ends.callback(inbox.close)
    return Agent(memory, inbox, judge, keeper, syncing, sinks, reviews, reporting, quality)


def _read_values(config: Config, judge: Judge) -> list[dict[str, Any]]:
    """Return the last reading for a report, which the device's own file has asked for."""
    columns = [str(each) for each in config.source.columns]
    return describe_values(judge.reading, columns, config.source.units)


def _build_sync(
    config: Config, memory: AgentState, exchange: Exchange, keeper: StateSaver, clocks: Clocks
) -> Synchronizer:
    _warn_of_gate(config, memory.projection)
    limits = {"max_shift": config.sync.max_shift, "timeout_s": config.sync.adopt_timeout_s}
    sharing = SharingPolicy(memory, gate=config.sync.gate, **limits)
    if is_masked(exchange):
        sharing.agreed = exchange.noise_known
        memory.clip(exchange.noise if exchange.noise_known else None)
    else:
        memory.clip(None)
    schedule = SyncSchedule(config.sync.every_s, config.sync.jitter, config.device)
    worker = exchange_worker(exchange)
    decisions = None
    if config.exchange.kind != "http":
        trust = Trust.parse(config.sync.trust)
        decisions = PeerDecisions(config.state, trust, memory.projection, clock=clocks.wall)
    return Synchronizer(
        sharing,
        worker,
        schedule,
        config.sync,
        save=keeper.begin,
        clocks=clocks,
        decisions=decisions,
    )


def _run(
    config: Config,
    agent: Agent,
    stop: Event,
    clocks: Clocks,
    ends: ExitStack,
    on_state: Callable[[str], None],
) -> Ending:
    control = ControlSocket(config.state)
    ends.callback(control.close)
    agent.keeper.save()  # a failure is logged, and detection goes on
    on_state(READY)
    at_end = config.sync.every_s > 0 if config.sync.at_end is None else config.sync.at_end
    try:
        Loop(agent, control, steady=clocks.steady).run(stop, sync_at_end=at_end)
    except OutsideError as error:
        agent.keeper.discard()
        logger.error("the agent stops", extra={"values": {"why": error}})
        return Ending(NO_USABLE_DATA, str(error))
    on_state(STOPPING)
    ending = _ending(agent)
    return ending if ending.code or not at_end or stop.is_set() else _exchange_ending(agent)


def _exchange_ending(agent: Agent) -> Ending:
    """Return how the last exchange ended, after the source had; nothing is lost if it failed."""
    state = "ok" if agent.syncing is None else agent.syncing.state
    if state.startswith(("denied", "refused")):
        return Ending(EXCHANGE_REFUSED, f"the exchange failed: {state}")
    if state.startswith("away"):
        return Ending(EXCHANGE_UNREACHABLE, f"the exchange failed: {state}")
    return Ending(0)


def _ending(agent: Agent) -> Ending:
    """Return how reading ended, and log what went wrong."""
    inbox = agent.inbox
    if inbox.error is not None:
        logger.error("the source failed", extra={"values": {"why": inbox.error}})
        code = WRONG_SETTING if isinstance(inbox.error, SettingError) else 1
        if isinstance(inbox.error.__cause__, FileNotFoundError):
            code = NO_USABLE_DATA
        elif isinstance(inbox.error.__cause__, PermissionError):
            code = 1
        return Ending(code, f"the source failed: {inbox.error}")
    nothing_yet = not agent.memory.index and bool(inbox.skipped or inbox.ended)
    if not inbox.taken and (nothing_yet or (inbox.ended and inbox.skipped)):
        values = {
            "skipped": inbox.skipped,
            **({"last": inbox.why_skipped} if inbox.why_skipped else {}),
            "advice": "`edgemerge doctor CONFIG.toml` says what to set",
        }
        logger.error("no row could be read", extra={"values": values})
        return Ending(NO_USABLE_DATA, f"no row could be read, {inbox.skipped:,} were skipped")
    return Ending(1, agent.keeper.trouble) if agent.keeper.trouble else Ending(0)


class Reconfiguration:
    """Lets a running agent follow the fleet's configuration, as far as that needs no restart.

    Args:
        own: What the device itself says.
        built: What the agent was built with.
        agent: The agent.
    """

    def __init__(self, own: Config, built: Config, agent: Agent) -> None:
        """Begin with what it was built with."""
        self._own, self._built, self._now, self._agent = own, built, built, agent

    def apply(self, tables: object) -> tuple[MonitorConfig, tuple[str, ...]]:
        """Apply tables; return the settings of the monitor, and the tables that need a restart.

        Raises:
            SettingError: They do not fit, with the reason; nothing has changed.
        """
        new, agent, memory = with_fleet_tables(self._own, tables), self._agent, self._agent.memory
        changed = [
            name for name in SAMPLE_TABLES if getattr(new, name) != getattr(self._built, name)
        ]
        if changed and memory.index:
            raise SettingError(
                f"it changes {_changed_keys(self._built, new, changed)}, and so what a sample is, "
                f"but this device has {memory.index} samples: start a new generation with [next], "
                "or leave that out"
            )
        make_features(new, memory.projection)
        memory.monitor.change(**new.monitor.options_with(asdict(memory.settings)))
        if new.quality != self._now.quality and agent.quality is not None:
            agent.quality.change(quality_settings(new))
        if new.sync != self._now.sync and agent.syncing is not None:
            agent.syncing.change(new.sync)
        if new.report != self._now.report and agent.reporting is not None:
            agent.reporting.change(new.report)
        agent.keeper.change(new.save)
        self._now = new
        if new.sinks != self._built.sinks:
            changed.append("sinks")
        return new.monitor, tuple(changed)


def _changed_keys(before: Config, after: Config, tables: Iterable[str]) -> str:
    found = []
    for name in tables:
        old, new = asdict(getattr(before, name)), asdict(getattr(after, name))
        found += [f"{name}.{key}" for key in old if old[key] != new[key]]
    return ", ".join(found)
