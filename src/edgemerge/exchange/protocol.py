"""The exchange protocol: push what one device saw, pull what others saw."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from edgemerge.core.ledger import Contribution, Key, Merged, MergedPart, largest
from edgemerge.core.projection import Projection
from edgemerge.core.similarity import group


@dataclass(frozen=True)
class Wish:
    """What to pull: of whom, and in one sum or grouped by pattern.

    `device` is who asks: its own contributions are left out, of all its incarnations or of one.
    What it saw in an earlier life comes back to it that way, as told by others.
    """

    device: str | None = None
    incarnation: int | None = None
    devices: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()
    pattern: str | None = None
    largest: int | None = None
    grouped: bool = False

    @property
    def is_restricted(self) -> bool:
        """Whether it leaves out more than the asker's own."""
        return bool(self.devices is not None or self.without or self.pattern is not None)

    def choose(self, contributions: Iterable[Contribution]) -> list[Contribution]:
        """Give those that are wanted, in the order of their keys; empty ones say nothing."""
        chosen = sorted(filter(self._wants, contributions), key=lambda note: note.key)
        return largest(self.largest)(chosen) if self.largest and chosen else chosen

    def wants(self, key: Key, count: float) -> bool:
        """Say whether one contribution is wanted, were there no limit to their number."""
        device, incarnation, pattern = key
        mine = device == self.device and self.incarnation in (None, incarnation)
        return (
            not mine
            and count > 0
            and (self.devices is None or device in self.devices)
            and device not in self.without
            and self.pattern in (None, pattern)
        )

    def of(self, contributions: Iterable[Contribution], projection: Projection) -> Merged:
        """Sum up what is wanted."""
        chosen = self.choose(contributions)
        if self.grouped:
            parts = [MergedPart.of(found.members, projection) for found in group(chosen)]
        else:
            parts = [MergedPart.of(chosen, projection)] if chosen else []
        return Merged(projection, tuple(parts))

    def _wants(self, note: Contribution) -> bool:
        return self.wants(note.key, note.stats.count)


class Exchange(Protocol):
    """Where devices leave what they saw and find what others saw.

    Both raise `AwayError` when the other side cannot be reached now, and `DeniedError` when it
    does not let us; nothing has changed then, and the same call may be repeated.
    """

    def push(self, contribution: Contribution) -> bool:
        """Leave a contribution; False if it was there already. When it returns, it is kept.

        A revision that is older than what is there, or the same with other numbers, is refused
        with `StaleError`; a contribution that cannot be true with `RejectedError`.
        """
        ...

    def pull(self, wish: Wish) -> Merged:
        """Fetch what others have left."""
        ...
