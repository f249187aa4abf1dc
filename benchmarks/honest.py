"""What honest fleets lose by the checks: `python -m benchmarks.honest`.

Each row is a kind of fleet: pairs of devices that each know another activity (HAR) or digit
(MNIST), and single people (HAR) who all walk. `refused` counts the contributions, of `checked`,
that the check of a bank or of a detector refuses. Then one device of each pair, or each person,
adopts what the others have with a bank: `unchecked` is the mean ROC-AUC without checks and without
a ceiling of what is usual, `checked_auc` with both. Normal are fresh rows of what was learnt and
adopted, odd are rows of all else. It writes docs/results/honest.csv.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from benchmarks.machines import motion
from benchmarks.results import Row, save
from edgemerge import Bank, Contribution, Projection, Stats
from edgemerge.core.readout import NO_CEILING
from edgemerge.core.similarity import LevelCheck
from edgemerge.demo.outcome import roc_auc
from edgemerge.paper.data import load
from edgemerge.wire.state import from_bytes, to_bytes

Array = NDArray[np.float64]
TRAIN, TEST = 500, 60  # rows of each class
SEED = 1
SETTINGS = {"tanh": (64, 16), "identity": (64, 128), "cosine": (64,)}  # hidden values
WALKING, OTHER = (1, 2, 3), (4, 6)


class Fleet:
    """Devices by name: what each has learnt, what is normal for it, and what is odd."""

    def __init__(self, projection: Projection) -> None:
        """Begin without devices."""
        self.projection = projection
        self.learnt: dict[str, Array] = {}
        self.sums: dict[str, Stats] = {}
        self._banks: dict[str, bytes] = {}
        self._refused: dict[tuple[str, bool], dict[str, str]] = {}

    def add(self, name: str, rows: Array) -> None:
        """Add a device."""
        self.learnt[name], self.sums[name] = rows, Stats.of(self.projection, rows)

    def bank(self, name: str) -> Bank:
        """Return a bank that has learnt what the device has."""
        if name not in self._banks:
            found = Bank(self.projection)
            found.learn(self.learnt[name])
            found.catch_up()
            self._banks[name] = to_bytes(found)
        return cast(Bank, from_bytes(self._banks[name]))

    def refused(self, name: str, *, apart: bool) -> dict[str, str]:
        """Return which others the check of a device refuses, and why."""
        if (name, apart) not in self._refused:
            own = {"normal": self.sums[name]}
            if apart:
                own = {key: each.own for key, each in self.bank(name).detectors.items()}
            check = LevelCheck(own, apart=apart)
            check([note for note in self.notes() if note.device != name])
            self._refused[name, apart] = {key[0]: why for key, why in check.refused.items()}
        return self._refused[name, apart]

    def notes(self) -> list[Contribution]:
        """Return what the devices contribute."""
        return [Contribution(name, stats, 1) for name, stats in self.sums.items()]

    def auc(self, name: str, others: list[str], normal: Array, odd: Array) -> tuple[float, float]:
        """Return the AUC of a device that has adopted others, without checks and with them."""
        notes = [note for note in self.notes() if note.device in others]
        free, bound = self.bank(name), self.bank(name)
        free.adopt(notes)
        for each in free.detectors.values():
            each.known.ceiling = NO_CEILING
        refused = self.refused(name, apart=True)
        bound.adopt([note for note in notes if note.device not in refused])
        first, second = (
            roc_auc(*(np.asarray(each.score(rows)) for rows in (normal, odd)))
            for each in (free, bound)
        )
        return first, second


def classes(title: str, X: Array, y: NDArray[Any], projection: Projection) -> Row:
    """Measure pairs of devices that each know one class."""
    rng, fleet, fresh = np.random.default_rng(SEED), Fleet(projection), {}
    for label in np.unique(y):
        rows = X[rng.permutation(np.flatnonzero(y == label))[: TRAIN + TEST]]
        fleet.add(str(label), rows[:-TEST])
        fresh[str(label)] = rows[-TEST:]
    found = []
    for one in fleet.sums:
        for other in fleet.sums:
            if one != other:
                normal = np.vstack([fresh[one], fresh[other]])
                odd = np.vstack([fresh[each] for each in fresh if each not in (one, other)])
                found.append(fleet.auc(one, [other], normal, odd))
    return _row(title, fleet, found)


def people(title: str, projection: Projection) -> Row:
    """Measure single people who walk; each adopts all others."""
    data, fleet = motion(), Fleet(projection)
    if data is None:
        sys.exit("this needs HAR: edgemerge paper data --data FOLDER --fetch har; EDGEMERGE_DATA")
    rng, tests = np.random.default_rng(SEED), {}
    for person in np.unique(data.person):
        mine = data.person == person
        rows = data.rows[rng.permutation(np.flatnonzero(mine & np.isin(data.activity, WALKING)))]
        fleet.add(str(person), rows[: len(rows) * 3 // 4])
        tests[str(person)] = (
            rows[len(rows) * 3 // 4 :],
            data.rows[mine & np.isin(data.activity, OTHER)],
        )
    found = []
    for name, (normal, odd) in tests.items():
        others = [each for each in fleet.sums if each != name]
        found.append(fleet.auc(name, others, normal, odd))
    return _row(title, fleet, found)


def _row(title: str, fleet: Fleet, found: list[tuple[float, float]]) -> Row:
    refused = {
        apart: sum(len(fleet.refused(name, apart=apart)) for name in fleet.sums)
        for apart in (True, False)
    }
    means = np.mean(found, axis=0)
    projection, count = fleet.projection, len(fleet.sums)
    return {
        "fleet": title, "activation": projection.activation, "n_hidden": projection.n_hidden,
        "checked": count * (count - 1), "refused_bank": refused[True],
        "refused_detector": refused[False], "unchecked": round(float(means[0]), 4),
        "checked_auc": round(float(means[1]), 4),
    }  # fmt: skip


def rows() -> Iterator[Row]:
    """Measure all fleets."""
    folder, data = Path(os.environ.get("EDGEMERGE_DATA", ".")), motion()
    if data is None:
        sys.exit("this needs HAR: edgemerge paper data --data FOLDER --fetch har; EDGEMERGE_DATA")
    digits = load("mnist", folder)
    for activation, sizes in SETTINGS.items():
        for N in sizes:
            settings: dict[str, Any] = {"n_hidden": N, "seed": SEED, "activation": activation}
            shared = Projection(n_inputs=data.rows.shape[1], **settings)
            yield classes("HAR pairs", data.rows, data.activity, shared)
            if N < 128:  # a person has too few rows for more
                yield people("HAR people", shared)
            shared = Projection(n_inputs=digits.X.shape[1], low=0.0, high=1.0, **settings)
            yield classes("MNIST pairs", digits.X, digits.y, shared)


def table(found: list[Row]) -> str:
    """Return the table of the page."""
    lines = [
        "| fleet | activation | N | refused | of | without checks | with checks |",
        "|---|---|---:|---|---:|---:|---:|",
    ]
    for row in found:
        refused = f"{row['refused_bank']} / {row['refused_detector']}"
        cells = [row["fleet"], row["activation"], row["n_hidden"], refused, row["checked"]]
        cells += [f"{float(row[name]):.4f}" for name in ("unchecked", "checked_auc")]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print and write."""
    found = []
    for row in rows():
        found.append(row)
        print(row, flush=True)
    print(save(found, "honest.csv"))


if __name__ == "__main__":
    main()
