"""Runs of the made-up result in processes of their own, to be stopped and watched."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = """
if __name__ == "__main__":
    import sys
    from pathlib import Path
    from edgemerge.cli.paper import make_results
    from tests.paper import made_up

    folder = Path(sys.argv[1])
    wish = {"data": folder, "seed": 7, "trials": 6, "baseline_trials": 0, "quick": False}
    make_results([made_up], out=folder / "out", as_json=False, workers=2, **wish)
"""


def start(folder: Path) -> subprocess.Popen[str]:
    """Make the result with six jobs in two processes, in a folder."""
    program = folder / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return subprocess.Popen(
        [sys.executable, program, folder],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def gone(process: int) -> bool:
    """Whether a process has ended; one that nobody has asked after yet counts as ended."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def family(session: int) -> list[int]:
    """Find the processes that live in a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, its = stat.read_text(encoding="utf-8").rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(its) == session and state != "Z":
            found.append(int(stat.parent.name))
    return found
