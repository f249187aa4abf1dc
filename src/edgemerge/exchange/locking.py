"""A lock on a folder between the processes of one machine; none where there is no such thing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

from edgemerge.core.errors import AwayError

STEP_S = 0.01

try:
    import fcntl
except ImportError:  # Windows: then nobody is kept out
    fcntl = None  # type: ignore[assignment]  # as the comment says


@contextmanager
def locked(folder: Path, timeout_s: float) -> Iterator[None]:
    """Keep others who lock the folder out; the lock ends with this process, however that ends."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        end = monotonic() + timeout_s
        while not _taken(handle):
            if monotonic() > end:
                raise AwayError(f"{folder} is being written by another process: try again later")
            sleep(STEP_S)
        yield
    finally:
        os.close(handle)


def _taken(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # this file system has no locks
        return True
    return True
