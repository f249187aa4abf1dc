"""Five pumps, each of which sees one pattern: how they judge before and after merging once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.detector import Detector
from edgemerge.core.ledger import Ledger
from edgemerge.core.projection import Projection
from edgemerge.core.stats import Stats
from edgemerge.demo.simulation import BANDS, BEARING, HIGH_DB, LOOSE, LOW_DB, Pattern, spectra

Array = NDArray[np.float64]

FLEET = {
    "pump-1": Pattern("idle", speed_hz=12.5, load=0.0),
    "pump-2": Pattern("idle", speed_hz=12.5, load=0.05),
    "pump-3": Pattern("running", speed_hz=25.0, load=0.4),
    "pump-4": Pattern("running", speed_hz=25.0, load=0.9),
    "pump-5": Pattern("fast", speed_hz=41.7, load=0.6),
}
SHOWN = ("pump-1", "pump-3", "pump-5")  # one pump of each pattern, for the spectra
FAULTS = (BEARING, LOOSE)
THRESHOLD = 4.0  # four times as odd as usual: alarm
HIDDEN = 32
LEARNT = 1000  # samples on each pump: eight minutes of half-second windows
TRIED = 200  # fresh samples of each pump's normal, and of each fault on it


@dataclass(frozen=True)
class Scores:
    """How one pump scores samples of one kind: the mean, where nine of ten lie, share of alarms."""

    mean: float
    low: float
    high: float
    alarms: float

    @classmethod
    def of(cls, scores: Array) -> Scores:
        """Sum up the scores of many samples."""
        low, high = np.quantile(scores, [0.05, 0.95])
        alarms = np.mean(scores > THRESHOLD)
        return cls(float(scores.mean()), float(low), float(high), float(alarms))


@dataclass(frozen=True)
class Row:
    """One pump, before or after merging; `auc` is for telling faults from any pump's normal."""

    device: str
    pattern: str
    merged: bool
    scores: Mapping[str, Scores]
    auc: float


@dataclass(frozen=True)
class Outcome:
    """Everything that the demo shows; spectra are (3, BANDS): low, mean and high level in dB."""

    seed: int
    rows: list[Row]
    spectra: Mapping[str, Array]
    bytes_sums: int
    bytes_samples: int

    def told(self, *, merged: bool) -> list[Row]:
        """Give the rows from before or from after merging."""
        return [row for row in self.rows if row.merged is merged]


def run(seed: int = 7) -> Outcome:
    """Let every pump learn alone, judge, merge once, and judge again."""
    rng = np.random.default_rng(seed)
    shared = Projection(n_inputs=BANDS, n_hidden=HIDDEN, seed=seed, low=LOW_DB, high=HIGH_DB)
    pumps = {name: taught(shared, spectra(like, LEARNT, rng)) for name, like in FLEET.items()}
    normal = {name: spectra(like, TRIED, rng) for name, like in FLEET.items()}
    faults = {
        fault.name: np.vstack([spectra(like, TRIED, rng, fault) for like in FLEET.values()])
        for fault in FAULTS
    }
    before = [judge(pump, name, normal, faults, merged=False) for name, pump in pumps.items()]
    merge(shared, pumps)
    after = [judge(pump, name, normal, faults, merged=True) for name, pump in pumps.items()]
    return Outcome(
        seed=seed,
        rows=before + after,
        spectra=typical(normal, faults),
        bytes_sums=size_of_sums(pumps["pump-1"].own),
        bytes_samples=LEARNT * BANDS * np.float64().nbytes,
    )


def taught(shared: Projection, samples: Array) -> Detector:
    """Give a detector that has learnt the samples, one after the other."""
    pump = Detector(shared)
    for x in samples:
        pump.learn(x)
    return pump


def merge(shared: Projection, pumps: Mapping[str, Detector]) -> None:
    """Exchange once: everybody shares what it saw and adopts what the others saw."""
    ledger = Ledger(shared)
    for name, pump in pumps.items():
        ledger.put(pump.share(name, pattern=FLEET[name].name, revision=1))
    for name, pump in pumps.items():
        pump.adopt(ledger.total(without=name))


def judge(
    pump: Detector,
    name: str,
    normal: Mapping[str, Array],
    faults: Mapping[str, Array],
    *,
    merged: bool,
) -> Row:
    """Score fresh samples: the pump's own normal, that of its peers, and the faults."""
    sound = {device: pump.score(samples) for device, samples in normal.items()}
    broken = {fault: pump.score(samples) for fault, samples in faults.items()}
    peers = np.concatenate([scores for device, scores in sound.items() if device != name])
    groups = {"own": sound[name], "peers": peers} | broken
    return Row(
        device=name,
        pattern=FLEET[name].name,
        merged=merged,
        scores={group: Scores.of(scores) for group, scores in groups.items()},
        auc=roc_auc(np.concatenate([*sound.values()]), np.concatenate([*broken.values()])),
    )


def roc_auc(normal: Array, odd: Array) -> float:
    """How often an odd sample scores above a normal one; a tie counts half.

    >>> roc_auc(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0]))
    0.75
    """
    ranked = np.sort(normal)
    below = np.searchsorted(ranked, odd, "left") + np.searchsorted(ranked, odd, "right")
    return float(below.mean() / (2 * len(ranked)))


def typical(normal: Mapping[str, Array], faults: Mapping[str, Array]) -> dict[str, Array]:
    """Give the usual spectrum of each pattern, and of each fault at running speed."""
    at = list(FLEET).index("pump-3") * TRIED
    kinds = {FLEET[name].name: normal[name] for name in SHOWN}
    kinds |= {fault: samples[at : at + TRIED] for fault, samples in faults.items()}
    return {
        kind: np.stack([np.quantile(rows, 0.05, 0), rows.mean(0), np.quantile(rows, 0.95, 0)])
        for kind, rows in kinds.items()
    }


def size_of_sums(stats: Stats) -> int:
    """Count the bytes that travel: U is symmetric, so half of it will do."""
    U, V, C, S = stats.arrays
    numbers = len(U) * (len(U) + 1) // 2 + V.size + C.size + S.size + 1
    return numbers * np.float64().nbytes
