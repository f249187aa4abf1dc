"""The report of a simulation: plain numbers for machines, and the same for people."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from edgemerge.scale.cost import WAYS, Device, message_bytes
from edgemerge.scale.outcome import Outcome
from edgemerge.scale.plan import Plan

DAY_S = 86400.0
TIERS = ("device to site", "site to region", "region to top")
FORMS = ("exact", "float32", "root16")

Record = dict[str, Any]


def record(outcome: Outcome, *, interval_s: float = 3600.0, latency_s: float = 0.05) -> Record:
    """Write everything down; sharing happens once an interval, and a link takes the latency."""
    gathered = outcome.gathered
    return {
        "sizes": sizes(outcome.plan),
        "stopped": outcome.stopped,
        "exact": outcome.exact,
        "checks": [check._asdict() for check in outcome.checks],
        "samples": gathered.total.count,
        "digest": gathered.total.digest,
        "speed": speed(outcome),
        "memory": {
            "peak_bytes": gathered.peak_bytes,
            "stats_bytes": outcome.plan.memory(outcome.workers),
        },
        "tiers": tiers(outcome),
        "device_day": device_day(outcome.plan, interval_s),
        "change": change(outcome, latency_s),
    }


def sizes(plan: Plan) -> Record:
    """Write down what is simulated."""
    return {
        **asdict(plan),
        "regions": plan.n_regions,
        "sites": plan.n_sites,
        "message_bytes": message_bytes(plan.n_inputs, plan.n_hidden),
    }


def speed(outcome: Outcome) -> Record:
    """Write down how fast it went, and how fast the machine can go."""
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


def tiers(outcome: Outcome) -> list[Record]:
    """Write down what passed between tiers: up as heard, down as told on one path, times places."""
    gathered, spreading = outcome.gathered, outcome.spreading
    found = []
    for tier, (words, tally) in enumerate(zip(TIERS, gathered.up, strict=True)):
        row = {"tier": words, "places": gathered.places[tier], "up": asdict(tally)}
        if spreading is not None:
            answers = spreading.answers[-1 - tier]
            each = answers.length / answers.number
            row["down"] = {"answer_bytes": each, "bytes": each * gathered.places[tier]}
        found.append(row)
    return found


def device_day(plan: Plan, interval_s: float) -> Record:
    """Write down the bytes of one device in a day, both ways, for each form of the wire."""
    shares = DAY_S / interval_s
    device = Device(n_inputs=plan.n_inputs, n_hidden=plan.n_hidden, samples=0.0, shares=shares)
    both = {form: device.sums(form) for form in FORMS}
    return {"interval_s": interval_s, "shares": shares, "ways": WAYS, "bytes": both}


def change(outcome: Outcome, latency_s: float) -> Record | None:
    """Write down how long a change takes to reach all."""
    if outcome.spreading is None:
        return None
    return {
        "steps": [{"words": words, "ms": 1e3 * s} for words, s in outcome.spreading.steps],
        "work_s": outcome.spreading.seconds,
        "latency_s": latency_s,
        "reaches_all_s": outcome.spreading.reaches_all_s(latency_s),
    }
