"""The bridge: small devices on serial lines or TCP take part in a fleet.

`edgemerge_link.h` is the other side, and lists the frames. A device says its name and proves with
its own token that it is that device; the token itself never travels over the line. The bridge
keeps nothing: after a restart devices say hello again, and send again what was not confirmed.
"""

from __future__ import annotations

import hmac
import logging
import os
import re
import select
import socket
import struct
import termios
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from math import isfinite
from pathlib import Path
from random import Random
from secrets import token_bytes
from threading import BoundedSemaphore, Event, Thread
from time import monotonic, time
from typing import Any, Protocol
from zlib import crc32

from edgemerge.core.detector import NORMAL
from edgemerge.core.errors import EdgemergeError, SettingError, StaleError, UnavailableError
from edgemerge.core.ledger import Contribution, Selection
from edgemerge.core.stats import Stats
from edgemerge.daemon import Backoff
from edgemerge.exchange.configuration import PLAIN_NAME
from edgemerge.exchange.protocol import Exchange
from edgemerge.files import read_token
from edgemerge.wire.codec import decode, encode

VERSION = 1  # of the frames
MAX_PAYLOAD = 240  # bytes; so that a frame is one COBS block
MAX_FRAME = MAX_PAYLOAD + 6  # encoded, without the zero
MAX_STREAM = 2**24  # bytes of a contribution
MAX_NAMES = 2**12  # bytes by which its header is longer than that of sums
NONCE_BYTES = 16
MAX_LINES = 256  # connections at a time
HELLO_TIMEOUT_S = 30.0  # a connection that has not proved who it is is closed
POLL_S = 0.5  # how soon a line notices that it has to stop
RETRY_S, MAX_RETRY_S = 1.0, 60.0  # between attempts to open a serial line
READ_BYTES = 4096
BAUD = 115200

logger = logging.getLogger(__name__)


class Status(IntEnum):
    """What the bridge says instead of an answer; the numbers are those of the C header."""

    LATER = 1  # the fleet cannot be reached now
    REFUSED = 2
    STALE = 3  # the fleet knows a newer revision
    BROKEN = 4  # something was lost on the way: send it again
    UNKNOWN = 5  # say hello first


def encode_frame(letter: bytes, payload: bytes = b"") -> bytes:
    """Return a frame: a letter and a payload with their CRC-32, COBS-encoded, and a zero.

    Args:
        letter: What the frame is, one byte.
        payload: At most 240 bytes.

    >>> encode_frame(b"T").hex(" ")
    '06 54 60 7a 04 be 00'
    """
    plain = letter + payload
    plain += crc32(plain).to_bytes(4, "little")
    return b"".join(bytes([len(part) + 1]) + part for part in plain.split(b"\0")) + b"\0"


def decode_frame(data: bytes) -> tuple[bytes, bytes] | None:
    """Return the letter and the payload of a frame without its zero; None if it is damaged.

    Args:
        data: The bytes between two zeros.
    """
    parts, at = [], 0
    while at < len(data):
        end = at + data[at]
        if end > len(data) or end == at:
            return None
        parts.append(data[at + 1 : end])
        at = end
    plain = b"\0".join(parts)
    if len(plain) < 5 or crc32(plain[:-4]).to_bytes(4, "little") != plain[-4:]:
        return None
    return plain[:1], plain[1:-4]


class FrameReader:
    """Finds frames in a stream of bytes; after damage it goes on at the next zero.

    Attributes:
        damaged: How many frames were damaged.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self.damaged = 0
        self._rest = bytearray()
        self._too_long = False

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the letter and the payload of each frame that is complete now.

        Args:
            data: The next bytes, however they are cut.
        """
        for number, part in enumerate(data.split(b"\0")):
            if number:  # a zero came before this part
                found = None if self._too_long else decode_frame(bytes(self._rest))
                empty = not self._rest and not self._too_long
                self._rest.clear()
                self._too_long = False
                if found is not None:
                    yield found
                elif not empty:  # several zeros in a row are no damage
                    self.damaged += 1
            self._too_long = self._too_long or len(self._rest) + len(part) > MAX_FRAME
            if self._too_long:
                self._rest.clear()
            else:
                self._rest += part


@dataclass(frozen=True)
class DeviceReport:
    """What a small device says of its newest sample.

    Attributes:
        device: Its name.
        at: When the report came, in Unix seconds.
        score: How unusual the sample is; 1 is usual, 0: not known yet.
        level: The recent score that is held against the limit.
        limit: The limit.
        ready: Whether enough is known for alarms.
        alarm: Whether an episode is open.
        learnt: Whether the sample was learnt.
        samples: How many samples the device has learnt itself.
        episodes: How many episodes began since its sums began.
        others: How many samples of others it has adopted.
    """

    device: str
    at: float
    score: float
    level: float
    limit: float
    ready: bool
    alarm: bool
    learnt: bool
    samples: int
    episodes: int
    others: int = 0


REPORT = struct.Struct("<fffBIII")
UNANSWERED = (b"B", b"D", b"O")  # a device does not listen while it streams


@dataclass
class Uplink:
    """A device's way to its fleet.

    Attributes:
        exchange: Where its contributions go, and what others saw comes from.
        report: Called with each report of the device; None: reports go nowhere.
    """

    exchange: Exchange
    report: Callable[[DeviceReport], None] | None = None


@dataclass
class Session:
    """One device on one line, from its hello on.

    Args:
        tokens: Returns the token of a device, or None if it is not known.
        connect: Returns the way of a device to its fleet, with its token.
        nonce: Returns random bytes.
    """

    tokens: Callable[[str], str | None]
    connect: Callable[[str, str], Uplink]
    nonce: Callable[[int], bytes] = token_bytes
    name: str = ""
    known: bool = False
    _nonce: bytes = b""
    _uplink: Uplink | None = None
    _received: bytearray | None = None  # None: something was lost
    _max_stream: int = 0  # 0: not known yet
    _total: bytes = b""
    _answers: Mapping[bytes, Callable[[Uplink, bytes], bytes]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """List what a device may ask once it is known."""
        self._answers = {
            b"B": self._begin,
            b"D": self._add,
            b"E": self._push,
            b"T": self._pull,
            b"G": self._piece,
            b"O": self._report,
        }

    def answer(self, letter: bytes, payload: bytes) -> bytes:
        """Return the bytes to send back for a frame, which may be none.

        Args:
            letter: Of the frame.
            payload: Of the frame; anything, as lines are noisy and devices may be hostile.
        """
        if letter in (b"H", b"P"):
            return self._hello(payload) if letter == b"H" else self._prove(payload)
        if letter not in self._answers or (not self.known and letter in UNANSWERED):
            return b""
        if not self.known or self._uplink is None:
            return _say(Status.UNKNOWN)
        return self._ask_fleet(partial(self._answers[letter], self._uplink, payload))

    def _ask_fleet(self, ask: Callable[[], bytes]) -> bytes:
        try:
            return ask()
        except StaleError as error:
            logger.info("stale", extra={"values": {"device": self.name, "newest": error.newest}})
            return _say(Status.STALE, error.newest)
        except UnavailableError as error:
            logger.warning("fleet not reached: %s", error, extra=self._values)
            return _say(Status.LATER)
        except EdgemergeError as error:
            logger.warning("refused: %s", error, extra=self._values)
            return _say(Status.REFUSED)
        except Exception as error:  # a bug that one device shows must not end its line
            logger.exception("failed: %s", error, extra=self._values)
            return _say(Status.LATER)

    @property
    def _values(self) -> dict[str, Any]:
        return {"values": {"device": self.name}}

    def _hello(self, payload: bytes) -> bytes:
        name = payload[1:].decode("ascii", "replace")
        self.end()
        if payload[:1] != bytes([VERSION]) or not re.fullmatch(PLAIN_NAME, name):
            logger.warning("found a hello of version %r, name %r", payload[:1], name[:100])
            return _say(Status.REFUSED)
        self.name, self._nonce = name, self.nonce(NONCE_BYTES)
        return encode_frame(b"N", self._nonce)

    def end(self) -> None:
        """Forget who the device is and what it has sent so far: it says hello again."""
        self.known, self._received, self._total = False, None, b""

    def _prove(self, payload: bytes) -> bytes:
        if not self._nonce:
            return _say(Status.UNKNOWN)
        token = self.tokens(self.name)
        message, self._nonce = self._nonce + self.name.encode(), b""  # each nonce works once
        expected = hmac.digest((token or "").encode(), message, "sha256")
        if token is None or not hmac.compare_digest(expected, payload):
            logger.warning("no token, or another one", extra=self._values)
            return _say(Status.REFUSED)
        return self._ask_fleet(partial(self._accept, token))

    def _accept(self, token: str) -> bytes:
        self._uplink = self.connect(self.name, token)
        self.known = True
        logger.info("hello", extra=self._values)
        return encode_frame(b"A")

    def _begin(self, uplink: Uplink, _payload: bytes) -> bytes:
        self._received = bytearray()
        if not self._max_stream:
            projection = getattr(uplink.exchange, "projection", None)
            empty = b"" if projection is None else encode(Stats.empty(projection))
            self._max_stream = min(MAX_STREAM, len(empty) + MAX_NAMES) if empty else MAX_STREAM
        return b""

    def _add(self, _uplink: Uplink, payload: bytes) -> bytes:
        received, offset = self._received, int.from_bytes(payload[:4], "little")
        if received is None or offset != len(received) or offset + len(payload) > self._max_stream:
            self._received = None
        else:
            received += payload[4:]
        return b""

    def _push(self, uplink: Uplink, payload: bytes) -> bytes:
        received, self._received = self._received, None
        if received is None or len(payload) != 8:
            return _say(Status.BROKEN)
        size, checksum = struct.unpack("<II", payload)
        if (size, checksum) != (len(received), crc32(received)):
            return _say(Status.BROKEN)
        known = getattr(uplink.exchange, "projection", None)
        found = decode(bytes(received), Contribution, projection=known)
        if found.device != self.name:
            logger.warning("sent a contribution of %r", found.device, extra=self._values)
            return _say(Status.REFUSED)
        uplink.exchange.push(found)
        values = {"device": self.name, "revision": found.revision, "samples": found.samples}
        logger.info("pushed", extra={"values": values})
        return encode_frame(b"A")

    def _pull(self, uplink: Uplink, _payload: bytes) -> bytes:
        merged = uplink.exchange.pull(Selection(receiver=self.name))
        self._total = encode(merged.total) if merged.parts else b""
        return encode_frame(b"S", struct.pack("<II", len(self._total), crc32(self._total)))

    def _piece(self, _uplink: Uplink, payload: bytes) -> bytes:
        offset = int.from_bytes(payload[:4], "little")
        size = min(int.from_bytes(payload[4:5], "little"), MAX_PAYLOAD - 4)
        if len(payload) != 5 or offset >= len(self._total):
            return _say(Status.BROKEN)
        return encode_frame(b"C", payload[:4] + self._total[offset : offset + size])

    def _report(self, uplink: Uplink, payload: bytes) -> bytes:
        if len(payload) == REPORT.size and uplink.report is not None:
            score, level, limit, marks, *counts = REPORT.unpack(payload)
            if all(isfinite(x) and x >= 0.0 for x in (score, level, limit)):
                flags = bool(marks & 1), bool(marks & 2), bool(marks & 4)
                numbers = float(score), float(level), float(limit)
                uplink.report(DeviceReport(self.name, time(), *numbers, *flags, *counts))
        return b""


def _say(status: Status, number: int = 0) -> bytes:
    if number >= 2**32:
        return _say(Status.REFUSED)  # a small device counts to 2³²
    return encode_frame(b"R", bytes([status]) + number.to_bytes(4, "little"))


class TokenFolder:
    """The tokens of devices, as `edgemerge enrol` writes them: FOLDER/NAME.token.

    Args:
        path: The folder. Files may be added while the bridge runs.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read nothing yet."""
        self.path = Path(path)

    def __call__(self, name: str) -> str | None:
        """Return the token of a device, or None if there is none.

        Args:
            name: Of the device; other names than those of devices have none.
        """
        if not re.fullmatch(PLAIN_NAME, name) or not (self.path / f"{name}.token").is_file():
            return None
        try:
            return read_token(self.path / f"{name}.token")
        except SettingError as error:
            logger.warning("%s", error)
            return None


class Line(Protocol):
    """A connection to a device."""

    def read(self) -> bytes | None:
        """Return the next bytes, b"" if none came for a moment, None at its end."""
        ...

    def write(self, data: bytes) -> None:
        """Send all of the bytes."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


class TcpLine:
    """A connection over TCP.

    Args:
        connection: The accepted socket.
    """

    def __init__(self, connection: socket.socket) -> None:
        """Wait for each byte only a moment."""
        connection.settimeout(POLL_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._socket = connection

    def read(self) -> bytes | None:
        """Return the next bytes, b"" if none came for a moment, None at its end."""
        try:
            return self._socket.recv(READ_BYTES) or None
        except TimeoutError:
            return b""

    def write(self, data: bytes) -> None:
        """Send all of the bytes."""
        self._socket.sendall(data)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


class SerialLine:
    """A serial line in raw mode: 8 bits, no parity, one stop bit, no flow control.

    Args:
        path: The device file, such as /dev/ttyUSB0.
        baud: Its speed in bits a second.

    Raises:
        SettingError: The speed is not one that this system knows.
        OSError: It cannot be opened now.
    """

    def __init__(self, path: str, baud: int = BAUD) -> None:
        """Open the line and set its speed."""
        speed = getattr(termios, f"B{baud}", None)
        if speed is None:
            raise SettingError(f"found a speed of {baud}, expected one such as 9600 or {BAUD}")
        self._file = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        try:
            settings = termios.tcgetattr(self._file)
            settings[:6] = [0, 0, termios.CS8 | termios.CREAD | termios.CLOCAL, 0, speed, speed]
            termios.tcsetattr(self._file, termios.TCSANOW, settings)
            termios.tcflush(self._file, termios.TCIOFLUSH)
        except termios.error as error:
            self.close()
            raise OSError(*error.args) from error

    def read(self) -> bytes | None:
        """Return the next bytes, b"" if none came for a moment, None at its end."""
        if not select.select([self._file], [], [], POLL_S)[0]:
            return b""
        return os.read(self._file, READ_BYTES) or None

    def write(self, data: bytes) -> None:
        """Send all of the bytes."""
        while data:
            if not select.select([], [self._file], [], HELLO_TIMEOUT_S)[1]:
                raise OSError("the line takes no bytes")
            data = data[os.write(self._file, data) :]

    def close(self) -> None:
        """Close the line."""
        os.close(self._file)


@dataclass
class Bridge:
    """Serves devices on lines until it is stopped; each line has a thread.

    Args:
        tokens: Returns the token of a device, or None if it is not known.
        connect: Returns the way of a device to its fleet, with its token.
        stop: Ends it when it is set.
    """

    tokens: Callable[[str], str | None]
    connect: Callable[[str, str], Uplink]
    stop: Event
    _threads: list[Thread] = field(default_factory=list, repr=False)
    _sessions: dict[str, Session] = field(default_factory=dict, repr=False)  # the newest of each
    _slots: BoundedSemaphore = field(default_factory=partial(BoundedSemaphore, MAX_LINES))

    def serve(self, line: Line, *, hello_timeout_s: float | None = None) -> None:
        """Answer the frames of one line until it ends.

        Args:
            line: An open line.
            hello_timeout_s: After how long without a proof of who it is the line is left, in
                seconds; None (the default): never.
        """
        session, reader = Session(self.tokens, self.connect), FrameReader()
        began = monotonic()
        while not self.stop.is_set():
            data = line.read()
            if data is None:
                return
            for letter, payload in reader.feed(data):
                answer = session.answer(letter, payload)
                if session.known:
                    self._end_older_session(session)
                if answer:
                    line.write(answer)
            if hello_timeout_s and not session.known and monotonic() - began > hello_timeout_s:
                logger.warning("a connection that did not say who it is was closed")
                return

    def _end_older_session(self, session: Session) -> None:
        """Let a device have one session: a lost connection may stay open for hours."""
        older = self._sessions.get(session.name)
        if older is not session:
            self._sessions[session.name] = session
            if older is not None and older.name == session.name:
                older.end()

    def listen(self, host: str, port: int) -> int:
        """Take connections over TCP from now on; return the port.

        Args:
            host: The address to listen on. What is not loopback is open to everyone who can reach
                it: tokens are not sent, but what devices send and get can be read and changed.
            port: The port, 0 for any.

        Raises:
            SettingError: The address cannot be used.
        """
        try:
            server = socket.create_server((host, port), backlog=MAX_LINES)
        except OSError as error:
            raise SettingError(f"cannot listen on {host}:{port}: {error}") from error
        server.settimeout(POLL_S)
        self._start(self._accept, server)
        return int(server.getsockname()[1])

    def open_serial(self, path: str, baud: int = BAUD) -> None:
        """Serve a serial line from now on; it is opened again when it fails.

        Args:
            path: The device file, such as /dev/ttyUSB0.
            baud: Its speed in bits a second.
        """
        self._start(self._serve_serial, path, baud)

    def wait(self) -> None:
        """Wait until it is stopped, and until its lines have ended."""
        self.stop.wait()
        for thread in self._threads:
            thread.join(4 * POLL_S)

    def _start(self, run: Callable[..., None], *words: Any) -> None:
        thread = Thread(target=run, args=words, daemon=True)
        self._threads = [*(t for t in self._threads if t.is_alive()), thread]
        thread.start()

    def _accept(self, server: socket.socket) -> None:
        with closing(server):
            while not self.stop.is_set():
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    continue
                except OSError as error:  # such as too many open files
                    logger.warning("a connection was not accepted: %s", error)
                    self.stop.wait(POLL_S)
                    continue
                if self._slots.acquire(blocking=False):
                    self._start(self._serve_tcp, connection)
                else:
                    connection.close()
                    logger.warning("more than %s connections: one was refused", MAX_LINES)

    def _serve_tcp(self, connection: socket.socket) -> None:
        try:
            with closing(TcpLine(connection)) as line:
                self.serve(line, hello_timeout_s=HELLO_TIMEOUT_S)
        except OSError as error:
            logger.info("a connection ended: %s", error)
        finally:
            self._slots.release()

    def _serve_serial(self, path: str, baud: int) -> None:
        backoff = Backoff(RETRY_S, MAX_RETRY_S, Random(path))
        while not self.stop.is_set():
            try:
                with closing(SerialLine(path, baud)) as line:
                    backoff.reset()
                    self.serve(line)
            except OSError as error:
                advice = "check that it is plugged in, and --serial; it is tried again"
                why = error.strerror or error
                logger.warning("serial line %s: %s: %s", path, why, advice)
            self.stop.wait(backoff.next())


class ServerReports:
    """Hands reports of one small device on to the server, as its agent would.

    Args:
        send: Sends a report; see `ReportClient.send`.
    """

    MAX_EPISODES = 16

    def __init__(self, send: Callable[[dict[str, Any]], object]) -> None:
        """Begin with no episode."""
        self._send = send
        self._episodes: list[dict[str, Any]] = []
        self._taken = 0

    def __call__(self, report: DeviceReport) -> None:
        """Send one report; one that cannot be sent is left out.

        Args:
            report: What the device said.
        """
        self._taken += 1
        self._note_episode(report)
        point: dict[str, Any] = {
            "at": report.at,
            "score": report.score,
            "threshold": report.limit,
            "alarm": report.alarm,
            "ready": report.ready,
            "level": report.level,
        }
        monitor = {
            "phase": "watching" if report.ready else "commissioning",
            "ready": report.ready,
            "commissioning": {"samples": float(report.samples)},
            "limit": {"value": report.limit},
            "episodes": self._episodes,
        }
        own, others = float(report.samples), float(report.others)
        pattern = {"pattern": NORMAL, "own": own, "told": others, "used": self._taken}
        status = {
            "samples": report.samples,
            "learnt": float(report.samples),
            "alarms": report.episodes,
            "patterns": [pattern],
            "monitor": monitor,
        }
        sent = {"sent": report.at, "status": status, "points": [point] if report.score else []}
        try:
            self._send(sent)
        except EdgemergeError as error:
            logger.info("a report of %s was not sent: %s", report.device, error)

    def _note_episode(self, report: DeviceReport) -> None:
        last = self._episodes[-1] if self._episodes else None
        is_open = last is not None and last["ended"] is None
        if report.alarm and not is_open:
            number = max(report.episodes, last["number"] + 1 if last else 1)
            episode = {"number": number, "began": report.at, "ended": None, "peak": 0.0}
            self._episodes = [*self._episodes[1 - self.MAX_EPISODES :], episode]
        if self._episodes and report.alarm:
            self._episodes[-1]["peak"] = max(self._episodes[-1]["peak"], report.score)
        if last is not None and is_open and not report.alarm:
            last["ended"] = report.at
