"""A secret that stands in a file of its own: a token or a password, on one line."""

from __future__ import annotations

import os
from pathlib import Path

from edgemerge.core.errors import SettingError

LONGEST = 4096  # bytes


def read_secret(path: str | os.PathLike[str]) -> str:
    """Read it; what is wrong with the file is said without showing what is in it."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(LONGEST + 1).decode().strip()
    except OSError as error:
        raise SettingError(f"cannot read the secret in {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        text = ""
    if not text or len(text) > LONGEST or not text.isprintable():
        raise SettingError(f"found no secret in {path}, expected one line of text")
    return text
