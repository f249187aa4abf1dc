"""Starting: what an agent begins with, from its state folder, its configuration and its fleet."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from threading import Event

from edgemerge.agent.building import make_learner, secret
from edgemerge.agent.config import Config, ExchangeConfig
from edgemerge.agent.learning import learner_of
from edgemerge.agent.memory import Memory
from edgemerge.agent.sharing import MS
from edgemerge.agent.state import StateFolder
from edgemerge.core.bank import Bank
from edgemerge.core.codec import encode
from edgemerge.core.detector import Detector
from edgemerge.core.errors import AwayError, RejectedError, SettingError
from edgemerge.core.projection import Projection
from edgemerge.core.told import Told
from edgemerge.exchange.hub import Hub
from edgemerge.exchange.protocol import Exchange

GATE, GATE_SINGLY = 2.0, 16.0  # times N samples; the second where peers see each contribution
ASK_S, ASK_LONGEST_S = 2.0, 60.0  # between two questions


logger = logging.getLogger(__name__)


def known_projection(
    config: Config, folder: StateFolder, memory: Memory | None
) -> Projection | None:
    """Give the projection that the state, the configuration or the folder knows, in this order."""
    if memory is None:
        return config.projection or folder.projection()
    if config.projection is not None and config.projection != memory.projection:
        raise SettingError(
            f"{folder.path} holds what was learnt with {memory.projection}, and the configuration "
            f"says {config.projection}: say the same again, or choose another state folder"
        )
    return memory.projection


def asked_projection(exchange: Exchange | None, stop: Event) -> Projection | None:
    """Ask the fleet, for as long as it takes; None if we are to stop before it answers."""
    wait = ASK_S
    while not stop.is_set():
        try:
            found: Projection = exchange.projection  # type: ignore[union-attr] # HTTP has it
        except AwayError as error:
            values = {"why": error, "retry_s": wait}
            logger.warning("the fleet does not tell its projection", extra={"values": values})
            stop.wait(wait)
            wait = min(2.0 * wait, ASK_LONGEST_S)
        else:
            return found
    return None


def new_memory(config: Config, projection: Projection, clock: Callable[[], float]) -> Memory:
    """Begin a new incarnation that has seen nothing."""
    learner = learner_of(make_learner(config, projection))
    now = max(0, int(clock() * MS))
    memory = Memory(config.device, now, learner, told=encode(Told(projection)))
    values = {"device": memory.device, "incarnation": memory.incarnation}
    logger.info("a new incarnation begins", extra={"values": values})
    return memory


def must_fit(memory: Memory, config: Config) -> None:
    """Refuse the state of another device or another kind of learner; tell of other settings."""
    thing = memory.learner.thing
    kind = "detector" if isinstance(thing, Detector) else "bank"
    for word, found, expected in (
        ("device", memory.device, config.device),
        ("learner.kind", kind, config.learner.kind),
    ):
        if found != expected:
            raise SettingError(
                f"{config.state} holds the state of {word} {found!r}, and the configuration says "
                f"{expected!r}: change it back, or choose another state folder"
            )
    wanted = make_learner(config, memory.projection)
    changed = [name for name in _options(thing) if _options(thing)[name] != _options(wanted)[name]]
    if changed:
        values = {"changed": changed, "kept": {name: _options(thing)[name] for name in changed}}
        logger.warning(
            "settings of [learner] have changed: what was learnt keeps the ones it began with",
            extra={"values": values},
        )


def gate_rule(config: Config) -> tuple[float | None, Callable[[], float] | None]:
    """Give the gate, in samples for each hidden value; or how to ask for it."""
    if config.sync.gate is not None:
        if config.sync.gate < GATE:
            values = {"gate": config.sync.gate}
            logger.warning(
                "the release gate is open: single samples can be recovered from what is shared",
                extra={"values": values},
            )
        return config.sync.gate, None
    if config.exchange.kind == "http":
        return None, partial(_ask_gate, config.exchange)
    return GATE_SINGLY, None


def _ask_gate(said: ExchangeConfig) -> float:
    ca_file = None if said.ca_file is None else str(said.ca_file)
    if said.url is None or said.fleet is None or said.token_file is None:
        raise SettingError("exchange.url, fleet and token_file must be set")
    hub = Hub(said.url, secret(said.token_file), ca_file=ca_file)
    try:
        reads = hub.fleet(said.fleet).get("reads")
    finally:
        hub.close()
    if reads not in ("totals", "contributions"):
        raise RejectedError(f"found reads={reads!r}, expected totals or contributions")
    return GATE if reads == "totals" else GATE_SINGLY


def _options(thing: Detector | Bank) -> dict[str, object]:
    names = ("ridge", "forgetting", "reject_above", "max_patterns")
    return {name: getattr(thing, name) for name in names if hasattr(thing, name)}
