"""How often rules about sample counts make honest devices wait: `python -m benchmarks.counts`.

Fleets are drawn: when each device became a member, and how fast it samples (log-normal, within a
factor of 7 for 95 of 100 devices). No sums are needed. Each row is one kind of fleet, one size and
one rule: in which part of 1 000 fleets some honest device would have to wait, and in which part a
device that claims so many times its samples would.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.results import Row, save
from edgemerge.core.trust import find_far_above, medians_exceeded

HOUR, DAY, YEAR = 3600.0, 86400.0, 3.2e7
FLEETS, SIZES, CLAIMS = 1000, (4, 10, 30, 100), (1e3, 1e5)
SHARE, SHARE_DEVICES = 0.9, 4

Ages = Callable[[np.random.Generator, int], np.ndarray]
Numbers = dict[str, float]

KINDS: dict[str, Ages] = {
    "all joined within a day": lambda rng, n: rng.uniform(HOUR, DAY, n),
    "grown over two years": lambda rng, n: rng.uniform(HOUR, 2 * YEAR, n),
    "one of a year, others of an hour": lambda _rng, n: np.array([YEAR] + [HOUR] * (n - 1)),
    "one of an hour, others of a year": lambda _rng, n: np.array([HOUR] + [YEAR] * (n - 1)),
}


def by_count(samples: Numbers, _spans: Numbers) -> set[str]:
    """Wait with more than 100 times the median count of the others."""
    return set(medians_exceeded(samples))


def by_share(samples: Numbers, _spans: Numbers) -> set[str]:
    """Wait with more than 90 % of all samples, of at least four devices."""
    total = sum(samples.values())
    if len(samples) < SHARE_DEVICES:
        return set()
    return {name for name, count in samples.items() if count > SHARE * total}


def by_count_and_rate(samples: Numbers, spans: Numbers) -> set[str]:
    """Wait as the product does."""
    return set(find_far_above(samples, lambda: spans))


RULES = {
    "count > 100 × median": by_count,
    "share > 90 %": by_share,
    "count and rate > 100 × median": by_count_and_rate,
}


def run() -> list[Row]:
    """Draw the fleets and apply each rule."""
    rows: list[Row] = []
    for kind, ages in KINDS.items():
        for size in SIZES:
            rng = np.random.default_rng(size)
            drawn = [_fleet(rng, ages, size) for _ in range(FLEETS)]
            for rule, waits in RULES.items():
                row: Row = {"fleet": kind, "devices": size, "rule": rule}
                row["honest"] = float(np.mean([bool(waits(*fleet)) for fleet in drawn]))
                for claim in CLAIMS:
                    row[f"claim {claim:g}"] = np.mean(
                        ["1" in waits(*_claiming(fleet, claim)) for fleet in drawn]
                    )
                rows.append(row)
    return rows


def _fleet(rng: np.random.Generator, ages: Ages, size: int) -> tuple[Numbers, Numbers]:
    spans = ages(rng, size)
    samples = np.maximum(np.rint(spans * np.exp(rng.normal(0.0, 1.0, size))), 1.0)
    names = list(map(str, range(size)))
    return dict(zip(names, samples, strict=True)), dict(zip(names, spans, strict=True))


def _claiming(fleet: tuple[Numbers, Numbers], times: float) -> tuple[Numbers, Numbers]:
    samples, spans = fleet
    return {**samples, "1": times * samples["1"]}, spans


def main() -> None:
    """Print and write the rows."""
    rows = run()
    for row in rows:
        print(row)
    print(save(rows, "counts.csv"))


if __name__ == "__main__":
    main()
