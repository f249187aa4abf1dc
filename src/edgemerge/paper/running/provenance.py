"""What results were made with: the machine, the packages, the data."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from edgemerge.paper.data import DataError, folder_of
from edgemerge.paper.data.known import Found

PACKAGES = ("edgemerge", "numpy", "scipy", "scikit-learn", "torch", "matplotlib")
CPU = Path("/proc/cpuinfo")


def machine() -> dict[str, str | int]:
    """Tell what kind of machine this is; nothing here says which one."""
    return {
        "processor": _processor(CPU.read_text(encoding="utf-8") if CPU.exists() else ""),
        "cores": os.cpu_count() or 1,
        "memory_gb": _memory_gb(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def packages(names: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Give the version of each package; one that is not there is left out."""
    return {name: found for name in names if (found := _version(name))}


@lru_cache(maxsize=8)
def digest(name: str, folder: Path | None) -> str:
    """Give the SHA-256 of a data set's file, or raise the DataError that says what to do.

    Of several files it is that of what `sha256sum` says of them. All are verified before.
    """
    found: Found = import_module(f"edgemerge.paper.data.{name}").find(folder_of(folder))
    each = {file: sha256(data).hexdigest() for file, data in sorted(found.files.items())}
    if len(each) == 1:
        return next(iter(each.values()))
    return sha256("".join(f"{key}  {file}\n" for file, key in each.items()).encode()).hexdigest()


def lacking(names: Sequence[str], folder: Path | None) -> dict[str, DataError]:
    """Tell which data sets cannot be used, and why."""
    faults = {}
    for name in names:
        try:
            digest(name, folder)
        except DataError as error:
            faults[name] = error
    return faults


def digests(names: Sequence[str], folder: Path | None) -> dict[str, str]:
    """Give the digest of each data set that can be used."""
    faults = lacking(names, folder)
    return {name: digest(name, folder) for name in sorted(set(names)) if name not in faults}


def _processor(text: str) -> str:
    r"""Find the name of the processor among what Linux says of it.

    >>> _processor("vendor_id : X\nmodel name : Y 3000 @ 2 GHz\n")
    'Y 3000 @ 2 GHz'
    """
    lines = (line.partition(":") for line in text.splitlines())
    found = (value.strip() for key, _, value in lines if key.strip() == "model name")
    return next(found, "") or platform.processor() or platform.machine()


def _memory_gb() -> int:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    except (AttributeError, ValueError, OSError):  # no such question on this system
        return 0


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
