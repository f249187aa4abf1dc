"""A connection to an MQTT broker that comes back by itself, driven by one thread of its own.

Each connection is a new object of the library, so that nothing queues up in it unseen.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any

from paho.mqtt.client import Client, ConnectFlags, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode

from edgemerge.core.errors import SettingError

LOOK_S = 0.05
PATIENCE_S = 3.0  # for one attempt to connect
KEEPALIVE_S = 30

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Broker:
    """Where a broker is, and what it asks for; `retry_s` is the first and the longest delay."""

    host: str = "127.0.0.1"
    port: int = 1883
    username: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None
    retry_s: tuple[float, float] = (0.5, 30.0)

    def client(self) -> Client:
        """Make an object that is not connected yet."""
        client = Client(CallbackAPIVersion.VERSION2)
        client.connect_timeout = PATIENCE_S
        if self.username is not None:
            client.username_pw_set(self.username, self._password())
        if self.ca_file is not None:
            client.tls_set(ca_certs=str(self.ca_file))
        return client

    def _password(self) -> str | None:
        if self.password_file is None:
            return None
        try:
            return self.password_file.read_text(encoding="utf-8").rstrip("\r\n")
        except OSError as error:
            raise SettingError(f"password_file {self.password_file}: {error.strerror}") from error


@dataclass
class Link:
    """Keeps a connection up; all the callbacks run in its thread, `tick` at least every 50 ms."""

    broker: Broker
    greet: Callable[[Client], None]
    tick: Callable[[Client], None] = lambda _: None
    hear: Callable[[MQTTMessage], None] = lambda _: None
    last: Callable[[Client], None] = lambda _: None
    will: tuple[str, bytes] | None = None
    connected: bool = False
    _stop: Event = field(default_factory=Event)
    _thread: Thread | None = None

    def open(self) -> None:
        """Start to connect; what the broker asks for is read now, so that mistakes show."""
        self.broker.client()
        self._thread = Thread(target=self._run, name="mqtt", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float = 2.5) -> None:
        """Let `last` say what is left to say, and end the connection."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        delay_s = self.broker.retry_s[0]
        while not self._stop.is_set():
            if self._once():
                delay_s = self.broker.retry_s[0]
            if self._stop.wait(delay_s * random.uniform(0.5, 1.0)):
                return
            delay_s = min(2.0 * delay_s, self.broker.retry_s[1])

    def _once(self) -> bool:
        """Connect and stay so for as long as it lasts; say whether it was up at all."""
        client = self._prepared()
        try:
            client.connect(self.broker.host, self.broker.port, keepalive=KEEPALIVE_S)
            was_up = self._serve(client)
        except (OSError, ValueError) as error:
            self._tell("the broker is away", str(error))
            return False
        finally:
            self.connected = False
        self._tell("the connection to the broker has ended", "")
        return was_up

    def _prepared(self) -> Client:
        client = self.broker.client()
        if self.will is not None:
            client.will_set(self.will[0], self.will[1], qos=1, retain=True)
        client.on_connect = self._on_connect
        client.on_message = lambda _client, _data, message: self.hear(message)
        return client

    def _serve(self, client: Client) -> bool:
        was_up = False
        while client.loop(LOOK_S) == MQTTErrorCode.MQTT_ERR_SUCCESS:
            was_up = was_up or self.connected
            if self.connected:
                self.tick(client)
            if self._stop.is_set():
                self._leave(client)
                break
        return was_up

    def _leave(self, client: Client) -> None:
        if self.connected:
            self.last(client)
        client.disconnect()
        client.loop(LOOK_S)

    def _on_connect(
        self, client: Client, _data: Any, _flags: ConnectFlags, reason: Any, _properties: Any
    ) -> None:
        if reason.is_failure:
            self._tell("the broker does not let us in", str(reason))
            return
        self.connected = True
        self._tell("connected to the broker", "")
        self.greet(client)

    def _tell(self, words: str, why: str) -> None:
        values = {"host": self.broker.host, "port": self.broker.port, "why": why}
        logger.info(words, extra={"values": {k: v for k, v in values.items() if v != ""}})
