"""Verdicts to an MQTT broker, and commands from it; nothing here waits for the network."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from time import monotonic
from typing import Any

from paho.mqtt.client import Client, MQTTMessage, MQTTMessageInfo
from paho.mqtt.enums import MQTTErrorCode

from edgemerge.agent.broker import LOOK_S, Broker, Link
from edgemerge.agent.parts import Verdict
from edgemerge.agent.sinks.discovery import BIRTH, Topics, discovery
from edgemerge.agent.sinks.spool import Spool
from edgemerge.agent.sinks.telling import as_line, as_object, plain

COMMANDS = ("sync", "undo", "save")
ROOM = 16  # commands that may wait
LAST_S = 1.5  # for what is left to say at the end

logger = logging.getLogger(__name__)


class MqttSink:
    """Tells `status` and `alarm` (retained, at least once) and the newest `score` now and then.

    An alarm is told when it begins and when it ends, and at the first verdict. While the broker is
    away, those wait on disk, the newest 1000 of them; of scores only the newest is kept.
    """

    def __init__(
        self,
        broker: Broker,
        topics: Topics,
        spool: Path,
        *,
        scores_per_s: float = 1.0,
        discovered: bool = False,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Start to connect."""
        self._topics, self._spool = topics, Spool(spool)
        self._gap_s, self._clock, self._discovered = 1.0 / scores_per_s, clock, discovered
        self._alarm: bool | None = None
        self._score: Verdict | None = None  # the newest
        self._told: Verdict | None = None  # the newest that was told
        self._score_sent: MQTTMessageInfo | None = None
        self._score_due = -1e300
        self._status: dict[str, Any] = {}
        self._due: set[str] = set()  # of status and discovery
        self._sent: tuple[MQTTMessageInfo, str | None] | None = None
        self._commands: deque[str] = deque()
        will = (topics["status"], as_line({"state": "offline"}).encode())
        self._link = Link(broker, self._greet, self._tick, self._hear, self._last, will)
        self._link.open()

    @property
    def connected(self) -> bool:
        """Whether the broker is there now."""
        return self._link.connected

    @property
    def waiting(self) -> int:
        """The alarms that have not been told yet."""
        return len(self._spool)

    def verdict(self, verdict: Verdict) -> None:
        """Remember it to be told; an alarm that begins or ends is on disk when this returns."""
        self._score = verdict
        if verdict.alarm != self._alarm:
            self._alarm = verdict.alarm
            self._spool.add(as_line(as_object(verdict)))

    def status(self, status: dict[str, Any]) -> None:
        """Remember it to be told."""
        self._status = plain(status)
        self._due.add("status")

    def commands(self) -> list[str]:
        """Give the commands that have come in since the last time: sync, undo or save."""
        return [self._commands.popleft() for _ in range(len(self._commands))]

    def close(self) -> None:
        """Tell what is left within a second or two, then that we are gone."""
        self._link.close(timeout_s=LAST_S + 1.0)

    def _greet(self, client: Client) -> None:
        self._sent = self._score_sent = None
        self._due |= {"status", "discovery"} if self._discovered else {"status"}
        client.subscribe(self._topics["cmd"], qos=1)
        if self._discovered:
            client.subscribe(BIRTH, qos=1)

    def _hear(self, message: MQTTMessage) -> None:
        words = bytes(message.payload[:100]).decode(errors="replace").strip()
        if message.topic == BIRTH:
            if words == "online":
                self._due |= {"discovery", "status"}
        elif not message.retain:  # what somebody once left there would be done at every connection
            self._command(words)

    def _command(self, words: str) -> None:
        if words in COMMANDS and len(self._commands) < ROOM:
            self._commands.append(words)
        else:
            why = "too many wait" if words in COMMANDS else f"known are {', '.join(COMMANDS)}"
            values = {"command": words, "why": why}
            logger.warning("a command was not taken", extra={"values": values})

    def _tick(self, client: Client) -> None:
        """Send what is due, each after the one before has left, so that nothing piles up."""
        if self._sent is not None and _has_left(self._sent[0]):
            if self._sent[1] is not None:
                self._spool.done(self._sent[1])
            self._sent = None
        if self._sent is None:
            self._sent = self._next(client)
        self._tick_score(client)

    def _tick_score(self, client: Client) -> None:
        newest, now = self._score, self._clock()
        if newest is None or newest is self._told or now < self._score_due:
            return
        if self._score_sent is None or _has_left(self._score_sent):
            told = as_object(newest)
            del told["why"]  # flat, for programs that draw curves
            self._score_sent = client.publish(self._topics["score"], as_line(told), qos=0)
            self._told, self._score_due = newest, now + self._gap_s

    def _next(self, client: Client) -> tuple[MQTTMessageInfo, str | None] | None:
        if "discovery" in self._due:
            self._due.discard("discovery")
            topic, told = discovery(self._topics, version("edgemerge"))
            return client.publish(topic, as_line(told), qos=1, retain=True), None
        if "status" in self._due:
            self._due.discard("status")
            told = self._status | {"state": "online"}
            return client.publish(self._topics["status"], as_line(told), qos=1, retain=True), None
        alarm = self._spool.first()
        if alarm is None:
            return None
        return client.publish(self._topics["alarm"], alarm, qos=1, retain=True), alarm

    def _last(self, client: Client) -> None:
        end = self._clock() + LAST_S
        self._score_due = -1e300
        while self._clock() < end:
            self._tick(client)
            if self._sent is None and not self._spool:
                break
            client.loop(LOOK_S)
        gone = client.publish(self._topics["status"], as_line({"state": "offline"}), 1, retain=True)
        while not _has_left(gone) and self._clock() < end + LOOK_S:
            client.loop(LOOK_S)


def _has_left(message: MQTTMessageInfo) -> bool:
    """Say whether it was sent, and answered if it asks for an answer; never if that failed."""
    return message.rc == MQTTErrorCode.MQTT_ERR_SUCCESS and message.is_published()
