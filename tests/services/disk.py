"""A small disk of its own, to be filled to the last byte."""

import os
import subprocess
from contextlib import contextmanager
from pathlib import Path

from tests.services.missing import left_out
from tests.waiting import DEADLINE_S

MIB = 2**20
# Its standard input ends with the process that started it, even if that is killed.
GUARD = 'mount -t tmpfs -o "size=$1" edgemerge-test "$0" && echo mounted && cat; umount -l "$0"'


@contextmanager
def small_disk(folder: Path, size: int):
    """Mount a disk of so many bytes at a new folder until the block, or this process, ends."""
    folder.mkdir()
    guard = subprocess.Popen(
        ["sh", "-c", GUARD, str(folder), str(size)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is not for it
    )
    with guard:
        if os.geteuid() != 0 or guard.stdout.readline() != b"mounted\n":
            left_out("a small disk", "run as root")
        try:
            yield folder
        finally:
            guard.stdin.close()
            assert guard.wait(DEADLINE_S) == 0, guard.stderr.read()


def fill(folder: Path) -> None:
    """Leave no byte free."""
    with (folder / "ballast").open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return
