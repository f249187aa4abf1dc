"""What a folder holds of each data set, for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from edgemerge.paper.data.about import NAMES
from edgemerge.paper.data.errors import DamagedDataError, DataError, IncompleteDataError
from edgemerge.paper.data.known import Known


@dataclass(frozen=True)
class Status:
    """What is known of one data set: `state` is found, missing, incomplete or damaged."""

    name: str
    state: str
    where: Path | None = None
    rows: int = 0
    patterns: Mapping[str, int] = field(default_factory=dict)  # the samples of each
    advice: str = ""


def status(folder: Path, *, known: Mapping[str, Known] | None = None) -> list[Status]:
    """Look at every data set; nothing is raised, what is wrong stands in `advice`."""
    return [_of(name, folder, known or {}) for name in NAMES]


def _of(name: str, folder: Path, known: Mapping[str, Known]) -> Status:
    home = import_module(f"edgemerge.paper.data.{name}")
    options: dict[str, Any] = {"known": known[name]} if name in known else {}
    try:
        found = home.find(folder, **options)
        y = home.labels(found)
    except DataError as error:
        return Status(name, _state(error), advice=str(error))
    counts = np.bincount(y, minlength=len(home.PATTERNS)).tolist()
    return Status(name, "found", found.where, len(y), dict(zip(home.PATTERNS, counts, strict=True)))


def _state(error: DataError) -> str:
    if isinstance(error, DamagedDataError):
        return "damaged"
    return "incomplete" if isinstance(error, IncompleteDataError) else "missing"
