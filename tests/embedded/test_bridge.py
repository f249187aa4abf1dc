"""The bridge: frames, damaged lines, tokens, and small devices in a real fleet."""

import hmac
import json
import logging
import os
import pty
import random
import socket
import struct
import subprocess
import sys
from contextlib import closing
from threading import Event, Thread
from zlib import crc32

import numpy as np
import pytest

from edgemerge import Contribution, Detector, Projection, Selection, Stats, decode, encode, save
from edgemerge.core.errors import SettingError, UnavailableError
from edgemerge.embedded.bridge import (
    MAX_FRAME,
    MAX_PAYLOAD,
    Bridge,
    DeviceReport,
    FrameReader,
    SerialLine,
    ServerReports,
    Session,
    Status,
    TcpLine,
    TokenFolder,
    Uplink,
    decode_frame,
    encode_frame,
)
from edgemerge.exchange.client import ReportClient
from edgemerge.exchange.folder import FolderExchange
from edgemerge.exchange.http import HttpExchange
from edgemerge.exchange.protocol import MemoryExchange
from tests.cli.calls import call
from tests.services.hub import running
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.slow

TOKEN = "emd_" + "x" * 43
SHARED = Projection(n_inputs=3, n_hidden=5, seed=7)
X = np.random.default_rng(0).normal(0.0, 0.3, (400, 3))


MILLION = (pytest.mark.mcu_long, pytest.mark.timeout(1500))  # on a busy machine


def read_frame(data: bytes) -> tuple[bytes, bytes]:
    """Return the letter and the payload of a whole frame."""
    found = decode_frame(data[:-1])
    assert found is not None
    return found


def letters_and_payloads(count: int, seed: int = 1):
    rng = random.Random(seed)
    for _ in range(count):
        few = rng.random() < 0.5
        size = rng.randrange(MAX_PAYLOAD + 1)
        yield (
            bytes([rng.randrange(256)]),
            bytes(rng.randrange(2 if few else 256) for _ in range(size)),
        )


def test_frames_come_back_as_they_were_however_the_stream_is_cut():
    sent, rng, reader, found = list(letters_and_payloads(200)), random.Random(2), FrameReader(), []
    data = b"\0".join(encode_frame(*each) for each in sent)  # zeros in between do no harm
    while data:
        size = rng.randrange(1, 400)
        found += reader.feed(data[:size])
        data = data[size:]
    assert found == sent
    assert reader.damaged == 0


def test_no_byte_within_a_frame_is_zero_and_none_is_longer_than_said():
    for letter, payload in letters_and_payloads(200):
        frame = encode_frame(letter, payload)
        assert frame.index(0) == len(frame) - 1 <= MAX_FRAME


def test_damaged_and_endless_frames_are_dropped_and_the_next_is_read():
    good, reader = encode_frame(b"T", b"\0abc"), FrameReader()
    wrong = bytes([good[0], good[1] ^ 1]) + good[2:]
    assert list(reader.feed(wrong + good)) == [(b"T", b"\0abc")]
    assert list(reader.feed(b"x" * 10**6)) == []
    assert len(reader._rest) <= MAX_FRAME  # an endless frame takes no memory
    assert list(reader.feed(b"\0" + good + good[:3])) == [(b"T", b"\0abc")]
    assert list(reader.feed(good[3:])) == [(b"T", b"\0abc")]
    assert reader.damaged == 2


class Fleet:
    """A fleet in memory that counts what reaches it, and may be out of reach."""

    def __init__(self):
        self.exchange, self.reports, self.reached = MemoryExchange(SHARED), [], True
        self.projection = SHARED

    def connect(self, _name: str, token: str) -> Uplink:
        assert token == TOKEN
        return Uplink(self, self.reports.append)

    def push(self, contribution):
        if not self.reached:
            raise UnavailableError("no way")
        return self.exchange.push(contribution)

    def pull(self, selection, *, grouped=False):
        return self.exchange.pull(selection, grouped=grouped)

    def session(self, name: str = "pump-3") -> Session:
        """Return a session that has said hello and proved itself."""
        session = Session({"pump-3": TOKEN, "pump-4": TOKEN}.get, self.connect)
        said, nonce = read_frame(session.answer(b"H", b"\1" + name.encode()))
        assert said == b"N"
        proof = hmac.digest(TOKEN.encode(), nonce + name.encode(), "sha256")
        assert session.answer(b"P", proof) == encode_frame(b"A")
        return session


def stream(session: Session, data: bytes, *, lose: int = -1) -> tuple[bytes, bytes]:
    """Send a contribution in pieces, of which one may be lost; return the answer."""
    assert session.answer(b"B", b"") == b""
    for number, at in enumerate(range(0, len(data), 200)):
        if number != lose:
            assert session.answer(b"D", struct.pack("<I", at) + data[at : at + 200]) == b""
    return read_frame(session.answer(b"E", struct.pack("<II", len(data), crc32(data))))


def shared(name: str = "pump-3", revision: int = 1, rows: int = 50) -> bytes:
    return encode(Contribution(name, Stats.of(SHARED, X[:rows]), revision=revision))


def refusal(status: Status, number: int = 0) -> tuple[bytes, bytes]:
    return b"R", bytes([status]) + number.to_bytes(4, "little")


def test_a_contribution_reaches_the_fleet_and_others_get_it():
    fleet = Fleet()
    assert stream(fleet.session(), shared()) == (b"A", b"")
    other = fleet.session("pump-4")
    letter, sizes = read_frame(other.answer(b"T", b""))
    assert letter == b"S"
    size, checksum = struct.unpack("<II", sizes)
    total = b""
    while len(total) < size:
        ask = struct.pack("<IB", len(total), 255)
        letter, piece = read_frame(other.answer(b"G", ask))
        assert (letter, piece[:4]) == (b"C", ask[:4])
        total += piece[4:]
    assert crc32(total) == checksum
    assert decode(total) == Stats.of(SHARED, X[:50])
    own = read_frame(fleet.session().answer(b"T", b""))
    assert own == (b"S", bytes(8))  # nothing of others


def test_what_was_lost_or_stale_or_not_reached_is_said():
    fleet = Fleet()
    session = fleet.session()
    assert stream(session, shared(), lose=1) == refusal(Status.BROKEN)
    assert stream(session, shared()) == (b"A", b"")
    assert stream(session, shared(revision=9)) == (b"A", b"")
    assert stream(session, shared(revision=3)) == refusal(Status.STALE, 9)
    fleet.reached = False
    assert stream(session, shared(revision=10)) == refusal(Status.LATER)
    fleet.reached = True
    assert stream(session, shared(revision=10)) == (b"A", b"")
    wrong = bytearray(shared(revision=11))
    wrong[-1] ^= 0x40
    assert stream(session, bytes(wrong)) == refusal(Status.REFUSED)
    assert stream(session, shared("pump-4")) == refusal(Status.REFUSED)  # of another device
    assert session.answer(b"G", struct.pack("<IB", 0, 9)) == encode_frame(*refusal(Status.BROKEN))


def test_without_its_own_token_a_device_gets_nothing(caplog):
    fleet = Fleet()
    session = Session({"pump-3": TOKEN}.get, fleet.connect)
    for letter in (b"E", b"T", b"G", b"P"):
        assert read_frame(session.answer(letter, b"")) == refusal(Status.UNKNOWN)
    for letter in (b"B", b"D", b"O", b"?"):
        assert session.answer(letter, b"") == b""
    for name, token in (("pump-3", "emd_other"), ("pump-9", TOKEN), ("pump-9", "")):
        _, nonce = read_frame(session.answer(b"H", b"\1" + name.encode()))
        proof = hmac.digest(token.encode(), nonce + name.encode(), "sha256")
        assert read_frame(session.answer(b"P", proof)) == refusal(Status.REFUSED)
        assert read_frame(session.answer(b"P", proof)) == refusal(Status.UNKNOWN)
        assert read_frame(session.answer(b"T", b"")) == refusal(Status.UNKNOWN)
    for hello in (b"\2pump-3", b"\1../pump", b"\1", b"", b"\1\xff"):
        assert read_frame(session.answer(b"H", hello)) == refusal(Status.REFUSED)
    known = fleet.session()
    known.answer(b"H", b"\1pump-4")  # who says another name has to prove it
    assert read_frame(known.answer(b"T", b"")) == refusal(Status.UNKNOWN)
    assert TOKEN not in caplog.text


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (SettingError("found a token with a line break"), Status.REFUSED),
        (UnavailableError("no way"), Status.LATER),
        (ZeroDivisionError("a bug"), Status.LATER),  # which must not end the line
    ],
)
def test_a_fleet_that_cannot_be_connected_is_said_and_leaves_the_device_unknown(error, status):
    fleet = Fleet()
    session = fleet.session("pump-4")  # whose way to the fleet is not for another device

    def connect(_name: str, _token: str) -> Uplink:
        raise error

    session.connect = connect
    _, nonce = read_frame(session.answer(b"H", b"\1pump-3"))
    proof = hmac.digest(TOKEN.encode(), nonce + b"pump-3", "sha256")
    assert read_frame(session.answer(b"P", proof)) == refusal(status)
    assert read_frame(session.answer(b"T", b"")) == refusal(Status.UNKNOWN)


def test_tokens_are_files_of_a_folder_and_names_never_lead_out_of_it(tmp_path):
    folder = tmp_path / "tokens"
    folder.mkdir()
    (folder / "pump-3.token").write_text(TOKEN + "\n", encoding="utf-8")
    (tmp_path / "other.token").write_text(TOKEN, encoding="utf-8")
    (folder / "bad.token").write_text("two words", encoding="utf-8")
    tokens = TokenFolder(folder)
    assert tokens("pump-3") == TOKEN
    assert [tokens(name) for name in ("pump-4", "../other", "", "bad")] == [None] * 4


def test_a_report_becomes_one_of_the_server_with_its_episodes():
    sent = []
    reports = ServerReports(sent.append)
    marks = [(1, False), (9, True), (12, True), (1, False), (8, True)]
    for at, (score, alarm) in enumerate(marks):
        report = DeviceReport("pump-3", float(at), score, score, 4.0, True, alarm, False, 90, 1)
        reports(report)
    episodes = sent[-1]["status"]["monitor"]["episodes"]
    assert [(e["number"], e["began"], e["ended"], e["peak"]) for e in episodes] == [
        (1, 1.0, 3.0, 12),
        (2, 4.0, None, 8),
    ]
    assert [each["points"][0]["alarm"] for each in sent] == [alarm for _, alarm in marks]


def mutated(frame: bytes, rng: random.Random) -> bytes:
    changed = bytearray(frame)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(changed)) if changed else 0
        kind = rng.randrange(4)
        if kind == 0 and changed:
            changed[at] = rng.randrange(256)
        elif kind == 1 and changed:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            changed[at:at] = rng.randbytes(rng.randrange(1, 4))
        else:
            del changed[at : at + rng.randrange(1, 4)]
    return bytes(changed)


@pytest.mark.parametrize(
    "count",
    [pytest.param(10_000, marks=pytest.mark.slow), pytest.param(10**6, marks=MILLION)],
)
def test_no_mutated_frame_or_payload_breaks_a_session_or_changes_the_fleet(count):
    logging.disable(logging.WARNING)  # it says each time why it refuses
    rng, fleet, reader = random.Random(3), Fleet(), FrameReader()
    session = fleet.session()
    data = shared()
    plain = [
        *((b"D", struct.pack("<I", at) + data[at : at + 200]) for at in range(0, len(data), 200)),
        (b"B", b""), (b"E", struct.pack("<II", len(data), crc32(data))), (b"T", b""),
        (b"G", struct.pack("<IB", 0, 9)), (b"O", struct.pack("<fffBIII", 1, 1, 4, 3, 9, 9, 9)),
        (b"H", b"\1pump-3"), (b"P", bytes(32)),
    ]  # fmt: skip
    framed = answered = 0
    try:
        for _ in range(count):
            letter, payload = rng.choice(plain)
            whole = rng.random() < 0.5  # a right checksum around a wrong payload
            data = (
                encode_frame(letter, mutated(payload, rng)[:MAX_PAYLOAD])
                if whole
                else mutated(encode_frame(letter, payload), rng)
            )
            for found in reader.feed(data):
                framed += 1
                answer = session.answer(*found)
                answered += bool(answer)
                assert not answer or read_frame(answer)
            if not session.known:
                session = fleet.session()
    finally:
        logging.disable(logging.NOTSET)
    assert framed > count / 4
    assert answered > count / 20
    assert reader.damaged > count / 8
    once = Stats.of(SHARED, X[:50])  # by chance all its pieces may come in order
    assert fleet.exchange.pull(Selection()).total in (once, Stats.empty(SHARED))
    assert stream(fleet.session(), shared()) == (b"A", b"")


@pytest.mark.parametrize(
    "count",
    [pytest.param(5_000, marks=pytest.mark.slow), pytest.param(10**6, marks=MILLION)],
)
def test_no_mutated_total_or_frame_breaks_a_device(build, count):
    program = build(SHARED, "fuzz.c", "-O1")
    total = encode(Stats.of(SHARED, X[:300]))
    words = [program, str(count)]
    done = subprocess.run(words, input=total, capture_output=True, check=False, timeout=1400)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    adopted, framed = map(int, done.stdout.split())
    assert 0 < adopted < count / 2  # a changed digit of a sum may be a sum as well
    assert count / 100 < framed < count / 4


class SocketLine(TcpLine):
    """A line that ends once, as if the bridge were restarted, after so many answers."""

    def __init__(self, end: socket.socket, restart_after: int) -> None:
        end.settimeout(0.5)
        self._socket, self.left = end, restart_after

    def read(self):
        if self.left == 0:
            self.left = -1
            return None
        return super().read()

    def write(self, data):
        self.left -= 1
        super().write(data)


class Running:
    """A bridge in threads of the test, and programs on its lines."""

    def __init__(self, tokens, connect):
        self.stop = Event()
        self.bridge = Bridge(tokens, connect, self.stop)

    def line(self, line, lives: int = 1) -> Thread:
        def serve() -> None:
            for _ in range(lives):
                self.bridge.serve(line)

        thread = Thread(target=serve, daemon=True)
        thread.start()
        return thread

    def on_socket(self, words, *, restart_after: int = -1) -> list[str]:
        """Run a program whose standard input and output are a line; return what it said."""
        ours, theirs = socket.socketpair()
        with closing(theirs), closing(ours):
            line, fd = SocketLine(ours, restart_after), theirs.fileno()
            thread = self.line(line, 1 if restart_after < 0 else 2)
            done = subprocess.run(
                words, stdin=fd, stdout=fd, stderr=subprocess.PIPE, check=False, timeout=60
            )
            theirs.close()
            thread.join(10)
        assert done.returncode == 0, done.stderr.decode()
        return done.stderr.decode().splitlines()


@pytest.fixture
def readings(tmp_path):
    (tmp_path / "readings").write_bytes(X.tobytes())
    return str(tmp_path / "readings")


@pytest.mark.slow
def test_a_device_in_c_and_one_in_python_share_a_real_fleet(build, readings, tmp_path):
    program = build(SHARED, "line.c")
    with running(str(tmp_path / "fleet.sqlite")) as hub:
        hub.operator.create_fleet("pumps", SHARED, least=1)
        token = hub.enrol("pumps", "pump-3")
        python = hub.exchange("pumps", "pump-4", SHARED)
        own = Stats.of(SHARED, X[200:300])
        python.push(Contribution("pump-4", own, revision=1))

        def connect(name, found):
            client = ReportClient(hub.url, "pumps", name, found)
            return Uplink(HttpExchange(hub.url, "pumps", found), ServerReports(client.send))

        bridge = Running({"pump-3": token}.get, connect)
        said = bridge.on_socket([program, "pump-3", token, readings, "lspto"])
        assert said == ["l 0", "s 0", "p 0", "t 0", "o 0", "samples 100 of others 100"]
        detector = Detector(SHARED)
        detector.learn(X[:50])
        assert python.pull(Selection(receiver="pump-4")).total == detector.own
        status = hub.operator.device("pumps", "pump-3")
        assert status["status"]["learnt"] == 100.0
        # it has lost its state: the fleet knows a newer revision, so it goes on from there
        bridge.on_socket([program, "pump-3", token, readings, "lsls"])
        again = bridge.on_socket([program, "pump-3", token, readings, "llls"])
        assert again == ["l 0", "l 0", "l 0", "s 0", "samples 150 of others 0"]
        listed = hub.operator.contributions("pumps")["contributions"]
        mine = [(c["revision"], c["samples"]) for c in listed if c["device"] == "pump-3"]
        assert mine == [(3, 150)]
        bad = bridge.on_socket([program, "pump-3", "emd_wrong", readings, "lsp"])
        assert bad == ["l 0", "s -18", "p -18", "samples 50 of others 0"]


@pytest.mark.slow
def test_damaged_and_lost_frames_are_sent_again(build, readings, tmp_path):
    fleet = FolderExchange(tmp_path, SHARED)
    fleet.push(Contribution("pump-4", Stats.of(SHARED, X[:80]), revision=1))
    bridge = Running({"pump-3": TOKEN}.get, lambda *_: Uplink(fleet))
    program = build(SHARED, "line.c")
    # the hello is damaged; then a begin is lost, so that the stream is broken; then a question
    said = bridge.on_socket([program, "pump-3", TOKEN, readings, "ldsxsspxpp"])
    assert said == [
        *("l 0", "d 0", "s 0", "x 0", "s -17", "s 0", "p 0", "x 0", "p -16", "p 0"),
        "samples 50 of others 80",
    ]
    assert fleet.pull(Selection(receiver="x")).total == Stats.of(
        SHARED, np.vstack([X[:50], X[:80]])
    )


@pytest.mark.slow
def test_a_question_has_no_bytes_left_of_the_answer_before(build, readings, monkeypatch):
    fleet, asked, answer = Fleet(), [], Session.answer
    fleet.reached = False  # so that sharing is answered with a reason

    def listen(session: Session, letter: bytes, payload: bytes) -> bytes:
        asked.append((letter, payload))
        return answer(session, letter, payload)

    monkeypatch.setattr(Session, "answer", listen)
    words = [build(SHARED, "line.c"), "pump-3", TOKEN, readings, "lsp"]
    said = Running({"pump-3": TOKEN}.get, fleet.connect).on_socket(words)
    assert said[:-1] == ["l 0", "s -17", "p -19"]
    assert asked[-1] == (b"T", b"")


@pytest.mark.slow
def test_a_restarted_bridge_is_told_again_who_it_is(build, readings, tmp_path):
    fleet = FolderExchange(tmp_path, SHARED)
    bridge = Running({"pump-3": TOKEN}.get, lambda *_: Uplink(fleet))
    words = [build(SHARED, "line.c"), "pump-3", TOKEN, readings, "lslssp"]
    said = bridge.on_socket(words, restart_after=3)  # nonce, proof, contribution
    assert said[:-1] == ["l 0", "s 0", "l 0", "s -17", "s 0", "p -19"]
    assert fleet.pull(Selection()).total == Stats.of(SHARED, X[:100])


@pytest.mark.slow
def test_a_serial_line_works(build, readings, tmp_path):
    fleet = FolderExchange(tmp_path, SHARED)
    ours, theirs = pty.openpty()
    stop = Event()
    bridge = Bridge({"pump-3": TOKEN}.get, lambda *_: Uplink(fleet), stop)
    bridge.open_serial(os.ttyname(theirs))
    words = [build(SHARED, "line.c"), "pump-3", TOKEN, readings, "lslsp"]
    done = subprocess.run(
        words, stdin=ours, stdout=ours, stderr=subprocess.PIPE, check=False, timeout=60
    )
    stop.set()
    bridge.wait()
    assert done.stderr.decode().splitlines() == [
        *("l 0", "s 0", "l 0", "s 0", "p -19", "samples 100 of others 0")
    ]
    os.close(ours)
    os.close(theirs)


def test_a_serial_line_that_is_not_there_is_tried_again(tmp_path, caplog):
    stop = Event()
    bridge = Bridge({}.get, lambda *_: pytest.fail("no device"), stop)
    bridge.open_serial(str(tmp_path / "ttyUSB0"))
    while "No such file" not in caplog.text:
        stop.wait(0.01)
    stop.set()
    bridge.wait()
    with pytest.raises(SettingError, match="such as 9600"):
        SerialLine("/dev/null", 12345)


def test_many_devices_connect_over_tcp_at_once():
    fleet, stop = Fleet(), Event()
    bridge = Bridge({f"pump-{i}": TOKEN for i in range(20)}.get, fleet.connect, stop)
    port = bridge.listen("127.0.0.1", 0)
    lines = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(20)]
    files = [line.makefile("rwb") for line in lines]

    def ask(file, letter: bytes, payload: bytes) -> tuple[bytes, bytes]:
        file.write(encode_frame(letter, payload))
        file.flush()
        return read(file)

    def read(file) -> tuple[bytes, bytes]:
        data = b""
        while not data.endswith(b"\0"):
            data += file.read(1)
        return read_frame(data)

    for i, file in enumerate(files):
        _, nonce = ask(file, b"H", b"\1pump-%d" % i)
        proof = hmac.digest(TOKEN.encode(), nonce + b"pump-%d" % i, "sha256")
        assert ask(file, b"P", proof) == (b"A", b"")
    for i, file in enumerate(files):
        data = encode(Contribution(f"pump-{i}", Stats.of(SHARED, X[i : i + 1]), revision=1))
        file.write(encode_frame(b"B"))
        for at in range(0, len(data), 236):
            file.write(encode_frame(b"D", struct.pack("<I", at) + data[at : at + 236]))
        assert ask(file, b"E", struct.pack("<II", len(data), crc32(data))) == (b"A", b"")
    for file, line in zip(files, lines, strict=True):
        file.close()
        line.close()
    stop.set()
    bridge.wait()
    assert fleet.exchange.pull(Selection()).total == Stats.of(SHARED, X[:20])


class SilentLine:
    """A line on which nothing comes."""

    def __init__(self) -> None:
        self.reads = 0

    def read(self) -> bytes:
        self.reads += 1
        return b""

    def write(self, data: bytes) -> None:
        pytest.fail(f"found {data!r}")

    def close(self) -> None:
        """Nothing is open."""


def test_a_device_that_connects_again_ends_its_older_session():
    fleet, stop = Fleet(), Event()
    bridge = Bridge({"pump-3": TOKEN, "pump-4": TOKEN}.get, fleet.connect, stop)
    port = bridge.listen("127.0.0.1", 0)
    lines = [socket.create_connection(("127.0.0.1", port), 5.0) for _ in range(3)]
    names = ("pump-3", "pump-4", "pump-3")  # its first connection was lost, and was never closed
    for line, name in zip(lines, names, strict=True):
        said, nonce = ask(line, b"H", b"\1" + name.encode())
        assert said == b"N"
        proof = hmac.digest(TOKEN.encode(), nonce + name.encode(), "sha256")
        assert ask(line, b"P", proof) == (b"A", b"")
    assert [ask(line, b"T")[0] for line in lines] == [b"R", b"S", b"S"]
    stop.set()
    bridge.wait()
    for line in lines:
        line.close()


def ask(line: socket.socket, letter: bytes, payload: bytes = b"") -> tuple[bytes, bytes]:
    """Send a frame, and return the one that comes back."""
    line.sendall(encode_frame(letter, payload))
    found = b""
    while not found.endswith(b"\0"):
        found += line.recv(1)
    return read_frame(found)


class ShortOfFiles(socket.socket):
    """A listening socket whose first connections find no file descriptor left."""

    left = 2

    def accept(self):
        found = super().accept()
        if self.left:
            self.left -= 1
            found[0].close()
            raise OSError(24, "Too many open files")
        return found


def test_a_connection_that_cannot_be_accepted_does_not_end_the_bridge(caplog):
    fleet, stop = Fleet(), Event()
    bridge = Bridge({"pump-3": TOKEN}.get, fleet.connect, stop)
    server = ShortOfFiles()
    server.bind(("127.0.0.1", 0))
    server.listen()
    server.settimeout(0.5)
    bridge._start(bridge._accept, server)
    for _ in range(2):
        with closing(socket.create_connection(server.getsockname(), 5.0)) as line:
            assert line.recv(1) == b""
    with closing(socket.create_connection(server.getsockname(), 5.0)) as line:
        assert ask(line, b"H", b"\1pump-3")[0] == b"N"
    stop.set()
    bridge.wait()
    assert caplog.text.count("Too many open files") == 2


def test_an_error_that_nobody_expected_ends_a_session_and_not_its_line(caplog, monkeypatch):
    fleet = Fleet()
    session = fleet.session()
    monkeypatch.setattr(fleet, "pull", lambda *_, **__: 1 / 0)
    assert read_frame(session.answer(b"T", b"")) == refusal(Status.LATER)
    assert "division by zero" in caplog.text


def test_a_stream_longer_than_any_contribution_of_the_fleet_is_not_kept():
    session = Fleet().session()
    session.answer(b"B", b"")
    for at in range(0, 10**6, 200):
        session.answer(b"D", struct.pack("<I", at) + bytes(200))
    assert session._received is None


@pytest.mark.slow
def test_a_line_that_never_falls_silent_does_not_hold_a_device(build, readings):
    words = [build(SHARED, "line.c"), "pump-3", TOKEN, readings, "lsl"]
    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as noise:
        done = subprocess.run(
            words,
            stdin=noise.stdout,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
            timeout=DEADLINE_S,
        )
        noise.kill()
    assert done.stderr.decode().splitlines() == ["l 0", "s -16", "l 0", "samples 100 of others 0"]


def test_a_connection_that_does_not_say_who_it_is_is_left(caplog):
    Bridge({}.get, lambda *_: None, Event()).serve(SilentLine(), hello_timeout_s=0.01)
    assert "did not say who it is" in caplog.text


def test_an_address_that_is_taken_is_refused():
    bridge = Bridge({}.get, lambda *_: None, Event())
    port = bridge.listen("127.0.0.1", 0)
    with pytest.raises(SettingError, match=f"cannot listen on 127.0.0.1:{port}"):
        bridge.listen("127.0.0.1", port)
    bridge.stop.set()
    bridge.wait()


def test_the_command_refuses_what_it_cannot_do(tmp_path):
    (tmp_path / "tokens").mkdir()
    tokens, line = ("--tokens", str(tmp_path / "tokens")), ("--listen", "127.0.0.1:0")
    server = ("--server", "http://127.0.0.1:1", "--fleet", "pumps")
    folder = ("--folder", str(tmp_path))
    for words, expected in (
        ((*tokens, *server), "found neither --serial nor --listen, expected one: --serial"),
        ((*tokens, *line), "give --server and --fleet, or --folder and --projection"),
        ((*tokens, *line, *server, *folder), "give --server and --fleet, or --folder"),
        ((*tokens, *line, *folder), "--folder needs --projection"),
        ((*tokens, *server, "--serial", "/dev/x:fast"), "expected PATH or PATH:BAUD"),
        ((*tokens, *server, "--listen", "4711"), "expected HOST:PORT"),
        (("--tokens", str(tmp_path / "none"), *line, *server), "none is no folder"),
    ):
        answer = call("bridge", *words)
        assert answer.exit_code == 2
        assert expected in " ".join(answer.stderr.split())


@pytest.mark.slow
def test_the_command_connects_a_device_to_a_folder(build, readings, tmp_path):
    tokens, exchanged = tmp_path / "tokens", tmp_path / "exchange"
    tokens.mkdir()
    exchanged.mkdir()
    (tokens / "pump-3.token").write_text(TOKEN, encoding="utf-8")
    save(SHARED, tmp_path / "pump.projection")
    FolderExchange(exchanged, SHARED).push(
        Contribution("pump-4", Stats.of(SHARED, X[:80]), revision=1)
    )
    ours, theirs = pty.openpty()
    words = [
        *(sys.executable, "-m", "edgemerge", "bridge", "--folder", str(exchanged), "--json"),
        *("--projection", str(tmp_path / "pump.projection"), "--tokens", str(tokens)),
        *("--serial", f"{os.ttyname(theirs)}:115200", "--listen", "127.0.0.1:0"),
        *("--port-file", str(tmp_path / "port")),
    ]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as bridge:
        while not (tmp_path / "port").exists() and bridge.poll() is None:
            Event().wait(0.02)
        device = [build(SHARED, "line.c"), "pump-3", TOKEN, readings, "lsspto"]
        done = subprocess.run(
            device, stdin=ours, stdout=ours, stderr=subprocess.PIPE, check=False, timeout=60
        )
        line = json.loads(bridge.stdout.readline() if bridge.stdout else b"")
        bridge.terminate()
        _, log = bridge.communicate(timeout=DEADLINE_S)
    assert bridge.returncode == 0
    assert done.stderr.decode().splitlines()[-1] == "samples 100 of others 80"
    found = [line[name] for name in ("device", "samples", "alarm", "others")]
    assert found == ["pump-3", 100, False, 80]
    assert b"pushed device=pump-3 revision=" in log
    assert TOKEN.encode() not in log
    os.close(ours)
    os.close(theirs)
