"""Names that may stand in an address: nothing that a path, a file or a topic could trip over."""

from __future__ import annotations

import re

from edgemerge.core.contribution import must_be_name
from edgemerge.core.errors import SettingError

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"


def must_be_plain(word: str, value: str) -> None:
    """Refuse the name of a fleet or device that is not plain."""
    if not re.fullmatch(NAME, value):
        raise SettingError(
            f"found {word} {value[:120]!r}, expected 1 to 100 letters, digits, '.', '_' or '-', "
            "the first a letter or digit"
        )


def must_be_pattern(value: str) -> None:
    """Refuse the name of a pattern that cannot be part of an address."""
    must_be_name("pattern", value)
    if "/" in value or "\\" in value or not value.strip("."):
        raise SettingError(f"found pattern {value!r}, expected one without slashes, not only dots")
