"""Running an agent: puts the parts together, runs the loop, and takes everything down again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from threading import Event

from edgemerge.agent.building import (
    input_names,
    make_exchange,
    make_features,
    make_reports,
    make_sinks,
    make_source,
    make_threshold,
)
from edgemerge.agent.config import Config
from edgemerge.agent.control import Control
from edgemerge.agent.courier import Courier
from edgemerge.agent.desk import Desk
from edgemerge.agent.inbox import Inbox
from edgemerge.agent.judging import Judge
from edgemerge.agent.keeping import Keeper
from edgemerge.agent.limits import resume_threshold
from edgemerge.agent.loop import Loop
from edgemerge.agent.memory import Memory
from edgemerge.agent.parts import Features, Sink
from edgemerge.agent.reporter import Reporter
from edgemerge.agent.reporting import Reporting
from edgemerge.agent.schedule import Schedule
from edgemerge.agent.sharing import Sharing
from edgemerge.agent.starting import (
    asked_projection,
    gate_rule,
    known_projection,
    must_fit,
    new_memory,
)
from edgemerge.agent.state import StateFolder
from edgemerge.agent.syncing import Clocks, Syncing
from edgemerge.core.threshold import Threshold
from edgemerge.daemon import notify
from edgemerge.exchange.protocol import Exchange

LET_GO_S = 0.5  # for a thread that may hang on the network

logger = logging.getLogger(__name__)


def run(
    config: Config,
    *,
    stop: Event,
    clock: Callable[[], float] = time.time,
    sinks: Iterable[Sink] = (),
) -> int:
    """Run an agent until its source ends or `stop` is set; give the exit code.

    `sinks` are told beside those of the configuration.
    """
    with ExitStack() as ends:
        folder = StateFolder(config.state)
        ends.callback(folder.close)
        memory = folder.read()
        shared = known_projection(config, folder, memory)
        exchange = make_exchange(config, shared)
        shared = shared or asked_projection(exchange, stop)
        if shared is None:
            return 0
        if config.projection is None:
            folder.keep_projection(shared)
        if memory is None:
            memory = new_memory(config, shared, clock)
        must_fit(memory, config)
        clocks = Clocks(clock, time.monotonic)
        desk = _desk(config, memory, folder, exchange, clocks, ends)
        desk.sinks += sinks
        if not desk.sinks and desk.reporting is None:
            logger.warning("there is no sink, so nobody is told: say one in [[sinks]]")
        return _run(config, desk, stop, clocks, ends)


def _desk(
    config: Config,
    memory: Memory,
    folder: StateFolder,
    exchange: Exchange | None,
    clocks: Clocks,
    ends: ExitStack,
) -> Desk:
    source = make_source(config, memory.projection)
    features, threshold = make_features(config, memory.projection), make_threshold(config)
    _resume(memory, features, threshold)
    names = partial(input_names, config, memory.projection)
    keeper = Keeper(folder, memory, features, threshold, config.save, steady=clocks.steady)
    judge = Judge(memory, features, threshold, names, clocks.wall)
    sinks = make_sinks(config)
    for sink in sinks:
        ends.callback(sink.close)
    syncing = None
    if exchange is not None:
        syncing = _syncing(config, memory, exchange, keeper, clocks)
        ends.callback(syncing.close, LET_GO_S)
    reporting = _reporting(config, memory, syncing, clocks)
    if reporting is not None:
        ends.callback(reporting.close)
    inbox = Inbox(source, memory.position)
    ends.callback(inbox.close)
    return Desk(memory, inbox, judge, keeper, syncing, sinks, reporting)


def _syncing(
    config: Config, memory: Memory, exchange: Exchange, keeper: Keeper, clocks: Clocks
) -> Syncing:
    said = config.sync
    gate, rule = gate_rule(config)
    sharing = Sharing(memory, gate=gate, max_shift=said.max_shift)
    schedule = Schedule(said.every_s, said.jitter, config.device)
    courier = Courier(exchange)
    return Syncing(sharing, courier, schedule, said, save=keeper.save, clocks=clocks, rule=rule)


def _reporting(
    config: Config, memory: Memory, syncing: Syncing | None, clocks: Clocks
) -> Reporting | None:
    reports = make_reports(config)
    if reports is None:
        return None
    return Reporting(memory, syncing, Reporter(reports), config.report, clocks=clocks)


def _resume(memory: Memory, features: Features, threshold: Threshold) -> None:
    if memory.features is not None:
        features.resume(memory.features)
    if memory.threshold is not None and not resume_threshold(threshold, memory.threshold):
        logger.warning("[threshold] has changed: it learns its limit anew")


def _run(config: Config, desk: Desk, stop: Event, clocks: Clocks, ends: ExitStack) -> int:
    control = Control(config.state)
    ends.callback(control.close)
    desk.keeper.save()  # if it cannot, it says so, and detection goes on
    notify("READY=1")
    at_end = config.sync.every_s > 0 if config.sync.at_end is None else config.sync.at_end
    Loop(desk, control, steady=clocks.steady).run(stop, sync_at_end=at_end)
    notify("STOPPING=1")
    if desk.inbox.error is not None:
        logger.error("the source failed", extra={"values": {"why": desk.inbox.error}})
    return 1 if desk.inbox.error or desk.keeper.trouble else 0
