"""Try it: a PostgreSQL, four servers, nginx, 200 devices, and kills until the time is over.

Everything is started on this machine, on free ports, in a folder of its own, and ended and removed
afterwards. At the end every server must tell, bit for bit, the union of what was acknowledged.
"""

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.servers_many.scene import SERVERS, scene

SHOWN = ("pushes", "pulls", "retries", "kills", "drops")  # within 80 columns


def main() -> int:
    asked = _asked()
    try:
        with TemporaryDirectory(prefix="edgemerge-servers-") as folder:
            return _run(Path(folder), asked)
    except pytest.skip.Exception as missing:  # of a service that is not installed
        say(missing)
        return 1


def _run(folder: Path, asked: argparse.Namespace) -> int:
    say(f"starting PostgreSQL, {SERVERS} servers and nginx, enrolling {asked.devices} devices")
    wanted = {"devices": asked.devices, "seed": asked.seed}
    with scene(folder, **wanted, fsync="on") as everything:
        everything.run(kills=float("inf"), seconds=60.0 * asked.minutes, told=_tell)
        say("\nall writes have ended; asking every server")
        everything.judge()
        entries = everything.must_have_left_a_sound_database()
    counts = everything.counts
    for name, count in counts.items():
        say(f"{name:22} {count:g}")
    say(f"{'pushes a second':22} {counts['pushes'] / counts['seconds']:.1f}")
    say(f"{'audit entries':22} {entries}, each sealed by the one before")
    say(f"all {counts['totals judged']:g} totals are equal to the union of what was acknowledged")
    return 0


def _tell(counts) -> None:
    words = ", ".join(f"{counts[name]:g} {name}" for name in SHOWN)
    end = "" if sys.stdout.isatty() else "\n"
    if end and counts["seconds"] % 10:
        return
    start = "\r\x1b[K" if not end else ""
    say(f"{start}{counts['seconds']} s: {words}", end=end)


def say(words, end: str = "\n") -> None:
    print(words, end=end, flush=True)  # noqa: T201 - for who runs it


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.servers_many", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="of trouble (default 1)")
    parser.add_argument("--devices", type=int, default=200, help="(default 200)")
    parser.add_argument("--seed", type=int, default=0, help="(default 0)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
