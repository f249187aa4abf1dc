"""Prometheus metrics; names of fleets and devices are in them only if that is switched on."""

from __future__ import annotations

from collections import Counter as Counted
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from edgemerge.core.errors import EdgemergeError
from edgemerge.server.auth import RateLimitError
from edgemerge.server.db.base import Transaction, Writer
from edgemerge.server.reports.history import (
    DeviceCondition,
    History,
    count_device_states,
    device_conditions,
    reported_statuses,
)
from edgemerge.server.reports.model import DEVICE_STATES
from edgemerge.server.schemas import ReportedMonitor, ReportRequest

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
DURATION_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
CONTRIBUTION_OUTCOMES = ("new", "same", "stale", "equivocation", "refused")
REPORT_OUTCOMES = ("kept", "too many", "refused")
GAUGE_QUERIES = {  # at each scrape, in tables that are small or have an index for it
    "edgemerge_fleets": ("Fleets.", "select count(*) from fleets"),
    "edgemerge_devices": (
        "Devices that are enrolled and not revoked.",
        "select count(*) from devices where revoked is null",
    ),
    "edgemerge_stored": (
        "Contributions stored.",
        "select count(*) from contributions where body is not null",
    ),
    "edgemerge_samples": (
        "Samples learnt by all fleets, as they weigh now: the sum over contributions.",
        "select coalesce(sum(samples), 0) from contributions where body is not null",
    ),
    "edgemerge_capacity_left_ratio": (
        "Capacity for exact sums that is left, in the fleet that has the least; 1 is all.",
        "select 1 - coalesce(max(used), 0) from"
        " (select sum(load) as used from contributions group by fleet) as fleets_used",
    ),
    "edgemerge_choices": (
        "Choices of operators that stand.",
        "select count(*) from choices where undone is null",
    ),
    "edgemerge_choices_undone": (
        "Choices of operators that were undone.",
        "select count(*) from choices where undone is not null",
    ),
    "edgemerge_reviews_waiting": (
        "Reviews that devices have not acted upon yet.",
        "select count(*) from reviews where state = 'waiting'",
    ),
    "edgemerge_reviews_refused": (
        "Reviews that devices refused, among those that are remembered.",
        "select count(*) from reviews where state = 'refused'",
    ),
    "edgemerge_notices": (
        "Events that were not yet sent to some receiver.",
        "select count(*) from notices",
    ),
    "edgemerge_receivers_failing": (
        "Receivers that did not take the last message; it is sent again.",
        "select count(*) from receivers where failures > 0",
    ),
}
MONITOR_GAUGES = {  # of devices that were not revoked and reported a monitor
    "edgemerge_open_episodes": "Episodes that are open: devices in alarm have one.",
    "edgemerge_unreviewed_patterns": "Patterns that wait for a review.",
    "edgemerge_drifting_devices": "Devices whose drift is above 1.5.",
    "edgemerge_stopped_devices": "Devices that stopped learning because of drift.",
    "edgemerge_highest_drift": "The highest drift of a device; 1 is none, 0 if no device reports.",
    "edgemerge_outside_samples": "Samples far outside the range of the projection, so far.",
}
PROBLEM_NAMES = (  # as agents report them; any other counts as "other"
    "no data",
    "unreadable rows",
    "stuck sensor",
    "gap",
    "wrong rate",
    "outside range",
)
DEVICE_GAUGES = {  # of devices that were not revoked, if switched on
    "edgemerge_device_alarm": "1 if the device has an open episode, else 0.",
    "edgemerge_device_online": "1 if the device reports, else 0.",
    "edgemerge_device_problems": "Problems that the device has with its data.",
}
MONITOR_STATES = ("commissioning", "not ready", "ready")


class Metrics:
    """What is counted while the server runs, and what is looked up for each scrape."""

    def __init__(self, writer: Writer, *, max_devices: int = 0) -> None:
        """Start at zero; each server has its own registry.

        Args:
            writer: Its waiting changes are counted.
            max_devices: The most devices that have series of their own; 0, the default, is none.
                Each has as many series as `DEVICE_GAUGES` has entries.
        """
        self.registry = CollectorRegistry()
        self._max_devices = max_devices
        self._devices: dict[str, Gauge] = {}
        if max_devices:
            self._devices = {
                name: self._gauge(name, words, "fleet", "device")
                for name, words in DEVICE_GAUGES.items()
            }
            self._left_out = self._gauge(
                "edgemerge_devices_without_metrics",
                "Devices beyond the limit of --device-metrics; those in alarm come first.",
            )
        self.requests = self._counter(
            "edgemerge_requests", "Requests answered.", "method", "route", "status"
        )
        self.seconds = Histogram(
            "edgemerge_request_seconds",
            "Time from a request to its answer; event streams are left out.",
            ["method", "route"],
            buckets=DURATION_BUCKETS,
            registry=self.registry,
        )
        self.received = self._counter(
            "edgemerge_received_bytes", "Bytes of contributions received."
        )
        self.contributions = self._counter(
            "edgemerge_contributions", "Contributions by what became of them.", "outcome"
        )
        self.reports = self._counter(
            "edgemerge_reports", "Reports of devices by what became of them.", "outcome"
        )
        self.alarms = self._counter("edgemerge_alarms", "Alarms that devices reported.")
        self.merges = self._counter("edgemerge_merges", "Merges that devices reported.")
        self.open_streams = self._gauge(
            "edgemerge_watching", "Event streams open: pages looked at."
        )
        self._looked_up = {
            name: self._gauge(name, GAUGE_QUERIES[name][0]) for name in GAUGE_QUERIES
        }
        self._states = self._gauge("edgemerge_device_states", "Devices by state.", "state")
        self._monitors = {name: self._gauge(name, words) for name, words in MONITOR_GAUGES.items()}
        self._monitor_states = self._gauge(
            "edgemerge_monitor_states",
            "Devices with a monitor by its state; alarms come from those that are ready.",
            "state",
        )
        self._problems = self._gauge(
            "edgemerge_problems", "Problems with the data of devices by name.", "name"
        )
        self._unwritten = self._gauge(
            "edgemerge_history_unwritten_seconds",
            "Age of the oldest report that is not in the database; up to 125 is usual.",
        )
        self._gauge("edgemerge_waiting", "Changes that wait.").set_function(
            lambda: float(writer.waiting)
        )
        self._start_at_zero()

    @contextmanager
    def refusals(self) -> Iterator[None]:
        """Count a report that is refused in the block."""
        try:
            yield
        except EdgemergeError as error:
            many = isinstance(error, RateLimitError)
            self.reports.labels("too many" if many else "refused").inc()
            raise

    @contextmanager
    def refused_contributions(self) -> Iterator[None]:
        """Count a contribution that is refused in the block."""
        try:
            yield
        except EdgemergeError:
            self.contributions.labels("refused").inc()
            raise

    def count_report(self, report: ReportRequest) -> None:
        """Count a report that was kept."""
        self.reports.labels("kept").inc()
        self.alarms.inc(len(report.alarms))
        self.merges.inc(report.merge is not None)

    def text(self, tx: Transaction, history: History, now: float) -> bytes:
        """Return everything as text."""
        for name, gauge in self._looked_up.items():
            row = tx.one(GAUGE_QUERIES[name][1])
            gauge.set(row[0] if row else 0)
        found = count_device_states(tx, history, now)
        for state in DEVICE_STATES:
            self._states.labels(state).set(found[state])
        reported = reported_statuses(tx, history)
        self._set_monitors([one.monitor for one in reported if one.monitor is not None])
        problems = Counted(each.name for one in reported for each in one.problems)
        for name in PROBLEM_NAMES:
            self._problems.labels(name).set(problems.pop(name, 0))
        self._problems.labels("other").set(problems.total())
        if self._max_devices:
            self._set_devices(device_conditions(tx, history, now))
        self._unwritten.set(history.oldest_unwritten_s())
        return generate_latest(self.registry)

    def _set_monitors(self, found: list[ReportedMonitor]) -> None:
        values = {
            "edgemerge_open_episodes": sum(one.open_episodes for one in found),
            "edgemerge_unreviewed_patterns": sum(one.unreviewed for one in found),
            "edgemerge_drifting_devices": sum(one.drifts for one in found),
            "edgemerge_stopped_devices": sum(one.learning_stopped for one in found),
            "edgemerge_highest_drift": max((one.drift for one in found), default=0.0),
            "edgemerge_outside_samples": sum(one.outside for one in found),
        }
        for name, value in values.items():
            self._monitors[name].set(value)
        states = Counted(_monitor_state(one) for one in found)
        for state in MONITOR_STATES:
            self._monitor_states.labels(state).set(states[state])

    def _set_devices(self, found: list[DeviceCondition]) -> None:
        """Show each device, those in alarm first, then by name; a device that is gone leaves."""
        found.sort(key=lambda one: (not one.alarm, one.fleet, one.device))
        for gauge in self._devices.values():
            gauge.clear()
        for fleet, device, *values in found[: self._max_devices]:
            for gauge, value in zip(self._devices.values(), values, strict=True):
                gauge.labels(fleet, device).set(value)
        self._left_out.set(max(0, len(found) - self._max_devices))

    def _counter(self, name: str, words: str, *labels: str) -> Counter:
        return Counter(name, words, labels, registry=self.registry)

    def _gauge(self, name: str, words: str, *labels: str) -> Gauge:
        return Gauge(name, words, labels, registry=self.registry)

    def _start_at_zero(self) -> None:
        """Show every outcome from the start: a rate needs the value before the first."""
        for counter, outcomes in (
            (self.contributions, CONTRIBUTION_OUTCOMES),
            (self.reports, REPORT_OUTCOMES),
        ):
            for outcome in outcomes:
                counter.labels(outcome)


def _monitor_state(monitor: ReportedMonitor) -> str:
    if monitor.ready:
        return "ready"
    return "commissioning" if monitor.phase == "commissioning" else "not ready"
