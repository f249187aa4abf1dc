"""Metrics in the text form that Prometheus reads; no name of a fleet or device is in them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from edgemerge.server.database import Transaction
from edgemerge.server.writer import Writer

TYPE = CONTENT_TYPE_PLAIN_0_0_4
SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class Metrics:
    """What is counted while the server runs, and what is looked up when somebody asks."""

    def __init__(self, writer: Writer) -> None:
        """Start at zero; each server has its own registry."""
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "edgemerge_requests",
            "Requests answered.",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "edgemerge_request_seconds",
            "Time from a request to its answer.",
            ["method", "route"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.received = Counter(
            "edgemerge_received_bytes", "Bytes of contributions received.", registry=self.registry
        )
        self.contributions = Counter(
            "edgemerge_contributions",
            "Contributions by what became of them.",
            ["outcome"],
            registry=self.registry,
        )
        self._fleets = Gauge("edgemerge_fleets", "Fleets.", registry=self.registry)
        self._devices = Gauge("edgemerge_devices", "Devices let in.", registry=self.registry)
        self._stored = Gauge("edgemerge_stored", "Contributions stored.", registry=self.registry)
        waiting = Gauge("edgemerge_waiting", "Changes that wait.", registry=self.registry)
        waiting.set_function(lambda: float(writer.waiting))

    def text(self, tx: Transaction) -> bytes:
        """Give everything as text."""
        for gauge, sql in (
            (self._fleets, "select count(*) from fleets"),
            (self._devices, "select count(*) from devices where revoked is null"),
            (self._stored, "select count(*) from contributions where body is not null"),
        ):
            row = tx.one(sql)
            gauge.set(row[0] if row else 0)
        return generate_latest(self.registry)
