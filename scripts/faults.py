"""The long run of the fault tests: hundreds of kills, a bad network, damaged files, a full disk.

It ends with the number of kills, which it writes to docs/results/faults.csv, and fails if anything
was lost, doubled or told wrongly.
"""

import argparse
import csv
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

ROOT = Path(__file__).parents[1]
TOLD = re.compile(r"^(\d+) kills (.*)$")
RESULT = ROOT / "docs" / "results" / "faults.csv"
RUNS = {  # which share of the kills each is asked for
    "tests/faults": 0.81,  # so many on SQLite, and a fourth of that on PostgreSQL
    "tests/agent/test_kill.py": 0.2,
    "tests/servers_many/test_stress.py": 0.06,
}
SETTINGS = {
    "EDGEMERGE_FLIPS": "500",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}
PARTING_S = 60.0


def main() -> int:
    """Run everything within the time, and count."""
    asked = _asked()
    start = time.monotonic()
    print(f"{asked.kills} kills take some twenty minutes, at most {asked.minutes:g}", flush=True)
    lines: list[str] = []
    for tests, share in RUNS.items():
        left = start + 60.0 * asked.minutes - time.monotonic()
        problem = _run(tests, round(share * asked.kills), left, lines)
        if problem:
            print(f"{tests}: {problem}")
            return 1
    found = [match for match in map(TOLD.match, lines) if match]
    # those amid masked epochs come on top
    kills = sum(int(match[1]) for match in found if match[2].startswith("of "))
    print(*(match[0] for match in found), sep="\n")
    save(lines)
    print(f"{kills} kills in {(time.monotonic() - start) / 60:.1f} minutes")
    if kills < asked.kills:
        print(f"found {kills} kills, expected {asked.kills}: was a service missing?")
    return int(kills < asked.kills)


def save(lines: list[str]) -> None:
    """Write what was told of kills among the results of the docs."""
    found = [match for match in map(TOLD.match, lines) if match]
    with RESULT.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["kills", "of what"])
        writer.writerows([match[1], match[2].removeprefix("of ")] for match in found)


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=500, help="at least so many (default 500)")
    parser.add_argument("--minutes", type=float, default=60.0, help="at most so long (default 60)")
    return parser.parse_args()


def _run(tests: str, kills: int, seconds: float, lines: list[str]) -> str:
    """Run some tests, adding what they print to the lines; say what went wrong, if anything."""
    if not (ROOT / tests).exists():
        return "missing: run this from the repository"
    run = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", tests],
        cwd=ROOT,
        env={**os.environ, **SETTINGS, "EDGEMERGE_KILLS": str(kills)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    watching = Thread(target=_echo, args=(run, lines), daemon=True)
    watching.start()
    in_time = _wait(run, seconds)
    watching.join(PARTING_S)
    if not in_time:
        return "not done in time: give more with --minutes"
    return "something was lost, doubled or told wrongly: see above" if run.returncode else ""


def _echo(run: subprocess.Popen[str], lines: list[str]) -> None:
    """Show what is printed while it is printed."""
    for line in run.stdout or ():
        print(line, end="", flush=True)
        lines.append(line.rstrip("\n"))


def _wait(run: subprocess.Popen[str], seconds: float) -> bool:
    """Wait for the end; past the time, ask for it, so that what was started is stopped."""
    try:
        run.wait(max(seconds, 0.0))
    except subprocess.TimeoutExpired:
        run.send_signal(signal.SIGINT)
        try:
            run.wait(PARTING_S)
        except subprocess.TimeoutExpired:
            run.kill()
            run.wait()
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
