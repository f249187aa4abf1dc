"""Load on a real server over loopback with TLS: 100 devices that push, and what a pull costs.

Pushes are compared, in turns within one run, with a bare route that writes the same bytes to the
same kind of database and checks nothing; pulls of a fleet of 1 000 with those of a fleet of one.
`EDGEMERGE_LOAD_TLS=0` leaves TLS out, on both sides.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

import numpy as np

from edgemerge import Contribution, Projection, Stats, decode, encode
from edgemerge.certificates import make_certificate
from edgemerge.exchange.client import ServerClient

DEVICES = int(os.environ.get("EDGEMERGE_LOAD_DEVICES", "100"))
SECONDS = float(os.environ.get("EDGEMERGE_LOAD_SECONDS", "60"))
TLS = os.environ.get("EDGEMERGE_LOAD_TLS", "1") != "0"
SCHEME = "https" if TLS else "http"
TURNS = 3
FLEETS = (1, int(os.environ.get("EDGEMERGE_LOAD_FLEET", "1000")))
SHARED = Projection(n_inputs=561, n_hidden=128, seed=7)

SERVE = (
    "from pathlib import Path; import sys; from edgemerge.server.main import serve;"
    "serve(database=sys.argv[1], port=0, port_file=Path(sys.argv[2]), pushes_per_minute=1e6,"
    " tls_file=Path(sys.argv[3]) if sys.argv[3:] else None)"
)


@dataclass
class PushCounts:
    """What became of the pushes of one turn."""

    seconds: float = 0.0
    answers: dict[int, int] = field(default_factory=dict)
    newest: dict[str, int] = field(default_factory=dict)
    slowest: list[float] = field(default_factory=list)

    @property
    def per_second(self) -> float:
        """Pushes that were acknowledged, per second."""
        return sum(n for code, n in self.answers.items() if code < 300) / self.seconds


@dataclass(frozen=True)
class Child:
    """A server in a process of its own."""

    process: subprocess.Popen[bytes]
    port: int
    folder: Path

    def cpu_s(self) -> float:
        """The time that processors have worked for it."""
        spent = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii").split()[13:15]
        return sum(map(int, spent)) / os.sysconf("SC_CLK_TCK")

    def memory_mb(self) -> float:
        """The memory that it takes now."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextmanager
def child(code: str, folder: Path) -> Iterator[Child]:
    """Start a server, wait until it listens, and stop it at the end."""
    folder.mkdir()
    port_file = folder / "port"
    files = [folder / "db", port_file]
    if TLS:
        files.append(folder / "tls.pem")
        files[-1].write_bytes(make_certificate())
    one_thread = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # as `edgemerge serve` sets it
    process = subprocess.Popen([sys.executable, "-c", code, *map(str, files)], env=one_thread)
    try:
        deadline = time.monotonic() + 120.0  # on a busy machine
        while not port_file.exists():
            if time.monotonic() > deadline or process.poll() is not None:
                raise SystemExit("the server did not start")
            time.sleep(0.05)
        yield Child(process, int(port_file.read_text(encoding="ascii")), folder)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)


def connect(port: int) -> http.client.HTTPConnection:
    """Return a connection to a server on this machine, whose certificate nobody vouches for."""
    if not TLS:
        return http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=context)


def push(port: int, device: str, token: str, stats: Stats, counts: PushCounts, end: float) -> None:
    """Push as one device, one contribution after the other."""
    connection = connect(port)
    headers = {"Authorization": f"Bearer {token}"}
    revision = counts.newest.get(device, 0)
    while time.monotonic() < end:
        data = encode(Contribution(device, stats, revision + 1))
        start = time.monotonic()
        connection.request("PUT", f"/fleets/load/contributions/{device}/0/normal", data, headers)
        reply = connection.getresponse()
        reply.read()
        counts.slowest.append(time.monotonic() - start)
        counts.answers[reply.status] = counts.answers.get(reply.status, 0) + 1
        if reply.status < 300:
            revision += 1
            counts.newest[device] = revision
    connection.close()


def turn(
    port: int, tokens: dict[str, str], stats: Stats, counts: PushCounts, seconds: float
) -> None:
    """Let all devices push for a while."""
    start = time.monotonic()
    threads = [
        Thread(target=push, args=(port, device, token, stats, counts, start + seconds))
        for device, token in tokens.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=seconds + 90)
    counts.seconds += time.monotonic() - start


def enrolled(hub: ServerClient, url: str, fleet: str, count: int) -> dict[str, str]:
    """Make a fleet and let devices in."""
    hub.create_fleet(fleet, SHARED, reads="contributions")
    names = [f"d{i:04}" for i in range(count)]
    return {
        name: ServerClient(url, hub.invite(fleet, name)["token"]).enrol(fleet, name)["token"]
        for name in names
    }


def operator(server: Child) -> ServerClient:
    """Return a connection that may administer."""
    token = (server.folder / "db.admin-token").read_text(encoding="ascii").strip()
    return ServerClient(f"{SCHEME}://127.0.0.1:{server.port}", token)


def samples() -> Stats:
    """Sums of 561 inputs and 128 hidden values: 640 kB."""
    rng = np.random.default_rng(7)
    return Stats.of(SHARED, rng.normal(0.0, 0.3, (2000, 561)))


def uploads(folder: Path, stats: Stats) -> dict[str, object]:
    """Push in turns to ours and to the bare route; see that nothing acknowledged was lost."""
    ours, bare, memory = PushCounts(), PushCounts(), []
    bare_code = Path(__file__).with_name("bare.py").read_text(encoding="utf-8")
    with child(SERVE, folder / "ours") as server, child(bare_code, folder / "bare") as other:
        hub = operator(server)
        tokens = enrolled(hub, f"{SCHEME}://127.0.0.1:{server.port}", "load", DEVICES)
        for _ in range(TURNS):
            turn(other.port, tokens, stats, bare, SECONDS / TURNS)
            turn(server.port, tokens, stats, ours, SECONDS / TURNS)
            memory.append(server.memory_mb())
        found = hub.contributions("load")["contributions"]
        stored = {entry["device"]: entry["revision"] for entry in found}
    times = sorted(ours.slowest)
    return {
        "TLS": TLS,
        "devices": DEVICES,
        "seconds": round(ours.seconds, 1),
        "answers": {str(code): count for code, count in sorted(ours.answers.items())},
        "lost acknowledged writes": sum(
            stored.get(d, 0) < revision for d, revision in ours.newest.items()
        ),
        "uploads per second": round(ours.per_second, 1),
        "bare uploads per second": round(bare.per_second, 1),
        "ratio (at least 0.5)": round(ours.per_second / bare.per_second, 2),
        "median seconds": round(times[len(times) // 2], 3),
        "99 % seconds": round(times[int(len(times) * 0.99)], 3),
        "memory in MB after each turn": [round(mb) for mb in memory],
    }


def pulls(folder: Path, stats: Stats) -> dict[str, object]:
    """Time pulls of the total of one device and of many, in turns, best of many."""
    best = dict.fromkeys(FLEETS, float("inf"))
    with child(SERVE, folder / "pulls") as server:
        hub, url = operator(server), f"{SCHEME}://127.0.0.1:{server.port}"
        readers = {}
        for count in FLEETS:
            fleet = f"fleet-{count}"
            tokens = enrolled(hub, url, fleet, count + 1)
            for device, token in list(tokens.items())[:count]:
                _put(server.port, fleet, device, token, stats)
            readers[count] = (fleet, list(tokens.values())[-1])
        for count, (fleet, token) in readers.items():
            pulled = decode(_get(server.port, fleet, token), projection=SHARED)
            if pulled.total.count != count * stats.count:
                raise SystemExit(f"the total of {count} devices is wrong: {pulled}")
        for _ in range(40):
            for count, (fleet, token) in readers.items():
                start = time.perf_counter()
                _get(server.port, fleet, token)
                best[count] = min(best[count], time.perf_counter() - start)
    one, many = (best[count] for count in FLEETS)
    return {
        "pull of one, ms": round(1e3 * one, 2),
        "pull of 1 000, ms": round(1e3 * many, 2),
        "ratio (at most 1.5)": round(many / one, 2),
    }


def _put(port: int, fleet: str, device: str, token: str, stats: Stats) -> None:
    connection = connect(port)
    address = f"/fleets/{fleet}/contributions/{device}/0/normal"
    data = encode(Contribution(device, stats, 1))
    connection.request("PUT", address, data, {"Authorization": f"Bearer {token}"})
    status = connection.getresponse().status
    if status != 201:
        raise SystemExit(f"a push was answered {status}")
    connection.close()


def _get(port: int, fleet: str, token: str) -> bytes:
    connection = connect(port)
    headers = {"Authorization": f"Bearer {token}"}
    connection.request("GET", f"/fleets/{fleet}/total", headers=headers)
    data = connection.getresponse().read()
    connection.close()
    return data


def main() -> None:
    """Run both and print what was found; fails if something acknowledged was lost."""
    stats = samples()
    with tempfile.TemporaryDirectory() as folder:
        found = {"uploads": uploads(Path(folder), stats), "pulls": pulls(Path(folder), stats)}
    print(json.dumps(found, indent=2))
    pushed = found["uploads"]
    if pushed["lost acknowledged writes"] or any(code >= "500" for code in pushed["answers"]):
        raise SystemExit("writes were lost or requests failed")


if __name__ == "__main__":
    main()
