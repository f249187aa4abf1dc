"""What the devices of the demo see: samples to learn, fresh ones, and odd ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgemerge.core.errors import SettingError
from edgemerge.core.projection import Projection
from edgemerge.demo.simulation import (
    BAND_HZ,
    BANDS,
    BEARING,
    HIGH_DB,
    LOOSE,
    LOW_DB,
    Pattern,
    spectra,
)

Array = NDArray[np.float64]

PUMPS = {
    "pump-1": Pattern("idle", speed_hz=12.5, load=0.0),
    "pump-2": Pattern("idle", speed_hz=12.5, load=0.05),
    "pump-3": Pattern("running", speed_hz=25.0, load=0.4),
    "pump-4": Pattern("running", speed_hz=25.0, load=0.9),
    "pump-5": Pattern("fast", speed_hz=41.7, load=0.6),
}
SHOWN = ("pump-1", "pump-3", "pump-5")  # one pump of each pattern, for the curves
FAULTS = (BEARING, LOOSE)
HIDDEN = 32
LEARNT = 1000  # samples on each pump: eight minutes of half-second windows
TRIED = 60  # fresh samples of each device's normal, and of each fault on it

# what the people who carry each phone do, by the numbers of the data set; nobody lies down
PHONES = {
    "phone-1": ("walking", 1),
    "phone-2": ("upstairs", 2),
    "phone-3": ("downstairs", 3),
    "phone-4": ("sitting", 4),
    "phone-5": ("standing", 5),
}
LYING = 6
PEOPLE = 30


@dataclass(frozen=True)
class Material:
    """Five devices, each with one pattern of normal; `odd` is what nobody learns.

    `inputs` are the names of what a sample consists of, if it has any.
    """

    name: str
    projection: Projection
    patterns: Mapping[str, str]
    learn: Mapping[str, Array]
    normal: Mapping[str, Array]
    odd: Mapping[str, Array]
    curves: Mapping[str, Array] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()


def pumps(seed: int) -> Material:
    """Simulate five pumps and two faults; samples are spectra of vibration."""
    rng = np.random.default_rng(seed)
    shared = Projection(n_inputs=BANDS, n_hidden=HIDDEN, seed=seed, low=LOW_DB, high=HIGH_DB)
    learn = {name: spectra(like, LEARNT, rng) for name, like in PUMPS.items()}
    normal = {name: spectra(like, TRIED, rng) for name, like in PUMPS.items()}
    odd = {
        fault.name: np.vstack([spectra(like, TRIED, rng, fault) for like in PUMPS.values()])
        for fault in FAULTS
    }
    names = {name: like.name for name, like in PUMPS.items()}
    bands = tuple(f"{BAND_HZ * i:.0f}-{BAND_HZ * (i + 1):.0f} Hz" for i in range(BANDS))
    return Material("pumps", shared, names, learn, normal, odd, _curves(normal, odd), bands)


def har(file: Path, seed: int) -> Material:
    """Take real people's motion: six people carry each phone, and all of them do one thing."""
    if not file.exists():
        raise SettingError(
            f"found no {file}: put the data set there, or name its folder in EDGEMERGE_DATA"
        )
    with np.load(file, allow_pickle=False) as held:
        X = np.vstack([held["X_train"], held["X_test"]]).astype(np.float64)
        activity = np.concatenate([held["y_train"], held["y_test"]])
        person = np.concatenate([held["subject_train"], held["subject_test"]])
    rng = np.random.default_rng(seed)
    carriers = np.array_split(rng.permutation(np.arange(1, PEOPLE + 1)), len(PHONES))
    learn, normal = {}, {}
    for (name, (_, does)), people in zip(PHONES.items(), carriers, strict=True):
        rows = rng.permutation(X[(activity == does) & np.isin(person, people)])
        learn[name], normal[name] = rows[TRIED:], rows[:TRIED]
    odd = {"lying": rng.permutation(X[activity == LYING])[: 5 * TRIED]}
    shared = Projection(n_inputs=X.shape[1], n_hidden=64, seed=seed)
    return Material("har", shared, {k: v[0] for k, v in PHONES.items()}, learn, normal, odd)


def _curves(normal: Mapping[str, Array], odd: Mapping[str, Array]) -> dict[str, Array]:
    """Give the usual spectrum of each pattern, and of each fault at running speed."""
    at = list(PUMPS).index("pump-3") * TRIED
    kinds = {PUMPS[name].name: normal[name] for name in SHOWN}
    kinds |= {fault: samples[at : at + TRIED] for fault, samples in odd.items()}
    return {
        kind: np.stack([np.quantile(rows, 0.05, 0), rows.mean(0), np.quantile(rows, 0.95, 0)])
        for kind, rows in kinds.items()
    }
