"""Several devices in one agent: does it keep up at 10 Hz, how fast can it be, how much memory.

Run `python -m benchmarks.gateway`; it writes docs/results/gateway.csv. `edgemerge agent` runs as a
program with 1, 10 and 50 devices, pinned to one core. First every device has a file of readings,
and the program reads all of them as fast as it can. Then a row is added to each file ten times a
second, as a gateway would, and the delay from writing a row to its result is measured. A row is a
sample of eight process values; each device is a bank of up to eight patterns with 64 hidden values,
with a monitor, a state that is saved every 10 s, and a file of results. One file for all devices,
with a column that names the device, is measured too.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, sleep, time

for threads in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[threads] = "1"  # read when numpy is first imported

import numpy as np  # noqa: E402  # after the threads are set, like all below
from numpy.typing import NDArray  # noqa: E402

from benchmarks.machines import MACHINES  # noqa: E402
from benchmarks.results import Row, save  # noqa: E402

Array = NDArray[np.float64]
DEVICES = (1, 10, 50)
RATE_HZ = 10.0  # rows a second of each device
SECONDS = 60.0  # of live rows
FIRST = 1500  # rows of each device before: commissioning ends within them
EACH = 3000  # rows of each device that are read as fast as possible
NAME = "gateway.csv"
COLUMNS = ("speed", "load", "flow", "pressure", "power", "heat", "outlet", "level")
CONFIG = """
state = "state"
[projection]
n_inputs = 8
low = -1.0
high = 3.0
[source]
kind = "{kind}"
{source}
columns = {columns}
time = "time"
[[sinks]]
kind = "file"
path = "{{device}}.jsonl"
max_bytes = 1000000000
"""


def configure(folder: Path, devices: int, kind: str, *, one_file: bool) -> list[str]:
    """Write the configuration; return the names of the devices."""
    names = [f"machine-{i:02d}" for i in range(devices)]
    source = 'path = "{device}.csv"'
    if one_file:
        source = 'path = "all.csv"\ndevice_column = "device"'
    text = CONFIG.format(kind=kind, source=source, columns=json.dumps(COLUMNS))
    text += "".join(f'[[devices]]\ndevice = "{name}"\n' for name in names)
    (folder / "gateway.toml").write_text(text)
    return names


def rows_of(seed: int, count: int) -> Array:
    """Return process values of one machine, (count, 8)."""
    (machine,) = (each for each in MACHINES if each.name == "process values")
    return machine.draw(count, 0.0, np.random.default_rng(seed))


class Files:
    """The files that the devices read: one for each, or one for all."""

    def __init__(self, folder: Path, names: list[str], *, one_file: bool) -> None:
        """Open them, and write the headers."""
        self._one_file, self._names = one_file, names
        paths = ["all.csv"] if one_file else [f"{name}.csv" for name in names]
        self._files = [(folder / path).open("w", buffering=2**20) for path in paths]
        head = ("device", "time", *COLUMNS) if one_file else ("time", *COLUMNS)
        for file in self._files:
            print(*head, sep=",", file=file, flush=True)

    def write(self, rows: Array, at: float) -> None:
        """Add one row for each device, (devices, 8)."""
        for i, row in enumerate(rows):
            text = f"{at:.6f}," + ",".join(f"{value:.4f}" for value in row)
            if self._one_file:
                print(self._names[i], text, sep=",", file=self._files[0])
            else:
                print(text, file=self._files[i])

    def flush(self) -> None:
        """Let the agent see what was written."""
        for file in self._files:
            file.flush()

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()


@contextmanager
def running(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the agent on one core."""
    command = [sys.executable, "-m", "edgemerge", "agent", "gateway.toml"]
    command += ["--set", "log.level=warning"]
    program = subprocess.Popen(command, cwd=folder, preexec_fn=_on_one_core)  # noqa: PLW1509 - no threads yet
    try:
        yield program
    finally:
        if program.poll() is None:
            program.send_signal(signal.SIGTERM)
        program.wait(60.0)


def _on_one_core() -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def cpu_and_memory(pid: int) -> tuple[float, float]:
    """Return the CPU seconds and the peak memory in MB of a running program."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    status = Path(f"/proc/{pid}/status").read_text()
    (peak,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    return ticks / os.sysconf("SC_CLK_TCK"), int(peak) / 1024.0


def as_fast_as_possible(devices: int, each: int, *, one_file: bool) -> Row:
    """Measure samples a second of CPU time, without the start of the program."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        names = configure(folder, devices, "csv", one_file=one_file)
        files = Files(folder, names, one_file=one_file)
        data = [rows_of(i, each) for i in range(devices)]
        for k in range(each):
            files.write(np.stack([rows[k] for rows in data]), 1.8e9 + k / RATE_HZ)
        files.close()
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = perf_counter()
        with running(folder) as program:
            program.wait(3600.0)
        took = perf_counter() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        found = sum(len((folder / f"{n}.jsonl").read_bytes().splitlines()) for n in names)
        if program.returncode or found != each * devices:
            raise RuntimeError(f"exit code {program.returncode}, {found} results")
    return {"samples": found, "seconds": round(took, 1), "cpu_s": round(used, 1),
            "samples_per_cpu_s": round(found / used)}  # fmt: skip


def live(devices: int, seconds: float, *, one_file: bool) -> Row:
    """Measure delays, CPU and memory while rows come at `RATE_HZ`."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        names = configure(folder, devices, "tail", one_file=one_file)
        files = Files(folder, names, one_file=one_file)
        count = int(seconds * RATE_HZ)
        data = [rows_of(i, FIRST + count) for i in range(devices)]
        for k in range(FIRST):
            files.write(np.stack([rows[k] for rows in data]), 1.8e9 + k / RATE_HZ)
        files.flush()
        with running(folder) as program:
            wait_for(folder, names, FIRST)
            cpu, _ = cpu_and_memory(program.pid)
            began = time()
            delays = feed_live(folder, names, files, data, count)
            took = time() - began
            used, peak = cpu_and_memory(program.pid)
        files.close()
        late = np.quantile(delays, [0.5, 0.99, 1.0])
    return {"live_s": round(took, 1), "live_cpu": round((used - cpu) / took, 3),
            "delay_median_ms": round(1000.0 * late[0]), "delay_99_ms": round(1000.0 * late[1]),
            "delay_max_ms": round(1000.0 * late[2]), "memory_mb": round(peak)}  # fmt: skip


def wait_for(folder: Path, names: list[str], count: int) -> None:
    """Wait until each device has so many results."""
    waiting = list(names)
    while waiting:
        sleep(0.5)
        waiting = [n for n in waiting if results(folder / f"{n}.jsonl") < count]


def results(path: Path) -> int:
    """Return how many results a file has."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def feed_live(
    folder: Path, names: list[str], files: Files, data: list[Array], count: int
) -> list[float]:
    """Write rows at their times; return the delays of results, seen every 20 ms, in seconds."""
    handles = [(folder / f"{name}.jsonl").open("rb") for name in names]
    for handle in handles:
        handle.seek(0, os.SEEK_END)
    seen, delays, written = [0] * len(names), [], []
    began, k = perf_counter(), 0
    while min(seen) < count and perf_counter() < began + count / RATE_HZ + 60.0:
        if k < count and perf_counter() >= began + k / RATE_HZ:
            written.append(perf_counter())
            files.write(np.stack([rows[FIRST + k] for rows in data]), time())
            files.flush()
            k += 1
        for i, handle in enumerate(handles):
            new = handle.read().count(b"\n")
            delays += [perf_counter() - written[seen[i] + j] for j in range(new)]
            seen[i] += new
        sleep(0.02)
    for handle in handles:
        handle.close()
    if min(seen) < count:
        raise RuntimeError(f"found {min(seen)} results, expected {count}: it does not keep up")
    return delays


def main() -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few seconds; times mean nothing")
    given = parser.parse_args()
    rows = []
    for devices, one_file in [*((n, False) for n in DEVICES), (DEVICES[-1], True)]:
        if given.quick and devices > 10:
            continue
        row: Row = {"devices": devices, "files": 1 if one_file else devices}
        row |= as_fast_as_possible(devices, 300 if given.quick else EACH, one_file=one_file)
        row |= live(devices, 3.0 if given.quick else SECONDS, one_file=one_file)
        print(row)
        rows.append(row)
    if not given.quick:
        print(f"wrote {save(rows, NAME)}")


if __name__ == "__main__":
    main()
