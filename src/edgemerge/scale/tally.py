"""A tally: what passed between two tiers."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass
class Tally:
    """Counts messages and their bytes, and what became of them."""

    messages: int = 0
    bytes: int = 0
    kept: int = 0
    late_or_repeated: int = 0
    refused: int = 0

    def heard(self, length: int, *, kept: bool) -> None:
        """Count a message that was taken in, or was known already."""
        self.messages += 1
        self.bytes += length
        self.kept += kept
        self.late_or_repeated += not kept

    def refuse(self, length: int) -> None:
        """Count a message that did not pass the checks."""
        self.messages += 1
        self.bytes += length
        self.refused += 1

    def add(self, other: Tally) -> None:
        """Add another tally to this one."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))
