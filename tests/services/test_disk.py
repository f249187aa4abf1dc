"""A small disk is unmounted even if the run that mounted it is killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services.disk import MIB, small_disk
from tests.waiting import until

ROOT = Path(__file__).parents[2]
KILLED = """
import os, signal, sys
from pathlib import Path
from tests.services.disk import MIB, small_disk

with small_disk(Path(sys.argv[1]), MIB):
    (Path(sys.argv[1]) / "file").touch()
    print("mounted", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_disk_in_use_is_gone_after_the_block(tmp_path):
    with small_disk(tmp_path / "disk", MIB) as folder:
        assert folder.is_mount()
        file = (folder / "open").open("wb")
    with file:
        assert not folder.is_mount()


@pytest.mark.slow
def test_a_disk_is_gone_after_the_process_that_mounted_it(tmp_path):
    with small_disk(tmp_path / "can", MIB):  # or leave this out
        pass
    done = subprocess.run(
        [sys.executable, "-c", KILLED, tmp_path / "disk"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "."},
        stdout=subprocess.PIPE,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"mounted\n")
    until(lambda: not (tmp_path / "disk").is_mount(), "the disk is unmounted")
    (tmp_path / "disk").rmdir()
