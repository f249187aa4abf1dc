"""Status of the data sets in a folder; downloads with mirrors, retries, resume and checks."""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

import numpy as np

from edgemerge import __version__
from edgemerge.paper.data.catalog import (
    NAMES,
    DamagedDataError,
    DataError,
    FetchError,
    IncompleteDataError,
    MissingDataError,
    check_name,
)
from edgemerge.paper.data.verified_files import Manifest, RemoteFile, VerifiedFiles

Progress = Callable[[str, int, int | None], None]  # file, bytes so far, bytes in all if known
CHUNK_BYTES = 2**16
RANGE_NOT_SATISFIABLE = 416  # "range not satisfiable": the part is as long as the file, or longer


def no_progress(_name: str, _sofar: int, _whole: int | None) -> None:
    """Show no progress."""


class UnusableResponseError(ConnectionError):
    """What came, or is announced, cannot become the file: there is nothing to go on with."""


def download(
    address: str, part: Path, *, most: int, timeout_s: float, whole_s: float, progress: Progress
) -> None:
    """Let the part grow to the whole file, by what is missing if the server allows that.

    Whoever calls has to check what came: a server need not say how long a file is.
    """
    had = part.stat().st_size if part.exists() else 0
    request = Request(address, headers=_headers(had))
    try:
        with urlopen(request, timeout=timeout_s) as response:
            start = _start(response, had)
            whole = _total_bytes(response, start)
            _check_size(whole or 0, most)
            take = _progress_check(progress, part, whole, most, monotonic() + whole_s)
            _append(response, part, start, take)
            _check_complete(part, whole)
    except HTTPError as error:
        error.close()
        if error.code != RANGE_NOT_SATISFIABLE or not had:
            raise


def _headers(had: int) -> dict[str, str]:
    who = {"User-Agent": f"edgemerge/{__version__}"}
    return who | {"Range": f"bytes={had}-"} if had else who


def _start(response: HTTPResponse, had: int) -> int:
    """Tell where the body starts: after what we had, or, if that was ignored, at 0."""
    if response.status != 206:
        return 0
    said = response.headers.get("Content-Range", "")
    if not said.startswith(f"bytes {had}-"):
        raise UnusableResponseError(f"was asked for bytes from {had} on, sends {said or 'others'}")
    return had


def _total_bytes(response: HTTPResponse, start: int) -> int | None:
    length = response.headers.get("Content-Length", "")
    return start + int(length) if length.isdecimal() else None


def _progress_check(
    progress: Progress, part: Path, whole: int | None, most: int, until: float
) -> Callable[[int], None]:
    """Give what is told the size after each chunk, and ends what is too long or too slow."""

    def took(size: int) -> None:
        _check_size(size, most)
        if monotonic() > until:
            raise TimeoutError(f"still not whole after {size} bytes")
        progress(part.name.removesuffix(".part"), size, whole)

    return took


def _append(response: HTTPResponse, part: Path, start: int, took: Callable[[int], None]) -> None:
    with part.open("ab" if start else "wb") as file:
        while chunk := response.read1(CHUNK_BYTES):
            took(file.tell() + len(chunk))
            file.write(chunk)


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise UnusableResponseError(f"sends {size} bytes or more, expected at most {most}")


def _check_complete(part: Path, whole: int | None) -> None:
    size = part.stat().st_size
    if whole is not None and size < whole:
        raise ConnectionError(f"was cut off after {size} of {whole} bytes")


RETRYABLE_STATUS = {408, 425, 429}  # answers in the 400s that say "later", not "never"
LOCAL_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EISDIR}


@dataclass(frozen=True)
class RetryPolicy:
    """How long to wait for a server, and how often to ask it again."""

    timeout_s: float = 30.0  # without a byte
    whole_s: float = 3600.0  # for one file at one try
    tries: int = 3  # at each address
    delay_s: float = 2.0  # before the second try; each further waits three times as long
    pause: Callable[[float], None] = time.sleep


def fetch(
    name: str,
    folder: Path,
    *,
    progress: Progress = no_progress,
    known: Manifest | None = None,
    manners: RetryPolicy | None = None,
) -> list[Path]:
    """Bring a data set into the folder, unless it is there, and tell where it is."""
    check_name(name)
    home = import_module(f"edgemerge.paper.data.{name}")
    if name == "driving":
        return [home.find(folder).where]  # or the error that says how to get it
    known, place = known or home.MANIFEST, folder / name
    remotes = home.remotes(known)
    targets = {_target(address, place) for one in remotes for address in one.addresses}
    if there := _find_existing(lambda: home.find(folder, known=known), targets):
        return [there]
    options: dict[str, Any] = {"progress": progress, "manners": manners or RetryPolicy()}
    return [fetch_file(one, place, **options) for one in remotes]


def _find_existing(find: Callable[[], VerifiedFiles], targets: set[Path]) -> Path | None:
    """Tell where the data set is, if it is; refuse what fetching these files would not mend."""
    try:
        return find().where
    except (DamagedDataError, IncompleteDataError) as error:
        if error.path not in targets:
            raise
    except MissingDataError:
        pass
    return None


def fetch_file(
    remote: RemoteFile, place: Path, *, progress: Progress, manners: RetryPolicy
) -> Path:
    """Bring one file into a folder from the first address that gives it whole."""
    _make_folder(place)
    failures = []
    for address in remote.addresses:
        target = _target(address, place)
        if target.is_file() and not _check_failure(remote, target):
            return target
        reason = _fetch_from(address, target, remote, progress=progress, manners=manners)
        if not reason:
            return target
        failures.append(f"{address}: {reason}")
    raise FetchError(
        f"{target.name} could not be fetched ({'; '.join(failures)})",
        f"try again later, which goes on where it stopped, or put it into {place} yourself",
        target,
    )


def _fetch_from(
    address: str, target: Path, remote: RemoteFile, *, progress: Progress, manners: RetryPolicy
) -> str:
    """Try an address; give the reason if it does not work out."""
    reason = ""
    for at in range(manners.tries):
        if at:
            manners.pause(manners.delay_s * 3 ** (at - 1) * random.uniform(0.5, 1.0))
        reason, again = _attempt(address, target, remote, progress=progress, manners=manners)
        if not again:
            break
    return reason


def _attempt(
    address: str, target: Path, remote: RemoteFile, *, progress: Progress, manners: RetryPolicy
) -> tuple[str, bool]:
    """Ask once: give what went wrong, if anything, and whether asking again may help."""
    part = target.with_name(f"{target.name}.part")
    resumed = part.exists()
    try:
        waits = {"timeout_s": manners.timeout_s, "whole_s": manners.whole_s}
        download(address, part, most=remote.most, progress=progress, **waits)
    except UnusableResponseError as error:
        part.unlink(missing_ok=True)
        return str(error), resumed
    except (OSError, HTTPException) as error:
        _raise_local_error(error, target)
        return _describe(error), _is_retryable(error)
    if wrong := _check_failure(remote, part):
        part.unlink()
        return wrong, resumed
    _commit(part, target)
    return "", False


def _check_failure(remote: RemoteFile, path: Path) -> str:
    try:
        remote.check(path)
    except DataError as error:
        return error.fault
    return ""


def _commit(part: Path, target: Path) -> None:
    """Give the part its name, once all of it is on the disk."""
    with part.open("r+b") as file:
        os.fsync(file.fileno())
    part.replace(target)


def _target(address: str, place: Path) -> Path:
    return place / unquote(urlsplit(address).path.rpartition("/")[2])


def _make_folder(place: Path) -> None:
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(error, place) from error


def _raise_local_error(error: Exception, target: Path) -> None:
    """Stop at once when the fault is on our side: no server can mend a full disk."""
    if isinstance(error, OSError) and error.errno in LOCAL_ERRNOS:
        raise _unwritable(error, target) from error


def _unwritable(error: OSError, path: Path) -> FetchError:
    return FetchError(
        f"{path} cannot be written ({error.strerror})",
        "make room, or name another folder by EDGEMERGE_DATA",
        path,
    )


def _describe(error: Exception) -> str:
    if isinstance(error, HTTPError):
        return f"answered {error.code} {error.reason}"
    return str(getattr(error, "reason", "")) or str(error) or type(error).__name__


def _is_retryable(error: Exception) -> bool:
    return not isinstance(error, HTTPError) or error.code >= 500 or error.code in RETRYABLE_STATUS


@dataclass(frozen=True)
class DatasetStatus:
    """What is known of one data set: `state` is found, missing, incomplete or damaged."""

    name: str
    state: str
    where: Path | None = None
    rows: int = 0
    patterns: Mapping[str, int] = field(default_factory=dict)  # the samples of each
    advice: str = ""


def status(folder: Path, *, known: Mapping[str, Manifest] | None = None) -> list[DatasetStatus]:
    """Look at every data set; nothing is raised, what is wrong stands in `advice`."""
    return [_dataset_status(name, folder, known or {}) for name in NAMES]


def _dataset_status(name: str, folder: Path, known: Mapping[str, Manifest]) -> DatasetStatus:
    home = import_module(f"edgemerge.paper.data.{name}")
    options: dict[str, Any] = {"known": known[name]} if name in known else {}
    try:
        found = home.find(folder, **options)
        y = home.labels(found)
    except DataError as error:
        return DatasetStatus(name, _state(error), advice=str(error))
    counts = np.bincount(y, minlength=len(home.PATTERNS)).tolist()
    return DatasetStatus(
        name, "found", found.where, len(y), dict(zip(home.PATTERNS, counts, strict=True))
    )


def _state(error: DataError) -> str:
    if isinstance(error, DamagedDataError):
        return "damaged"
    return "incomplete" if isinstance(error, IncompleteDataError) else "missing"
