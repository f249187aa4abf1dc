"""Fetching data sets from their makers: mirrors in turn, few tries, nothing taken unchecked."""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit

from edgemerge.paper.data.about import must_be_known
from edgemerge.paper.data.download import Progress, UselessError, bring, silent
from edgemerge.paper.data.errors import (
    DamagedDataError,
    DataError,
    FetchError,
    IncompleteDataError,
    MissingDataError,
)
from edgemerge.paper.data.known import Found, Known, Remote

PASSING = {408, 425, 429}  # answers in the 400s that say "later", not "never"
HERE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EISDIR}


@dataclass(frozen=True)
class Manners:
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
    progress: Progress = silent,
    known: Known | None = None,
    manners: Manners | None = None,
) -> list[Path]:
    """Bring a data set into the folder, unless it is there, and tell where it is."""
    must_be_known(name)
    home = import_module(f"edgemerge.paper.data.{name}")
    if name == "driving":
        return [home.find(folder).where]  # or the error that says how to get it
    known, place = known or home.KNOWN, folder / name
    remotes = home.remotes(known)
    targets = {_target(address, place) for one in remotes for address in one.addresses}
    if there := _there(lambda: home.find(folder, known=known), targets):
        return [there]
    options: dict[str, Any] = {"progress": progress, "manners": manners or Manners()}
    return [fetch_one(one, place, **options) for one in remotes]


def _there(find: Callable[[], Found], targets: set[Path]) -> Path | None:
    """Tell where the data set is, if it is; refuse what fetching these files would not mend."""
    try:
        return find().where
    except (DamagedDataError, IncompleteDataError) as error:
        if error.path not in targets:
            raise
    except MissingDataError:
        pass
    return None


def fetch_one(remote: Remote, place: Path, *, progress: Progress, manners: Manners) -> Path:
    """Bring one file into a folder from the first address that gives it whole."""
    _make(place)
    failures = []
    for address in remote.addresses:
        target = _target(address, place)
        if target.is_file() and not _wrong(remote, target):
            return target
        reason = _from(address, target, remote, progress=progress, manners=manners)
        if not reason:
            return target
        failures.append(f"{address}: {reason}")
    raise FetchError(
        f"{target.name} could not be fetched ({'; '.join(failures)})",
        f"try again later, which goes on where it stopped, or put it into {place} yourself",
        target,
    )


def _from(
    address: str, target: Path, remote: Remote, *, progress: Progress, manners: Manners
) -> str:
    """Try an address; give the reason if it does not work out."""
    reason = ""
    for at in range(manners.tries):
        if at:
            manners.pause(manners.delay_s * 3 ** (at - 1) * random.uniform(0.5, 1.0))
        reason, again = _try(address, target, remote, progress=progress, manners=manners)
        if not again:
            break
    return reason


def _try(
    address: str, target: Path, remote: Remote, *, progress: Progress, manners: Manners
) -> tuple[str, bool]:
    """Ask once: give what went wrong, if anything, and whether asking again may help."""
    part = target.with_name(f"{target.name}.part")
    resumed = part.exists()
    try:
        waits = {"timeout_s": manners.timeout_s, "whole_s": manners.whole_s}
        bring(address, part, most=remote.most, progress=progress, **waits)
    except UselessError as error:
        part.unlink(missing_ok=True)
        return str(error), resumed
    except (OSError, HTTPException) as error:
        _must_be_theirs(error, target)
        return _said(error), _may_pass(error)
    if wrong := _wrong(remote, part):
        part.unlink()
        return wrong, resumed
    _keep(part, target)
    return "", False


def _wrong(remote: Remote, path: Path) -> str:
    try:
        remote.check(path)
    except DataError as error:
        return error.fault
    return ""


def _keep(part: Path, target: Path) -> None:
    """Give the part its name, once all of it is on the disk."""
    with part.open("r+b") as file:
        os.fsync(file.fileno())
    part.replace(target)


def _target(address: str, place: Path) -> Path:
    return place / unquote(urlsplit(address).path.rpartition("/")[2])


def _make(place: Path) -> None:
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(error, place) from error


def _must_be_theirs(error: Exception, target: Path) -> None:
    """Stop at once when the fault is on our side: no server can mend a full disk."""
    if isinstance(error, OSError) and error.errno in HERE:
        raise _unwritable(error, target) from error


def _unwritable(error: OSError, path: Path) -> FetchError:
    return FetchError(
        f"{path} cannot be written ({error.strerror})",
        "make room, or name another folder by EDGEMERGE_DATA",
        path,
    )


def _said(error: Exception) -> str:
    if isinstance(error, HTTPError):
        return f"answered {error.code} {error.reason}"
    return str(getattr(error, "reason", "")) or str(error) or type(error).__name__


def _may_pass(error: Exception) -> bool:
    return not isinstance(error, HTTPError) or error.code >= 500 or error.code in PASSING
