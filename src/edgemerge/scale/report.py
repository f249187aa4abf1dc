"""Results of a simulation as plain values for JSON, and the bytes a device sends in a day.

Message lengths are those of encoded messages.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np

from edgemerge.core.ledger import Contribution
from edgemerge.core.projection import Projection
from edgemerge.core.stats import Stats, exact_limit
from edgemerge.scale.simulation import Outcome
from edgemerge.scale.simulation_plan import Plan
from edgemerge.wire.codec import encode

FLOAT32_BYTES = 4
DIRECTIONS = 2  # what goes up comes down


@cache
def message_bytes(n_inputs: int, n_hidden: int, form: str = "exact") -> int:
    """Return the length of an encoded contribution; it does not depend on the samples.

    >>> [message_bytes(561, 128, form) for form in ("exact", "float32", "root16")]
    [650176, 325432, 166113]
    """
    shared = Projection(n_inputs=n_inputs, n_hidden=n_hidden, seed=7)
    rows = np.random.default_rng(7).uniform(-1.0, 1.0, (2 * n_hidden, n_inputs))
    return len(encode(Contribution("device-0000001", Stats.of(shared, rows), 1), form))


@dataclass(frozen=True, kw_only=True)
class DeviceTraffic:
    """One device of a fleet: what it sees in a day, and how often it shares."""

    n_inputs: int
    n_hidden: int
    samples: float
    shares: float
    value_bytes: int = FLOAT32_BYTES  # of one input, sent raw

    def sums(self, form: str = "exact") -> float:
        """Bytes of a day by sums: a contribution up and the sum of the others down."""
        return DIRECTIONS * self.shares * message_bytes(self.n_inputs, self.n_hidden, form)

    def averaging(self, rounds: float) -> float:
        """Bytes of a day by federated averaging of an autoencoder n, N, n, in float32."""
        weights = 2 * self.n_inputs * self.n_hidden + self.n_hidden + self.n_inputs
        return DIRECTIONS * rounds * FLOAT32_BYTES * weights

    def raw(self) -> float:
        """Bytes of a day by sending every sample up; what comes back is not counted."""
        return self.samples * self.n_inputs * self.value_bytes

    def break_even(self, form: str = "exact") -> float:
        """Samples between two shares below which raw samples take fewer bytes than sums."""
        sums = DIRECTIONS * message_bytes(self.n_inputs, self.n_hidden, form)
        return sums / (self.n_inputs * self.value_bytes)


def max_samples(grid_bits: int) -> float:
    """Return the number of samples, with values in [−1, 1], up to which sums are exact.

    >>> f"{max_samples(12):.2g}"
    '5.4e+08'
    """
    return exact_limit(2.0 ** (-2 * grid_bits))


DAY_S = 86400.0
TIERS = ("device to site", "site to region", "region to top")
WIRE_FORMS = ("exact", "float32", "root16")

Record = dict[str, Any]


def record(outcome: Outcome, *, interval_s: float = 3600.0, latency_s: float = 0.05) -> Record:
    """Return the outcome as plain values.

    Args:
        outcome: What `simulate` returned.
        interval_s: Time between two shares of a device, for its bytes in a day.
        latency_s: Latency of one link, for the time until a change reaches all devices.
    """
    gathered, plan = outcome.gathered, outcome.plan
    return {
        "sizes": {
            **asdict(plan),
            "regions": plan.n_regions,
            "sites": plan.n_sites,
            "message_bytes": message_bytes(plan.n_inputs, plan.n_hidden),
        },
        "stopped": outcome.stopped,
        "exact": outcome.exact,
        "checks": [check._asdict() for check in outcome.checks],
        "samples": gathered.total.count,
        "digest": gathered.total.digest,
        "speed": speed_record(outcome),
        "memory": {
            "peak_bytes": gathered.peak_bytes,
            "stats_bytes": plan.memory(outcome.workers),
        },
        "tiers": tier_records(outcome),
        "device_day": device_day_record(plan, interval_s),
        "change": change_record(outcome, latency_s),
    }


def speed_record(outcome: Outcome) -> Record:
    """Return the speed of the simulation and of the machine."""
    gathered = outcome.gathered
    messages = gathered.up[0].messages
    found = {
        "workers": outcome.workers,
        "seconds": gathered.seconds,
        "contributions_per_s": messages / gathered.seconds,
        "cpu_s_per_contribution": gathered.cpu_s / max(messages, 1),
    }
    if outcome.speed is None:
        return found
    moved, memory = outcome.speed.sums_per_s * outcome.plan.stats_bytes, outcome.speed.bytes_per_s
    return {
        **found,
        "sums_per_s": outcome.speed.sums_per_s,
        "sums_bytes_per_s": moved,
        "memory_bytes_per_s": memory,
        "share_of_memory": moved / memory,
    }


def tier_records(outcome: Outcome) -> list[Record]:
    """Return the messages between tiers; those down are counted on one path, times the nodes."""
    gathered, spreading = outcome.gathered, outcome.spreading
    found = []
    for tier, (words, counts) in enumerate(zip(TIERS, gathered.up, strict=True)):
        row = {"tier": words, "places": gathered.places[tier], "up": asdict(counts)}
        if spreading is not None:
            answers = spreading.answers[-1 - tier]
            each = answers.length / answers.number
            row["down"] = {"answer_bytes": each, "bytes": each * gathered.places[tier]}
        found.append(row)
    return found


def device_day_record(plan: Plan, interval_s: float) -> Record:
    """Return the bytes of one device in a day, both ways, for each form of the wire."""
    shares, sizes = DAY_S / interval_s, {"n_inputs": plan.n_inputs, "n_hidden": plan.n_hidden}
    device = DeviceTraffic(**sizes, samples=0.0, shares=shares)
    both = {form: device.sums(form) for form in WIRE_FORMS}
    return {"interval_s": interval_s, "shares": shares, "ways": DIRECTIONS, "bytes": both}


def change_record(outcome: Outcome, latency_s: float) -> Record | None:
    """Return how long a change takes to reach all devices."""
    if outcome.spreading is None:
        return None
    return {
        "steps": [{"words": words, "ms": 1e3 * s} for words, s in outcome.spreading.steps],
        "work_s": outcome.spreading.seconds,
        "latency_s": latency_s,
        "reaches_all_s": outcome.spreading.reaches_all_s(latency_s),
    }
