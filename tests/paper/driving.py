"""Made-up trips in the folder format of UAH-DriveSet, which may not be passed on.

Each behaviour has its own way with the pedal: normal drivers hold a speed, aggressive ones speed up
and brake hard, drowsy ones let it drift and mend it in jumps.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ROOT = "UAH-DRIVESET-v1"
GPS = "RAW_GPS.txt"
CRUISE_KMH = {"MOTORWAY": 105.0, "SECONDARY": 75.0}
MOST_DID = ("NORMAL1", "NORMAL2", "AGGRESSIVE", "DROWSY")
SECONDARY_ROADS = {  # what each driver did there; on the motorway everybody did all three
    **dict.fromkeys(("D1", "D2", "D3", "D4", "D5"), MOST_DID),
    "D6": ("NORMAL", "DROWSY"),
}


def trip_names() -> list[str]:
    """Name the 40 trips, by driver."""
    done = [
        (driver, behaviour, road)
        for driver, there in SECONDARY_ROADS.items()
        for road, behaviours in (
            ("MOTORWAY", ("NORMAL", "AGGRESSIVE", "DROWSY")),
            ("SECONDARY", there),
        )
        for behaviour in behaviours
    ]
    starts = range(20151101120000, 20151101120000 + 100 * len(done), 100)
    length = {"MOTORWAY": "25km", "SECONDARY": "16km"}
    return [f"{start}-{length[d[2]]}-{'-'.join(d)}" for start, d in zip(starts, done, strict=True)]


def write_trips(
    folder: Path, seed: int, missing: Iterable[str] = (), *, seconds: int = 300
) -> Path:
    """Write 40 trips into the folder; a driver lacks a trip for each time `missing` names them."""
    left_out = Counter(missing)
    for at, name in enumerate(reversed(trip_names())):
        driver = name.split("-")[2]
        if left_out[driver]:
            left_out[driver] -= 1
            continue
        trip = folder / ROOT / driver / name
        trip.mkdir(parents=True)
        rng = np.random.default_rng([seed, at])
        (trip / GPS).write_text(gps_text(speeds(name, seconds, rng), rng), encoding="ascii")
    return folder / ROOT


def speeds(name: str, seconds: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw a speed in km/h for each second of a trip."""
    _, _, _, behaviour, road = name.split("-")
    drive = {"N": _normal, "A": _aggressive, "D": _drowsy}[behaviour[0]]
    target = CRUISE_KMH[road] + rng.normal(0.0, 5.0)
    found = np.fromiter(drive(target, rng), dtype=np.float64, count=seconds)
    return np.asarray(np.clip(found, 0.0, 148.8))


def _normal(target: float, rng: np.random.Generator) -> Iterator[float]:
    """Keep near the target, always a little late."""
    speed = target - 15.0
    while True:
        speed += 0.05 * (target - speed) + rng.normal(0.0, 0.8)
        yield speed


def _aggressive(target: float, rng: np.random.Generator) -> Iterator[float]:
    """Speed up to well above, then brake hard to well below."""
    speed, goal = target, target + 30.0
    while True:
        if abs(goal - speed) < 4.0:
            goal = target + rng.choice([-40.0, 30.0]) + rng.normal(0.0, 5.0)
        speed += np.clip(0.3 * (goal - speed), -11.0, 7.0) + rng.normal(0.0, 1.0)
        yield speed


def _drowsy(target: float, rng: np.random.Generator) -> Iterator[float]:
    """Slow down unawares, wake up, and take a few seconds to be back."""
    speed, awake = target, 0
    while True:
        awake = 8 if rng.random() < 0.02 else max(awake - 1, 0)
        speed += 0.4 * (target - speed) if awake else -0.25 + rng.normal(0.0, 0.3)
        yield max(speed, 0.5 * target)


def gps_text(speed: Iterable[float], rng: np.random.Generator) -> str:
    """Write twelve columns a line, with the blank at the end that the makers' files have."""
    clock = 0.4
    lines = []
    for value in speed:
        clock += 1.0 + rng.uniform(-0.02, 0.02)
        place = f"{40.5 + 1e-4 * clock:.6f} {-3.4 + 1e-4 * clock:.6f} 618.3 4 5"
        course = f"{rng.uniform(0, 360):.3f} {rng.normal():.3f} 0 0 0"
        lines.append(f"{clock:.2f} {value:.1f} {place} {course} \n")
    return "".join(lines)
