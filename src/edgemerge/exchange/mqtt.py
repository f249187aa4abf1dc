"""Exchange through an MQTT broker, as retained messages; one bounded session per push or pull.

It is as durable as the broker: most keep retained messages in memory and save them from time to
time, whatever they confirm. For storage that survives a crash, exchange over HTTP. Many brokers cap
packets at 128 kB and queue at most 1000 messages for a subscriber: contributions that are too large
or too many are refused, and such a fleet exchanges over HTTP too. `Broker` makes the clients of the
agent's connections as well.
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
from edgemerge.core.faults import Faults
from edgemerge.core.ledger import Contribution, Kind, Merged, Selection
from edgemerge.core.projection import Projection
from edgemerge.exchange.connection import Deadline, is_loopback
from edgemerge.exchange.protocol import merge
from edgemerge.exchange.storage import (
    LogOnce,
    must_be_current,
    read_contribution,
    safe_name,
    topic_suffix,
)
from edgemerge.files import read_secret
from edgemerge.wire.admission import admit
from edgemerge.wire.codec import KIND_WORDS, MAX_BYTES, encode

MAX_MESSAGES = 999  # at a time: of more, most brokers drop some silently
MAX_TOTAL_BYTES = 2**28
MIN_BYTES_PER_S = 2**14  # a slower connection counts as dead
DENIED_CODES = (0x86, 0x87, 0x8A, 0x8C)  # bad password, not authorized, banned, bad method

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Broker:
    """Where a broker is and how to connect to it; the password stays in its file.

    Args:
        host: Name or address.
        port: Usually 1883, or 8883 with TLS.
        username: To log in with; None: without logging in.
        password_file: File with the password on one line; spaces belong to it, the line end not.
        ca_file: Certificates to trust, in PEM, instead of the system's; implies TLS.
        tls: Connect with TLS and the system's certificates.
        timeout_s: For connecting and for each answer, in seconds; raise it on slow links.
        settle_s: How long a broker may take between two retained messages, in seconds.
        version: 5, or 4 for MQTT 3.1.1.
        retry_s: First and longest delay before a connection that stays up is made again.

    Raises:
        SettingError: `version` is neither 5 nor 4.
    """

    host: str = "127.0.0.1"
    port: int = 1883
    username: str | None = None
    password_file: str | os.PathLike[str] | None = None
    ca_file: str | os.PathLike[str] | None = None
    tls: bool = False
    timeout_s: float = 10.0
    settle_s: float = 0.2
    version: int = 5
    retry_s: tuple[float, float] = (0.5, 30.0)

    def __post_init__(self) -> None:
        """Check the version, and warn of a password on a connection without TLS."""
        if self.version not in (5, 4):
            raise SettingError(f"found version={self.version}, expected 5, or 4 for MQTT 3.1.1")
        if self.password_file and not self.encrypted and not is_loopback(self.host):
            logger.warning(
                "the password is sent over a connection without TLS",
                extra={"values": {"broker": str(self)}},
            )

    @property
    def encrypted(self) -> bool:
        """Whether it connects with TLS."""
        return self.tls or self.ca_file is not None

    def client(self) -> Client:
        """Return a client that is not connected yet.

        Raises:
            SettingError: The password or the certificates cannot be read.
        """
        client = Client(
            CallbackAPIVersion.VERSION2,
            client_id=f"edgemerge-{token_hex(6)}",
            protocol=MQTTProtocolVersion(self.version),
            clean_session=None if self.version == 5 else True,
            reconnect_on_failure=False,
        )
        client.connect_timeout = self.timeout_s
        if self.username is not None:
            file = self.password_file
            password = None if file is None else read_secret(file, "password", strip="\r\n")
            client.username_pw_set(self.username, password)
        if self.encrypted:
            client.tls_set_context(_tls_context(self))
        client.on_socket_open = _disable_nagle
        return client

    @contextmanager
    def session(self, size: int) -> Iterator[BrokerSession]:
        """Connect, and disconnect at the end; a message has about `size` bytes."""
        session = BrokerSession(self, self.timeout_s + size / MIN_BYTES_PER_S)
        try:
            session.enter()
            yield session
        finally:
            session.leave()

    def __str__(self) -> str:
        """Show the address."""
        return f"mqtt{'s' if self.encrypted else ''}://{self.host}:{self.port}"


class BrokerSession:
    """One connection to a broker; messages are received in another thread."""

    def __init__(self, broker: Broker, timeout_s: float) -> None:
        """Send nothing yet."""
        self.broker, self.timeout_s = broker, timeout_s
        self.largest: int | None = None  # bytes of a packet, if the broker says so
        self._changed = Condition()
        self._failed: EdgemergeError | None = None
        self._entered = False
        self._acknowledged: set[int | None] = set()
        self._marker = ""
        self._found: dict[str, bytes] = {}
        self._bytes = 0
        self._client = client = broker.client()
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_subscribe = self._on_subscribe
        client.on_publish = self._on_publish
        client.on_message = self._on_message

    def enter(self) -> None:
        """Connect; raise UnavailableError or DeniedError if that fails."""
        broker = self.broker
        options: dict[str, Any] = {"keepalive": int(2 * self.timeout_s) + 60}
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
        self._wait(lambda: self._entered, "it accepted the connection but did not answer")

    def leave(self) -> None:
        """Disconnect, and wait for the thread to end."""
        self._client.disconnect()
        with suppress(AttributeError):  # paho may forget the thread meanwhile
            self._client.loop_stop()

    def gather(self, filters: Iterable[str], marker: str) -> dict[str, bytes]:
        """Return the retained messages of some topics.

        They have arrived when a marker, published after subscribing, comes back. Some brokers send
        retained messages later: wait until none has arrived for `settle_s`.
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
        """Publish a retained message, and wait until the broker confirms."""
        if self.largest is not None and len(payload) + len(topic) + 64 > self.largest:
            raise RejectedError(
                f"found {len(payload)} bytes, but {self.broker} accepts packets of at most "
                f"{self.largest}: raise its limit, or exchange over HTTP"
            )
        mid = self._client.publish(topic, payload, qos=1, retain=True).mid
        try:
            self._acknowledge(mid, "it did not confirm a message")
        except UnavailableError as error:
            cap = f"if that happens again, it caps the size of packets below {len(payload)} bytes"
            raise UnavailableError(f"{error}; {cap}: raise that, or exchange over HTTP") from error

    def _on_connect(self, _c: Any, _u: Any, _f: Any, code: ReasonCode, given: Any) -> None:
        with self._changed:
            self._entered = self._is_success(code)
            self.largest = getattr(given, "MaximumPacketSize", None)
            self._changed.notify_all()

    def _on_disconnect(self, _c: Any, _u: Any, _f: Any, code: ReasonCode, _given: Any) -> None:
        with self._changed:
            self._failed = self._failed or UnavailableError(f"{self.broker} hung up: {code}")
            self._changed.notify_all()

    def _on_subscribe(self, _c: Any, _u: Any, mid: int, codes: Any, _given: Any) -> None:
        with self._changed:
            if all(map(self._is_success, codes)):
                self._acknowledged.add(mid)
            self._changed.notify_all()

    def _on_publish(self, _c: Any, _u: Any, mid: int, code: ReasonCode, given: Any) -> None:
        self._on_subscribe(_c, _u, mid, [code], given)

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

    def _is_success(self, code: ReasonCode) -> bool:
        if code.is_failure and self._failed is None:
            kind: type[EdgemergeError] = RejectedError if self._entered else UnavailableError
            kind = DeniedError if code.value in DENIED_CODES else kind
            self._failed = kind(f"{self.broker} refused: {code}")
        return not code.is_failure

    def _acknowledge(self, mid: int | None, problem: str) -> None:
        self._wait(lambda: mid in self._acknowledged, problem)

    def _wait(self, done: Callable[[], bool], problem: str) -> None:
        with self._changed:
            self._changed.wait_for(lambda: done() or self._failed, self.timeout_s)
            self._check("" if done() else problem)

    def _progress(self, done: Callable[[], bool], problem: str) -> None:
        """Wait as long as messages arrive."""
        timing = Deadline(self.timeout_s)
        with suppress(TimeoutError):
            while not (done() or self._failed) and self._more(timing.left()):
                pass
        with self._changed:
            self._check("" if done() else f"{problem}: may this user write and read there?")

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
    """Send small messages at once: saves 40 ms for each one that waits for an answer."""
    sock.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)


def _tls_context(broker: Broker) -> ssl.SSLContext:
    class Shaken(ssl.SSLSocket):
        """Bounds the handshake: paho before 2.2 waits a minute, and leaves the socket open."""

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
    """Contributions as retained messages of a broker, each under its own topic.

    `<prefix>/<fleet>/<first 16 of the fingerprint>/contribution/<device>/<incarnation>/<pattern>`,
    with names percent-encoded; faults have `fault` for `contribution`. Messages that are not
    contributions are skipped, and logged once each. Every user who may write to these topics may
    replace any contribution.

    Args:
        host: Name or address of the broker.
        port: Usually 1883, or 8883 with TLS.
        fleet: Name of the fleet, part of the topics.
        projection: What all devices share.
        prefix: First level, or levels, of the topics.
        username: To log in with; None: without logging in.
        password_file: File with the password on one line.
        ca_file: Certificates to trust, in PEM, instead of the system's; implies TLS.
        tls: Connect with TLS and the system's certificates.
        timeout_s: For connecting and for each answer, in seconds; raise it on slow links.
        settle_s: How long the broker may take between two retained messages, in seconds. Raise it
            if a pull misses contributions.
        version: 5, or 4 for MQTT 3.1.1.
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
        """Send nothing yet."""
        if not all(prefix.split("/")) or set(prefix) & set("+#$") or not prefix.isprintable():
            raise SettingError(
                f"found prefix {prefix!r}, expected a topic without + # $ and empty levels"
            )
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
        self._log = LogOnce(logger, f"skipped a message under {self.root}")

    def push(self, contribution: Contribution) -> bool:
        """Store a contribution and read it back; return False if it was stored before."""
        kind, payload = contribution.kind, encode(contribution)
        admit(contribution, projection=self.projection, kind=kind)
        where = self._topic(topic_suffix(contribution.key), kind)
        with self.broker.session(len(payload)) as session:
            if not must_be_current(contribution, self._known(session, where, kind)):
                return False
            session.keep(where, payload)
            kept = self._known(session, where, kind)
        if kept != contribution:
            must_be_current(contribution, kept)  # another process may have been quicker
            raise RejectedError(
                f"{self.broker} confirmed {len(payload)} bytes but kept {kept}: it may cap the "
                "size of messages or not retain them: change that, or exchange over HTTP"
            )
        return True

    def pull(self, selection: Selection, *, grouped: bool = False) -> Merged:
        """Return the sum of the selected contributions."""
        found = self._found(selection, "normal")
        return merge(found, self.projection, selection, grouped=grouped)

    def pull_faults(self, selection: Selection) -> Faults:
        """Return the selected faults, those that are alike as one.

        Args:
            selection: Which contributions; name yourself as `receiver` to leave out your own.
        """
        return Faults.of(self._found(Selection(), "fault"), self.projection, selection)

    def _found(self, selection: Selection, kind: Kind) -> list[Contribution]:
        """Return the valid contributions of this kind, and perhaps more than are selected."""
        names = selection.devices
        devices = {"+"} if names is None else {safe_name(name) for name in names}
        pattern = "+" if selection.pattern is None else safe_name(selection.pattern)
        filters = [self._topic(f"{device}/+/{pattern}", kind) for device in sorted(devices)]
        if not filters:
            return []
        with self.broker.session(self._size) as session:
            found = session.gather(filters, self._marker)
        read = (self._read(where, payload, kind) for where, payload in sorted(found.items()))
        return list(filter(None, read))

    def close(self) -> None:
        """Do nothing: no connection stays open between calls."""

    def __repr__(self) -> str:
        """Show the address."""
        return f"MqttExchange({self.broker}/{self.root})"

    @property
    def _size(self) -> int:
        N, m = self.projection.n_hidden, self.projection.n_inputs
        return 4 * N * (N + 1) + 8 * N * m + 16 * m

    @property
    def _marker(self) -> str:
        return f"{self.root}/marker/{os.urandom(8).hex()}"

    def _topic(self, last: str, kind: Kind = "normal") -> str:
        return f"{self.root}/{KIND_WORDS[kind]}/{last}"

    def _known(self, session: BrokerSession, where: str, kind: Kind) -> Contribution | None:
        found = session.gather([where], self._marker).get(where)
        return None if found is None else self._read(where, found, kind)

    def _read(self, where: str, payload: bytes, kind: Kind) -> Contribution | None:
        """Return the contribution in a message; None if there is no valid one."""

        def expected(found: Contribution) -> str:
            last = topic_suffix(found.key)
            return "" if where == self._topic(last, kind) else f"it under {last}"

        try:
            return read_contribution(payload, self.projection, expected, kind)
        except EdgemergeError as error:
            self._log.warn(where, error)
            return None
