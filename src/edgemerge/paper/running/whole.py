"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def write(data: bytes, path: Path) -> None:
    """Write beside, then rename; folders are made as needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        beside.write_bytes(data)
        beside.replace(path)
    finally:
        with suppress(FileNotFoundError):
            beside.unlink()
