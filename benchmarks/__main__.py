"""Run `python -m benchmarks` to measure speed; `--quick` only shows that all of it works.

Writes docs/results/speed.csv, speed-bars.csv, bulk.csv and docs/images/speed.png, or into
`--out FOLDER`.
"""

import argparse
import os
from pathlib import Path

for threads in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[threads] = "1"  # read when numpy is first imported

from rich.console import Console  # noqa: E402  # after the threads are set, like all below

from benchmarks import bulk, speed, speed_report  # noqa: E402


def main() -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=speed.__doc__)
    parser.add_argument("--quick", action="store_true", help="a few seconds; times mean nothing")
    parser.add_argument("--out", type=Path, help="a folder for all files; docs/ without it")
    given = parser.parse_args()
    docs = Path(__file__).parents[1] / "docs"
    times, bars, remarks = speed.run(quick=given.quick)
    bulks = bulk.run(quick=given.quick)
    written = (
        speed_report.save(speed_report.rows(times), (given.out or docs / "results") / "speed.csv"),
        speed_report.save(
            speed_report.bar_rows(bars), (given.out or docs / "results") / "speed-bars.csv"
        ),
        speed_report.save(bulks, (given.out or docs / "results") / "bulk.csv"),
        speed_report.plot(times, (given.out or docs / "images") / "speed.png"),
    )
    console = Console(width=None if os.isatty(1) else 160)
    console.print(speed_report.table(times))
    console.print(speed_report.judgement(bars))
    console.print(bulk.shown(bulks))
    for remark in (*remarks, *(f"wrote {path}" for path in written)):
        console.print(remark, highlight=False)


if __name__ == "__main__":
    main()
