"""What is known of a data set's files before they are seen, and what was found of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Known:
    """The fingerprint of each file, and the addresses from which it may be fetched."""

    digests: Mapping[str, str]
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class Found:
    """Verified files: where they were, and the bytes of each."""

    where: Path
    files: Mapping[str, bytes]

    def __repr__(self) -> str:
        """Show the place, not the bytes."""
        return f"Found({len(self.files)} files in {self.where})"


@dataclass(frozen=True)
class Remote:
    """A file to fetch: addresses in the order to try, its greatest size, and what checks it.

    The file is called as its address ends, so only equal files may have equal names.
    """

    addresses: tuple[str, ...]
    most: int
    check: Callable[[Path], None]
