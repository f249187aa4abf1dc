"""False alarms and faults with one to four inputs, as an agent has them after `edgemerge init`.

Each stream has 8 640 samples: a day with one every ten seconds, of which `init` sees the first
6 000. "up to 6" is the first limit as it is with four inputs and more; see decision 0058.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.results import Row, save
from edgemerge import Bank, Monitor
from edgemerge.agent.proposal import choose_columns, inspect_bytes, propose
from edgemerge.core import limit

Array = NDArray[np.float64]
SAMPLES, SEEN, FAULT = 8640, 6000, slice(7500, 7560)
HIDDEN = (16, 64)
SEEDS = tuple(range(10, 15))  # others than those on which the rule was chosen
SHIFTS = (0.0, 2.0, 4.0)  # of the first input, in standard deviations


def gaussian(n: int, rng: np.random.Generator) -> Array:
    """Return independent inputs with one decimal."""
    return np.round(rng.normal(size=(SAMPLES, n)), 1)


def cycle(n: int, rng: np.random.Generator) -> Array:
    """Return inputs that follow a cycle, with noise."""
    phase = np.arange(SAMPLES)[:, None] / 50.0 + np.arange(n)
    return np.round(np.sin(phase) + 0.1 * rng.normal(size=(SAMPLES, n)), 2)


def curve(n: int, rng: np.random.Generator) -> Array:
    """Return inputs that are powers of one cause, with noise."""
    cause = rng.normal(size=(SAMPLES, 1))
    return np.round(cause ** np.arange(1, n + 1) + 0.05 * rng.normal(size=(SAMPLES, n)), 2)


STREAMS: dict[str, tuple[Callable[[int, np.random.Generator], Array], tuple[int, ...]]] = {
    "independent": (gaussian, (1, 2, 3, 4)),
    "cycle": (cycle, (1, 2, 3, 4)),
    "curve": (curve, (2, 3)),
}


def run(name: str, n: int, hidden: int, shift: float, seed: int) -> Row:
    """Watch one stream; count false episodes, and how much of the fault is in alarm."""
    X = STREAMS[name][0](n, np.random.default_rng(seed))
    text = "\n".join([",".join(f"input{i}" for i in range(n)), *(",".join(map(str, x)) for x in X)])
    seen = inspect_bytes("\n".join(text.split("\n")[: SEEN + 1]).encode())
    made = propose(Path("pump.csv"), seen, choose_columns(seen, []), device="pump", n_hidden=hidden)
    X[FAULT, 0] += shift * X[:, 0].std()
    monitor = Monitor(Bank(made.projection), commissioning=int(made.commissioning))
    alarm = np.array([monitor.take(x, 10.0 * i).alarm for i, x in enumerate(X)])
    fault = alarm[FAULT].mean() if shift else ""
    if shift:
        alarm[FAULT.start : FAULT.stop + 10] = False
    begins = np.count_nonzero(alarm[1:] & ~alarm[:-1])
    return {
        "stream": name, "inputs": n, "hidden": hidden, "shift": shift, "seed": seed,
        "limit": round(monitor.limit.value, 2), "false_episodes": begins,
        "in_alarm": fault if fault == "" else round(float(fault), 3),
    }  # fmt: skip


def rows(*, quick: bool = False) -> list[Row]:
    """Return all rows, with the rule for few inputs and without it."""
    found = []
    rule = dict(limit.MAX_WITH_FEW_INPUTS)
    for name, (_, inputs) in STREAMS.items():
        for first_limit, table in (("up to 6", {}), ("as it is", rule)):
            limit.MAX_WITH_FEW_INPUTS.clear()
            limit.MAX_WITH_FEW_INPUTS.update(table)
            found += [
                {"first_limit": first_limit} | run(name, n, hidden, shift, seed)
                for n in (inputs[:1] if quick else inputs)
                for hidden in (HIDDEN[:1] if quick else HIDDEN)
                for shift in (SHIFTS[-1:] if quick else SHIFTS)
                for seed in (SEEDS[:1] if quick else SEEDS)
            ]
    return found


def markdown(found: list[Row]) -> str:
    """Return the table of the page: means over streams, hidden values and seeds."""
    lines = ["| inputs | first limit | false alarms a day | fault of 2 sd in alarm | of 4 sd |"]
    lines.append("|---:|---|---:|---:|---:|")
    for n in sorted({int(row["inputs"]) for row in found}):
        for first_limit in ("up to 6", "as it is"):
            mine = [r for r in found if (int(r["inputs"]), r["first_limit"]) == (n, first_limit)]
            calm = [float(r["false_episodes"]) for r in mine if not float(r["shift"])]
            hits = [
                np.mean([float(r["in_alarm"]) for r in mine if float(r["shift"]) == shift])
                for shift in SHIFTS[1:]
            ]
            words = " | ".join(f"{hit:.2f}" for hit in hits)
            lines.append(f"| {n} | {first_limit} | {np.mean(calm):.1f} | {words} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.few_inputs", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one run of each stream; write none")
    found = rows(quick=(quick := parser.parse_args().quick))
    print(markdown(found))
    if not quick:
        print(f"wrote {save(found, 'few_inputs.csv')}")


if __name__ == "__main__":
    main()
