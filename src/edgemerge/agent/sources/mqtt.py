"""Readings from an MQTT topic; what was sent while we were away is not sent again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from queue import Empty, Queue
from threading import Event
from typing import Any

from paho.mqtt.client import Client, MQTTMessage

from edgemerge.agent.broker import Broker, Link
from edgemerge.agent.parts import Reading
from edgemerge.agent.sources.lines import LONGEST, Reader
from edgemerge.agent.sources.rows import Form

LOOK_S = 0.2


class Mqtt:
    """Each message is a row; when `room` of them wait, the oldest makes way for the newest."""

    def __init__(
        self,
        broker: Broker,
        topic: str,
        form: Form,
        *,
        qos: int = 0,
        room: int = 1000,
        longest: int = LONGEST,
    ) -> None:
        """Listen to that topic, which may have wildcards."""
        self._broker, self._topic, self._qos, self._longest = broker, topic, qos, longest
        self._reader = Reader(form)
        self._waiting: Queue[bytes | None] = Queue(room)
        self.dropped = 0

    @property
    def skipped(self) -> int:
        """The messages that were no rows."""
        return self._reader.skipped

    def read(self, stop: Event, position: Any = None) -> Iterator[Reading]:  # noqa: ARG002 - there is no going back
        """Give readings until `stop` is set."""
        link = Link(self._broker, greet=self._subscribe, hear=self._hear)
        link.open()
        try:
            while not stop.is_set():
                try:
                    row = self._reader.row(self._waiting.get(timeout=LOOK_S))
                except Empty:
                    continue
                if row is not None:
                    yield Reading(row.values, row.at, names=row.names)
        finally:
            link.close()

    def _subscribe(self, client: Client) -> None:
        client.subscribe(self._topic, self._qos)

    def _hear(self, message: MQTTMessage) -> None:
        if message.retain:
            return  # said long ago, and maybe heard before
        fits = len(message.payload) <= self._longest
        if self._waiting.full():
            self._drop()
        self._waiting.put_nowait(bytes(message.payload) if fits else None)  # nobody else puts

    def _drop(self) -> None:
        with suppress(Empty):  # somebody read it just now
            self._waiting.get_nowait()
            self.dropped += 1
