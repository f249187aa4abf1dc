"""Files: save and load, whole or not at all."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from tempfile import mkstemp
from typing import TypeVar, overload

from edgemerge.core.errors import FormatError
from edgemerge.wire.codec import must_be_kind
from edgemerge.wire.state import Saveable, from_bytes, to_bytes

T = TypeVar("T", bound=Saveable)

MAX_FILE_BYTES = 2**30  # bytes
CANNOT_SYNC_FOLDER = (errno.EINVAL, errno.ENOTSUP)  # of file systems that cannot sync a folder


def save(thing: Saveable, path: str | os.PathLike[str]) -> None:
    """Write an object to a file, atomically.

    After a crash at any moment the file holds either what it held before or all that is new.

    Args:
        thing: A detector, bank, ledger, stats, contribution, projection or pulled total.
        path: The file, which is replaced if it exists. Its folder must exist.

    >>> from tempfile import mkdtemp
    >>> from edgemerge import Projection
    >>> save(Projection(n_inputs=2, n_hidden=3), Path(mkdtemp()) / "shared.safetensors")
    """
    write_atomically(to_bytes(thing), Path(path))


@overload
def load(path: str | os.PathLike[str], kind: None = None, *, limit: int = ...) -> Saveable: ...
@overload
def load(path: str | os.PathLike[str], kind: type[T], *, limit: int = ...) -> T: ...
def load(
    path: str | os.PathLike[str], kind: type[T] | None = None, *, limit: int = MAX_FILE_BYTES
) -> Saveable | T:
    """Return the object that `save` wrote.

    Args:
        path: The file.
        kind: The class that is expected, such as `Detector`; by default any.
        limit: The most bytes to accept, 1 GiB by default. Raise it for larger files.

    Raises:
        FormatError: If the file is not one of edgemerge's, or holds another kind of object.

    >>> from tempfile import mkdtemp
    >>> from edgemerge import Projection
    >>> path = Path(mkdtemp()) / "shared.safetensors"
    >>> save(Projection(n_inputs=2, n_hidden=3), path)
    >>> load(path, Projection).n_hidden
    3
    """
    with Path(path).open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise FormatError(f"{path} has more than {limit} bytes: raise `limit` if that is right")
    try:
        found: Saveable | T = must_be_kind(from_bytes(data, limit=limit), kind)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error
    return found


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
