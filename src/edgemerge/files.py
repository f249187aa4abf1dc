"""Files: save and load, atomic writes, locks, secrets, JSON lines, a queue on disk, and UTF-16."""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
from collections import deque
from contextlib import suppress
from functools import partial
from pathlib import Path
from secrets import token_hex
from threading import Lock
from time import monotonic, sleep
from typing import Any, Literal, TypeVar, overload

from edgemerge.core.errors import FormatError, SettingError
from edgemerge.wire.codec import must_be_kind
from edgemerge.wire.state import Saveable, from_bytes, to_bytes

T = TypeVar("T", bound=Saveable)

MAX_FILE_BYTES = 2**30  # bytes
MAX_SECRET_BYTES = 4096
LOCK_POLL_S = 0.01
MAX_QUEUED = 1000  # messages in a queue on disk
CANNOT_SYNC_FOLDER = (errno.EINVAL, errno.ENOTSUP)  # of file systems that cannot sync a folder

logger = logging.getLogger(__name__)


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
        FormatError: If the file is not one of edgemerge's, holds another kind of object, or is
            damaged: a monitor has a checksum, of other learners the sums are checked.

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


def write_atomically(
    data: bytes,
    path: Path,
    *,
    mode: int | Literal["umask"] | None = None,
    parents: bool = False,
    sync: bool = True,
) -> None:
    """Write a temporary file beside `path`, then rename it.

    Args:
        data: The whole content of the file.
        path: Where to write; an existing file is replaced.
        mode: Permission bits of the file. By default only its owner may read and write it; "umask"
            gives what any new file gets. Ignored where the file system has no permissions (FAT).
        parents: Whether to create missing folders. By default they are an error.
        sync: Whether the file and its folder must be on disk before this returns. Turn it off for
            files that can be made again after a power cut.
    """
    if parents:
        path.parent.mkdir(parents=True, exist_ok=True)
    check_folder(path)
    beside = path.with_name(f".{path.name}.{token_hex(4)}")
    opener = partial(os.open, mode=0o666 if mode == "umask" else 0o600)
    try:
        with open(beside, "xb", opener=opener) as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        if isinstance(mode, int):
            with suppress(PermissionError):  # FAT
                beside.chmod(mode)
        beside.replace(path)
    except BaseException as error:
        with suppress(FileNotFoundError, NotADirectoryError):
            beside.unlink()
        if isinstance(error, OSError) and error.filename == str(beside):
            error.filename, error.filename2 = str(path), None  # the name that the caller knows
        raise
    if sync:
        sync_folder(path.parent)


def check_folder(path: Path) -> None:
    """Raise FileNotFoundError, with ENOTDIR, unless there is a folder to make the file in."""
    folder = path.parent
    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "does not exist"
        words = f"its folder {folder} {what}: make it, or choose another place"
        raise FileNotFoundError(errno.ENOTDIR, words, str(path))


def sync_folder(folder: Path) -> None:
    """Let a file that was renamed in a folder keep its name after a power cut."""
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


def file_stamp(path: Path) -> tuple[int, int, int] | None:
    """Return what changes when a file is written anew; None if there is none.

    It is zeros where the system does not say: then reading the file raises the reason.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_mtime_ns, found.st_size


def lock_file(handle: int, timeout_s: float = 0.0) -> bool:
    """Lock an open file (on POSIX systems also a folder) against other processes.

    The lock ends when the descriptor is closed or the process ends, however that happens.

    Args:
        handle: An open descriptor; on Windows it must be open for writing.
        timeout_s: How long to wait for another process to release the lock. By default not at all.

    Returns:
        Whether the lock was taken.

    Raises:
        OSError: The file system has no locks.
    """
    end = monotonic() + timeout_s
    while not _try_lock(handle):
        if monotonic() >= end:
            return False
        sleep(LOCK_POLL_S)
    return True


def _try_lock(handle: int) -> bool:
    if sys.platform == "win32":
        import msvcrt  # noqa: PLC0415 - Windows only

        with suppress(PermissionError):  # held
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
            return True
    else:
        import fcntl  # noqa: PLC0415 - not on Windows

        # Any other error, PermissionError too, says that this file system has no locks.
        with suppress(BlockingIOError):  # held
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    return False


def read_secret(
    path: str | os.PathLike[str], name: str = "secret", *, strip: str | None = None
) -> str:
    """Read a token or password from its file; errors never show the content.

    Args:
        path: A file with one line of UTF-8 text, at most 4096 bytes.
        name: What error messages call it: "token" or "password".
        strip: Characters to remove at both ends. By default all white space; for passwords, which
            may begin or end with a space, pass the line ends.

    Raises:
        SettingError: The file cannot be read, is empty or holds anything but one line of text.
    """
    try:
        with Path(path).open("rb") as file:
            text = file.read(MAX_SECRET_BYTES + 1).decode().strip(strip)
    except OSError as error:
        raise SettingError(f"cannot read the {name} in {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        text = ""
    if not text.strip() or len(text.encode()) > MAX_SECRET_BYTES or not text.isprintable():
        raise SettingError(f"found no {name} in {path}, expected one line of text")
    return text


def read_token(path: str | os.PathLike[str]) -> str:
    """Read a token from its file.

    Args:
        path: A file with the token on one line.

    Raises:
        SettingError: The file cannot be read, or does not hold one token.
    """
    token = read_secret(path, "token")
    if " " in token:
        raise SettingError(f"found spaces in the token in {path}, expected one token: replace it")
    return token


def to_json_line(value: dict[str, Any]) -> str:
    """Return an object as JSON on one line, without a line end."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


class DiskQueue:
    """A queue that survives kill -9; what was sent just before a kill may be sent again."""

    def __init__(self, path: Path, room: int = MAX_QUEUED) -> None:
        """Load the messages that wait in the file."""
        self._path, self._lock = path, Lock()
        self._waiting: deque[str] = deque(_read_messages(path), maxlen=room)
        self._written = len(self._waiting)
        self.dropped = 0
        self._rewrite()

    def __len__(self) -> int:
        """Count those that wait."""
        return len(self._waiting)

    def add(self, message: str) -> None:
        """Append a message without line ends; if there is no room, the oldest is dropped."""
        with self._lock:
            self.dropped += len(self._waiting) == self._waiting.maxlen
            self._waiting.append(message)
            self._append(message)

    def first(self) -> str | None:
        """Return the message that is next, or None."""
        with self._lock:
            return self._waiting[0] if self._waiting else None

    def done(self, message: str) -> None:
        """Forget the message, if it is still the first: it has been sent."""
        with self._lock:
            if self._waiting and self._waiting[0] is message:
                self._waiting.popleft()
            if not self._waiting:
                self._rewrite()

    def _append(self, message: str) -> None:
        if self._written >= 2 * (self._waiting.maxlen or 1):
            self._rewrite()
            return
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(message) + "\n")
            self._written += 1
        except OSError as error:
            self._written = 2 * (self._waiting.maxlen or 1)  # a line may be cut off: write all anew
            self._warn(error)

    def _rewrite(self) -> None:
        """Write what waits, and nothing else."""
        text = "".join(json.dumps(message) + "\n" for message in self._waiting)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(text.encode(), self._path)
            self._written = len(self._waiting)
        except OSError as error:
            self._warn(error)

    def _warn(self, error: OSError) -> None:
        values = {"path": str(self._path), "why": error.strerror}
        logger.warning("messages cannot be kept on disk", extra={"values": values})


def _read_messages(path: Path) -> list[str]:
    """Read the messages; one that a kill has cut off is left out."""
    try:
        found = path.read_bytes().splitlines()
    except OSError:
        return []
    messages = []
    for line in found:
        try:
            message = json.loads(line)
        except ValueError:
            continue
        if isinstance(message, str):
            messages.append(message)
    return messages


UTF16_WORDS = (
    "found UTF-16, expected UTF-8: export it as CSV UTF-8, or convert it, as with "
    "`iconv -f UTF-16 -t UTF-8 old.csv > new.csv`"
)


def is_utf16(data: bytes) -> bool:
    """Return whether bytes look like UTF-16: its mark comes first, or zeros between letters.

    >>> is_utf16("a,b".encode("utf-16")), is_utf16("a,b".encode("utf-16-le")), is_utf16(bytes(99))
    (True, True, False)
    """
    head = data[:1000]
    return head[:2] in (b"\xff\xfe", b"\xfe\xff") or (
        len(head) // 4 < head.count(0) < len(head) * 3 // 4
    )
