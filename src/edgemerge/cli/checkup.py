"""What `edgemerge doctor` looks at on this machine, each look a function that gives findings."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from ctypes import CDLL
from importlib import metadata
from pathlib import Path
from time import time
from typing import NamedTuple

from edgemerge import __version__
from edgemerge.cli.group import THREADS

ROOM = 2**28  # bytes; below it a state folder or database may soon be full
OLD = 1735689600  # 2025-01-01: a clock before it was never set
DAY = 86400.0
REQUIREMENT = re.compile(
    r"([\w.-]+)(?:\[[\w,]+\])?(?:[^;]*?>=([\d.]+))?.*?(?:extra == ['\"]([\w-]+)['\"])?$"
)
OPTIONAL = ("plot", "sklearn", "river", "server", "postgres", "mqtt", "dask", "flower")

FRONTS, BACKS = ("", "scipy_"), ("", "64_", "_64")  # wheels give OpenBLAS names of their own


class Finding(NamedTuple):
    """One thing that was looked at: "ok", "warn" or "fail", with what to do about it."""

    level: str
    about: str
    words: str
    advice: str = ""


def versions() -> Iterator[Finding]:
    """Python and the packages that every installation has."""
    found = ".".join(map(str, sys.version_info[:3]))
    advice = "edgemerge needs Python 3.11 or newer"
    yield _judged("python", found, sys.version_info >= (3, 11), advice)
    yield Finding("ok", "edgemerge", __version__)
    for name, least, extra in requirements():
        if not extra:
            yield from _version(name, least, f"pip install '{name}>={least}'")


def extras() -> Iterator[Finding]:
    """Optional parts, and what is missing of them."""
    wanted: dict[str, list[tuple[str, str]]] = {}
    for name, least, extra in requirements():
        if extra in OPTIONAL and name != "edgemerge":
            wanted.setdefault(extra, []).append((name, least))
    for extra, packages in wanted.items():
        missing = [name for name, _ in packages if _found(name) is None]
        if missing:
            words = f"not installed ({', '.join(missing)} missing)"
            yield Finding("ok", f"extra {extra}", words, f"pip install 'edgemerge[{extra}]'")
            continue
        for name, least in packages:
            line = f"pip install --upgrade 'edgemerge[{extra}]'"
            yield from _version(name, least, line, f"extra {extra}")


def requirements() -> list[tuple[str, str, str]]:
    """Give name, least version and extra of every package that edgemerge may need."""
    with suppress(metadata.PackageNotFoundError):
        lines = metadata.requires("edgemerge") or []
        matches = [REQUIREMENT.match(line) for line in lines]
        return [tuple(part or "" for part in found.groups()) for found in matches if found]  # type: ignore[misc]  # three groups
    return []


def blas() -> Iterator[Finding]:
    """Which library multiplies matrices, and with how many threads."""
    import numpy as np

    with suppress(TypeError, KeyError):  # NumPy 1.24 has no such list
        about = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
        yield Finding("ok", "blas", f"{about['name']} {about['version']}")
    threads = _threads()
    advice = "for matrices of our size one is faster: export OPENBLAS_NUM_THREADS=1"
    yield Finding("warn" if threads > 1 else "ok", "blas threads", str(threads), advice)


def clock(folder: Path = Path()) -> Iterator[Finding]:
    """The wall clock: revoked tokens, invitations and certificates depend on it."""
    now, advice = time(), "set the clock, or let a time service set it (timedatectl)"
    newest = max((path.stat().st_mtime for path in _some(folder)), default=0.0)
    if now < OLD:
        yield Finding("fail", "clock", "it was never set", advice)
    elif newest > now + DAY:
        yield Finding("fail", "clock", "it is behind the times of files here", advice)
    else:
        yield Finding("ok", "clock", "no sign that it is wrong")


def folder(path: Path, about: str = "folder") -> Iterator[Finding]:
    """A place for state: can be written to, reaches the disk, has room."""
    from edgemerge.files import write

    there = next(each for each in [path, *path.absolute().parents] if each.exists())
    probe = there / f".edgemerge-doctor-{os.getpid()}"
    try:
        write(b"probe", probe)
        probe.unlink()
    except OSError as error:
        advice = "give it to the user that runs edgemerge: chown"
        yield Finding("fail", about, f"{there} cannot be written to: {error.strerror}", advice)
        return
    yield Finding("ok", about, f"{there} can be written to")
    free = shutil.disk_usage(there).free
    words = f"{free / 2**30:.1f} GiB free"
    yield Finding("ok" if free > ROOM else "warn", f"{about} room", words, "make room on that disk")


def token_file(path: Path) -> Iterator[Finding]:
    """A secret: there, and for nobody else to read."""
    try:
        mode = path.stat().st_mode & 0o777
    except OSError as error:
        advice = "`edgemerge enrol` makes it"
        yield Finding("fail", "token file", f"{path}: {error.strerror}", advice)
        return
    closed = not mode & 0o077
    words = f"{path} has mode {mode:03o}"
    yield Finding("ok" if closed else "fail", "token file", words, f"chmod 600 {path}")


def systemd() -> Iterator[Finding]:
    """Whether somebody wants to know that a service is ready."""
    if os.environ.get("NOTIFY_SOCKET"):
        yield Finding("ok", "systemd", "started this program and is told when a service is ready")
    elif Path("/run/systemd/system").is_dir():
        yield Finding("ok", "systemd", "runs here; units for it are in deploy/")
    else:
        yield Finding("ok", "systemd", "does not run here; start the programs in another way")


def _version(name: str, least: str, line: str, about: str = "") -> Iterator[Finding]:
    found = _found(name)
    enough = found is not None and _numbers(found) >= _numbers(least)
    shown = f"{name} {found}" if about else found or "missing"
    yield _judged(about or name, shown, enough, f"{least} or newer is needed: {line}")


def _judged(about: str, words: str, good: object, advice: str) -> Finding:
    return Finding("ok", about, words) if good else Finding("fail", about, words, advice)


def _found(name: str) -> str | None:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(name)
    return None


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)[:3]]


def _threads() -> int:
    """Ask the libraries that are loaded; where there is none of them, take the user's word."""
    found = [ask() for library in _loaded("openblas") for ask in _asks(library)]
    set_by = [int(os.environ[name]) for name in THREADS if os.environ.get(name, "").isdigit()]
    return max(found or set_by[:1] or [os.cpu_count() or 1])


def _loaded(word: str) -> Iterator[CDLL]:
    with suppress(OSError):
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        for path in {line.split()[-1] for line in lines if word in line}:
            yield CDLL(path)


def _asks(library: CDLL) -> list[Callable[[], int]]:
    names = [f"{front}openblas_get_num_threads{back}" for front in FRONTS for back in BACKS]
    return [getattr(library, name) for name in names if hasattr(library, name)]


def _some(folder: Path) -> list[Path]:
    ours = list(Path(__file__).parent.glob("*.py"))
    with suppress(OSError):
        return [*ours, *(path for path in folder.iterdir() if path.is_file())]
    return ours
