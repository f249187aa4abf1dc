"""Status of the data sets in a folder; downloads with mirrors, retries, resume and checks."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
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
from edgemerge.daemon import Backoff
from edgemerge.paper.data.catalog import (
    NAMES,
    DamagedDataError,
    DataError,
    FetchError,
    IncompleteDataError,
    MissingDataError,
    check_name,
)
from edgemerge.paper.data.verified_files import Manifest, RemoteFile

Progress = Callable[[str, int, int | None], None]  # file, bytes so far, bytes in all if known
CHUNK_BYTES = 2**16
MAX_DELAY_S = 60.0  # between two tries
RANGE_NOT_SATISFIABLE = 416  # the part is as long as the file, or longer


def no_progress(_name: str, _sofar: int, _whole: int | None) -> None:
    """Show no progress."""


class UnusableResponseError(ConnectionError):
    """The response cannot become the file; what was downloaded is of no use."""


def download(
    address: str, part: Path, *, most: int, timeout_s: float, whole_s: float, progress: Progress
) -> None:
    """Append to a partial file what is missing, or all of it if the server does not resume.

    The caller has to verify the result: a server need not send the length of a file.
    """
    had = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": f"edgemerge/{__version__}"}
    request = Request(address, headers=headers | ({"Range": f"bytes={had}-"} if had else {}))
    try:
        with urlopen(request, timeout=timeout_s) as response:
            start = _start(response, had)
            length = response.headers.get("Content-Length", "")
            whole = start + int(length) if length.isdecimal() else None
            _check_size(whole or 0, most)
            deadline = monotonic() + whole_s
            for size in _append(response, part, start, most):
                if monotonic() > deadline:
                    raise TimeoutError(f"still not whole after {size} bytes")
                progress(part.name.removesuffix(".part"), size, whole)
    except HTTPError as error:
        error.close()
        if error.code != RANGE_NOT_SATISFIABLE or not had:
            raise
        return
    size = part.stat().st_size
    if whole is not None and size < whole:
        raise ConnectionError(f"was cut off after {size} of {whole} bytes")


def _start(response: HTTPResponse, had: int) -> int:
    """Return where the body starts: after the bytes we had, or at 0 if the range was ignored."""
    if response.status != HTTPStatus.PARTIAL_CONTENT:
        return 0
    sent = response.headers.get("Content-Range", "")
    if not sent.startswith(f"bytes {had}-"):
        raise UnusableResponseError(f"was asked for bytes from {had} on, sends {sent or 'others'}")
    return had


def _append(response: HTTPResponse, part: Path, start: int, most: int) -> Iterator[int]:
    """Write the body; yield the size of the file before each chunk is written."""
    with part.open("ab" if start else "wb") as file:
        while chunk := response.read1(CHUNK_BYTES):
            size = file.tell() + len(chunk)
            _check_size(size, most)
            yield size
            file.write(chunk)


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise UnusableResponseError(f"sends {size} bytes or more, expected at most {most}")


RETRYABLE_STATUS = {408, 425, 429}  # answers in the 400s that say "later", not "never"
LOCAL_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EISDIR}


@dataclass(frozen=True)
class RetryPolicy:
    """Timeouts and retries of a download."""

    timeout_s: float = 30.0  # without a byte
    whole_s: float = 3600.0  # for one file at one try
    tries: int = 3  # at each address
    delay_s: float = 2.0  # before the second try; each further waits twice as long
    pause: Callable[[float], None] = time.sleep


def fetch(
    name: str,
    folder: Path,
    *,
    progress: Progress = no_progress,
    known: Manifest | None = None,
    retry: RetryPolicy | None = None,
) -> list[Path]:
    """Download a data set into the folder, unless it is there; return the paths of its files."""
    check_name(name)
    home = import_module(f"edgemerge.paper.data.{name}")
    if name == "driving":
        return [home.find(folder).where]  # or the error that says how to get it
    known, place = known or home.MANIFEST, folder / name
    remotes = home.remotes(known)
    targets = {_target(address, place) for one in remotes for address in one.addresses}
    try:
        return [home.find(folder, known=known).where]
    except (DamagedDataError, IncompleteDataError) as error:
        if error.path not in targets:  # downloading would not replace it
            raise
    except MissingDataError:
        pass
    options: dict[str, Any] = {"progress": progress, "retry": retry or RetryPolicy()}
    return [fetch_file(one, place, **options) for one in remotes]


def fetch_file(remote: RemoteFile, place: Path, *, progress: Progress, retry: RetryPolicy) -> Path:
    """Download one file into a folder from the first address that gives it whole."""
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(error, place) from error
    failures = []
    for address in remote.addresses:
        target = _target(address, place)
        if target.is_file() and not _check_failure(remote, target):
            return target
        reason = _fetch_from(address, target, remote, progress=progress, retry=retry)
        if not reason:
            return target
        failures.append(f"{address}: {reason}")
    raise FetchError(
        f"{target.name} could not be fetched ({'; '.join(failures)})",
        f"try again later, which goes on where it stopped, or put it into {place} yourself",
        target,
    )


def _fetch_from(
    address: str, target: Path, remote: RemoteFile, *, progress: Progress, retry: RetryPolicy
) -> str:
    """Try an address, with retries; return the reason if it fails, else an empty text."""
    reason, backoff = "", Backoff(retry.delay_s, MAX_DELAY_S)
    for at in range(retry.tries):
        if at:
            retry.pause(backoff.next())
        reason, again = _attempt(address, target, remote, progress=progress, retry=retry)
        if not again:
            break
    return reason


def _attempt(
    address: str, target: Path, remote: RemoteFile, *, progress: Progress, retry: RetryPolicy
) -> tuple[str, bool]:
    """Try once; return what went wrong, if anything, and whether to retry."""
    part = target.with_name(f"{target.name}.part")
    resumed = part.exists()
    try:
        waits = {"timeout_s": retry.timeout_s, "whole_s": retry.whole_s}
        download(address, part, most=remote.most, progress=progress, **waits)
    except UnusableResponseError as error:
        part.unlink(missing_ok=True)
        return str(error), resumed
    except (OSError, HTTPException) as error:
        if isinstance(error, OSError) and error.errno in LOCAL_ERRNOS:
            raise _unwritable(error, target) from error  # no retry helps against a full disk
        return _failure(error)
    if wrong := _check_failure(remote, part):
        part.unlink()
        return wrong, resumed
    with part.open("r+b") as file:
        os.fsync(file.fileno())
    part.replace(target)
    return "", False


def _check_failure(remote: RemoteFile, path: Path) -> str:
    try:
        remote.check(path)
    except DataError as error:
        return error.fault
    return ""


def _target(address: str, place: Path) -> Path:
    return place / unquote(urlsplit(address).path.rpartition("/")[2])


def _unwritable(error: OSError, path: Path) -> FetchError:
    return FetchError(
        f"{path} cannot be written ({error.strerror})",
        "make room, or name another folder by EDGEMERGE_DATA",
        path,
    )


def _failure(error: Exception) -> tuple[str, bool]:
    if isinstance(error, HTTPError):
        again = error.code >= 500 or error.code in RETRYABLE_STATUS
        return f"answered {error.code} {error.reason}", again
    return str(getattr(error, "reason", "")) or str(error) or type(error).__name__, True


@dataclass(frozen=True)
class DatasetStatus:
    """Status of one data set: `state` is found, missing, incomplete or damaged."""

    name: str
    state: str
    where: Path | None = None
    rows: int = 0
    patterns: Mapping[str, int] = field(default_factory=dict)  # number of samples of each
    advice: str = ""


def status(folder: Path, *, known: Mapping[str, Manifest] | None = None) -> list[DatasetStatus]:
    """Check every data set; nothing is raised, errors are texts in `advice`."""
    return [_dataset_status(name, folder, known or {}) for name in NAMES]


def _dataset_status(name: str, folder: Path, known: Mapping[str, Manifest]) -> DatasetStatus:
    home = import_module(f"edgemerge.paper.data.{name}")
    options: dict[str, Any] = {"known": known[name]} if name in known else {}
    try:
        found = home.find(folder, **options)
        y = home.labels(found)
    except DataError as error:
        states = {DamagedDataError: "damaged", IncompleteDataError: "incomplete"}
        return DatasetStatus(name, states.get(type(error), "missing"), advice=str(error))
    counts = np.bincount(y, minlength=len(home.PATTERNS)).tolist()
    patterns = dict(zip(home.PATTERNS, counts, strict=True))
    return DatasetStatus(name, "found", found.where, len(y), patterns)
