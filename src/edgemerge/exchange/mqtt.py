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
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from socket import IPPROTO_TCP, TCP_NODELAY
from threading import Condition
from typing import Any, NamedTuple

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
    must_be,
)
from edgemerge.core.faults import Faults
from edgemerge.core.ledger import Contribution, Kind, Merged, Selection
from edgemerge.core.projection import Projection, as_int
from edgemerge.exchange.connection import Deadline, is_loopback
from edgemerge.exchange.protocol import merge, must_be_contribution, must_be_selection
from edgemerge.exchange.stored_contributions import (
    LogOnce,
    must_be_current,
    read_contribution,
    safe_name,
    topic_suffix,
)
from edgemerge.files import read_secret
from edgemerge.signatures import MAX_KNOWN, KnownKeys, OtherSenderError, SigningKey
from edgemerge.wire.admission import admit
from edgemerge.wire.codec import KIND_WORDS, MAX_BYTES, encode

MAX_MESSAGES = 999  # at a time: of more, some brokers drop some silently
MAX_KEPT = 4096  # messages in memory that may be contributions
ASKED_AT_ONCE = 50  # devices, by name
CUT_S = 2.0  # without a message, after which a broker that has too many sends no more
MAX_LOGGED = 10  # messages of one pull that are logged one by one
RECEIVE_MAXIMUM = 65535  # messages that a broker may send before the first is acknowledged
SIGNATURE_PROPERTY = "edgemerge-signature"
HEADER_BYTES = 2**16  # of a contribution, beside its sums
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
        SettingError: `version` is neither 5 nor 4, or there is no such port.
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
        must_be(self.host, str, "give its name or address")
        if not 1 <= as_int("port", self.port) <= 65535:
            raise SettingError(f"found port={self.port}, expected 1 to 65535")
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


class RetainedMessage(NamedTuple):
    """The payload of a message, and the signature beside it."""

    payload: bytes
    signature: str | None


@dataclass
class Gathered:
    """Retained messages that a broker sent.

    Args:
        found: Those that may be contributions, by topic.
        received: How many there were in all.
        skipped: How many of them cannot be contributions.
        skipped_sizes: The topics of the first of these, and how many bytes they have.
        left_out: How many more may be, for which there was no memory.
        is_cut: Whether the broker has dropped some without a word.
        bytes: Of those that were found.
    """

    found: dict[str, RetainedMessage] = field(default_factory=dict)
    received: int = 0
    skipped: int = 0
    skipped_sizes: dict[str, int] = field(default_factory=dict)
    left_out: int = 0
    is_cut: bool = False
    bytes: int = 0


Accepts = Callable[[str, bytes], bool]


def _signature_of(message: MQTTMessage) -> str | None:
    given = getattr(getattr(message, "properties", None), "UserProperty", ())
    found = [value for name, value in given if name == SIGNATURE_PROPERTY]
    return found[0] if found else None


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
        self._gathered = Gathered()
        self._accepts: Accepts = lambda _topic, _payload: True
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
            properties.ReceiveMaximum = RECEIVE_MAXIMUM
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

    def gather(
        self, filters: Iterable[str], marker: str, accepts: Accepts | None = None
    ) -> Gathered:
        """Return the retained messages of some topics.

        They have arrived when a marker, published after subscribing, comes back. Some brokers send
        retained messages later: wait until none has arrived for `settle_s`.

        Args:
            filters: Which topics, with + and #.
            marker: A topic of one's own.
            accepts: Whether to keep a message, by its topic and payload; None: keep all.
        """
        with self._changed:
            self._gathered, self._marker = Gathered(), marker
            self._accepts = accepts or (lambda _topic, _payload: True)
        wanted = [*filters, marker]
        _, mid = self._client.subscribe([(topic, 1) for topic in wanted])
        self._acknowledge(mid, "it did not confirm a subscription")
        mid = self._client.publish(marker, b"", qos=1).mid
        self._progress(lambda: mid in self._acknowledged, "it did not confirm a message")
        self._progress(lambda: not self._marker, "it did not send a message back")
        while self._more(self.broker.settle_s):
            pass
        self._client.unsubscribe(wanted)
        with self._changed:
            self._check()
            return self._gathered

    def keep(self, topic: str, payload: bytes, signature: str | None = None) -> None:
        """Publish a retained message, and wait until the broker confirms."""
        if self.largest is not None and len(payload) + len(topic) + 64 > self.largest:
            raise RejectedError(
                f"found {len(payload)} bytes, but {self.broker} accepts packets of at most "
                f"{self.largest}: raise its limit, or exchange over HTTP"
            )
        properties = None
        if signature is not None and self.broker.version == 5:
            properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]  # paho's
            properties.UserProperty = (SIGNATURE_PROPERTY, signature)
        mid = self._client.publish(topic, payload, 1, True, properties).mid  # noqa: FBT003 - retain
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
        into, payload = self._gathered, bytes(message.payload)
        into.received += 1
        if not self._accepts(message.topic, payload):
            into.skipped += 1
            if len(into.skipped_sizes) < MAX_LOGGED:
                into.skipped_sizes[message.topic] = len(payload)
        elif len(into.found) >= MAX_KEPT or into.bytes + len(payload) > MAX_TOTAL_BYTES:
            into.left_out += 1
        else:
            into.bytes += len(payload)
            into.found[message.topic] = RetainedMessage(payload, _signature_of(message))

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
        """Wait as long as messages arrive.

        Of too many messages a broker drops some, and even what it should confirm: then a pause is
        the end.
        """
        timing, into = Deadline(self.timeout_s), self._gathered
        with suppress(TimeoutError):
            while not (done() or self._failed or into.is_cut):
                is_many = into.received > MAX_MESSAGES
                if self._more(min(timing.left(), CUT_S) if is_many else timing.left()):
                    continue
                if not is_many:
                    break
                into.is_cut = True
        if into.is_cut:
            return
        with self._changed:
            self._check("" if done() else f"{problem}: may this user write and read there?")

    def _more(self, wait_s: float) -> bool:
        with self._changed:
            before = self._seen
            return self._changed.wait_for(lambda: before != self._seen, wait_s)

    @property
    def _seen(self) -> tuple[object, ...]:
        """What changes when something has arrived."""
        received, confirmed = self._gathered.received, len(self._acknowledged)
        return received, confirmed, self._marker, self._failed

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
    contributions are skipped, counted and logged. With MQTT 5 contributions are signed, in a user
    property, and one under a name whose first key was another is skipped as well; so whoever may
    write to a topic can remove a contribution, but not replace it.

    Args:
        host: Name or address of the broker.
        port: 1883 unless given; with TLS it is usually 8883.
        fleet: Name of the fleet, part of the topics.
        projection: What all devices share.
        prefix: First level, or levels, of the topics; "edgemerge" unless given.
        username: To log in with; None: without logging in.
        password_file: File with the password on one line; None (the default): no password.
        ca_file: Certificates to trust, in PEM, instead of the system's; implies TLS. None by
            default.
        tls: Connect with TLS and the system's certificates; False by default.
        timeout_s: For connecting and for each answer, in seconds; 10 unless given. Raise it on slow
            links.
        settle_s: How long the broker may take between two retained messages, in seconds; 0.2 unless
            given. Raise it if a pull misses contributions.
        version: 5 (the default), or 4 for MQTT 3.1.1, which carries no signatures.
        key_file: File of this device's key, made at first use; None: contributions are not signed.
        known_keys_file: File to remember the keys of other devices in; None: only in memory.
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
        key_file: str | os.PathLike[str] | None = None,
        known_keys_file: str | os.PathLike[str] | None = None,
    ) -> None:
        """Send nothing yet."""
        must_be(projection, Projection, "build one that all devices share")
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
        self.skipped = 0  # messages of the last pull that are not valid contributions
        self._key = None if key_file is None else SigningKey.own(Path(key_file))
        self._keys = KnownKeys(None if known_keys_file is None else Path(known_keys_file))
        self._devices: set[str] = set()  # whose contributions were found before
        self._log = LogOnce(logger, f"skipped a message under {self.root}")
        self._summary = LogOnce(logger, "skipped messages that are no contributions")

    def push(self, contribution: Contribution) -> bool:
        """Store a contribution and read it back; return False if it was stored before."""
        must_be_contribution(contribution)
        kind, payload = contribution.kind, encode(contribution)
        admit(contribution, projection=self.projection, kind=kind)
        where = self._topic(topic_suffix(contribution.key), kind)
        signature = None
        if self._key is not None and self.broker.version == 5:
            signature = self._key.sign(payload)
            self._keys.accept(contribution.device, self._key.public)
        with self.broker.session(len(payload)) as session:
            if not must_be_current(contribution, self._known(session, where, kind)):
                return False
            session.keep(where, payload, signature)
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
        must_be_selection(selection)
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
            gathered = session.gather(filters, self._marker, self._may_be_contribution)
        if names is None and (gathered.received > MAX_MESSAGES or gathered.left_out):
            with self.broker.session(self._size) as session:
                self._gather_known(session, gathered, pattern, kind)
        if gathered.left_out and not self._devices:
            raise RejectedError(
                f"{self.broker} holds more than {MAX_KEPT} contributions or {MAX_TOTAL_BYTES} "
                "bytes: remove those of devices that are gone, or exchange over HTTP"
            )
        for where, size in gathered.skipped_sizes.items():
            words = f"found {size} bytes that do not begin as a contribution does, or are too many"
            self._log.warn(where, RejectedError(words))
        logged = iter(range(MAX_LOGGED))
        read = [
            self._read(where, message, kind, logged)
            for where, message in sorted(gathered.found.items())
        ]
        valid = [each for each in read if each is not None]
        if len(self._devices) < MAX_KNOWN:
            self._devices |= {each.device for each in valid}
        self._count_skipped(len(read) - len(valid), gathered)
        return valid

    def _gather_known(
        self, session: BrokerSession, into: Gathered, pattern: str, kind: Kind
    ) -> None:
        """Ask for devices that are known by name: of too many messages a broker drops some."""
        known = sorted(self._devices | set(self._keys.all()))
        where = [self._topic(f"{safe_name(device)}/+/{pattern}", kind) for device in known]
        found: dict[str, RetainedMessage] = {}
        for i in range(0, min(len(where), MAX_KEPT), ASKED_AT_ONCE):
            some = where[i : i + ASKED_AT_ONCE]
            found |= session.gather(some, self._marker, self._may_be_contribution).found
        # those of known devices first, and of the others as many as there is memory for
        others = {} if into.left_out else into.found
        into.found = others | found

    def _may_be_contribution(self, topic: str, payload: bytes) -> bool:
        """Return whether topic and size are those of a contribution, before it is read."""
        last = topic.removeprefix(f"{self.root}/").split("/")
        is_key = len(last) == 4 and last[2].isdecimal() and len(last[2]) < 20
        return is_key and 8 < len(payload) <= self._size + HEADER_BYTES and payload[8:9] == b"{"

    def _count_skipped(self, invalid: int, gathered: Gathered) -> None:
        skipped, left_out = invalid + gathered.skipped, gathered.left_out
        self.skipped = skipped + left_out
        if self.skipped <= MAX_LOGGED:  # each has been logged
            self._summary.clear(self.root)
            return
        more = f", {left_out} for which there is no memory" if left_out else ""
        more += ", and more that the broker dropped" if gathered.is_cut else ""
        words = f"{skipped} messages{more}: remove them from the broker, or devices that are new "
        words += "may not be found; let each device write its own topics only"
        self._summary.warn(self.root, RejectedError(words))

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
        found = session.gather([where], self._marker).found.get(where)
        return None if found is None else self._read(where, found, kind)

    def _read(
        self,
        where: str,
        message: RetainedMessage,
        kind: Kind,
        logged: Iterator[int] | None = None,
    ) -> Contribution | None:
        """Return the contribution in a message; None if there is no valid one."""

        def expected(found: Contribution) -> str:
            last = topic_suffix(found.key)
            return "" if where == self._topic(last, kind) else f"it under {last}"

        try:
            found = read_contribution(message.payload, self.projection, expected, kind)
            self._keys.check(found.device, message.payload, message.signature)
        except OtherSenderError as error:
            self._log.warn(found.device, error)
            return None
        except EdgemergeError as error:
            if logged is None or next(logged, None) is not None:
                self._log.warn(where, error)
            return None
        return found
