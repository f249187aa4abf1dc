"""A run that is stopped, in whatever way, leaves nobody behind and goes on where it was."""

import os
import signal
from pathlib import Path

import pytest

from edgemerge.paper.plan import Plan, Scope
from edgemerge.paper.running import result_files
from edgemerge.paper.running.result_files import Record
from tests.paper import made_up
from tests.paper.made_up import logged
from tests.paper.processes import family, start
from tests.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc"),
]
OTHERS = [0, 1, 2, 4, 5]

STOPPED = "Stopped. Finished work is kept: the same command continues from there.\n"


def made(folder: Path) -> str:
    """Make the result to the end."""
    with start(folder) as run:
        said, remarks = run.communicate(timeout=60)
    assert run.returncode == 0, remarks
    assert "made-up: 6 jobs" in remarks
    assert "There are rows" in said
    return (folder / "out" / "made-up.csv").read_text(encoding="utf-8")


def undisturbed(folder: Path) -> str:
    """Make the same rows here and at once."""
    folder.mkdir()
    rows = made_up.run(Plan(Scope(folder), trials=6))
    result_files.save_result(folder, Record("made-up", "", "", 7, False, 6, 0), rows)
    return (folder / "made-up.csv").read_text(encoding="utf-8")


def stopped(folder: Path, number: int, *, everyone: bool = False) -> tuple[int, str]:
    """Stop a run while trial 3 is being done and all others are."""
    (folder / "hold-3").touch()
    with start(folder) as run:
        cache = folder / "out" / "cache"
        until(lambda: len(list(cache.rglob("*.json"))) == len(OTHERS), "all but one job")
        until((folder / "begun-3").exists, "trial 3")
        assert len(family(run.pid)) > 2
        if everyone:
            os.killpg(run.pid, number)  # as a terminal does at Ctrl-C
        else:
            run.send_signal(number)
        remarks = run.communicate(timeout=60)[1]
        until(lambda: not family(run.pid), "its processes to end")
    (folder / "hold-3").unlink()
    return run.returncode, remarks


@pytest.mark.long
def test_a_killed_run_goes_on_and_ends_as_if_nothing_had_happened(tmp_path):
    folder = tmp_path / "killed"
    folder.mkdir()
    assert stopped(folder, signal.SIGKILL)[0] == -signal.SIGKILL
    assert sorted(trial for trial, _ in logged(folder)) == OTHERS
    (folder / "out" / "cache" / "made-up" / "any" / "full-seed-7" / "trial-004.json").write_text(
        "{"
    )
    assert made(folder) == undisturbed(tmp_path / "undisturbed")
    assert sorted(trial for trial, _ in logged(folder)) == sorted([*OTHERS, 3, 4])


@pytest.mark.parametrize(
    ("number", "everyone", "code"),
    [(signal.SIGINT, True, 130), (signal.SIGTERM, False, 143)],
    ids=["Ctrl-C", "SIGTERM"],
)
def test_a_stopped_run_says_how_to_go_on(tmp_path, number, everyone, code):
    ended = stopped(tmp_path, number, everyone=everyone)
    assert ended == (code, STOPPED)
