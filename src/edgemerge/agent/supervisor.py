"""Run devices in one process: one, several of a gateway, or a generation and the next beside it.

Several devices have a thread each, one log, and one control socket for all. Each is run as by an
agent of its own, with its own state folder, exchange and sinks, and so its scores are those of such
an agent. A device that fails is started again after a while; the others do not notice.
"""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from random import Random
from threading import Event, Thread
from typing import Any

from edgemerge.agent.config import (
    REPLACED_FILE,
    Config,
    FleetConfiguration,
    GatewayConfig,
    current_generation,
    with_fleet_tables,
)
from edgemerge.agent.control import ControlSocket
from edgemerge.agent.factory import ALARM_SPOOL, LAST_TOLD, SPOOL, make_sinks
from edgemerge.agent.judge import Verdict
from edgemerge.agent.quality import ProblemEvent
from edgemerge.agent.runner import READY, STOPPING, Ending, run_one
from edgemerge.agent.sinks import Sink
from edgemerge.agent.state import StateFolder
from edgemerge.core.errors import EdgemergeError
from edgemerge.daemon import Backoff, in_context, log_values, notify

FIRST_RESTART_S, MAX_RESTART_S = 10.0, 600.0  # until a device that failed is started again
START_TIMEOUT_S = 10.0  # for devices to start, until the process counts as ready without them
POLL_S = 0.2

logger = logging.getLogger(__name__)


def run(
    config: Config,
    *,
    stop: Event,
    clock: Callable[[], float] = time.time,
    sinks: Iterable[Sink] = (),
) -> int:
    """Run the agent of one device; return the exit code.

    Args:
        config: What to run.
        stop: Set it to end the agent.
        clock: The time of day in seconds; tests replace it.
        sinks: Receive verdicts in addition to the sinks of the configuration.
    """
    return run_device(config, stop=stop, clock=clock, sinks=sinks).code


def run_device(
    config: Config,
    *,
    stop: Event,
    clock: Callable[[], float] = time.time,
    sinks: Iterable[Sink] = (),
    on_state: Callable[[str], None] = notify,
    may_pass: Callable[[float], bool] | None = None,
) -> Ending:
    """Run a device until its source ends or `stop` is set.

    Args:
        config: What to run.
        stop: Set it to end the device.
        clock: The time of day in seconds; tests replace it.
        sinks: Receive verdicts in addition to the sinks of the configuration.
        on_state: Called with WAITING while the server with the projection cannot be reached, with
            READY when readings can be judged, and with STOPPING when no more are.
        may_pass: Returns whether a reading of this time may be judged yet; else it waits.
    """
    config = current_generation(config)  # it may have been replaced since the file was read
    if config.next is not None:
        return Generations(config, stop, clock, sinks, on_state).run(config.next)
    return run_one(
        config, stop=stop, clock=clock, sinks=sinks, on_state=on_state, may_pass=may_pass
    )


class DeviceThread:
    """Runs one device, again and again if it fails; `state` says in words what it does now.

    Args:
        config: The device.
        stop: Set it to end the device.
        clock: The time of day in seconds.
        exit_code: Returns the exit code for an error.
        sinks: Receive verdicts in addition to the sinks of the configuration.
        may_pass: Returns whether a reading of this time may be judged yet; else it waits.
    """

    def __init__(
        self,
        config: Config,
        stop: Event,
        clock: Callable[[], float],
        exit_code: Callable[[Exception], int],
        *,
        sinks: Iterable[Sink] = (),
        may_pass: Callable[[float], bool] | None = None,
    ) -> None:
        """Start the thread."""
        self.config, self._sinks, self._may_pass = config, tuple(sinks), may_pass
        self.state, self.ending = "starting", Ending(0)
        self._stop, self._clock, self._exit_code = stop, clock, exit_code
        self._backoff = Backoff(FIRST_RESTART_S, MAX_RESTART_S, Random(config.device))
        self._retry_at = 0.0
        self._start()

    @property
    def is_alive(self) -> bool:
        """Whether the device runs, or is being started."""
        return self._thread.is_alive()

    def tend(self) -> None:
        """Start the device again if it failed and the time has come."""
        if not self.is_alive and self.ending.code and time.monotonic() >= self._retry_at:
            self.state = "starting"
            self._start()

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join()

    def plain(self) -> dict[str, Any]:
        """Return its status as plain JSON."""
        found = {"device": self.config.device, "state": self.state, "why": self.ending.why}
        return found | {"folder": str(current_generation(self.config).state)}

    def _start(self) -> None:
        self._thread = Thread(target=in_context(self._run), name=self.config.device, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        log_values.set({"device": self.config.device})
        began = time.monotonic()
        try:
            self.ending = run_device(
                self.config,
                stop=self._stop,
                clock=self._clock,
                sinks=self._sinks,
                on_state=self._follow,
                may_pass=self._may_pass,
            )
        except (EdgemergeError, OSError) as error:
            self.ending = Ending(self._exit_code(error), str(error))
        except Exception as error:  # a bug that one device shows must not stop the others
            logger.exception("the device failed unexpectedly")
            self.ending = Ending(self._exit_code(error), repr(error))
        self.state = "ended"
        if self.ending.code:
            self.state = "failed"
            if time.monotonic() - began > MAX_RESTART_S:
                self._backoff.reset()  # this is another trouble than the one before
            wait_s = self._backoff.next()
            self._retry_at = time.monotonic() + wait_s
            values = {"why": self.ending.why, "retry_s": round(wait_s, 1)}
            logger.error("the device failed: the others go on", extra={"values": values})

    def _follow(self, state: str) -> None:
        if state == READY:
            self.state, self.ending = "running", Ending(0)
        elif state == STOPPING:
            self.state = "stopping"


def run_gateway(
    config: GatewayConfig,
    *,
    stop: Event,
    clock: Callable[[], float] = time.time,
    exit_code: Callable[[Exception], int] = lambda _error: 1,
) -> int:
    """Run all devices until their sources end or `stop` is set; return the exit code.

    It is 0 if all devices ended well, else that of the first one in the configuration that did not.
    A device that fails is started again as long as another one runs.

    Args:
        config: What to run.
        stop: Set it to end all devices.
        clock: The time of day in seconds; tests replace it.
        exit_code: Returns the exit code for an error that ended a device.
    """
    with closing(StateFolder(config.state)), closing(ControlSocket(config.state)) as control:
        devices = [DeviceThread(each, stop, clock, exit_code) for each in config.devices]
        logger.info("devices are started", extra={"values": {"devices": len(devices)}})
        is_ready, give_up_at = False, time.monotonic() + START_TIMEOUT_S
        while any(each.is_alive for each in devices) and not stop.wait(POLL_S):
            starting = any(each.state == "starting" for each in devices)
            if not is_ready and (not starting or time.monotonic() >= give_up_at):
                is_ready = True
                notify(READY)
            _answer(control, devices)
            for each in devices:
                each.tend()
        notify(STOPPING)
        for each in devices:
            each.join()
    return next((each.ending.code for each in devices if each.ending.code), 0)


def _answer(control: ControlSocket, devices: Sequence[DeviceThread]) -> None:
    for request in control.requests():
        if request.command.get("command") == "status":
            request.answer({"devices": [each.plain() for each in devices]})
        else:
            names = ", ".join(each.config.device for each in devices)
            request.answer({"error": f"several devices run here: choose one with --device {names}"})


MAX_WITHHELD = 1000  # verdicts of the next generation, while the former one ends; then it waits
MAX_DOUBTFUL = 64  # alarms of the former one that are remembered
BEHIND = 32  # samples by which the next one follows: an alarm opens within 30 (docs/streams.md)
SKEW_S = 2.0  # between the two, when they read the same row, and it has no time of its own
SILENT_S = 600.0  # without a verdict: then the next one does not wait for the former


class FormerWatch:
    """A sink of the former generation: when the next one may have a reading, and learn from it.

    An alarm begins some samples after its fault. So a reading waits until the former generation has
    judged `BEHIND` samples since, and is doubtful if it is of an alarm or as many samples before.

    Args:
        steady: A monotonic clock.
    """

    def __init__(self, steady: Callable[[], float] = time.monotonic) -> None:
        """Begin without an alarm."""
        self._steady, self._judged_at, self._ended = steady, steady(), False
        self._times: deque[float] = deque(maxlen=BEHIND)  # of the last samples
        self._doubtful: tuple[tuple[float, float], ...] = ()  # from when to when, the newest last
        self._alarm = False

    @property
    def alarm(self) -> bool:
        """Whether the former generation is in alarm, and still judges."""
        return self._alarm and not self._is_gone

    @property
    def _is_gone(self) -> bool:
        return self._ended or self._steady() - self._judged_at > SILENT_S

    def has_passed(self, at: float) -> bool:
        """Return whether enough was judged since a time, or nothing is judged any more."""
        return self._is_gone or (len(self._times) == BEHIND and self._times[0] >= at)

    def is_doubtful(self, at: float) -> bool:
        """Return whether a reading of this time may be of a fault."""
        if self._is_gone and self._times and at > self._times[-1] + SKEW_S:
            return False  # an alarm that nobody can end any more
        return any(begin - SKEW_S <= at <= end + SKEW_S for begin, end in self._doubtful)

    def verdict(self, verdict: Verdict) -> None:
        """Look at a verdict."""
        self._times.append(verdict.at)
        if verdict.alarm and not self._alarm:
            known = len(self._times) == BEHIND  # else it may have begun before a restart
            spans = (*self._doubtful, (self._times[0] if known else -math.inf, math.inf))
            self._doubtful = spans[-MAX_DOUBTFUL:]
        elif self._alarm and not verdict.alarm:
            self._doubtful = (*self._doubtful[:-1], (self._doubtful[-1][0], verdict.at))
        self._alarm = verdict.alarm
        self._judged_at = self._steady()

    def status(self, status: dict[str, Any]) -> None:
        """Need none."""

    def close(self) -> None:
        """Hold nothing back any more."""
        self._ended = True


class Handover:
    """A sink of the next generation: delivers nothing until the former one has ended.

    `ready` is set when the next one watches, and the former one is not in alarm. The next one does
    not learn from an alarm of the former one. When that has ended, the sinks are made, and get the
    verdicts since then first: some rows are judged twice, and none goes unseen.

    Args:
        config: The next generation, with its sinks.
        former: What the former one has judged.
        sinks: More sinks, from then on.
        replaces: The former generation, whose messages that wait are delivered.
    """

    def __init__(
        self,
        config: Config,
        former: FormerWatch,
        sinks: Iterable[Sink] = (),
        *,
        replaces: Config | None = None,
    ) -> None:
        """Wait for the next generation to watch."""
        self._config, self._former, self._more = config, former, tuple(sinks)
        self._replaces = replaces
        self._sinks: list[Sink] | None = None
        self._withheld: deque[Verdict] = deque()
        self._paused: bool | None = None  # learning, by us; None: not known yet
        self._pause = False  # for the reading that comes next
        self.ready, self.former_ended = Event(), Event()

    def verdict(self, verdict: Verdict) -> None:
        """Deliver a verdict if the former generation has ended."""
        if verdict.ready and not self._former.alarm:
            self.ready.set()
        if self.ready.is_set():
            self._withheld.append(verdict)
        self._own_sinks()

    def status(self, status: dict[str, Any]) -> None:
        """Deliver the status, likewise."""
        for sink in self._own_sinks():
            sink.status(status)

    def problem(self, device: str, event: ProblemEvent) -> None:
        """Deliver a problem with the data, likewise."""
        for sink in self._own_sinks():
            deliver = getattr(sink, "problem", None)
            if deliver is not None:
                deliver(device, event)

    def may_pass(self, at: float) -> bool:
        """Return whether the next generation may have a reading of this time.

        If learning has to be switched on or off for it, that is done first: see `commands`. It
        waits while much is withheld.
        """
        alone = self.former_ended.is_set() or self.ready.is_set()
        passed = alone or self._former.has_passed(at)
        self._pause = not alone and self._former.is_doubtful(at)  # after what it may have heard
        room = len(self._withheld) < MAX_WITHHELD
        return passed and room and self._pause == self._paused

    def commands(self) -> list[Any]:
        """Return commands of the sinks, and whether to learn."""
        found = [each for sink in self._own_sinks() for each in getattr(sink, "commands", list)()]
        if self._pause != self._paused:
            self._paused = self._pause
            found.append({"command": "learn", "on": not self._paused})
        return found

    def start_again(self) -> None:
        """Begin anew with a next one that has failed, and goes on with what it has saved."""
        self._paused = None  # tell it again whether to learn
        self.ready.clear()
        self._withheld.clear()  # the former one judges these rows, too

    def close(self) -> None:
        """Deliver what was withheld, if the former one has ended; close what was made here."""
        for sink in self._own_sinks():
            if sink not in self._more:
                sink.close()

    def _made_sinks(self) -> list[Sink]:
        """Make the sinks, with those of the fleet if they can be used."""
        if self._replaces is not None:
            _take_over_messages(self._replaces, self._config)
        follow, held = self._config.report.follow, FleetConfiguration.read(self._config.state)
        for tables in [held.tables, {}] if follow and held.tables else [{}]:
            try:
                return make_sinks(with_fleet_tables(self._config, tables))
            except (EdgemergeError, ImportError, OSError) as error:
                logger.error("sinks cannot be used", extra={"values": {"why": error}})
        return []

    def _own_sinks(self) -> list[Sink]:
        if self._sinks is None:
            if not self.former_ended.is_set():
                return []
            self._sinks = [*self._made_sinks(), *self._more]
        while self._withheld:
            verdict = self._withheld.popleft()
            for sink in self._sinks:
                sink.verdict(verdict)
        return self._sinks


def _take_over_messages(former: Config, following: Config) -> None:
    """Move messages that could not be delivered yet, where both generations have the same sink."""
    for number, (old, new) in enumerate(zip(former.sinks, following.sinks, strict=False)):
        names = (SPOOL.format(number), LAST_TOLD.format(number), ALARM_SPOOL.format(number))
        for name in names if old == new else ():
            try:
                shutil.move(former.state / name, following.state / name)
            except FileNotFoundError:
                pass  # another kind of sink
            except OSError as error:
                values = {"file": former.state / name, "why": error}
                logger.error("messages that wait stay behind", extra={"values": values})


class Generations:
    """A device, and its next generation beside it; when that watches, it goes on alone.

    Each has a source, a state and an exchange of its own, so that the former one judges as if it
    were alone. The next one is started again if it fails. The sinks are the same, so those of the
    next one are made when the former one has ended.

    Args:
        config: The former generation, with the next one.
        stop: Set it to end both.
        clock: The time of day in seconds.
        sinks: Receive verdicts in addition to the sinks of the configuration.
        on_state: Called with READY and STOPPING.
    """

    def __init__(
        self,
        config: Config,
        stop: Event,
        clock: Callable[[], float],
        sinks: Iterable[Sink],
        on_state: Callable[[str], None],
    ) -> None:
        """Start nothing yet."""
        self._config, self._stop, self._clock = config, stop, clock
        self._sinks, self._on_state = tuple(sinks), on_state
        self._former_stop, self._next_stop, self._replaced = Event(), Event(), Event()

    def run(self, following: Config) -> Ending:
        """Run both until one is left, and that one until it ends."""
        former = FormerWatch()
        handover = Handover(following, former, self._sinks, replaces=self._config)
        beside = DeviceThread(
            following,
            self._next_stop,
            self._clock,
            lambda _error: 1,
            sinks=[handover],
            may_pass=handover.may_pass,
        )
        watch = in_context(partial(self._watch, following, handover, beside))
        watcher = Thread(target=watch, name="generations", daemon=True)
        watcher.start()
        try:
            ending = run_one(
                replace(self._config, next=None),
                stop=self._former_stop,
                clock=self._clock,
                sinks=[*self._sinks, former],
                on_state=self._on_state_of_former,
            )
            former.close()
            while beside.is_alive and not self._stop.wait(POLL_S):
                if self._replaced.is_set():
                    handover.former_ended.set()
                elif ending.code:
                    break
        finally:
            self._former_stop.set()
            self._next_stop.set()
            watcher.join()
            beside.join()
            if self._replaced.is_set():
                handover.former_ended.set()
            handover.close()
        if not self._replaced.is_set():
            return ending
        self._on_state(STOPPING)
        return beside.ending

    def _watch(self, following: Config, handover: Handover, beside: DeviceThread) -> None:
        """End the former generation when asked to, or when the next one watches."""
        trouble = ""
        while not self._former_stop.wait(POLL_S):
            if self._stop.is_set():
                self._former_stop.set()
                return
            try:
                self._look_after(following, handover, beside)
            except (OSError, RuntimeError) as error:  # a full disk, or no more threads
                if str(error) != trouble:
                    trouble = str(error)
                    values = {"why": error}
                    logger.error(
                        "the next generation waits: the former one goes on",
                        extra={"values": values},
                    )

    def _look_after(self, following: Config, handover: Handover, beside: DeviceThread) -> None:
        """Let the next generation replace the former one, or start it again if it failed."""
        if handover.ready.is_set() and beside.state != "failed":
            (following.state / REPLACED_FILE).touch()
            logger.info("the next generation watches, and replaces the former one")
            self._replaced.set()
            self._former_stop.set()
        elif not beside.is_alive:
            handover.start_again()
            beside.tend()

    def _on_state_of_former(self, state: str) -> None:
        if state != STOPPING or not self._replaced.is_set():
            self._on_state(state)
