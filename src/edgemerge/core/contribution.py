"""A contribution: what one device has seen of one pattern, with its origin."""

from __future__ import annotations

from dataclasses import dataclass

from edgemerge.core.errors import SettingError, must_be
from edgemerge.core.settings import whole
from edgemerge.core.stats import Stats

Key = tuple[str, int, str]


def must_be_name(word: str, value: str) -> None:
    """Refuse a name that could not be told apart from another, or not be shown."""
    must_be(value, str, f"name the {word}")
    if not (value and len(value) <= 200 and value.isprintable()):
        raise SettingError(f"found {word} {value!r}, expected 1 to 200 printable characters")


@dataclass(frozen=True)
class Contribution:
    """What one device has seen of one pattern: stats with their origin.

    The revision rises with every share. The incarnation rises when a device starts again from
    nothing; both its old and its new samples then count, as they were all seen.
    """

    device: str
    stats: Stats
    revision: int
    pattern: str = "normal"
    incarnation: int = 0

    def __post_init__(self) -> None:
        """Refuse an origin that could not be told apart from another."""
        for word, value in (("device", self.device), ("pattern", self.pattern)):
            must_be_name(word, value)
        for word, number in (("revision", self.revision), ("incarnation", self.incarnation)):
            object.__setattr__(self, word, whole(word, number))
            if not 0 <= number < 2**63:
                raise SettingError(f"found {word} {number}, expected 0 to 2⁶³ − 1")

    @property
    def key(self) -> Key:
        """Device, incarnation and pattern: what a newer revision replaces."""
        return self.device, self.incarnation, self.pattern

    def __repr__(self) -> str:
        """Show where it comes from and how much it holds."""
        return (
            f"Contribution({self.device}/{self.pattern}, incarnation {self.incarnation}, "
            f"revision {self.revision}, {self.stats.count:g} samples)"
        )
