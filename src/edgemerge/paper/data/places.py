"""Where data sets are looked for."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "EDGEMERGE_DATA"
DEFAULT = "edgemerge-data"  # below the user's cache folder


def folder_of(option: Path | None) -> Path:
    """Give the folder of the data sets: the option, else EDGEMERGE_DATA, else one in the cache.

    >>> folder_of(Path("here")).name
    'here'
    """
    if option is not None:
        return option.expanduser()
    if named := os.environ.get(VARIABLE):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / DEFAULT
