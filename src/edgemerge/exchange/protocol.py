"""The exchange protocol: push what one device saw, pull what others saw; and it in memory."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock
from typing import Protocol, TypeGuard

from edgemerge.core.errors import must_be
from edgemerge.core.faults import Faults
from edgemerge.core.ledger import (
    KINDS,
    MAX_PARTS,
    Contribution,
    Kind,
    Ledger,
    Merged,
    MergedPart,
    Selection,
)
from edgemerge.core.projection import Projection
from edgemerge.core.similarity import group
from edgemerge.exchange.stored_contributions import must_be_current
from edgemerge.privacy.noise import NoiseSettings
from edgemerge.wire.admission import admit


class Exchange(Protocol):
    """Where devices leave contributions and get the sum of others'.

    Both methods raise `UnavailableError` when the other side cannot be reached now, and
    `DeniedError` when it refuses access. Nothing has changed then: call again later.

    To change what an exchange does, wrap it: any class with these two methods is one.

    >>> from edgemerge import Stats
    >>> class Counted:
    ...     def __init__(self, exchange):
    ...         self.exchange, self.pushes = exchange, 0
    ...     def push(self, contribution):
    ...         self.pushes += 1
    ...         return self.exchange.push(contribution)
    ...     def pull(self, selection, *, grouped=False):
    ...         return self.exchange.pull(selection, grouped=grouped)
    >>> shared = Projection(n_inputs=2, n_hidden=3)
    >>> exchange: Exchange = Counted(MemoryExchange(shared))
    >>> exchange.push(Contribution("pump-3", Stats.of(shared, [[0.1, 0.2]]), revision=1))
    True
    >>> exchange.pull(Selection(receiver="pump-4")), exchange.pushes
    (Merged(1 parts of 1 contributions, 1 samples), 1)
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
            grouped: One sum for each pattern (for a `Bank`) instead of one in all (the default).
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


class MaskedFleetExchange(Exchange, Protocol):
    """An exchange that sends what was pushed behind masks, and perhaps with noise.

    With noise it takes clipped sums only.
    """

    def take_part(self) -> None:
        """Send what was pushed, and do what other devices wait for; `pull` does so, too."""
        ...

    @property
    def noise_known(self) -> bool:
        """Whether `noise` is known without asking."""
        ...

    @property
    def noise(self) -> NoiseSettings | None:
        """The noise that the fleet has agreed on; None: no noise."""
        ...

    @property
    def lost(self) -> int:
        """The uploads whose samples are in no total, since their epochs failed."""
        ...


def is_masked(exchange: Exchange) -> TypeGuard[MaskedFleetExchange]:
    """Return whether an exchange has masks, and must be asked for the noise of its fleet.

    Args:
        exchange: Any exchange.
    """
    return hasattr(exchange, "take_part")


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


def must_be_contribution(given: object) -> None:
    """Raise KindError unless this is a contribution, which can be pushed."""
    must_be(given, Contribution, "share() of a learner returns a list of them: push each")


def must_be_selection(given: object) -> None:
    """Raise KindError unless this is a selection, which can be pulled."""
    must_be(given, Selection, 'give such as Selection(receiver="pump-3")')


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
    must_be_selection(selection)
    chosen = [each for each in selection(contributions) if each.samples > 0]
    if grouped:
        parts = [MergedPart.of(found.members, projection) for found in group(chosen)[:MAX_PARTS]]
    else:
        parts = [MergedPart.of(chosen, projection)] if chosen else []
    return Merged(projection, tuple(parts))


class MemoryExchange:
    """A ledger that several threads may use.

    Args:
        projection: What all devices share.

    >>> from edgemerge import Stats
    >>> shared = Projection(n_inputs=2, n_hidden=3)
    >>> exchange = MemoryExchange(shared)
    >>> exchange.push(Contribution("pump-3", Stats.of(shared, [[0.1, 0.2]]), revision=1))
    True
    >>> exchange.pull(Selection(receiver="pump-4"))
    Merged(1 parts of 1 contributions, 1 samples)
    """

    def __init__(self, projection: Projection) -> None:
        """Start empty."""
        self.projection = projection
        self._ledgers = {kind: Ledger(projection, kind=kind) for kind in KINDS}
        self._lock = Lock()

    def push(self, contribution: Contribution) -> bool:
        """Store a contribution; return False if it was stored before."""
        must_be_contribution(contribution)
        admit(contribution, projection=self.projection, kind=contribution.kind)
        ledger = self._ledgers[contribution.kind]
        with self._lock:
            must_be_current(contribution, ledger.get(contribution.key))
            return ledger.put(contribution)

    def pull(self, selection: Selection, *, grouped: bool = False) -> Merged:
        """Return the sum of the selected contributions."""
        return merge(self._listed("normal"), self.projection, selection, grouped=grouped)

    def pull_faults(self, selection: Selection) -> Faults:
        """Return the selected faults, those that are alike as one.

        Args:
            selection: Which contributions; name yourself as `receiver` to leave out your own.
        """
        return Faults.of(self._listed("fault"), self.projection, selection)

    def _listed(self, kind: Kind) -> list[Contribution]:
        with self._lock:
            return list(self._ledgers[kind])
