"""A result that needs no data, and does what files in the data folder tell it to.

`hold-2` lets trial 2 wait until the file is gone, `die-2` ends its process, `fail-2` lets it fail.
Each job that is done leaves a line in `log`: its trial, and the process that did it.
"""

import os
import signal
from pathlib import Path
from threading import Event
from typing import Any

from edgemerge import EdgemergeError
from edgemerge.paper.plan import Claim, Job, Plan, Rows, Scope

NAME = "made-up"
TITLE = "Something <made> up"
DATA: tuple[str, ...] = ()
NOTE = "It is made up. Nothing was measured, but `code` was."
WAIT_S = 0.01


def work(job: Job, scope: Scope) -> Rows:
    """Do what a file says, then give a row."""
    folder, trial = scope.folder, job.trial
    (folder / f"begun-{trial}").touch()
    while (folder / f"hold-{trial}").exists():
        Event().wait(WAIT_S)
    if (folder / f"die-{trial}").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    if (folder / f"fail-{trial}").exists():
        raise EdgemergeError("as it was told")
    if (folder / f"break-{trial}").exists():
        raise ZeroDivisionError("a bug")
    with (folder / "log").open("a", encoding="utf-8") as log:
        log.write(f"{trial} {os.getpid()}\n")
    return [{"method": job.method, "digit": str(trial), "trial": trial, "value": trial / 7}]


def jobs(trials: int, settings: str = "") -> list[Job]:
    """One job for each trial."""
    return [Job(NAME, "", "any", trial, settings=settings) for trial in range(trials)]


def run(plan: Plan) -> Rows:
    """Do all jobs."""
    return plan.rows(work, jobs(plan.trials))


def plot(rows: Rows) -> dict[str, Any]:
    """Draw two figures."""
    from matplotlib.figure import Figure  # what only does jobs need not wait for it

    figures = {"one": Figure((3.0, 2.0)), "two": Figure((3.0, 2.0))}
    for figure in figures.values():
        figure.subplots().plot([row["value"] for row in rows])
    return figures


def claims(rows: Rows) -> list[Claim]:
    """Claim three things."""
    return [
        Claim("There are rows", bool(rows), f"{len(rows)} rows"),
        Claim("There are <none>", not rows, f"{len(rows)} rows | lines"),
        Claim("It is understood", None, "nobody asked"),
    ]


def logged(folder: Path) -> list[tuple[int, int]]:
    """Tell which trials were done, by which process."""
    log = folder / "log"
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return [(int(trial), int(process)) for trial, process in map(str.split, lines)]
