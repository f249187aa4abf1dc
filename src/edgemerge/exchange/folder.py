"""Exchange through a folder that several devices see: a network share, or a USB stick.

One file for each device, incarnation and pattern, written atomically. Devices need not be present
at the same time: carry the stick from device to device; after two rounds each has everything.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISREG
from threading import Lock

from edgemerge.core.errors import (
    DeniedError,
    EdgemergeError,
    RejectedError,
    UnavailableError,
    must_be,
)
from edgemerge.core.faults import Faults
from edgemerge.core.ledger import Contribution, Kind, Merged, Selection
from edgemerge.core.projection import Projection
from edgemerge.exchange.protocol import merge, must_be_contribution, must_be_selection
from edgemerge.exchange.stored_contributions import (
    SUFFIXES,
    LogOnce,
    file_name,
    must_be_current,
    read_contribution,
)
from edgemerge.files import lock_file, write_atomically
from edgemerge.wire.admission import admit
from edgemerge.wire.codec import MAX_BYTES, encode


@contextmanager
def folder_lock(folder: Path, timeout_s: float) -> Iterator[None]:
    """Lock a folder against other processes that use this lock; wait at most `timeout_s`.

    On Windows and on file systems without locks it does nothing.
    """
    if os.name == "nt":
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            locked = lock_file(handle, timeout_s)
        except OSError:  # this file system has no locks
            locked = True
        if not locked:
            raise UnavailableError(f"{folder} is being written by another process: try again later")
        yield
    finally:
        os.close(handle)


MAX_FILES = 10_000

logger = logging.getLogger(__name__)


class FolderExchange:
    """A folder of contributions. Every user who may write to it may replace any of its files.

    Files that are damaged, incomplete or of another exchange are skipped, and logged once each.

    Args:
        path: The folder. It must exist when it is used: a stick may be plugged in later.
        projection: What all devices share.
        timeout_s: How long a push waits for another process that writes, in seconds; 10 unless
            given. Raise it where many devices share a slow disk.

    >>> from tempfile import mkdtemp
    >>> from edgemerge import Stats
    >>> shared = Projection(n_inputs=2, n_hidden=3)
    >>> exchange = FolderExchange(mkdtemp(), shared)
    >>> exchange.push(Contribution("pump-3", Stats.of(shared, [[0.1, 0.2]]), revision=1))
    True
    >>> exchange.pull(Selection(receiver="pump-4"))
    Merged(1 parts of 1 contributions, 1 samples)
    """

    def __init__(
        self, path: str | os.PathLike[str], projection: Projection, *, timeout_s: float = 10.0
    ) -> None:
        """Open nothing yet."""
        must_be(projection, Projection, "build one that all devices share")
        self.path, self.projection, self.timeout_s = Path(path), projection, timeout_s
        self._lock = Lock()
        self._log = LogOnce(logger, f"skipped a file in {self.path}")

    def push(self, contribution: Contribution) -> bool:
        """Store a contribution; return False if it was stored before."""
        must_be_contribution(contribution)
        kind = contribution.kind
        admit(contribution, projection=self.projection, kind=kind)
        path = self.path / file_name(contribution.key, kind)
        with self._reaching(), self._lock, folder_lock(self.path, self.timeout_s):
            if not must_be_current(contribution, self._read(path, kind)):
                return False
            for left in self.path.glob(f".{path.name}.*"):  # of a write that lost power
                left.unlink(missing_ok=True)
            write_atomically(encode(contribution), path, mode=self.path.stat().st_mode & 0o666)
            return True

    def pull(self, selection: Selection, *, grouped: bool = False) -> Merged:
        """Return the sum of the selected contributions."""
        must_be_selection(selection)
        selected = self._selected(selection, "normal")
        return merge(selected, self.projection, selection, grouped=grouped)

    def pull_faults(self, selection: Selection) -> Faults:
        """Return the selected faults, those that are alike as one.

        Args:
            selection: Which contributions; name yourself as `receiver` to leave out your own.
        """
        return Faults.of(self._selected(Selection(), "fault"), self.projection, selection)

    def close(self) -> None:
        """Do nothing: no file stays open between calls."""

    def __repr__(self) -> str:
        """Show the path."""
        return f"FolderExchange({self.path})"

    def _selected(self, selection: Selection, kind: Kind) -> list[Contribution]:
        with self._reaching():
            found = (self._read(path, kind) for path in self._files(kind))
            return selection.matching(filter(None, found))  # keep no others in memory

    def _files(self, kind: Kind) -> list[Path]:
        with os.scandir(self.path) as entries:
            names = [entry.name for entry in entries if entry.name.endswith(SUFFIXES[kind])]
        names = sorted(name for name in names if not name.startswith("."))
        if len(names) > MAX_FILES:
            raise RejectedError(
                f"{self}: found {len(names)} contributions, expected at most {MAX_FILES}: "
                "remove those of devices that are gone"
            )
        return [self.path / name for name in names]

    def _read(self, path: Path, kind: Kind) -> Contribution | None:
        """Return the contribution in a file; None if there is no valid one."""

        def expected(found: Contribution) -> str:
            name = file_name(found.key, kind)
            return "" if path.name.lower() == name else f"it in a file named {name}"

        try:
            return read_contribution(_read_bytes(path), self.projection, expected, kind)
        except FileNotFoundError:
            return None
        except (EdgemergeError, PermissionError) as error:
            self._log.warn(path.name, error)
            return None

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except EdgemergeError:
            raise
        except PermissionError as error:
            raise DeniedError(f"{self}: {error.strerror}: give this user access") from error
        except OSError as error:
            raise UnavailableError(
                f"{self} cannot be reached: {error.strerror or error}"
            ) from error


def _read_bytes(path: Path) -> bytes:
    if not S_ISREG(path.stat().st_mode):
        raise RejectedError("found something that is not a plain file")
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)  # decoding refuses more than MAX_BYTES
