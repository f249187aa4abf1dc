"""A small disk of its own, to be filled to the last byte."""

import os
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.services.missing import reason

MIB = 2**20


@contextmanager
def small_disk(folder: Path, size: int):
    """A disk of so many bytes, mounted at a new folder; only root can have it."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip(reason("a small disk", "run as root"))
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Leave no byte free."""
    with (folder / "ballast").open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return
