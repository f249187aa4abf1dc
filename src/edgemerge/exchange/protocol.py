"""The exchange protocol: push what one device saw, pull what others saw."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeGuard

from edgemerge.core.faults import Faults
from edgemerge.core.ledger import MAX_PARTS, Contribution, Merged, MergedPart, Selection
from edgemerge.core.projection import Projection
from edgemerge.core.similarity import group


class Exchange(Protocol):
    """Where devices leave contributions and get the sum of others'.

    Both methods raise `UnavailableError` when the other side cannot be reached now, and
    `DeniedError` when it refuses access. Nothing has changed then: call again later.
    """

    def push(self, contribution: Contribution) -> bool:
        """Store a contribution; return False if it was stored before.

        Args:
            contribution: What this device saw. If it keeps its encoded bytes, those are sent.

        Raises:
            StaleError: A later revision is stored, or the same one with different sums.
            RejectedError: It failed validation.
        """
        ...

    def pull(self, selection: Selection, *, grouped: bool = False) -> Merged:
        """Return the sum of stored contributions.

        Args:
            selection: Which contributions; name yourself as `receiver` to leave out your own.
            grouped: One sum for each pattern (for a `Bank`) instead of one in all.
        """
        ...


class FaultExchange(Exchange, Protocol):
    """An exchange that also stores faults, apart from what is normal; all of ours do."""

    def pull_faults(self, selection: Selection) -> Faults:
        """Return the faults that others named, those that are alike as one.

        Args:
            selection: Which contributions; name yourself as `receiver` to leave out your own.
        """
        ...


class RestorableExchange(Exchange, Protocol):
    """An exchange that may lose what it acknowledged, when it is restored from a backup."""

    @property
    def timeline(self) -> str:
        """Names the exchange's history; another name after a restore, "" if it is not known."""
        ...

    def own_revisions(self, device: str, incarnation: int) -> dict[str, int]:
        """Return the revisions of a device's contributions with samples, by pattern.

        Args:
            device: The device that asks.
            incarnation: Its incarnation.
        """
        ...


def may_be_restored(exchange: Exchange) -> TypeGuard[RestorableExchange]:
    """Return whether an exchange says that it was restored.

    Args:
        exchange: Any exchange.
    """
    return hasattr(exchange, "own_revisions")


def shares_faults(exchange: Exchange) -> TypeGuard[FaultExchange]:
    """Return whether faults can be pushed to an exchange.

    Args:
        exchange: Any exchange. One without `pull_faults` might add a fault to what is normal.
    """
    return hasattr(exchange, "pull_faults")


def merge(
    contributions: Iterable[Contribution],
    projection: Projection,
    selection: Selection,
    *,
    grouped: bool = False,
) -> Merged:
    """Sum up the selected contributions; empty ones are not listed among the origins.

    Args:
        contributions: What to select from, in any order.
        projection: What all devices share.
        selection: Which of them to sum up.
        grouped: One sum for each pattern instead of one in all; of the 64 largest if there are
            more.
    """
    chosen = [each for each in selection(contributions) if each.samples > 0]
    if grouped:
        parts = [MergedPart.of(found.members, projection) for found in group(chosen)[:MAX_PARTS]]
    else:
        parts = [MergedPart.of(chosen, projection)] if chosen else []
    return Merged(projection, tuple(parts))
