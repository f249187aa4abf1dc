"""Exchange through a folder that several devices see: a network share, or a USB stick.

One file for each device, incarnation and pattern, whole or absent. Devices need not be present at
the same time: carry the stick from device to device, twice around for all to know all.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISREG
from threading import Lock

from edgemerge.core.errors import DeniedError, EdgemergeError, RejectedError, UnavailableError
from edgemerge.core.ledger import Contribution, Merged
from edgemerge.core.projection import Projection
from edgemerge.exchange.protocol import Wish
from edgemerge.exchange.storage import SUFFIX, LogOnce, check_newer, file_name
from edgemerge.files import lock_file, write_atomically
from edgemerge.wire.admission import admit
from edgemerge.wire.codec import MAX_BYTES, decode_with_form, encode


@contextmanager
def folder_lock(folder: Path, timeout_s: float) -> Iterator[None]:
    """Lock a folder against other processes that use this lock; wait at most `timeout_s`.

    Windows and file systems without locks keep nobody out.
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


MAX_FILES = 10_000  # files

logger = logging.getLogger(__name__)


class FolderExchange:
    """A folder of contributions; it must be there, as a stick that is not plugged in is not made.

    Files that are not of this exchange, damaged or only half copied are left alone and named in
    the log, once each. Everybody who may write to the folder may replace anybody's file.

    >>> from tempfile import mkdtemp
    >>> from edgemerge import Stats
    >>> shared = Projection(n_inputs=2, n_hidden=3)
    >>> exchange = FolderExchange(mkdtemp(), shared)
    >>> exchange.push(Contribution("pump-3", Stats.of(shared, [[0.1, 0.2]]), revision=1))
    True
    >>> exchange.pull(Wish(device="pump-4"))
    Told(1 parts of 1 contributions, 1 samples)
    """

    def __init__(
        self, path: str | os.PathLike[str], projection: Projection, *, timeout_s: float = 10.0
    ) -> None:
        """Remember where the folder is; it may come later."""
        self.path, self.projection, self.timeout_s = Path(path), projection, timeout_s
        self._lock = Lock()
        self._log = LogOnce(logger, f"a file in {self.path} was left alone")

    def push(self, contribution: Contribution) -> bool:
        """Leave a contribution; False if it was there already."""
        admit(contribution, projection=self.projection)
        path = self.path / file_name(contribution.key)
        with self._reaching(), self._lock, folder_lock(self.path, self.timeout_s):
            known = self._known(path)
            if known and not check_newer(contribution, known):
                return False
            for left in self.path.glob(f".{path.name}.*"):  # by one that lost power while writing
                left.unlink(missing_ok=True)
            write_atomically(encode(contribution), path, mode=self.path.stat().st_mode & 0o666)
            return True

    def pull(self, wish: Wish) -> Merged:
        """Sum up what others have left."""
        with self._reaching():
            notes = (self._known(path) for path in self._files())
            wanted = [n for n in notes if n and wish.wants(n.key, n.stats.count)]
        return wish.of(wanted, self.projection)

    def close(self) -> None:
        """Nothing is open between calls."""

    def __repr__(self) -> str:
        """Show where it is."""
        return f"FolderExchange({self.path})"

    def _files(self) -> list[Path]:
        with os.scandir(self.path) as entries:
            names = [entry.name for entry in entries if entry.name.endswith(SUFFIX)]
        names = sorted(name for name in names if not name.startswith("."))
        if len(names) > MAX_FILES:
            raise RejectedError(
                f"{self}: found {len(names)} contributions, expected at most {MAX_FILES}: "
                "remove those of devices that are gone"
            )
        return [self.path / name for name in names]

    def _known(self, path: Path) -> Contribution | None:
        """Read one file; None if it is not there, or not what its name says."""
        try:
            return self._read(path)
        except FileNotFoundError:
            return None
        except (EdgemergeError, PermissionError) as error:
            self._log.say(path.name, error)
            return None

    def _read(self, path: Path) -> Contribution:
        note, form = decode_with_form(_read_file(path), projection=self.projection)
        if not isinstance(note, Contribution):
            raise RejectedError(f"found {type(note).__name__}, expected Contribution")
        if path.name.lower() != file_name(note.key):
            raise RejectedError(f"found {note}, expected it in a file named {file_name(note.key)}")
        admit(note, projection=self.projection, form=form)
        return note

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except EdgemergeError:
            raise
        except PermissionError as error:
            raise DeniedError(f"{self}: {error.strerror}: let this user in") from error
        except OSError as error:
            raise UnavailableError(
                f"{self} cannot be reached: {error.strerror or error}"
            ) from error


def _read_file(path: Path) -> bytes:
    if not S_ISREG(path.stat().st_mode):
        raise RejectedError("found something that is no plain file")
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)  # one more than will be read
