"""What hostile clients can do to a server, a broker or a peer: `make attack`.

`edgemerge serve` runs as a program on loopback, with TLS and 1 024 descriptors, and is attacked
over the network; so are a real Mosquitto and a peer. Each finding is one row of
docs/results/attack-server.csv: "refused" (nothing of it was let in), "held" (it was limited, and
others were served meanwhile) or "lost", with the number of tries. It ends by itself.
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import os
import random
import re
import shutil
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPSConnection
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Barrier, Event, Thread
from time import monotonic, sleep
from typing import Any, NamedTuple

import numpy as np
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from benchmarks.results import RESULTS, Row, save
from edgemerge import Contribution, Projection, Stats, decode, encode
from edgemerge.core.errors import EdgemergeError, SettingError
from edgemerge.core.ledger import Merged, Selection
from edgemerge.exchange.client import ServerClient
from edgemerge.exchange.connection import Connection
from edgemerge.exchange.http import HttpExchange
from edgemerge.exchange.mqtt import MqttExchange
from edgemerge.exchange.peer import PeerExchange
from edgemerge.server.audit import verify_chain
from tests.server.callers import MINE, STRANGE
from tests.server.mutants import mutant
from tests.server.wire import SHARED, head, note
from tests.services.mosquitto import broker

NAME = "attack-server.csv"
DESCRIPTORS = 1024
MUTATED_PUSHES, MUTATED_ENROLMENTS = 18_000, 2_000
REDEMPTIONS, SLOW_ENROLMENTS, CONNECTIONS = 100, 1100, 2000
GARBAGE_TOPICS, AUDIT_PUSHES, AUDIT_ENTRIES = 3000, 1500, 1000
FAST_PUSHES, REFUSED_PUSHES = 3000, 20  # at most so many pushes, until so many were refused
ANSWER_S = 30.0  # for each answer to others meanwhile; without the limits it was 60 and more
OPEN_ROUTES = {"/healthz", "/readyz", "/metrics"}
MANY = ("--pushes-per-minute", "1000000")
LARGE = Projection(n_inputs=561, n_hidden=128, seed=7)


class Finding(NamedTuple):
    """What became of one attack."""

    result: str
    tries: int
    detail: str


def outcome(*, held: bool, word: str, tries: int, detail: str) -> Finding:
    """Return a finding that is "lost" unless it was held."""
    return Finding(word if held else "lost", tries, detail)


@dataclass
class Target:
    """A server in a process of its own, with TLS."""

    folder: Path
    process: subprocess.Popen[str]
    port: int
    names: Iterator[int] = field(default_factory=count)

    @property
    def url(self) -> str:
        """Its address."""
        return f"https://127.0.0.1:{self.port}"

    @property
    def token(self) -> str:
        """The operator's token."""
        return (self.folder / "db.admin-token").read_text(encoding="ascii").strip()

    def operator(self) -> ServerClient:
        """Return a client that may administer."""
        return ServerClient(self.url, self.token)

    def enrol(self, fleet: str, device: str) -> str:
        """Let a device in; return its token."""
        with closing(self.operator()) as hub:
            invitation = hub.invite(fleet, device)["token"]
        with closing(ServerClient(self.url, invitation)) as guest:
            return str(guest.enrol(fleet, device)["token"])

    def connection(self) -> HTTPSConnection:
        """Return a connection of a stranger, who does not care for the certificate."""
        return HTTPSConnection("127.0.0.1", self.port, timeout=60, context=stranger_context())

    def raw(self) -> socket.socket:
        """Return a bare connection, before any handshake."""
        return socket.create_connection(("127.0.0.1", self.port), 60)

    def is_alive(self) -> bool:
        """Return whether the process still runs."""
        return self.process.poll() is None


def stranger_context() -> ssl.SSLContext:
    """Return a context that accepts every certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


@contextmanager
def serving(folder: Path, *options: str, host: str = "127.0.0.1") -> Iterator[Target]:
    """Run `edgemerge serve` after `ulimit -n 1024` until the block ends."""
    folder.mkdir()
    port_file = folder / "port"
    command = [sys.executable, "-m", "edgemerge", "serve", "--port", "0", "--host", host]
    command += ["--database", "db", "--port-file", "port", "--tls-file", "tls.pem", *options]
    shell = ["sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "sh"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*shell, *command], cwd=folder, stderr=log, text=True)
    try:
        deadline = monotonic() + 60.0
        while not port_file.exists():
            if monotonic() > deadline or process.poll() is not None:
                raise SystemExit(f"the server did not start: {(folder / 'log').read_text()}")
            sleep(0.05)
        yield Target(folder, process, int(port_file.read_text(encoding="ascii")))
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Bystander:
    """A device that pushes and a person who looks at health, while something else goes on."""

    def __init__(self, target: Target, fleet: str) -> None:
        """Enrol, and begin."""
        self._target, self._fleet, self._name = target, fleet, f"calm-{next(target.names)}"
        token = target.enrol(fleet, self._name)
        self._exchange = HttpExchange(target.url, fleet, token, timeout_s=ANSWER_S)
        self._projection = self._exchange.projection
        self._stop, self._why = Event(), ""
        self.answered, self.failed, self.longest_s = 0, 0, 0.0
        self._thread = Thread(target=self._work)

    def __enter__(self) -> Bystander:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._stop.set()
        self._thread.join()
        self._exchange.close()

    @property
    def was_served(self) -> bool:
        """Whether everything was answered in time."""
        return self.answered > 0 and not self.failed

    def __str__(self) -> str:
        """Say how it went."""
        failed = f", {self.failed} failed ({self._why})" if self.failed else ""
        return f"others: {self.answered} answered{failed}, longest round {self.longest_s:.1f} s"

    def _work(self) -> None:
        stats = Stats.of(self._projection, np.full((2, self._projection.n_inputs), 0.1))
        for revision in count(1):
            start = monotonic()
            try:
                self._exchange.push(Contribution(self._name, stats, revision))
                target = self._target
                connection = Connection(target.url, target.token, timeout_s=ANSWER_S)
                with closing(connection) as new:
                    answers = [new.ask("GET", path).status for path in ("/healthz", "/metrics")]
                self.answered += 1 + answers.count(200)
                self.failed += 2 - answers.count(200)
            except EdgemergeError as error:
                self.failed, self._why = self.failed + 1, str(error)
            self.longest_s = max(self.longest_s, monotonic() - start)
            if self._stop.wait(0.05):
                return


def strangers(target: Target) -> dict[str, str | None]:
    """Return the Authorization header of everybody who may do nothing in the fleet `mine`."""
    with closing(target.operator()) as hub:
        for fleet in ("mine", "theirs", "former"):
            hub.create_fleet(fleet, SHARED)
        tokens = {
            "revoked": target.enrol("mine", "revoked"),
            "enrolled anew since": target.enrol("mine", "anew"),
            "of a deleted fleet": target.enrol("former", "itself"),
            "of another fleet": target.enrol("theirs", "itself"),
            "an expired invitation": hub.invite("mine", valid_s=1e-6)["token"],
            "an invitation to another fleet": hub.invite("theirs")["token"],
        }
        used = hub.invite("mine", "used")["token"]
        with closing(ServerClient(target.url, used)) as guest:
            guest.enrol("mine", "used")
        tokens["a used invitation"] = used
        target.enrol("mine", "anew")
        target.enrol("mine", "itself")
        hub.revoke("mine", "revoked")
        hub.delete_fleet("former")
    found: dict[str, str | None] = {"nobody": None}
    found |= {who: header.encode().decode("latin-1") for who, header in STRANGE.items()}
    return found | {who: f"Bearer {token}" for who, token in tokens.items()}


def routes(target: Target) -> list[tuple[str, str]]:
    """Return all methods and paths that the server has, except those that are for everybody."""
    with closing(target.connection()) as asking:
        asking.request("GET", "/openapi.json")
        paths = json.loads(asking.getresponse().read())["paths"]
    every = [(method.upper(), path) for path, methods in paths.items() for method in methods]
    return [(method, path) for method, path in every if path not in OPEN_ROUTES]


def try_routes(target: Target) -> Finding:
    """Ask for every route as everybody who may not; nothing may be answered or change."""
    callers = strangers(target)
    before, answers, let_in = state(target), Counter[int](), []
    with closing(target.connection()) as asking:
        for method, path in routes(target):
            filled = re.sub(r"\{\w+\}", lambda found: MINE.get(found.group(), "1"), path)
            for who, header in callers.items():
                if who == "of another fleet" and "{fleet}" not in path:
                    continue  # it may list its own
                headers = {} if header is None else {"Authorization": header}
                body = b"{}" if method in ("POST", "PUT") else None
                asking.request(method, filled, body, headers)
                reply = asking.getresponse()
                reply.read()
                answers[reply.status] += 1
                if reply.status not in (401, 403):
                    let_in.append(f"{who}: {method} {path}: {reply.status}")
    held = not let_in and state(target) == before
    detail = f"{len(callers)} callers without rights; " + shown(answers)
    return outcome(
        held=held, word="refused", tries=answers.total(), detail="; ".join([detail, *let_in[:3]])
    )


def state(target: Target) -> tuple[Any, ...]:
    """Return what must not change: the end of the audit log, devices and contributions."""
    with closing(target.operator()) as hub:
        last = 0
        while entries := hub.audit(after=last, limit=1000)["entries"]:
            last = entries[-1]["seq"]
        return last, hub.fleets(), hub.contributions("mine")


def shown(answers: Counter[int]) -> str:
    """Say how many answers of each status there were."""
    return ", ".join(f"{status}: {number}" for status, number in sorted(answers.items()))


def send_all(
    target: Target, numbers: Sequence[int], send: Callable[[HTTPSConnection, int], None]
) -> Counter[int]:
    """Send many requests over one connection; a connection that breaks counts as status 0."""
    answers, asking = Counter[int](), target.connection()
    for number in numbers:
        try:
            send(asking, number)
            reply = asking.getresponse()
            reply.read()
            answers[reply.status] += 1
        except (OSError, HTTPException):
            answers[0] += 1
            asking.close()
            asking = target.connection()
    asking.close()
    return answers


def try_mutants(target: Target) -> Finding:
    """Send mutated contributions and enrolments; each is refused, or is sound and whole."""
    with closing(target.operator()) as hub:
        hub.create_fleet("mutants", SHARED)
        token, invitation = target.enrol("mutants", "a"), hub.invite("mutants")["token"]

    def push(asking: HTTPSConnection, number: int) -> None:
        path = "/fleets/mutants/contributions/a/0/normal"
        asking.request("PUT", path, mutant(number), {"Authorization": f"Bearer {token}"})

    def enrol(asking: HTTPSConnection, number: int) -> None:
        rng = random.Random(number)
        whole = bytearray(json.dumps({"device": f"d{number}", "more": [number]}).encode())
        for _ in range(rng.choice((1, 2, 8))):
            whole[rng.randrange(len(whole))] = rng.randrange(256)
        sent = bytes(whole[: rng.choice((len(whole), rng.randrange(len(whole))))])
        bearer = {"Authorization": f"Bearer {invitation}"}
        asking.request("POST", "/fleets/mutants/devices", sent, bearer)

    answers = Counter[int]()
    with ThreadPoolExecutor(4) as pool:
        parts = [range(start, MUTATED_PUSHES, 3) for start in range(3)]
        jobs = [pool.submit(send_all, target, part, push) for part in parts]
        jobs.append(pool.submit(send_all, target, range(MUTATED_ENROLMENTS), enrol))
        for job in jobs:
            answers += job.result()
    with closing(target.operator()) as hub:
        path = ("fleets", "mutants", "total")
        data = hub._ask("GET", *path).body
        total = decode(data, Merged, projection=SHARED)
    sound = not total.parts or bool(np.linalg.eigvalsh(total.total.U)[0] > -1e-3)
    held = sound and all(0 < status < 500 for status in answers)
    return outcome(
        held=held,
        word="refused",
        tries=answers.total(),
        detail=f"{shown(answers)}; what was let in is sound",
    )


def try_redemptions(target: Target) -> Finding:
    """Let many redeem one invitation at the same moment; one of them gets in."""
    with closing(target.operator()) as hub:
        hub.create_fleet("race", SHARED)
        invitation = hub.invite("race")["token"]
    start, answers = Barrier(REDEMPTIONS), Counter[int]()

    def redeem(number: int) -> int:
        with closing(target.connection()) as asking:
            asking.connect()
            start.wait()
            while True:
                sent = json.dumps({"device": f"d{number}"})
                bearer = {"Authorization": f"Bearer {invitation}"}
                asking.request("POST", "/fleets/race/devices", sent, bearer)
                reply = asking.getresponse()
                reply.read()
                if reply.status != 503:  # too many guests at once: each tries again
                    return reply.status
                asking.close()
                sleep(0.05)

    with ThreadPoolExecutor(REDEMPTIONS) as pool:
        for status in pool.map(redeem, range(REDEMPTIONS)):
            answers[status] += 1
    with closing(target.operator()) as hub:
        devices = len(hub.devices("race"))
    held = answers[201] == devices == 1 and set(answers) == {201, 401}
    return outcome(
        held=held, word="refused", tries=REDEMPTIONS, detail=f"{shown(answers)}; {devices} device"
    )


def opened_all(target: Target, number: int, prepare: Callable[[socket.socket], None]) -> int:
    """Open connections and leave them; return how many could be prepared."""
    done = 0
    with ExitStack() as stack:

        def one(_number: int) -> socket.socket:
            found = target.raw()
            with suppress(OSError):
                prepare(found)
            return found

        with ThreadPoolExecutor(16) as pool:
            for found in pool.map(one, range(number)):
                stack.enter_context(found)
                done += 1
        sleep(1.0)
    return done


def try_slow_enrolments(target: Target) -> Finding:
    """Begin enrolments that never end; others are served meanwhile."""
    with closing(target.operator()) as hub:
        hub.create_fleet("slow", SHARED)
        invitation, context = hub.invite("slow")["token"], stranger_context()
    sent = head("POST", "/fleets/slow/devices", "Content-Length: 1000", token=invitation) + b"{"
    kept: list[ssl.SSLSocket] = []

    def prepare(found: socket.socket) -> None:
        found.settimeout(20.0)
        wrapped = context.wrap_socket(found, server_hostname="hub")
        kept.append(wrapped)
        wrapped.sendall(sent)

    with Bystander(target, "slow") as calm:
        opened_all(target, SLOW_ENROLMENTS, prepare)
        for each in kept:
            each.close()
    held = calm.was_served and target.is_alive()
    return outcome(held=held, word="held", tries=SLOW_ENROLMENTS, detail=str(calm))


def try_connections(target: Target) -> Finding:
    """Open about twice as many connections as there are descriptors, half idle, half slow."""
    with closing(target.operator()) as hub:
        hub.create_fleet("idle", SHARED)
    slow = iter(range(CONNECTIONS))

    def prepare(found: socket.socket) -> None:
        if next(slow) % 2:
            found.sendall(b"\x16\x03\x01")  # the beginning of a handshake

    with Bystander(target, "idle") as calm:
        opened_all(target, CONNECTIONS, prepare)
        descriptors = sum(1 for _ in Path(f"/proc/{target.process.pid}/fd").iterdir())
    held = calm.was_served and target.is_alive()
    detail = f"{calm}; {descriptors} descriptors after it"
    return outcome(held=held, word="held", tries=CONNECTIONS, detail=detail)


def try_body_budget(target: Target) -> Finding:
    """Let one device hold bodies that never end; others are served meanwhile."""
    with closing(target.operator()) as hub:
        hub.create_fleet("large", LARGE)
    token, context, tries = target.enrol("large", "greedy"), stranger_context(), 48
    size, answers = 640_000, Counter[str]()
    path = "/fleets/large/contributions/greedy/0/p{}"
    with Bystander(target, "large") as calm, ExitStack() as stack:
        for number in range(tries):
            found = context.wrap_socket(target.raw(), server_hostname="hub")
            stack.enter_context(found)
            lines = (f"Content-Length: {size}",)
            with suppress(OSError):
                found.sendall(head("PUT", path.format(number), *lines, token=token))
                found.sendall(bytes(size - 1000))
            found.settimeout(1.0)
            try:
                answers[found.recv(12).decode()[9:12] or "closed"] += 1
            except TimeoutError:
                answers["held open"] += 1
            except OSError:
                answers["closed"] += 1
    held = calm.was_served and answers["held open"] < tries
    detail = ", ".join(f"{what}: {number}" for what, number in sorted(answers.items()))
    return outcome(held=held, word="held", tries=tries, detail=f"{detail}; {calm}")


def try_push_rate(target: Target) -> Finding:
    """Push as fast as possible as one device, at the default rate."""
    with closing(target.operator()) as hub:
        hub.create_fleet("fast", SHARED)
    token, answers = target.enrol("fast", "eager"), Counter[int]()
    waits = set[str | None]()

    def push(asking: HTTPSConnection, number: int) -> None:
        data = encode(note("eager", number + 1))
        path = "/fleets/fast/contributions/eager/0/normal"
        asking.request("PUT", path, data, {"Authorization": f"Bearer {token}"})

    with Bystander(target, "fast") as calm, closing(target.connection()) as asking:
        while answers.total() < FAST_PUSHES and answers[429] < REFUSED_PUSHES:
            push(asking, answers.total())
            reply = asking.getresponse()
            reply.read()
            answers[reply.status] += 1
            if reply.status == 429:
                waits.add(reply.getheader("Retry-After"))
    held = set(answers) == {201, 429} and calm.was_served and waits == {"1"}
    detail = f"{shown(answers)}, with Retry-After: 1; {calm}"
    return outcome(held=held, word="held", tries=answers.total(), detail=detail)


def try_audit_growth(target: Target) -> Finding:
    """Push and contradict many times; the log stays short, and its chain is verified."""
    with closing(target.operator()) as hub:
        hub.create_fleet("chatty", SHARED)
    token = target.enrol("chatty", "chatty")

    def push(asking: HTTPSConnection, number: int) -> None:
        given = note("chatty", number + 1) if number < AUDIT_PUSHES else contradiction
        path = "/fleets/chatty/contributions/chatty/0/normal"
        asking.request("PUT", path, encode(given), {"Authorization": f"Bearer {token}"})

    contradiction = note("chatty", AUDIT_PUSHES, rows=[[0.9, 0.9]])
    answers = send_all(target, range(2 * AUDIT_PUSHES), push)
    deadline = monotonic() + 60.0
    while (number := len(entries(target))) > 1.1 * AUDIT_ENTRIES + 1 and monotonic() < deadline:
        sleep(0.5)
    found = list(verify_chain(entries(target)))
    noted = sum(entry["action"] == "equivocation" for entry in found)
    held = number <= 1.1 * AUDIT_ENTRIES + 1 and noted <= 1
    detail = f"{shown(answers)}; {number} entries kept, verified from {found[0]['seq']} on"
    detail += f"; {noted} for {AUDIT_PUSHES} repeated contradictions"
    return outcome(held=held, word="held", tries=2 * AUDIT_PUSHES, detail=detail)


def entries(target: Target) -> list[dict[str, Any]]:
    """Return the whole audit log; once more if its oldest entries went meanwhile."""
    for _ in range(5):
        found: list[dict[str, Any]] = []
        with closing(target.operator()) as hub:
            while page := hub.audit(after=found[-1]["seq"] if found else 0, limit=1000)["entries"]:
                found += page
        if [each["seq"] for each in found] == list(range(found[0]["seq"], found[-1]["seq"] + 1)):
            break
    return found


def try_cut_log(folder: Path) -> Finding:
    """Cut or empty the audit log behind the server's back; it notices."""
    noticed = []
    for number, sql in enumerate(("delete from audit where seq > 3", "delete from audit")):
        with serving(folder / str(number)) as target:
            with closing(target.operator()) as hub:
                for each in range(6):
                    hub.create_fleet(f"fleet-{each}", SHARED)
                sleep(2.5)  # the head is written every two seconds
                with closing(sqlite3.connect(target.folder / "db", timeout=30)) as database:
                    database.execute(sql)
                    database.commit()
                deadline = monotonic() + 30.0
                while not (why := hub.audit(limit=1).get("problem")) and monotonic() < deadline:
                    sleep(0.2)
            noticed.append(why)
    held = all(noticed)
    detail = "; ".join(str(why).split(":")[0] for why in noticed)
    return outcome(held=held, word="held", tries=len(noticed), detail=f"noticed: {detail}")


def try_plain_http(folder: Path) -> Finding:
    """Speak plain http to a server beyond loopback, and as a client to another machine."""
    refused = []
    with serving(
        folder / "server", host="127.1"
    ) as target:  # not known as loopback, though it leads there
        with target.raw() as found:
            found.settimeout(5.0)
            found.sendall(head("GET", "/healthz"))
            with suppress(OSError):
                refused.append(b"200" not in found.recv(100))
        wrong = Connection(target.url, "emd_" + "x" * 43 + "." + "0" * 64)
        try:
            wrong.ask("GET", "/healthz")  # a token that is pinned to another certificate
        except EdgemergeError:
            refused.append(True)
    for url in ("http://192.0.2.1:8470", "http://hub.example:8470"):
        try:
            Connection(url, "emd_" + "x" * 43)
        except SettingError:
            refused.append(True)
    return outcome(
        held=len(refused) == 4 and all(refused),
        word="refused",
        tries=4,
        detail="server, another certificate, two addresses of a client",
    )


def try_garbage_topics(folder: Path) -> Finding:
    """Fill a broker with garbage; a pull still finds what devices sent."""
    if shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        return Finding("not tried", 0, "mosquitto is not installed: make services")
    with broker(folder) as port:
        there = MqttExchange("127.0.0.1", port, fleet="pumps", projection=SHARED, settle_s=0.1)
        for device in ("a", "zzz"):
            there.push(note(device))
        there.pull(Selection())  # it knows the devices of its fleet, and then somebody comes
        client = Client(CallbackAPIVersion.VERSION2)
        client.connect("127.0.0.1", port)
        client.loop_start()
        kinds = (b"23.5", bytes(8) + b"{" + bytes(200), bytes(2**16))
        for number in range(GARBAGE_TOPICS):
            topic = f"{there.root}/contribution/garbage-{number}/0/x"
            sent = client.publish(topic, kinds[number % 3], qos=1, retain=True)
        sent.wait_for_publish(60)
        client.disconnect()
        client.loop_stop()
        start = monotonic()
        found = [each.device for each in there.pull(Selection()).origins]
        took = monotonic() - start
    held = found == ["a", "zzz"] and there.skipped > 0
    detail = f"pulled {len(found)} of 2 devices in {took:.1f} s; {there.skipped} messages skipped,"
    detail += " the broker drops the others"
    return outcome(held=held, word="held", tries=GARBAGE_TOPICS, detail=detail)


def try_takeovers(folder: Path) -> Finding:
    """Send under the name of another device, over MQTT and as a peer."""
    results = []
    with ExitStack() as stack:
        ways: list[Callable[[str], Any]] = []
        if shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin"):
            port = stack.enter_context(broker(folder))
            ways.append(
                lambda name: MqttExchange(
                    *("127.0.0.1", port),
                    fleet="pumps",
                    projection=SHARED,
                    settle_s=0.1,
                    key_file=folder / f"mqtt-{name}.key",
                )
            )
        met: list[str] = []

        def peer(name: str) -> PeerExchange:
            key = folder / f"peer-{name}.key"
            made = PeerExchange(SHARED, token="t" * 32, peers=met, key_file=key)
            met.append(made.url)
            stack.callback(made.close)
            return made

        for make in (*ways, peer):
            owner, thief = make("owner"), make("thief")
            reader = make("reader")
            owner.push(note("a"))
            reader.pull(Selection())
            for number in range(10):
                thief.push(note("a", 5, incarnation=10 + number))
            origins = reader.pull(Selection()).origins
            results.append([(each.device, each.incarnation) for each in origins] == [("a", 0)])
    return outcome(
        held=all(results),
        word="refused",
        tries=10 * len(results),
        detail=f"{len(results)} ways, 10 contributions each by another key",
    )


Attempt = Callable[[Target], Finding]
ON_A_SERVER: dict[tuple[str, ...], dict[str, Attempt]] = {  # options of the server, and attacks
    MANY: {
        "routes × callers without rights": try_routes,
        "mutated contributions and enrolments": try_mutants,
        "redemptions of one invitation at once": try_redemptions,
        "slow enrolments": try_slow_enrolments,
        "connections under ulimit 1 024": try_connections,
        "one device holds the body budget": try_body_budget,
    },
    (): {"pushes of one device without a pause": try_push_rate},
    (*MANY, "--audit-entries", str(AUDIT_ENTRIES)): {"growth of the audit log": try_audit_growth},
}
ELSEWHERE: dict[str, Callable[[Path], Finding]] = {
    "audit log cut or emptied": try_cut_log,
    "plain http and another certificate": try_plain_http,
    "garbage topics on a broker": try_garbage_topics,
    "a name taken over": try_takeovers,
}


def attack(folder: Path, only: str) -> Iterator[tuple[str, Finding]]:
    """Make the attacks whose name contains `only`, one after the other."""
    for number, (options, attempts) in enumerate(ON_A_SERVER.items()):
        some = {name: attempt for name, attempt in attempts.items() if only in name}
        if some:
            with serving(folder / f"server-{number}", *options) as target:
                yield from ((name, attempt(target)) for name, attempt in some.items())
    for number, (name, attempt) in enumerate(ELSEWHERE.items()):
        if only in name:
            (folder / f"elsewhere-{number}").mkdir()
            yield name, attempt(folder / f"elsewhere-{number}")


def table(rows: Sequence[Row]) -> str:
    """Write the rows as a table for the docs."""
    lines = ["| attack | tries | result | seen |", "|---|---:|---|---|"]
    lines += [f"| {r['attack']} | {r['tries']} | {r['result']} | {r['detail']} |" for r in rows]
    return "\n".join(lines)


def main() -> None:
    """Attack, print one line for each finding, and save the rows; fails if something is lost."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--only", default="", help="part of a name: repeat these, keep other rows")
    only, start = parser.parse_args().only, monotonic()
    logging.disable(logging.WARNING)  # what exchanges skip is counted
    rows: dict[str, Row] = {}
    if only and (RESULTS / NAME).exists():
        with (RESULTS / NAME).open(encoding="utf-8", newline="") as file:
            rows = {row["attack"]: row for row in csv.DictReader(file)}
    with TemporaryDirectory(prefix="edgemerge-attack-") as folder:
        for name, found in attack(Path(folder), only):
            rows[name] = {"attack": name, **found._asdict()}
            print(f"{found.result:8} {found.tries:6}  {name}: {found.detail}", flush=True)
    print(f"{save([*rows.values()], NAME)}, {monotonic() - start:.0f} s")
    if any(row["result"] == "lost" for row in rows.values()):
        raise SystemExit("something is lost")


if __name__ == "__main__":
    main()
