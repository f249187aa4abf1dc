"""Run the command line in this process and write down what it called, or what it cost.

`benchmarks.layout` starts it as a program, with the source tree to be measured in PYTHONPATH. It
imports public names only, so it runs on any layout of the modules:

    traced.py calls SRC OUT edgemerge-arguments...   every call of a function below SRC
    traced.py cost OUT edgemerge-arguments...        CPU seconds of the process and its main thread
    traced.py library OUT KIND N ROWS.npy            CPU seconds of the library on the same rows
    traced.py material FOLDER                        a projection and contributions to push
"""

from __future__ import annotations

import dis
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median
from types import CodeType, FrameType
from typing import Any

INPUTS, HIDDEN, ROWS = 6, 8, 400  # of the fleet that `benchmarks.layout` follows a sample through
REVISIONS = 24
TURN = 50  # rows that each way of the library gets at a time


class Recorder:
    """Calls of functions below a folder: [start, end, file and name, begun or resumed, caller].

    Times are of the monotonic clock, which all processes of a machine share; the caller is the
    place in the same thread's list of the nearest function below the folder, -1 if there is none.
    A generator or coroutine that goes on is resumed.
    """

    def __init__(self, folder: str) -> None:
        """Prepare to record; `start` begins."""
        self._folder = os.path.join(folder, "")  # noqa: PTH118 - keeps the separator at its end
        self._codes: dict[CodeType, tuple[int, int]] = {}
        self.names: list[tuple[str, str]] = []
        self.threads: dict[str, list[list[Any]]] = {}
        self._local = threading.local()

    def start(self) -> None:
        """Record in this thread and in those that begin from now on."""
        threading.setprofile(self._event)
        sys.setprofile(self._event)

    def save(self, out: Path) -> None:
        """Stop in this thread, and write everything."""
        sys.setprofile(None)
        out.write_text(json.dumps({"names": self.names, "threads": self.threads}), "ascii")

    def _event(self, frame: FrameType, event: str, _argument: object) -> None:
        if event not in ("call", "return"):
            return
        code = frame.f_code
        known = self._codes.get(code)
        if known is None:
            known = self._codes[code] = self._known(code)
        number, begin = known
        if number < 0:
            return
        try:
            calls, stack = self._local.calls, self._local.stack
        except AttributeError:
            calls, stack = self._local.calls, self._local.stack = [], []
            thread = threading.current_thread()
            main = thread is threading.main_thread()
            self.threads["main" if main else f"{thread.name} {id(calls)}"] = calls
        if event == "call":
            parent = stack[-1] if stack else -1
            stack.append(len(calls))
            begun = frame.f_lasti == begin
            calls.append([time.monotonic_ns(), 0, number, int(begun), parent])
        elif stack:
            calls[stack.pop()][1] = time.monotonic_ns()

    def _known(self, code: CodeType) -> tuple[int, int]:
        """Return the number of a code object and where it begins; -1 if it does not count."""
        if not code.co_filename.startswith(self._folder):
            return -1, 0
        if code.co_name == "<module>":
            return -1, 0
        self.names.append((code.co_filename[len(self._folder) :], code.co_qualname))
        begin = next((i.offset for i in dis.get_instructions(code) if i.opname == "RESUME"), 0)
        return len(self.names) - 1, begin


def command(arguments: list[str]) -> int:
    """Run `edgemerge` with these arguments; give its exit code."""
    from edgemerge.cli import main  # noqa: PLC0415 - recording has to begin before

    try:
        main(arguments, standalone_mode=False)
    except SystemExit as left:
        return int(left.code or 0)
    return 0


def calls(folder: str, out: str, *arguments: str) -> int:
    """Run a command and write down what it called."""
    recorder = Recorder(folder)
    recorder.start()
    try:
        return command(list(arguments))
    finally:
        recorder.save(Path(out))


def cost(out: str, *arguments: str) -> int:
    """Run a command and write down what it cost."""
    code = command(list(arguments))
    spent = {"process": time.process_time(), "main": time.thread_time()}
    Path(out).write_text(json.dumps(spent), "ascii")
    return code


def library(out: str, kind: str, hidden: str, rows: str) -> int:
    """Return the cost of learning rows one by one, in ways that end with the same sums."""
    import numpy as np  # noqa: PLC0415 - the other jobs need none

    import edgemerge  # noqa: PLC0415

    X = np.load(rows)
    shared = edgemerge.Projection(n_inputs=X.shape[1], n_hidden=int(hidden))

    bank, (one, two) = edgemerge.Bank(shared), (edgemerge.Detector(shared) for _ in range(2))

    def twice(x: Any) -> None:
        two.score(x)
        two.learn_and_score(x)

    def in_bank(x: Any) -> None:
        bank.score(x)
        bank.learn(x)

    ways: dict[str, Callable[[Any], object]]
    if kind == "bank":
        ways = {"score, then learn": in_bank, "score": bank.score}
    else:
        ways = {
            "learn_and_score": one.learn_and_score,
            "score, then learn_and_score": twice,
            "score": two.score,
        }
    spent: dict[str, list[float]] = {way: [] for way in ways}
    for first in range(0, len(X), TURN):
        for way, do in ways.items():
            start = time.process_time()
            for x in X[first : first + TURN]:
                do(x)
            spent[way].append((time.process_time() - start) / len(X[first : first + TURN]))
    # a bank learns in blocks, so only the mean over all has its due share of them
    middle = mean if kind == "bank" else median
    found = {way: middle(times) for way, times in spent.items()}
    Path(out).write_text(json.dumps(found), "ascii")
    return 0


def material(folder: str) -> int:
    """Write a projection, and contributions of device b: one for each revision, each larger."""
    import numpy as np  # noqa: PLC0415

    import edgemerge  # noqa: PLC0415

    place = Path(folder)
    shared = edgemerge.Projection(n_inputs=INPUTS, n_hidden=HIDDEN, seed=7)
    edgemerge.save(shared, place / "projection")
    rng = np.random.default_rng(7)
    X = 0.2 + rng.normal(size=(ROWS + REVISIONS, 2)) @ rng.normal(0.0, 0.1, (2, INPUTS))
    X += rng.normal(0.0, 0.01, X.shape)
    np.savetxt(place / "rows.csv", X[:ROWS], "%.6f", ",")
    for revision in range(1, REVISIONS + 1):
        stats = edgemerge.Stats.of(shared, X[: ROWS + revision])
        data = edgemerge.encode(edgemerge.Contribution("b", stats, revision))
        (place / f"b-{revision}").write_bytes(data)
    return 0


if __name__ == "__main__":
    jobs: dict[str, Callable[..., int]] = {
        "calls": calls,
        "cost": cost,
        "library": library,
        "material": material,
    }
    sys.exit(jobs[sys.argv[1]](*sys.argv[2:]))
