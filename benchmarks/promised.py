"""Is the promised rate of false alarms kept? Asked 1 % and 5 %, measured on fresh normal rows.

Every set with at least 1 000 rows is normal as a whole, and so is every class with as many. Half of
the rows are learnt, the others are tested. If the scores were exchangeable, the number of alarms
would follow a beta-binomial distribution: `low` to `high` is its 95 % interval.

Run `python -m benchmarks.promised`; it writes docs/results/promised.csv and prints a table.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from river import preprocessing
from scipy.stats import betabinom

from benchmarks.data import sources
from benchmarks.results import Row, save
from edgemerge.core.limit import Calibration
from edgemerge.river import OSELMDetector as RiverDetector
from edgemerge.river import PromisedFilter
from edgemerge.sklearn import OSELMDetector

Array = NDArray[np.float64]

ASKED = (0.01, 0.05)
MIN_NORMALS = 1000
PIECES = 10  # calls of `partial_fit`
MOST_INPUTS = 32  # for River, which takes one sample at a time


class Normals(NamedTuple):
    """Rows (k, n) that are all normal."""

    source: str
    name: str
    rows: Array


class Tested(NamedTuple):
    """Counted scores of one detector, and the scores of fresh rows."""

    method: str
    counts: Calibration
    fresh: Array


def normals(*, quick: bool = False) -> Iterator[Normals]:
    """Yield every set, and every class of a set, that has enough rows."""
    for source, X, y in sources(quick=quick):
        if len(X) >= MIN_NORMALS:
            yield Normals(source, "all", X)
        for name in np.unique(y):
            if np.count_nonzero(y == name) >= MIN_NORMALS and not quick:
                yield Normals(source, str(name), X[y == name])


def detectors(train: Array, test: Array) -> Iterator[Tested]:
    """Learn rows in three ways, and score others."""
    fitted = OSELMDetector().fit(train)
    yield Tested("fit", fitted.calibration_, -fitted.score_samples(test))
    pieces = OSELMDetector()
    for part in np.array_split(train, PIECES):
        pieces.partial_fit(part)
    yield Tested("partial_fit", pieces.calibration_, -pieces.score_samples(test))
    if train.shape[1] <= MOST_INPUTS:
        scale = preprocessing.StandardScaler()
        alarm = PromisedFilter(RiverDetector())
        for x in map(_named, train):
            scale.learn_one(x)
            alarm.learn_one(scale.transform_one(x))
        fresh = [alarm.score_one(scale.transform_one(_named(x))) for x in test]
        yield Tested("River", alarm.calibration, np.array(fresh))


def run(seeds: Sequence[int] = tuple(range(10)), *, quick: bool = False) -> list[Row]:
    """Measure every set, once for each seed."""
    rows = []
    for each in normals(quick=quick):
        for seed in seeds:
            mixed = np.random.default_rng(seed).permutation(each.rows)
            train, test = np.array_split(mixed, 2)
            for tested in detectors(train, test):
                about = {"source": each.source, "normal": each.name, "seed": seed}
                rows += [about | _kept(tested, rate) for rate in ASKED]
    return rows


def _kept(tested: Tested, rate: float) -> Row:
    counted = (tested.counts.older + tested.counts.newer).samples
    size = len(tested.fresh)
    alarms = int(np.count_nonzero(tested.fresh > tested.counts.limit(rate)))
    above = rate * (counted + 1)
    low, high = betabinom(size, above, counted + 1 - above).ppf([0.025, 0.975])
    return {
        "method": tested.method,
        "asked": rate,
        "counted": counted,
        "tested": size,
        "observed": round(alarms / size, 5),
        "low": round(low / size, 5),
        "high": round(high / size, 5),
        "inside": int(low <= alarms <= high),
    }


def _named(row: Array) -> dict[int, float]:
    return dict(enumerate(row.tolist()))


def table(rows: Sequence[Row]) -> str:
    """Show for each set and method the mean rate, and in how many cases it was inside."""
    columns = [(method, rate) for method in ("fit", "partial_fit", "River") for rate in ASKED]
    lines = ["| data | " + " | ".join(f"{m}, {rate:.0%}" for m, rate in columns) + " |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    for source in [*dict.fromkeys(row["source"] for row in rows), "all"]:
        cells = []
        for method, rate in columns:
            found = [row for row in rows if source in (row["source"], "all")]
            found = [row for row in found if (row["method"], row["asked"]) == (method, rate)]
            inside = sum(row["inside"] for row in found)
            mean = np.mean([row["observed"] for row in found]) if found else 0.0
            cells.append(f"{mean:.2%}, {inside} of {len(found)}" if found else "")
        lines.append(f"| {source} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    quick = "--quick" in sys.argv
    measured = run((0,) if quick else tuple(range(10)), quick=quick)
    print(save(measured, "promised.csv"))
    print(table(measured))
