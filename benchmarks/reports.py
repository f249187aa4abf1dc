"""What reports cost: pushes of contributions with and without 1 000 devices that report.

In turns within one run: devices push as fast as they can, alone, then beside a fleet that reports
at the interval that the server asks for. Afterwards nothing is pushed, and the server's time per
report is measured.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import cycle
from pathlib import Path
from threading import Thread
from typing import Any

from benchmarks.load import SERVE, PushCounts, child, enrolled, operator, samples, turn

PUSHING = int(os.environ.get("EDGEMERGE_LOAD_DEVICES", "20"))
REPORTING = 1000
EVERY_S = 20.0  # the interval for a fleet of this size
LINES = 8  # connections
TURNS = 3
SECONDS = float(os.environ.get("EDGEMERGE_LOAD_SECONDS", "60"))
ADDRESS = "/fleets/reports/devices/{}/report"


def body(now: float) -> bytes:
    """A report of twenty scores, as after twenty seconds."""
    points = [{"at": now - i, "score": 0.1 + i % 7, "threshold": 9.0} for i in range(20)]
    patterns = [{"pattern": f"p{i}", "own": 5.0, "told": 9.0, "used": 3} for i in range(4)]
    status = {"samples": 9, "learnt": 9.0, "alarms": 0, "patterns": patterns, "exchange": "ok"}
    return json.dumps({"sent": now, "status": status, "points": points}).encode()


def report(port: int, tokens: dict[str, str], seconds: float) -> tuple[int, list[float]]:
    """Report as all devices, evenly; give how many were taken, and how long each took."""
    answers: list[tuple[int, float]] = []
    names, end = list(tokens.items()), time.monotonic() + seconds
    threads = [
        Thread(target=_report, args=(port, names[i::LINES], answers, end)) for i in range(LINES)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(status == 200 for status, _ in answers), [took for _, took in answers]


def _report(port: int, names: list[tuple[str, str]], answers: list[Any], end: float) -> None:
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    due = time.monotonic()
    for device, token in cycle(names):
        start = time.monotonic()
        if start > end:
            return
        headers = {"Authorization": f"Bearer {token}"}
        line.request("POST", ADDRESS.format(device), body(time.time()), headers)
        reply = line.getresponse()
        reply.read()
        answers.append((reply.status, time.monotonic() - start))
        due += EVERY_S / len(names)
        time.sleep(max(0.0, due - time.monotonic()))


def beside(port: int, file: Path, seconds: float) -> subprocess.Popen[bytes]:
    """Report from a process of its own, so that those who push are not slowed down by it."""
    words = ["-m", "benchmarks.reports", str(port), str(file), str(seconds)]
    return subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE)


def measure(folder: Path) -> dict[str, object]:
    """Push with and without reports, in turns; then report alone."""
    stats, alone = samples(), PushCounts()
    both = PushCounts(newest=alone.newest)  # one sequence of revisions
    with child(SERVE, folder / "ours") as server:
        hub, url = operator(server), f"http://127.0.0.1:{server.port}"
        pushing = enrolled(hub, url, "load", PUSHING)
        reporting = enrolled(hub, url, "reports", REPORTING)
        file = folder / "tokens.json"
        file.write_text(json.dumps(reporting), encoding="utf-8")
        taken, spent = [], [0.0, 0.0]
        for _ in range(TURNS):
            start = server.cpu_s()
            turn(server.port, pushing, stats, alone, SECONDS / TURNS / 2)
            between = server.cpu_s()
            other = beside(server.port, file, SECONDS / TURNS / 2)
            turn(server.port, pushing, stats, both, SECONDS / TURNS / 2)
            taken.append(json.loads(other.communicate(timeout=120)[0])["taken"])
            spent = [spent[0] + between - start, spent[1] + server.cpu_s() - between]
        before = server.cpu_s()
        count, times = report(server.port, reporting, 20.0)
        quiet, memory = server.cpu_s() - before, server.memory_mb()
    times.sort()
    return {
        "devices that push": PUSHING,
        "devices that report": REPORTING,
        "uploads per second alone": round(alone.per_second, 1),
        "uploads per second beside reports": round(both.per_second, 1),
        "ratio": round(both.per_second / alone.per_second, 3),
        "reports taken per second beside uploads": round(sum(taken) / both.seconds, 1),
        "median ms of a report": round(1e3 * times[len(times) // 2], 2),
        "server's ms of processor per upload alone": _ms(
            spent[0], alone.per_second * alone.seconds
        ),
        "server's ms of processor per upload beside reports": _ms(
            spent[1], both.per_second * both.seconds
        ),
        "server's ms of processor per report, with writing": _ms(quiet, count),
        "memory in MB": round(memory),
    }


def _ms(seconds: float, count: float) -> float:
    return round(1e3 * seconds / count, 2)


def main() -> None:
    """Measure and print; with arguments, be the devices that report."""
    if len(sys.argv) > 1:
        tokens = json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
        taken, _ = report(int(sys.argv[1]), tokens, float(sys.argv[3]))
        print(json.dumps({"taken": taken}))
        return
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(Path(folder)), indent=2))


if __name__ == "__main__":
    main()
