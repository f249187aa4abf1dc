"""Files: save and load, whole or not at all.

>>> from tempfile import mkdtemp
>>> from edgemerge.core.projection import Projection
>>> path = Path(mkdtemp()) / "shared.safetensors"
>>> save(Projection(n_inputs=2, n_hidden=3), path)
>>> load(path) == Projection(n_inputs=2, n_hidden=3)
True
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from tempfile import mkstemp
from typing import Any

from edgemerge.core.errors import FormatError
from edgemerge.wire.state import Saveable, from_bytes, to_bytes

MAX_FILE_BYTES = 2**30  # bytes
CANNOT_SYNC_FOLDER = (errno.EINVAL, errno.ENOTSUP)  # of file systems that cannot sync a folder


def save(thing: Saveable, path: str | os.PathLike[str]) -> None:
    """Write a detector, ledger, stats, contribution or projection to a file, atomically.

    After a crash at any moment the file holds either what it held before or all that is new.
    """
    write_atomically(to_bytes(thing), Path(path))


def load(path: str | os.PathLike[str], *, limit: int = MAX_FILE_BYTES) -> Any:
    """Read what `save` wrote; anything else is refused with words that say what it is."""
    with Path(path).open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise FormatError(f"{path} has more than {limit} bytes: raise `limit` if that is right")
    try:
        return from_bytes(data, limit=limit)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error


def write_atomically(data: bytes, path: Path, *, mode: int | None = None) -> None:
    """Write beside, then rename; both the file and its folder reach the disk before it returns.

    Only its owner may read it, unless `mode` says otherwise (where files have such a thing).
    """
    handle, beside = mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            with suppress(PermissionError):  # FAT
                Path(beside).chmod(mode)
        Path(beside).replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            Path(beside).unlink()
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # Windows has no such thing
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in CANNOT_SYNC_FOLDER:
            raise
    finally:
        os.close(handle)
