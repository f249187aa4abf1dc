"""Exchange within one process: for simulations, tests, and several detectors in one program."""

from __future__ import annotations

from threading import Lock

from edgemerge.core.ledger import Contribution, Key, Merged
from edgemerge.core.projection import Projection
from edgemerge.exchange.protocol import Wish
from edgemerge.exchange.storage import check_newer
from edgemerge.wire.admission import admit


class MemoryExchange:
    """A ledger that several threads may use.

    >>> from edgemerge import Stats
    >>> shared = Projection(n_inputs=2, n_hidden=3)
    >>> exchange = MemoryExchange(shared)
    >>> exchange.push(Contribution("pump-3", Stats.of(shared, [[0.1, 0.2]]), revision=1))
    True
    >>> exchange.pull(Wish(device="pump-4"))
    Told(1 parts of 1 contributions, 1 samples)
    """

    def __init__(self, projection: Projection) -> None:
        """Start empty."""
        self.projection = projection
        self._newest: dict[Key, Contribution] = {}
        self._lock = Lock()

    def push(self, contribution: Contribution) -> bool:
        """Leave a contribution; False if it was there already."""
        admit(contribution, projection=self.projection)
        with self._lock:
            known = self._newest.get(contribution.key)
            if known and not check_newer(contribution, known):
                return False
            self._newest[contribution.key] = contribution
            return True

    def pull(self, wish: Wish) -> Merged:
        """Sum up what others have left."""
        with self._lock:
            notes = list(self._newest.values())
        return wish.of(notes, self.projection)
