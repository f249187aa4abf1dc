"""What a sample costs an agent, from a CSV row to a result in a file, with the kernel and without.

Run `python -m benchmarks.agent`; it writes docs/results/agent.csv and prints a table. Real programs
read a long and a short file; the difference of their CPU times, of all threads, is that of the
samples. Of each the best of some runs, in turn. The shares of the profile are of the main thread,
without what functions of other modules take that they call; a profiler makes many small calls seem
to take longer than they do.
"""

from __future__ import annotations

import os
import pstats
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

import numpy as np

from benchmarks.results import Row, save

SIZES = {(16, 16): 12_000, (64, 32): 12_000, (561, 64): 5_000}  # n, N: rows
FEW_ROWS = 2_000
RUNS = 3
WAYS = {"kernel": "required", "NumPy": "off"}
SHOWN = 8  # modules in a profile


def run() -> list[Row]:
    """Measure every size in both ways, and profile each once."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        for (n, hidden), many in SIZES.items():
            folder = Path(scratch) / f"{n}-{hidden}"
            folder.mkdir()
            _write(folder, n, hidden, many)
            best: dict[str, float] = {}
            for _ in range(RUNS):
                for way in WAYS:
                    few, all_rows = (_cpu_s(folder, name, way) for name in ("few", "many"))
                    cost = (all_rows - few) / (many - FEW_ROWS)
                    best[way] = min(best.get(way, cost), cost)
            for way, seconds in best.items():
                size = {"inputs": n, "hidden": hidden, "way": way}
                rows.append(size | {"part": "all", "value": round(1e6 * seconds, 1), "unit": "µs"})
                rows.append(
                    size | {"part": "all", "value": round(1.0 / seconds), "unit": "samples/s"}
                )
                rows += [size | each for each in _profile(folder, way)]
    return rows


def _write(folder: Path, n: int, hidden: int, many: int) -> None:
    rng = np.random.default_rng(n)
    X = 0.2 * rng.normal(size=(many, 4)) @ rng.normal(0.0, 0.5, (4, n))
    X = np.round(X + rng.normal(0.0, 0.02, X.shape), 5)
    for name, count in (("few", FEW_ROWS), ("many", many)):
        np.savetxt(folder / f"{name}.csv", X[:count], "%.5f", ",")
        (folder / f"{name}.toml").write_text(
            f'device = "a"\nstate = "state"\n[projection]\nn_inputs = {n}\nn_hidden = {hidden}\n'
            f'[source]\nkind = "csv"\npath = "{name}.csv"\nheader = false\n'
            '[learner]\nkind = "detector"\n[[sinks]]\nkind = "jsonl"\npath = "out.jsonl"\n',
            "ascii",
        )


def _agent(folder: Path, name: str, way: str, *options: str) -> None:
    for each in (*folder.glob("state/*"), folder / "out.jsonl"):
        each.unlink(missing_ok=True)
    words = [sys.executable, *options, "-m", "edgemerge", "agent", f"{name}.toml"]
    environment = os.environ | {"EDGEMERGE_KERNEL": WAYS[way], "OPENBLAS_NUM_THREADS": "1"}
    subprocess.run(words, cwd=folder, env=environment, check=True, capture_output=True)


def _cpu_s(folder: Path, name: str, way: str) -> float:
    before = getrusage(RUSAGE_CHILDREN)
    _agent(folder, name, way)
    after = getrusage(RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _profile(folder: Path, way: str) -> list[Row]:
    """Return the largest shares of the time of the main thread, by module."""
    spent: Counter[str] = Counter()
    for name, sign in (("many", 1), ("few", -1)):
        _agent(folder, name, way, "-m", "cProfile", "-o", f"{name}.prof")
        stats = pstats.Stats(str(folder / f"{name}.prof")).stats  # type: ignore[attr-defined]
        for (file, _, function), (_, _, own, _, _) in stats.items():
            spent[_module(file, function)] += sign * own
    whole = sum(spent.values())
    return [
        {"part": part, "value": round(100.0 * seconds / whole, 1), "unit": "%"}
        for part, seconds in spent.most_common(SHOWN)
    ]


def _module(file: str, function: str) -> str:
    if "edgemerge/" in file:
        return file.rpartition("edgemerge/")[2].removesuffix(".py")
    if "acquire" in function or "wait" in function:
        return "waiting for the next row"
    return "kernel" if "Run" in function else "NumPy, SciPy and Python"


if __name__ == "__main__":
    measured = run()
    print(save(measured, "agent.csv"))
    for row in measured:
        print("{inputs}/{hidden}\t{way}\t{part}\t{value} {unit}".format(**row))
