"""Explanations: how often the inputs that moved are named first.

Run `python -m benchmarks.explain`; it writes docs/results/explain.csv. A learner learns normal
samples of generated sensors and machines or of people who walk. In fresh samples one, two or three
inputs, chosen at random, move by three spreads up or down. `top1` is the share of the samples in
which the input named first is one that moved; `top3` is the share of the inputs that moved which
are among the first three. `before` is the former rule: squared residuals in units of what is usual.
`ms` is the median time of one `explain`.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import fmean, median
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from benchmarks.machines import MACHINES, Machine, motion
from benchmarks.results import RESULTS, Row, save
from edgemerge import Bank, Detector, Projection

Array = NDArray[np.float64]
Draw = Callable[[int, np.random.Generator], Array]

ACTIVATIONS = ("identity", "tanh", "sigmoid", "cosine")
LEARNERS: dict[str, Callable[[Projection], Detector | Bank]] = {"detector": Detector, "bank": Bank}
N_HIDDEN = 64
LEARNT, PROBED = 2000, 60  # samples
MOVED_BY = 3.0  # spreads of the input
SEEDS = 3
FILE = "explain.csv"
WALKING = (1, 2, 3)


def linear_sensors(k: int, rng: np.random.Generator) -> Array:
    """Return twelve sensors of three causes, each with a noise of its own, (k, 12)."""
    mixing = np.random.default_rng(5).normal(0.0, 0.4, (3, 12))
    own = 0.05 * np.linspace(0.3, 2.0, 12) * rng.normal(size=(k, 12))
    return rng.normal(size=(k, 3)) @ mixing + own


def bent_sensors(k: int, rng: np.random.Generator) -> Array:
    """Return eight sensors that depend on speed and load by squares, products and waves, (k, 8)."""
    speed, load = rng.uniform(-1.0, 1.0, (2, k))
    values = [speed, load, speed**2, 0.8 * speed**3 + 0.2 * load, speed * load]
    values += [np.sin(3.0 * speed), np.abs(load), 0.5 * speed + load**2]
    return np.array(values).T + 0.03 * rng.normal(size=(k, 8))


def _healthy(machine: Machine, k: int, rng: np.random.Generator) -> Array:
    return machine.draw(k, 0.0, rng)


def streams() -> dict[str, Draw]:
    """Return what draws normal samples, by name; without HAR where it is not there."""
    found: dict[str, Draw] = {"sensors, linear": linear_sensors, "sensors, bent": bent_sensors}
    for machine in MACHINES:
        found[machine.name] = partial(_healthy, machine)
    people = motion()
    if people is not None:
        walking = people.rows[np.isin(people.activity, WALKING)]
        found["HAR, walking"] = lambda k, rng: walking[rng.permutation(len(walking))[:k]]
    return found


def hits(shares: Array, moved: NDArray[np.intp]) -> tuple[float, float]:
    """Return top1 and top3 of shares (k, n), of which the inputs (k, m) moved."""
    first = np.argsort(-shares, axis=1, kind="stable")[:, :3]
    named = (first[:, :, None] == moved[:, None, :]).any(2)
    return float(named[:, 0].mean()), float(named.sum() / moved.size)


def trial(draw: Draw, learner: str, activation: str, moved: int, seed: int) -> Row:
    """Return the hit rates of one learner."""
    rng = np.random.default_rng(seed)
    rows = draw(LEARNT + PROBED, rng)
    learnt, probes = rows[:LEARNT], rows[LEARNT:].copy()
    shared = Projection.of_data(learnt, activation=activation, n_hidden=N_HIDDEN, seed=seed)
    known = LEARNERS[learner](shared)
    known.learn(learnt)
    n = learnt.shape[1]
    which = np.array([rng.choice(n, moved, replace=False) for _ in probes])
    step = MOVED_BY * learnt.std(0)[which] * rng.choice([-1.0, 1.0], which.shape)
    np.put_along_axis(probes, which, np.take_along_axis(probes, which, 1) + step, 1)
    on_grid = shared.to_rows(probes)
    before = hits(known.residuals(on_grid, shared.project(on_grid)) ** 2, which)
    times, found = [], []
    for x in probes:
        began = perf_counter()
        found.append(known.explain(x))
        times.append(1e3 * (perf_counter() - began))
    after = hits(np.array(found), which)
    score = float(np.median(known.score(probes)))
    names = ("score", "before_top1", "before_top3", "top1", "top3", "ms")
    return dict(zip(names, (score, *before, *after, median(times)), strict=True))


def run() -> Iterator[Row]:
    """Yield a row for each stream, learner, activation and number of inputs."""
    for name, draw in streams().items():
        for learner in LEARNERS:
            for activation in ACTIVATIONS:
                for moved in (1, 2, 3):
                    each = [trial(draw, learner, activation, moved, s) for s in range(SEEDS)]
                    found = {key: float(np.mean([row[key] for row in each])) for key in each[0]}
                    settings = {"data": name, "learner": learner, "activation": activation}
                    yield settings | {"moved": moved} | {k: f"{v:.3g}" for k, v in found.items()}


def read() -> list[Row]:
    """Return the committed rows."""
    with (RESULTS / FILE).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def markdown(rows: Sequence[Row]) -> str:
    """Return means over learners and activations as a table, before and now."""

    def mean(key: str, **wanted: str) -> str:
        found = [float(r[key]) for r in rows if all(r[k] == v for k, v in wanted.items())]
        return f"{fmean(found):.2f}"

    lines = [
        "| samples | 1 moved, named first | 2 moved, in the first three | 3 moved, likewise |",
        "|---|---:|---:|---:|",
    ]
    for name in dict.fromkeys(row["data"] for row in rows):
        cells = [name]
        for moved, top in (("1", "top1"), ("2", "top3"), ("3", "top3")):
            one = {"data": name, "moved": moved}
            cells.append(f"{mean(f'before_{top}', **one)} → {mean(top, **one)}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print and save."""
    rows = []
    for row in run():
        print(*row.values(), flush=True)
        rows.append(row)
    print(f"wrote {save(rows, FILE)}")
    print(markdown(read()))


if __name__ == "__main__":
    main()
