"""The example that `make bulk` runs does what it says."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("dask")]


@pytest.mark.long
def test_two_workers_give_the_bits_of_one_process():
    command = [sys.executable, "examples/bulk/try_it.py", "--rows", "2000"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("18,000 samples in 9 chunks") == 2
    assert "equal to the last bit" in done.stdout
    assert done.stderr == ""
