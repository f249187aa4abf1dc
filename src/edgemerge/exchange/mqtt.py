"""Exchange through an MQTT broker, as retained messages; one bounded session per push or pull.

It is as durable as the broker: most keep retained messages in memory and save them now and then,
and a confirmation does not say otherwise. Only a server's answer after its commit is storage. Many
brokers cap packets at 128 kB, and queue at most 1000 messages for a subscriber: contributions that
are too large or too many are refused, and such a fleet exchanges over HTTP.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from secrets import token_hex
from socket import IPPROTO_TCP, TCP_NODELAY
from threading import Condition
from typing import Any

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from edgemerge.core.errors import (
    DeniedError,
    EdgemergeError,
    RejectedError,
    SettingError,
    UnavailableError,
)
from edgemerge.core.ledger import Contribution, Merged
from edgemerge.core.projection import Projection
from edgemerge.exchange.connection import Deadline, is_loopback
from edgemerge.exchange.protocol import Wish
from edgemerge.exchange.storage import LogOnce, check_newer, safe_name, topic_suffix
from edgemerge.files import read_secret
from edgemerge.wire.admission import admit
from edgemerge.wire.codec import MAX_BYTES, decode_with_form, encode

MAX_MESSAGES = 999  # messages at a time: of more, most brokers drop some without a word
MAX_TOTAL_BYTES = 2**28
MIN_BYTES_PER_S = 2**14  # bytes a second; a line below that counts as dead
DENIED_CODES = (0x86, 0x87, 0x8A, 0x8C)  # bad name or password, not authorized, banned, bad method

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Broker:
    """Where a broker is and how to come in; the password stays in its file."""

    host: str
    port: int = 1883
    username: str | None = None
    password_file: str | os.PathLike[str] | None = None
    ca_file: str | os.PathLike[str] | None = None
    tls: bool = False
    timeout_s: float = 10.0
    settle_s: float = 0.2
    version: int = 5

    def __post_init__(self) -> None:
        """Refuse what no broker speaks, and warn of what all can hear."""
        if self.version not in (5, 4):
            raise SettingError(f"found version={self.version}, expected 5, or 4 for MQTT 3.1.1")
        if self.password_file and not self.encrypted and not is_loopback(self.host):
            logger.warning(
                "the password goes over a plain connection, for all to read",
                extra={"values": {"broker": str(self)}},
            )

    @property
    def encrypted(self) -> bool:
        """Whether it speaks TLS."""
        return self.tls or self.ca_file is not None

    @contextmanager
    def visit(self, size: int) -> Iterator[BrokerSession]:
        """Come in, and leave whatever happens; one message has about `size` bytes."""
        visit = BrokerSession(self, self.timeout_s + size / MIN_BYTES_PER_S)
        try:
            visit.enter()
            yield visit
        finally:
            visit.leave()

    def __str__(self) -> str:
        """Show where it is."""
        return f"mqtt{'s' if self.encrypted else ''}://{self.host}:{self.port}"


class BrokerSession:
    """One connection to a broker; what comes is taken in by another thread."""

    def __init__(self, broker: Broker, patience_s: float) -> None:
        """Prepare; nothing is sent yet."""
        self.broker, self.patience_s = broker, patience_s
        self.largest: int | None = None  # bytes of a packet, if the broker tells
        self._changed = Condition()
        self._failed: EdgemergeError | None = None
        self._entered = False
        self._acknowledged: set[int | None] = set()
        self._marker = ""
        self._found: dict[str, bytes] = {}
        self._bytes = 0
        self._client = self._prepared()

    def enter(self) -> None:
        """Connect, or say why not."""
        broker = self.broker
        options: dict[str, Any] = {"keepalive": int(2 * self.patience_s) + 60}
        if broker.version == 5:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # paho's
            properties.MaximumPacketSize = MAX_BYTES + 2**16
            options |= {"clean_start": True, "properties": properties}
        try:
            self._client.connect(broker.host, broker.port, **options)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else None
            why = "no answer in time" if isinstance(error, TimeoutError) else why or str(error)
            raise UnavailableError(f"{broker} cannot be reached: {why}") from error
        self._client.loop_start()
        self._wait(lambda: self._entered, "it took the connection but did not answer")

    def leave(self) -> None:
        """Disconnect, and wait for the thread to end."""
        self._client.disconnect()
        with suppress(AttributeError):  # paho forgets a thread that has ended while it asks for it
            self._client.loop_stop()

    def gather(self, filters: Iterable[str], marker: str) -> dict[str, bytes]:
        """Read what is retained under some topics: all that comes before a marker comes back.

        After the marker it waits until nothing has come for `settle_s`, since some brokers send
        what they retain in their own time.
        """
        with self._changed:
            self._found, self._bytes, self._marker = {}, 0, marker
        wanted = [*filters, marker]
        _, mid = self._client.subscribe([(topic, 1) for topic in wanted])
        self._acknowledge(mid, "it did not confirm a subscription")
        mid = self._client.publish(marker, b"", qos=1).mid
        self._acknowledge(mid, "it did not confirm a message")
        self._progress(lambda: not self._marker, "it did not send a message back")
        while self._more(self.broker.settle_s):
            pass
        self._client.unsubscribe(wanted)
        with self._changed:
            self._check()
            return dict(self._found)

    def keep(self, topic: str, payload: bytes) -> None:
        """Let the broker retain a message, and wait until it confirms."""
        if self.largest is not None and len(payload) + len(topic) + 64 > self.largest:
            raise RejectedError(
                f"found {len(payload)} bytes, but {self.broker} takes packets of at most "
                f"{self.largest}: raise its limit, or exchange over HTTP"
            )
        mid = self._client.publish(topic, payload, qos=1, retain=True).mid
        try:
            self._acknowledge(mid, "it did not confirm a message")
        except UnavailableError as error:
            cap = f"if it does so again, it caps the size of packets below {len(payload)} bytes"
            raise UnavailableError(f"{error}; {cap}: raise that, or exchange over HTTP") from error

    def _prepared(self) -> Client:
        broker = self.broker
        client = Client(
            CallbackAPIVersion.VERSION2,
            client_id=f"edgemerge-{token_hex(6)}",
            protocol=MQTTProtocolVersion(broker.version),
            clean_session=None if broker.version == 5 else True,
            reconnect_on_failure=False,
        )
        client.connect_timeout = broker.timeout_s
        if broker.username is not None:
            file = broker.password_file
            client.username_pw_set(broker.username, None if file is None else read_secret(file))
        if broker.encrypted:
            client.tls_set_context(_tls_context(broker))
        client.on_socket_open = _disable_nagle
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_subscribe = self._on_subscribe
        client.on_publish = self._on_publish
        client.on_message = self._on_message
        return client

    def _on_connect(self, _c: Any, _u: Any, _f: Any, code: ReasonCode, given: Any) -> None:
        with self._changed:
            self._entered = self._went_well(code)
            self.largest = getattr(given, "MaximumPacketSize", None)
            self._changed.notify_all()

    def _on_disconnect(self, _c: Any, _u: Any, _f: Any, code: ReasonCode, _given: Any) -> None:
        with self._changed:
            self._failed = self._failed or UnavailableError(f"{self.broker} hung up: {code}")
            self._changed.notify_all()

    def _on_subscribe(self, _c: Any, _u: Any, mid: int, codes: Any, _given: Any) -> None:
        with self._changed:
            if all(map(self._went_well, codes)):
                self._acknowledged.add(mid)
            self._changed.notify_all()

    def _on_publish(self, _c: Any, _u: Any, mid: int, code: ReasonCode, _given: Any) -> None:
        with self._changed:
            if self._went_well(code):
                self._acknowledged.add(mid)
            self._changed.notify_all()

    def _on_message(self, _c: Any, _u: Any, message: MQTTMessage) -> None:
        with self._changed:
            if message.topic == self._marker:
                self._marker = ""
            elif message.retain:
                self._take(message)
            self._changed.notify_all()

    def _take(self, message: MQTTMessage) -> None:
        self._bytes += len(message.payload)
        if self._failed is None and (
            len(self._found) >= MAX_MESSAGES or self._bytes > MAX_TOTAL_BYTES
        ):
            self._failed = RejectedError(
                f"{self.broker} holds more than {MAX_MESSAGES} contributions or "
                f"{MAX_TOTAL_BYTES} bytes: "
                "remove those of devices that are gone, or exchange over HTTP"
            )
        if self._failed is None:
            self._found[message.topic] = bytes(message.payload)

    def _went_well(self, code: ReasonCode) -> bool:
        if code.is_failure and self._failed is None:
            kind: type[EdgemergeError] = RejectedError if self._entered else UnavailableError
            kind = DeniedError if code.value in DENIED_CODES else kind
            self._failed = kind(f"{self.broker} refused: {code}")
        return not code.is_failure

    def _acknowledge(self, mid: int | None, words: str) -> None:
        self._wait(lambda: mid in self._acknowledged, words)

    def _wait(self, done: Callable[[], bool], words: str) -> None:
        with self._changed:
            self._changed.wait_for(lambda: done() or self._failed, self.patience_s)
            self._check("" if done() else words)

    def _progress(self, done: Callable[[], bool], words: str) -> None:
        """Wait as long as more comes."""
        timing = Deadline(self.patience_s)
        with suppress(TimeoutError):
            while not (done() or self._failed) and self._more(timing.left()):
                pass
        with self._changed:
            self._check("" if done() else f"{words}: may this user write and read there?")

    def _more(self, wait_s: float) -> bool:
        with self._changed:
            before = len(self._found), self._marker, self._failed
            return self._changed.wait_for(
                lambda: before != (len(self._found), self._marker, self._failed), wait_s
            )

    def _check(self, missing: str = "") -> None:
        if self._failed is not None:
            raise self._failed
        if missing:
            raise UnavailableError(f"{self.broker}: no answer in time: {missing}")


def _disable_nagle(_client: Client, _userdata: Any, sock: Any) -> None:
    """Send small messages at once: 40 ms less for each that waits for an answer."""
    sock.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)


def _tls_context(broker: Broker) -> ssl.SSLContext:
    class Shaken(ssl.SSLSocket):
        """Shakes hands in time or is closed: paho leaves it open, and before 2.2 took a minute."""

        def do_handshake(self, block: bool = False) -> None:  # noqa: FBT001, FBT002 - its signature
            self.settimeout(broker.timeout_s)
            try:
                super().do_handshake(block)
            except BaseException:
                self.close()
                raise

    try:
        context = ssl.create_default_context(cafile=broker.ca_file)
    except OSError as error:
        raise SettingError(f"found no certificates in {broker.ca_file}") from error
    context.sslsocket_class = Shaken
    return context


class MqttExchange:
    """The contributions that a broker retains, each under its own topic.

    `<prefix>/<fleet>/<first 16 of the fingerprint>/contribution/<device>/<incarnation>/<pattern>`,
    with names percent-encoded. Messages that are not contributions are left alone and named in the
    log, once each. Everybody who may write there may replace anybody's contribution.
    `version` is 5, or 4 for MQTT 3.1.1; `settle_s` is how long a broker may take between two
    retained messages.
    """

    def __init__(
        self,
        host: str,
        port: int = 1883,
        *,
        fleet: str,
        projection: Projection,
        prefix: str = "edgemerge",
        username: str | None = None,
        password_file: str | os.PathLike[str] | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        tls: bool = False,
        timeout_s: float = 10.0,
        settle_s: float = 0.2,
        version: int = 5,
    ) -> None:
        """Remember where the broker is; nothing is sent yet."""
        _check_prefix(prefix)
        self.projection = projection
        self.broker = Broker(
            host,
            port,
            username=username,
            password_file=password_file,
            ca_file=ca_file,
            tls=tls,
            timeout_s=timeout_s,
            settle_s=settle_s,
            version=version,
        )
        self.root = f"{prefix}/{safe_name(fleet)}/{projection.fingerprint[:16]}"
        self._log = LogOnce(logger, f"a message under {self.root} was left alone")

    def push(self, contribution: Contribution) -> bool:
        """Leave a contribution; False if it was there already. The broker is asked what it kept."""
        admit(contribution, projection=self.projection)
        where, payload = self._topic(topic_suffix(contribution.key)), encode(contribution)
        with self.broker.visit(len(payload)) as visit:
            known = self._known(visit, where)
            if known and not check_newer(contribution, known):
                return False
            visit.keep(where, payload)
            kept = self._known(visit, where)
        if kept != contribution:
            if kept and kept.revision >= contribution.revision:
                check_newer(contribution, kept)  # another process was quicker
            raise RejectedError(
                f"{self.broker} confirmed {len(payload)} bytes but kept {kept}: it may cap the "
                "size of messages or not retain them: change that, or exchange over HTTP"
            )
        return True

    def pull(self, wish: Wish) -> Merged:
        """Sum up what others have left."""
        devices = ["+"] if wish.devices is None else [safe_name(name) for name in set(wish.devices)]
        pattern = "+" if wish.pattern is None else safe_name(wish.pattern)
        filters = [self._topic(f"{device}/+/{pattern}") for device in sorted(devices)]
        if not filters:
            return Merged(self.projection)
        with self.broker.visit(self._size) as visit:
            found = visit.gather(filters, self._marker)
        notes = (self._note(where, payload) for where, payload in sorted(found.items()))
        return wish.of([note for note in notes if note], self.projection)

    def close(self) -> None:
        """Nothing is open between calls."""

    def __repr__(self) -> str:
        """Show where it leads."""
        return f"MqttExchange({self.broker}/{self.root})"

    @property
    def _size(self) -> int:
        N, m = self.projection.n_hidden, self.projection.n_inputs
        return 4 * N * (N + 1) + 8 * N * m + 16 * m

    @property
    def _marker(self) -> str:
        return f"{self.root}/marker/{os.urandom(8).hex()}"

    def _topic(self, last: str) -> str:
        return f"{self.root}/contribution/{last}"

    def _known(self, visit: BrokerSession, where: str) -> Contribution | None:
        found = visit.gather([where], self._marker).get(where)
        return None if found is None else self._note(where, found)

    def _note(self, where: str, payload: bytes) -> Contribution | None:
        """Read one message; None if it is not what its topic says."""
        try:
            note, form = decode_with_form(payload, projection=self.projection)
            if not isinstance(note, Contribution):
                raise RejectedError(f"found {type(note).__name__}, expected Contribution")
            if where != self._topic(topic_suffix(note.key)):
                raise RejectedError(f"found {note}, expected it under {topic_suffix(note.key)}")
            admit(note, projection=self.projection, form=form)
        except EdgemergeError as error:
            self._log.say(where, error)
            return None
        return note


def _check_prefix(prefix: str) -> None:
    levels = prefix.split("/")
    if not all(levels) or set(prefix) & set("+#$") or not prefix.isprintable():
        raise SettingError(
            f"found prefix {prefix!r}, expected a topic without + # $ and empty levels"
        )
