"""MQTT for an agent: the connection, the source, the sink and Home Assistant discovery.

Needs the extra `mqtt`, so it is imported only when the configuration asks for it. One thread drives
each connection; every reconnect makes a new client, so that nothing queues up inside the library.
"""

from __future__ import annotations

import json
import logging
import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from queue import Empty, Queue
from threading import Event, Thread
from time import monotonic
from typing import Any

from paho.mqtt.client import Client, ConnectFlags, MQTTMessage, MQTTMessageInfo
from paho.mqtt.enums import MQTTErrorCode

from edgemerge.agent.judge import Verdict
from edgemerge.agent.rows import MAX_LINE_BYTES, RowFormat
from edgemerge.agent.sinks import to_plain_json, verdict_to_dict
from edgemerge.agent.sources import Reading, RowSource
from edgemerge.daemon import Backoff, in_context
from edgemerge.exchange.mqtt import Broker
from edgemerge.files import DiskQueue, to_json_line

NETWORK_POLL_S = 0.05
CONNECT_TIMEOUT_S = 3.0  # for one attempt to connect
KEEPALIVE_S = 30

logger = logging.getLogger(__name__)

agent_broker = partial(Broker, timeout_s=CONNECT_TIMEOUT_S, version=4)


@dataclass
class BrokerConnection:
    """Keeps a connection up; the callbacks run in its thread, `on_tick` at least every 50 ms."""

    broker: Broker
    on_connect: Callable[[Client], object]
    on_tick: Callable[[Client], None] = lambda _: None
    on_message: Callable[[MQTTMessage], None] = lambda _: None
    on_close: Callable[[Client], None] = lambda _: None
    will: tuple[str, bytes] | None = None
    connected: bool = False
    _stop: Event = field(default_factory=Event)
    _thread: Thread | None = None

    def open(self) -> None:
        """Start connecting; the credentials are read now, so that mistakes show at once."""
        self.broker.client()
        self._thread = Thread(target=in_context(self._run), name="mqtt", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float = 2.5) -> None:
        """Call `on_close` for the final messages, then disconnect."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        backoff = Backoff(*self.broker.retry_s)
        while not self._stop.is_set():
            if self._once():
                backoff.reset()
            self._stop.wait(backoff.next())

    def _once(self) -> bool:
        """Connect and serve until the connection ends; return whether it was up at all."""
        client = self.broker.client()
        if self.will is not None:
            client.will_set(self.will[0], self.will[1], qos=1, retain=True)
        client.on_connect = self._on_connect
        client.on_message = lambda _client, _data, message: self.on_message(message)
        try:
            client.connect(self.broker.host, self.broker.port, keepalive=KEEPALIVE_S)
            was_up = self._serve(client)
        except (OSError, ValueError) as error:
            self._log("the broker is away", str(error))
            return False
        finally:
            self.connected = False
        self._log("the connection to the broker has ended")
        return was_up

    def _serve(self, client: Client) -> bool:
        was_up = False
        while client.loop(NETWORK_POLL_S) == MQTTErrorCode.MQTT_ERR_SUCCESS:
            was_up = was_up or self.connected
            if self.connected:
                self.on_tick(client)
            if self._stop.is_set():
                if self.connected:
                    self.on_close(client)
                client.disconnect()
                client.loop(NETWORK_POLL_S)
                break
        return was_up

    def _on_connect(
        self, client: Client, _data: Any, _flags: ConnectFlags, reason: Any, _properties: Any
    ) -> None:
        if reason.is_failure:
            self._log("the broker denied access", str(reason))
            return
        self.connected = True
        self._log("connected to the broker")
        self.on_connect(client)

    def _log(self, message: str, why: str = "") -> None:
        values = {"host": self.broker.host, "port": self.broker.port}
        logger.info(message, extra={"values": values | ({"why": why} if why else {})})


QUEUE_POLL_S = 0.2


class MqttSource(RowSource):
    """Each message is a row; when `room` of them wait, the oldest is dropped."""

    def __init__(
        self,
        broker: Broker,
        topic: str,
        form: RowFormat,
        *,
        qos: int = 0,
        room: int = 1000,
        longest: int = MAX_LINE_BYTES,
    ) -> None:
        """Subscribe to a topic, which may have wildcards."""
        super().__init__(form)
        self._broker, self._topic, self._qos, self._longest = broker, topic, qos, longest
        self._waiting: Queue[bytes | None] = Queue(room)
        self.dropped = 0
        self._link: BrokerConnection | None = None

    @property
    def waiting(self) -> str:
        """What it waits for."""
        place = f"{self._broker.host}:{self._broker.port}"
        if self._link is None or not self._link.connected:
            return f"the broker {place} cannot be reached, or denies access"
        return f"no message comes on {self._topic} of the broker {place}"

    def read(self, stop: Event, position: Any = None) -> Iterator[Reading]:  # noqa: ARG002 - there is no going back
        """Return readings until `stop` is set."""
        self._link = link = BrokerConnection(
            self._broker,
            on_connect=lambda client: client.subscribe(self._topic, self._qos),
            on_message=self._enqueue,
        )
        link.open()
        try:
            while not stop.is_set():
                try:
                    row = self._reader.row(self._waiting.get(timeout=QUEUE_POLL_S))
                except Empty:
                    continue
                if row is not None:
                    yield Reading(row.values, row.at, names=row.names, skipped=self.skipped)
        finally:
            link.close()

    def _enqueue(self, message: MQTTMessage) -> None:
        if message.retain:
            return  # old, and maybe read before
        fits = len(message.payload) <= self._longest
        if self._waiting.full():
            with suppress(Empty):  # it was read just now
                self._waiting.get_nowait()
                self.dropped += 1
        self._waiting.put_nowait(bytes(message.payload) if fits else None)  # the only one to put


HOME_ASSISTANT_STATUS = "homeassistant/status"


@dataclass(frozen=True)
class Topics:
    """The topics of one device: `<prefix>/<site>/<device>/` and status, score, alarm, cmd."""

    prefix: str
    site: str
    device: str

    def __getitem__(self, name: str) -> str:
        """Return one of them."""
        return f"{self.prefix}/{self.site}/{self.device}/{name}"

    @property
    def id(self) -> str:
        """Return a name for the device made of letters, digits, "_" and "-" only."""
        name = f"{self.prefix}_{self.site}_{self.device}"
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)
        return plain if plain == name else f"{plain}_{sha256(name.encode()).hexdigest()[:8]}"


def discovery_message(topics: Topics, version: str) -> tuple[str, dict[str, Any]]:
    """Return the topic and the message by which Home Assistant learns of the device."""
    online = [{"topic": topics["status"], "value_template": "{{ value_json.state }}"}]
    components: dict[str, dict[str, Any]] = {
        "score": {
            "p": "sensor",
            "state_class": "measurement",
            "value_template": "{{ value_json.score }}",
            "availability": online,
        },
        "alarm": {
            "p": "binary_sensor",
            "device_class": "problem",
            "value_template": "{{ 'ON' if value_json.alarm else 'OFF' }}",
            "availability": online,
        },
        "status": {"p": "sensor", "value_template": "{{ value_json.state }}"},
    }
    for name, component in components.items():
        component |= {"name": name.title(), "state_topic": topics[name]}
        component["unique_id"] = f"{topics.id}_{name}"
    return f"homeassistant/device/{topics.id}/config", {
        "dev": {"ids": topics.id, "name": topics.device},
        "o": {"name": "edgemerge", "sw": version},
        "cmps": components,
    }


COMMANDS = ("sync", "undo", "save", "watch", "relearn", "accept-drift")
# With arguments, as a JSON object: {"command": "review", "pattern": "odd-1", …}.
JSON_COMMANDS = (*COMMANDS, "review", "acknowledge", "snooze")
MAX_COMMAND_BYTES = 4096
MAX_QUEUED_COMMANDS = 16  # commands that may wait
MAX_LOGGED_CHARS = 100  # of a command that was not taken
FINAL_SEND_TIMEOUT_S = 1.5  # for what is left to send at the end


class MqttSink:
    """Publishes `status` and `alarm` (retained, at least once) and the newest `score` at intervals.

    An alarm is published when it begins, when it is given the name of a known fault, and when it
    ends, and at the first verdict. While the broker is away, the newest 1000 wait on disk; of
    scores only the newest is kept.
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
        self._topics, self._spool = topics, DiskQueue(spool)
        self._gap_s, self._clock, self._discovered = 1.0 / scores_per_s, clock, discovered
        self._alarm: bool | None = None
        self._fault: str | None = None  # the name that the last alarm was given
        self._score: Verdict | None = None  # the newest
        self._published: Verdict | None = None  # the last score that was published
        self._score_sent: MQTTMessageInfo | None = None
        self._score_due = -1e300
        self._status: dict[str, Any] = {}
        self._due: set[str] = set()  # of status and discovery
        self._sent: tuple[MQTTMessageInfo, str | None] | None = None
        self._commands: deque[str | dict[str, Any]] = deque()
        will = (topics["status"], to_json_line({"state": "offline"}).encode())
        self._link = BrokerConnection(
            broker, self._on_connect, self._on_tick, self._on_message, self._on_close, will
        )
        self._link.open()

    @property
    def connected(self) -> bool:
        """Whether the broker is there now."""
        return self._link.connected

    @property
    def waiting(self) -> int:
        """The number of alarms that have not been sent yet."""
        return len(self._spool)

    def verdict(self, verdict: Verdict) -> None:
        """Queue a verdict; an alarm that begins or ends is on disk when this returns."""
        self._score = verdict
        if (verdict.alarm, verdict.fault) != (self._alarm, self._fault):
            self._alarm, self._fault = verdict.alarm, verdict.fault
            self._spool.add(to_json_line(verdict_to_dict(verdict)))

    def status(self, status: dict[str, Any]) -> None:
        """Queue the status."""
        self._status = to_plain_json(status)
        self._due.add("status")

    def commands(self) -> list[str | dict[str, Any]]:
        """Return the commands that have come in since the last time, as words or objects."""
        return [self._commands.popleft() for _ in range(len(self._commands))]

    def close(self) -> None:
        """Send what waits within a second or two, then the status offline."""
        self._link.close(timeout_s=FINAL_SEND_TIMEOUT_S + 1.0)

    def _on_connect(self, client: Client) -> None:
        self._sent = self._score_sent = None
        self._due |= {"status", "discovery"} if self._discovered else {"status"}
        client.subscribe(self._topics["cmd"], qos=1)
        if self._discovered:
            client.subscribe(HOME_ASSISTANT_STATUS, qos=1)

    def _on_message(self, message: MQTTMessage) -> None:
        text = bytes(message.payload[:MAX_COMMAND_BYTES]).decode(errors="replace").strip()
        if message.topic == HOME_ASSISTANT_STATUS:
            if text == "online":
                self._due |= {"discovery", "status"}
        elif not message.retain:  # a retained command would run at every connection
            self._command(text)

    def _command(self, text: str) -> None:
        found = _parse_command(text)
        if found is not None and len(self._commands) < MAX_QUEUED_COMMANDS:
            self._commands.append(found)
        else:
            known = f"known are {', '.join(COMMANDS)}, and as JSON {', '.join(JSON_COMMANDS)}"
            why = known if found is None else "too many wait"
            values = {"command": text[:MAX_LOGGED_CHARS], "why": why}
            logger.warning("a command was rejected", extra={"values": values})

    def _on_tick(self, client: Client) -> None:
        """Send what is due, one message at a time, so that nothing queues up in the client."""
        if self._sent is not None and _is_sent(self._sent[0]):
            if self._sent[1] is not None:
                self._spool.done(self._sent[1])
            self._sent = None
        if self._sent is None:
            self._sent = self._next(client)
        self._publish_score(client)

    def _publish_score(self, client: Client) -> None:
        newest, now = self._score, self._clock()
        # Programs that draw curves, and Home Assistant, expect a number.
        if newest is None or newest.score is None:
            return
        if newest is self._published or now < self._score_due:
            return
        if self._score_sent is None or _is_sent(self._score_sent):
            score = verdict_to_dict(newest)
            del score["why"]  # flat, for programs that draw curves
            self._score_sent = client.publish(self._topics["score"], to_json_line(score), qos=0)
            self._published, self._score_due = newest, now + self._gap_s

    def _next(self, client: Client) -> tuple[MQTTMessageInfo, str | None] | None:
        alarm = None
        if "discovery" in self._due:
            self._due.discard("discovery")
            topic, found = discovery_message(self._topics, version("edgemerge"))
            payload = to_json_line(found)
        elif "status" in self._due:
            self._due.discard("status")
            topic, payload = (
                self._topics["status"],
                to_json_line(self._status | {"state": "online"}),
            )
        elif (alarm := self._spool.first()) is not None:
            topic, payload = self._topics["alarm"], alarm
        else:
            return None
        return client.publish(topic, payload, qos=1, retain=True), alarm

    def _on_close(self, client: Client) -> None:
        end = self._clock() + FINAL_SEND_TIMEOUT_S
        self._score_due = -1e300
        while self._clock() < end:
            self._on_tick(client)
            if self._sent is None and not self._spool:
                break
            client.loop(NETWORK_POLL_S)
        gone = client.publish(
            self._topics["status"], to_json_line({"state": "offline"}), 1, retain=True
        )
        while not _is_sent(gone) and self._clock() < end + NETWORK_POLL_S:
            client.loop(NETWORK_POLL_S)


def _parse_command(words: str) -> str | dict[str, Any] | None:
    """Return a command as a word, or as an object with its arguments; None if there is none."""
    if words in COMMANDS:
        return words
    try:
        found = json.loads(words)
    except (ValueError, RecursionError):
        return None
    known = isinstance(found, dict) and found.get("command") in JSON_COMMANDS
    return found if known else None


def _is_sent(message: MQTTMessageInfo) -> bool:
    """Return whether it was sent, and answered if it asks for an answer; never if that failed."""
    return message.rc == MQTTErrorCode.MQTT_ERR_SUCCESS and message.is_published()
