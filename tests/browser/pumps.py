"""Twelve pumps for pictures: banks that learn simulated vibration, merge and judge.

Nothing is made up but the clock: what they judge in a moment is
reported as if it had taken ten minutes.
"""

import time
from collections import Counter
from functools import cache
from hashlib import sha256
from typing import Any

import numpy as np

from edgemerge import Bank, Contribution, Detector, Stats, encode
from edgemerge.core.faults import Faults
from edgemerge.core.ledger import Selection
from edgemerge.core.monitor import Monitor
from edgemerge.demo.data import BAND_HZ, BEARING, LOOSENESS, NO_FAULT, spectra
from edgemerge.exchange.http import HttpExchange
from tests.browser.workshop import FLEET, KINDS, SHARED, Workshop

LIMIT = 4.0
LEARNT, JUDGED = 600, 590  # samples; one a second is reported
MODES = {"hall-a": ("idle", "running"), "hall-b": ("running", "fast"), "well": ("fast",)}
FAULTS = {"hall-b-pump-2": (BEARING, 40), "well-pump-3": (LOOSENESS, 8)}  # and for how many samples
PAST = {"hall-a-pump-2": LOOSENESS, "well-pump-1": BEARING}  # a fault of a minute, and long over
PAST_ROWS = slice(-320, -260)
WORN = "worn bearing"  # is known since it was named on another pump
SILENT = "hall-a-pump-4"  # is let in, and never heard of again
NEW = "hall-a-pump-3"  # is still commissioning
PER_REPORT = 200


class Pump:
    """One device: learns alone, shares, adopts, judges and reports."""

    def __init__(self, shop: Workshop, device: str, rng: np.random.Generator) -> None:
        self.shop, self.device, self.rng = shop, device, rng
        self.modes = MODES[device.partition("-pump")[0]]
        self.bank = Bank(SHARED, max_patterns=len(self.modes))
        self.exchange = HttpExchange(shop.here.url, FLEET, shop.tokens[device], projection=SHARED)
        self.told: dict[str, Any] | None = None
        self.state: dict[str, Any] = {}

    def learn(self) -> None:
        """Learn what is normal here, and name each pattern after the way of running that it is."""
        for mode in self.modes:
            self.bank.learn(spectra(KINDS[mode], LEARNT, self.rng))
        for mode in self.modes:
            rows = spectra(KINDS[mode], 20, self.rng)
            found = Counter(map(self.bank.closest, rows)).most_common(1)[0][0]
            if mode not in self.bank and found not in self.modes:
                self.bank.rename(found, mode)

    def share(self) -> None:
        for note in self.bank.share(self.device, revision=1):
            self.exchange.push(note)

    def adopt(self) -> None:
        told = self.exchange.pull(Selection(receiver=self.device), grouped=True)
        self.bank.adopt(told.contributions)
        origins = [dict(origin._asdict()) for origin in told.origins]
        self.told = {
            "at": time.time() - 130.0,
            "digest": sha256(encode(told)).hexdigest(),
            "samples": sum(part.stats.count for part in told.parts),
            "devices": len({origin.device for origin in told.origins}),
            "origins": origins,
        }

    def rows(self) -> np.ndarray:
        """Samples of ten minutes; at the end of them, on some pumps, a fault."""
        fault, last = FAULTS.get(self.device, (NO_FAULT, 0))
        now = KINDS[self.modes[0]]
        made = [spectra(KINDS[self.modes[-1]], 200, self.rng), spectra(now, 390, self.rng)]
        rows = np.vstack(made)[:JUDGED]
        if last:
            rows[-last:] = spectra(now, last, self.rng, fault)
        if self.device in PAST:
            rows[PAST_ROWS] = spectra(now, 60, self.rng, PAST[self.device])
        return rows

    def judge(self) -> None:
        """Score the samples and report them."""
        rows, now = self.rows(), time.time()
        scores, used = self.bank.score(rows), [self.bank.closest(row) for row in rows]
        points = [
            {"at": now - (len(rows) - i), "score": float(s), "threshold": LIMIT, "alarm": s > LIMIT}
            for i, s in enumerate(scores)
        ]
        points = [{**point, "alarm": bool(point["alarm"])} for point in points]
        alarms = [
            {**point, "sample": 1200 + i, "pattern": used[i], "why": self.why(rows[i])}
            for i, point in enumerate(points)
            if point["alarm"]
        ]
        self.state = self.status(Counter(used), used[-1], len(alarms))
        monitor = self.monitor(rows, now)
        spans = [(each, each["began"], each["ended"] or now) for each in monitor["episodes"]]
        spans += [(each, each["first"], each["last"]) for each in monitor["patterns"]]
        for each, first, last in spans:  # the scores that are shown are those of the bank
            inside = [p["score"] for p in points if first <= p["at"] <= last]
            each["peak"] = max(inside, default=each["peak"])
        self.state |= {"monitor": monitor, "reviews": {"done": 0, "refused": []}}
        scored = {name: told for name, told in self.state.items() if name != "monitor"}
        for first in range(0, len(points), PER_REPORT):  # episodes once their scores are there
            last = first + PER_REPORT >= len(points)
            self.shop.send(
                self.device,
                {
                    "sent": now,
                    "status": self.state if last else scored,
                    "points": points[first : first + PER_REPORT],
                    "alarms": alarms[-20:] if last else [],
                    "merge": self.told if last else None,
                },
            )

    def monitor(self, rows: np.ndarray, now: float) -> dict[str, Any]:
        """Watch over the same samples, and say what a monitor makes of them."""
        monitor = Monitor(Detector(SHARED), false_alarms="1 per day")
        monitor.know_faults(known_faults())
        first = np.vstack([spectra(KINDS[mode], LEARNT, self.rng) for mode in self.modes])
        self.rng.shuffle(first)
        seen = first[:100] if self.device == NEW else np.vstack([first, rows])
        for i, row in enumerate(seen):
            monitor.take(row, now - len(seen) + i)
        found = monitor.status()
        for each in (*found["episodes"], *found["patterns"]):
            each["inputs"] = [[band(i), factor] for i, factor in each["inputs"]]
            like = each.pop("like") or {}
            each |= {"fault": like.get("name"), "like": like.get("words")}
        return found

    def be_there(self) -> None:
        """Report that nothing is new."""
        self.shop.send(self.device, {"sent": time.time(), "status": self.state})

    def why(self, row: np.ndarray) -> list[dict[str, Any]]:
        factors = self.bank.explain(row)
        return [
            {
                "input": band(i),
                "factor": float(factors[i]),
            }
            for i in np.argsort(-factors)[:6]
        ]

    def status(self, used: Counter, now: str, alarms: int) -> dict[str, Any]:
        patterns = [
            {
                "pattern": name,
                "own": float(self.bank[name].known.own.count),
                "told": float(self.bank[name].known.others_count),
                "used": used[name],
            }
            for name in self.bank
        ]
        told = self.told or {"samples": 0.0, "devices": 0}
        return {
            "samples": len(self.modes) * LEARNT + JUDGED,
            "learnt": sum(pattern["own"] for pattern in patterns),
            "alarms": alarms,
            "revision": 1,
            "pattern": now,
            "patterns": patterns,
            "exchange": "ok",
            "told": f"adopted {told['samples']:g} samples of {told['devices']} devices",
            "synced": time.time() - 130.0,
        }


@cache
def known_faults() -> Faults:
    """What was named before: the bearing of a pump that ran."""
    rng = np.random.default_rng(99)
    stats = Stats.of(SHARED, spectra(KINDS["running"], 200, rng, BEARING))
    first = time.time() - 9 * 86_400.0
    named = Contribution("hall-b-pump-4", stats, 1, WORN, kind="fault", first=first)
    return Faults.of_groups([[named]], SHARED)


def band(i: int) -> str:
    """Name an input: the frequencies that it is the strength of."""
    return f"{BAND_HZ * i:.0f} to {BAND_HZ * (i + 1):.0f} Hz"


def pumps(shop: Workshop) -> list[Pump]:
    """Let twelve pumps in and let all but one learn, merge and judge; give those."""
    devices = [f"{site}-pump-{i}" for site in MODES for i in range(1, 5)]
    for device in devices:
        shop.add(device)
    made = [
        Pump(shop, device, np.random.default_rng(i))
        for i, device in enumerate(devices)
        if device != SILENT
    ]
    for step in (Pump.learn, Pump.share, Pump.adopt, Pump.judge):
        for pump in made:
            step(pump)
    for pump in made:
        pump.exchange.close()
    return made
