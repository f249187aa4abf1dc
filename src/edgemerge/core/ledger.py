"""The ledger: the newest contribution of each device and pattern, and their exact total."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from edgemerge.core.contribution import Contribution, Key
from edgemerge.core.errors import RejectedError, UnknownError, must_be
from edgemerge.core.projection import Projection
from edgemerge.core.stats import Stats


class Ledger:
    """A replicated map: put in any order, any number of times, the newest of each key stays.

    >>> shared = Projection(n_inputs=2, n_hidden=3)
    >>> ledger = Ledger(shared)
    >>> ledger.put(Contribution("pump-3", Stats.of(shared, [[0.1, 0.2]]), revision=1))
    True
    >>> ledger.put(Contribution("pump-3", Stats.of(shared, [[0.1, 0.2]]), revision=1))
    False
    >>> ledger.total()
    Stats(3 hidden, 2 outputs, 1 samples)
    """

    def __init__(self, projection: Projection, *, n_outputs: int | None = None) -> None:
        """Start empty; `n_outputs` is for another target than the sample itself."""
        must_be(projection, Projection, "build one that all devices share")
        self.projection = projection
        self.n_outputs = projection.n_inputs if n_outputs is None else n_outputs
        self._newest: dict[Key, Contribution] = {}

    def put(self, contribution: Contribution) -> bool:
        """Keep a contribution unless it is late or repeated; say whether it was kept.

        The same revision with other numbers is refused: somebody tells two stories.
        """
        must_be(contribution, Contribution, "share() makes one from a detector")
        contribution.stats.must_be_of(self.projection, self.n_outputs)
        known = self._newest.get(contribution.key)
        if known and contribution.revision == known.revision and contribution.stats != known.stats:
            raise RejectedError(
                f"{contribution.device} sent revision {known.revision} of {contribution.pattern} "
                "twice with different numbers: raise the revision with every share"
            )
        if known and contribution.revision <= known.revision:
            return False
        self._newest[contribution.key] = contribution
        return True

    def merge(self, other: Ledger) -> None:
        """Take over whatever the other ledger knows better."""
        for contribution in other:
            self.put(contribution)

    def drop(self, device: str) -> None:
        """Forget a device, as if it had never been heard."""
        keys = [key for key in self._newest if key[0] == device]
        if not keys:
            raise UnknownError(f"no contribution of {device!r}; known: {self.devices}")
        for key in keys:
            del self._newest[key]

    def total(
        self,
        *,
        without: str | Collection[str] = (),
        devices: str | Collection[str] | None = None,
        pattern: str | None = None,
    ) -> Stats:
        """Sum up afresh: of all or some devices, without some, of all or one pattern."""
        left_out = {without} if isinstance(without, str) else set(without)
        wanted = {devices} if isinstance(devices, str) else set(devices or ())
        if wanted - set(self.devices):
            raise UnknownError(
                f"no contribution of {sorted(wanted - set(self.devices))}; known: {self.devices}"
            )
        chosen = (
            c.stats
            for c in self
            if c.device not in left_out
            and (devices is None or c.device in wanted)
            and pattern in (None, c.pattern)
        )
        return Stats.total(self.projection, chosen, n_outputs=self.n_outputs)

    @property
    def devices(self) -> list[str]:
        """The devices heard of, in order."""
        return sorted({key[0] for key in self._newest})

    def __iter__(self) -> Iterator[Contribution]:
        """Go through the contributions in the order of their keys: the same on every replica."""
        return (self._newest[key] for key in sorted(self._newest))

    def __len__(self) -> int:
        """Count the contributions."""
        return len(self._newest)

    def __repr__(self) -> str:
        """Show how much is in it."""
        samples = sum(c.stats.count for c in self)
        return (
            f"Ledger({len(self.devices)} devices, {len(self)} contributions, {samples:g} samples)"
        )
