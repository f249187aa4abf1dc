"""What a sample costs an agent, from a CSV row to a result in a file, with the kernel and without.

Run `python -m benchmarks.agent`; it writes docs/results/agent.csv and prints a table, in about two
minutes. Real programs read a long and a short file; the difference of their CPU times, of all
threads, is that of the samples. Of each file and way the best of some runs, in turn. The shares of
the profile are of the main thread with the kernel, without what functions of other modules take
that they call; a profiler makes many small calls seem to take longer than they do.

With `--before FOLDER` an older edgemerge is measured in the same run, such as
`mkdir old && git archive 80453b9 src | tar x -C old`.
"""

from __future__ import annotations

import os
import pstats
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from collections import Counter
from itertools import product
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

import numpy as np

from benchmarks.results import Row, save
from edgemerge.kernel import OFF, REQUIRED, SWITCH

SIZES = {(16, 16): 9_000, (64, 32): 9_000, (561, 64): 4_000}  # n, N: rows
FEW_ROWS = 1_000
RUNS = 4
WAYS = {"kernel": {SWITCH: REQUIRED}, "NumPy": {SWITCH: OFF}}  # and what sets them
SHOWN = 8  # modules in a profile


def run(before: Path | None = None) -> list[Row]:
    """Measure every size in each way, and profile the kernel's once; `before` has an old src."""
    rows: list[Row] = []
    ways = WAYS | ({} if before is None else {"before": {"PYTHONPATH": str(before / "src")}})
    with tempfile.TemporaryDirectory() as scratch:
        for (n, hidden), many in SIZES.items():
            folder = Path(scratch) / f"{n}-{hidden}"
            folder.mkdir()
            _write(folder, n, hidden, many)
            best: dict[tuple[str, str], float] = {}
            for _, way, name in product(range(RUNS), ways, ("few", "many")):
                seconds = _cpu_s(folder, name, ways[way])
                best[way, name] = min(best.get((way, name), seconds), seconds)
            for way in ways:
                seconds = (best[way, "many"] - best[way, "few"]) / (many - FEW_ROWS)
                size = {"inputs": n, "hidden": hidden, "way": way}
                rows.append(size | {"part": "all", "value": round(1e6 * seconds, 1), "unit": "µs"})
                rows.append(
                    size | {"part": "all", "value": round(1.0 / seconds), "unit": "samples/s"}
                )
            size = {"inputs": n, "hidden": hidden, "way": "kernel"}
            rows += [size | each for each in _profile(folder, ways["kernel"])]
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


def _agent(folder: Path, name: str, way: dict[str, str], *options: str) -> None:
    for each in (*folder.glob("state/*"), folder / "out.jsonl"):
        each.unlink(missing_ok=True)
    words = [sys.executable, *options, "-m", "edgemerge", "agent", f"{name}.toml"]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"} | way
    subprocess.run(words, cwd=folder, env=environment, check=True, capture_output=True)


def _cpu_s(folder: Path, name: str, way: dict[str, str]) -> float:
    before = getrusage(RUSAGE_CHILDREN)
    _agent(folder, name, way)
    after = getrusage(RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _profile(folder: Path, way: dict[str, str]) -> list[Row]:
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
    parser = ArgumentParser(description="What a sample costs an agent; see the module's docstring.")
    parser.add_argument("--before", type=Path, help="a folder with the src of an older edgemerge")
    given = parser.parse_args().before
    measured = run(given and given.resolve())
    print(save(measured, "agent.csv"))
    for row in measured:
        print("{inputs}/{hidden}\t{way}\t{part}\t{value} {unit}".format(**row))
