"""A workshop of pumps at a real server: sums of simulated vibration, and reports as agents send."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit
from zlib import crc32

import numpy as np

from edgemerge import Contribution, Projection, Stats
from edgemerge.demo.data import BANDS, HIGH_DB, LOW_DB, Pattern, spectra
from edgemerge.exchange.http import HttpExchange
from tests.services.hub import Running, running
from tests.waiting import DEADLINE_S

FLEET = "pumps"
SHARED = Projection(n_inputs=BANDS, n_hidden=16, seed=7, low=LOW_DB, high=HIGH_DB)
KINDS = {
    "idle": Pattern("idle", speed_hz=12.5, load=0.0),
    "running": Pattern("running", speed_hz=25.0, load=0.6),
    "fast": Pattern("fast", speed_hz=41.7, load=0.6),
}
ROWS = 120


@dataclass
class Workshop:
    """A fleet whose devices have tokens; it speaks for them."""

    database: str
    tokens: dict[str, str] = field(default_factory=dict)
    revisions: dict[str, int] = field(default_factory=dict)
    _open: ExitStack = field(default_factory=ExitStack)

    def open(self, port: int = 0) -> None:
        """Start the server."""
        self.here: Running = self._open.enter_context(running(self.database, port=port))

    def close(self) -> None:
        """Stop the server."""
        self._open.close()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Have no server while the block lasts; after it there is one at the same address."""
        self.close()
        try:
            yield
        finally:
            self.open(urlsplit(self.here.url).port or 0)

    def add(self, device: str, kind: str | None = None, pattern: str = "normal") -> None:
        """Let a device in; of a kind, it shares what it has learnt."""
        self.tokens[device] = self.here.enrol(FLEET, device)
        if kind is not None:
            self.share(device, kind, pattern)

    def share(self, device: str, kind: str, pattern: str = "normal") -> None:
        """Let a device share some sums of one kind of running."""
        self._push(device, kind, pattern)

    def name_fault(self, device: str, name: str, kind: str = "fast") -> None:
        """Let a device share that a kind of running is a fault."""
        self._push(device, kind, name, kind="fault", first=time.time() - 9000.0)

    def _push(self, device: str, running: str, pattern: str, **more: Any) -> None:
        self.revisions[device] = revision = self.revisions.get(device, 0) + 1
        rng = np.random.default_rng(crc32(f"{device} {running} {revision}".encode()))
        stats = Stats.of(SHARED, spectra(KINDS[running], ROWS, rng))
        exchange = HttpExchange(self.here.url, FLEET, self.tokens[device], projection=SHARED)
        exchange.push(Contribution(device, stats, revision, pattern, **more))
        exchange.close()

    def report(self, device: str, *scores: float, **more: Any) -> dict[str, Any]:
        """Report scores of just now, against a threshold of 4; give the answer."""
        now = time.time()
        points = [
            {"at": now - 0.1 * (len(scores) - i), "score": s, "threshold": 4.0, "alarm": s > 4.0}
            for i, s in enumerate(scores)
        ]
        status = {"samples": 1000, "learnt": 900.0, "alarms": 0, **more.pop("status", {})}
        body = {"sent": now, "status": status, "points": points, **more}
        return self.send(device, body)

    def send(self, device: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a report as it is."""
        where = HTTPConnection(urlsplit(self.here.url).netloc, timeout=DEADLINE_S)
        headers = {
            "Authorization": f"Bearer {self.tokens[device]}",
            "Content-Type": "application/json",
        }
        address = f"/fleets/{FLEET}/devices/{device}/report"
        try:
            where.request("POST", address, json.dumps(body), headers)
            reply = where.getresponse()
            words = reply.read()
        finally:
            where.close()
        assert reply.status == 200, words
        return dict(json.loads(words))


def alarm(score: float, **inputs: float) -> dict[str, Any]:
    """An alarm of just now, carried by these inputs."""
    why = [{"input": name, "factor": factor} for name, factor in inputs.items()]
    told = {"at": time.time(), "score": score, "threshold": 4.0, "alarm": True}
    return {**told, "sample": 999, "pattern": "normal", "why": why}


@contextmanager
def workshop(database: str) -> Iterator[Workshop]:
    """Serve an empty fleet until the block ends."""
    made = Workshop(database)
    made.open()
    try:
        made.here.operator.create_fleet(FLEET, SHARED, least=1)
        yield made
    finally:
        made.close()
