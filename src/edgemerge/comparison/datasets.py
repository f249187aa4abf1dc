"""Fleets of the comparison: the data sets at hand, who learns what, and what is told apart.

Settings are chosen on one half of a data set and reported on the other: of HAR by person, of MNIST
and digits by digit, of the tabular sets by name, of the generated machines by operating point.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets as sklearn
from sklearn.cluster import KMeans

from edgemerge.demo import data as pumps
from edgemerge.paper.dataset import (
    ANOMALY_RATIO,
    Array,
    Dataset,
    Ints,
    Split,
    split_by_person,
    split_by_sample,
)
from edgemerge.paper.plan import Scope

CHOOSE, REPORT, FULL = "choose", "report", "full"  # the halves, and both together

BUNDLED = ("iris", "wine", "breast_cancer", "digits")  # with scikit-learn
STREAMED = ("Bananas", "Phishing", "ImageSegments")  # with River
TABULAR = tuple(sorted((name for name in (*BUNDLED, *STREAMED) if name != "digits"), key=str.lower))
DIGITS, MACHINES, HAR, MNIST = "digits", "machines", "har", "mnist"
PERSONS = {CHOOSE: range(1, 16), REPORT: range(16, 31), FULL: range(1, 31)}
CLASSES = {CHOOSE: range(5), REPORT: range(5, 10), FULL: range(10)}
SPEEDS_HZ = {CHOOSE: (15.0, 20.0, 35.0), REPORT: (12.5, 25.0, 41.7)}
FAULT_SHARE = 0.15  # of the demo's faults, which are plain to see
MACHINE_ROWS = 700  # windows of each operating point and of each fault

NORMAL_PATTERNS = 3  # that a fleet learns
MOST_LEARNT = 300  # rows of a pattern, before some are held back
MOST_TESTED = 100  # normal rows of a pattern, and twice as many anomalies
MOST_PAIR_ROWS = 1000  # rows of a pattern in the exam of pairs, learnt and tested
HELD_BACK = 0.2  # of what a device has, to set its limit
PAIR_HELD_BACK = 0.1  # likewise, in the exam of pairs, where a device has more rows
MIN_DEVICE_ROWS = 10
SIZES = f"{MOST_LEARNT}/{MOST_TESTED}/{MOST_PAIR_ROWS}, {HELD_BACK}/{PAIR_HELD_BACK}, {FAULT_SHARE}"


def bundled_set(name: str) -> tuple[Array, NDArray[Any]]:
    """Return rows and classes of a set that comes with scikit-learn or with River."""
    if name in BUNDLED:
        X, y = getattr(sklearn, f"load_{name}")(return_X_y=True)
        return np.asarray(X, dtype=np.float64), np.asarray(y)
    from river import datasets as river  # noqa: PLC0415 (only these sets need it)

    rows = list(getattr(river, name)())
    X = np.array([list(x.values()) for x, _ in rows], dtype=np.float64)
    return X, np.array([str(y) for _, y in rows])


def set_names(scope: Scope) -> list[str]:
    """Return the data sets at hand; those of the paper need files, some tabular ones River."""
    paper = [name for name in (HAR, MNIST) if scope.has(name)]
    river = set() if find_spec("river") else set(STREAMED)
    return [*paper, DIGITS, MACHINES, *(name for name in TABULAR if name not in river)]


def halves_of(name: str) -> tuple[str, ...]:
    """Return the halves that a data set has: a tabular set is in one, all others have both."""
    if name not in TABULAR:
        return CHOOSE, REPORT
    return (CHOOSE if TABULAR.index(name) < len(TABULAR) // 2 else REPORT,)


@lru_cache(maxsize=2)  # MNIST takes a second and half a gigabyte
def load_half(name: str, half: str, scope: Scope) -> Dataset:
    """Return one half of a data set, or all of it, with inputs between about 0 and 1."""
    if name == MACHINES:
        return _machines(half, scope.seed, MACHINE_ROWS // (4 if scope.quick else 1))
    whole = scope.dataset(name) if name in (HAR, MNIST) else _bundled(name)
    unit = replace(whole, X=whole.between_0_and_1(np.arange(len(whole.X))), low=0.0, high=1.0)
    if name == HAR:
        return _kept(unit, np.isin(unit.origin, PERSONS[half]), unit.patterns)
    if name in (MNIST, DIGITS):
        names = [unit.patterns[i] for i in CLASSES[half]]
        return _kept(unit, np.isin(unit.y, CLASSES[half]), names)
    return unit


def _kept(data: Dataset, kept: NDArray[np.bool_], names: Sequence[str]) -> Dataset:
    y = np.array([names.index(data.patterns[i]) for i in data.y[kept]], dtype=np.intp)
    patterns = tuple(names)
    return replace(data, X=data.X[kept], y=y, patterns=patterns, origin=data.origin[kept])


@lru_cache(maxsize=8)
def _bundled(name: str) -> Dataset:
    X, classes = bundled_set(name)
    names, y = np.unique(classes, return_inverse=True)
    if name == DIGITS:
        X = X / 16.0
    return Dataset(name, X, y.astype(np.intp), tuple(map(str, names)), np.zeros(len(X), np.intp))


@lru_cache(maxsize=2)
def _machines(half: str, seed: int, count: int) -> Dataset:
    """Return spectra of pumps at three speeds, and with two weak faults at the same speeds."""
    if half == FULL:
        one, two = (_machines(each, seed, count) for each in (CHOOSE, REPORT))
        X, y = np.vstack([one.X, two.X]), np.concatenate([one.y, two.y])
        return replace(one, X=X, y=y, origin=np.zeros(len(X), np.intp))
    rng = np.random.default_rng([seed, len(half)])
    points = [pumps.Pattern("run", speed, rng.uniform(0.2, 0.9)) for speed in SPEEDS_HZ[half]]
    bearing = replace(pumps.BEARING, impact=FAULT_SHARE * pumps.BEARING.impact)
    loose = replace(
        pumps.LOOSENESS,
        lines={order: FAULT_SHARE * g for order, g in pumps.LOOSENESS.lines.items()},
    )
    rows = [pumps.spectra(point, count, rng) for point in points]
    rows += [
        np.vstack([pumps.spectra(point, count // len(points), rng, fault) for point in points])
        for fault in (bearing, loose)
    ]
    y = np.repeat(np.arange(len(rows)), [len(each) for each in rows])
    X = (np.vstack(rows) - pumps.LOW_DB) / (pumps.HIGH_DB - pumps.LOW_DB)
    names = (*(f"{speed:g} Hz" for speed in SPEEDS_HZ[half]), bearing.name, loose.name)
    return Dataset(MACHINES, X, y.astype(np.intp), names, np.zeros(len(X), np.intp))


@dataclass(frozen=True)
class Cell:
    """A kind of fleet: how many devices, how their patterns are mixed, and how much is dirt.

    `mix` is the share of rows that go to any device; the others go to the device of their pattern.
    `dirt` is the share of anomalies in what each device learns.
    """

    devices: int
    mix: float = 0.0
    dirt: float = 0.0

    def __str__(self) -> str:
        """Return the cell as text, for the name of its job."""
        return f"{self.devices} devices, mix {self.mix:g}, dirt {self.dirt:g}"


@dataclass(frozen=True, eq=False)
class Fleet:
    """What the devices have, and an evaluation set.

    `learnt` and `held_back` have one array (k, n) for each device; anomalies are only in the
    first. `odd` (k,) says which rows of `test` are anomalies.
    """

    name: str
    learnt: tuple[Array, ...]
    held_back: tuple[Array, ...]
    test: Array
    odd: NDArray[np.bool_]

    @property
    def rows(self) -> Array:
        """All rows to learn, in one place."""
        return np.vstack(self.learnt)


def draw_fleet(data: Dataset, cell: Cell, rng: np.random.Generator) -> Fleet | None:
    """Draw a fleet; None if a device would have fewer than ten rows.

    Some patterns are normal and all others odd. Of HAR, whole people are held out; of the others a
    fifth of the rows.
    """
    data, normal = _with_patterns(data, rng)
    split = (split_by_person if data.name == HAR else split_by_sample)(data, rng)
    learnt = [split.learn[i][:MOST_LEARNT] for i in normal]
    home = _homes([len(rows) for rows in learnt], cell, rng)
    if np.bincount(home, minlength=cell.devices).min() < MIN_DEVICE_ROWS:
        return None
    kept = np.concatenate([split.keep[i][:MOST_TESTED] for i in normal])
    others = [i for i in range(len(data.patterns)) if i not in normal]
    odd = rng.permutation(np.concatenate([split.keep[i] for i in others]))[: 2 * MOST_TESTED]
    rows = np.concatenate(learnt)
    clean = _fleet(data, [rows[home == i] for i in range(cell.devices)], (kept, odd), rng)
    dirt = rng.permutation(np.concatenate([split.learn[i] for i in others]))
    return _dirty(clean, data.X[dirt], cell.dirt, rng) if cell.dirt else clean


def draw_pairs(
    data: Dataset, split: Split, pairs: Sequence[tuple[int, int]], rng: np.random.Generator
) -> Iterator[Fleet]:
    """Draw the fleets of the paper's exam: two devices learn a pattern each.

    What was held out of both is normal in the evaluation set, with a tenth as many samples of all
    other patterns.
    """
    for pair in pairs:
        kept = np.concatenate([split.keep[i] for i in pair])
        others = [rows for i, rows in enumerate(split.keep) if i not in pair]
        most = max(1, round(ANOMALY_RATIO * len(kept)))
        odd = rng.permutation(np.concatenate(others))[:most]
        learnt = [split.learn[i] for i in pair]
        yield _fleet(data, learnt, (kept, odd), rng, PAIR_HELD_BACK)


def _with_patterns(data: Dataset, rng: np.random.Generator) -> tuple[Dataset, list[int]]:
    """Return the data with the patterns that will be normal.

    A tabular set has one class as normal: its clusters are the patterns, and the range of its
    rows is the unit of the inputs.
    """
    if data.name == MACHINES:
        return data, list(range(NORMAL_PATTERNS))
    if data.name not in TABULAR:
        chosen = rng.permutation(len(data.patterns))[:NORMAL_PATTERNS]
        return data, sorted(chosen.tolist())
    normal = int(rng.integers(len(data.patterns)))
    own = data.y == normal
    low, high = data.X[own].min(0), data.X[own].max(0)
    X = (data.X - low) / np.where(high > low, high - low, 1.0)
    clusters = KMeans(NORMAL_PATTERNS, n_init=1, random_state=0).fit_predict(X[own])
    y = data.y + NORMAL_PATTERNS
    y[own] = clusters
    names = (*(f"part {i}" for i in range(NORMAL_PATTERNS)), *data.patterns)
    kept = np.flatnonzero(np.bincount(y, minlength=len(names)))
    y = np.searchsorted(kept, y)
    return replace(data, X=X, y=y, patterns=tuple(names[i] for i in kept)), [0, 1, 2]


def _homes(counts: Sequence[int], cell: Cell, rng: np.random.Generator) -> Ints:
    """Return the device of each row; `counts` are the rows of each pattern."""
    found = []
    for pattern, count in enumerate(counts):
        own = np.arange(pattern % cell.devices, cell.devices, len(counts))
        home = own[rng.permutation(count) % len(own)]
        anywhere = rng.integers(cell.devices, size=count)
        found.append(np.where(rng.random(count) < cell.mix, anywhere, home))
    return np.concatenate(found)


def _fleet(
    data: Dataset,
    shares: Sequence[Ints],
    test: tuple[Ints, Ints],
    rng: np.random.Generator,
    held_back: float = HELD_BACK,
) -> Fleet:
    shuffled = [rng.permutation(rows) for rows in shares]
    cuts = [round(held_back * len(rows)) for rows in shuffled]
    return Fleet(
        data.name,
        tuple(data.X[rows[cut:]] for rows, cut in zip(shuffled, cuts, strict=True)),
        tuple(data.X[rows[:cut]] for rows, cut in zip(shuffled, cuts, strict=True)),
        data.X[np.concatenate(test)],
        np.repeat([False, True], [len(rows) for rows in test]),
    )


def _dirty(fleet: Fleet, dirt: Array, share: float, rng: np.random.Generator) -> Fleet:
    """Add anomalies to what each device learns; too few of them are used again."""
    found, start = [], 0
    for rows in fleet.learnt:
        count = round(len(rows) * share / (1.0 - share))
        more = dirt[np.arange(start, start + count) % len(dirt)]
        found.append(rng.permutation(np.vstack([rows, more])))
        start += count
    return replace(fleet, learnt=tuple(found))
