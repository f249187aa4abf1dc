"""Exchange through a folder that several devices see: a network share, or a USB stick.

One file for each device, incarnation and pattern, whole or not there. Nobody need be present when
another comes by: carry the stick from device to device, twice around for all to know all.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISREG
from threading import Lock

from edgemerge.core.admission import admit
from edgemerge.core.codec import encode, read
from edgemerge.core.contribution import Contribution
from edgemerge.core.errors import AwayError, DeniedError, EdgemergeError, RejectedError
from edgemerge.core.parcel import LIMIT
from edgemerge.core.projection import Projection
from edgemerge.core.told import Told
from edgemerge.exchange.locking import locked
from edgemerge.exchange.naming import SUFFIX, file_name
from edgemerge.exchange.newest import must_be_newer
from edgemerge.exchange.once import Once
from edgemerge.exchange.protocol import Wish
from edgemerge.files import write

MOST = 10_000  # files

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
        self._log = Once(logger, f"a file in {self.path} was left alone")

    def push(self, contribution: Contribution) -> bool:
        """Leave a contribution; False if it was there already."""
        admit(contribution, projection=self.projection)
        path = self.path / file_name(contribution.key)
        with self._reaching(), self._lock, locked(self.path, self.timeout_s):
            known = self._known(path)
            if known and not must_be_newer(contribution, known):
                return False
            for left in self.path.glob(f".{path.name}.*"):  # by one that lost power while writing
                left.unlink(missing_ok=True)
            write(encode(contribution), path, mode=self.path.stat().st_mode & 0o666)
            return True

    def pull(self, wish: Wish) -> Told:
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
        if len(names) > MOST:
            raise RejectedError(
                f"{self}: found {len(names)} contributions, expected at most {MOST}: "
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
        note, form = read(_bytes(path), projection=self.projection)
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
            raise AwayError(f"{self} cannot be reached: {error.strerror or error}") from error


def _bytes(path: Path) -> bytes:
    if not S_ISREG(path.stat().st_mode):
        raise RejectedError("found something that is no plain file")
    with path.open("rb") as file:
        return file.read(LIMIT + 1)  # one more than will be read
