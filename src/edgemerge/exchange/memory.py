"""Exchange within one process: for simulations, tests, and several detectors in one program."""

from __future__ import annotations

from threading import Lock

from edgemerge.core.ledger import Contribution, Ledger, Merged, Selection
from edgemerge.core.projection import Projection
from edgemerge.exchange.protocol import merge
from edgemerge.exchange.storage import must_be_current
from edgemerge.wire.admission import admit


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
        self._ledger = Ledger(projection)
        self._lock = Lock()

    def push(self, contribution: Contribution) -> bool:
        """Store a contribution; return False if it was stored before."""
        admit(contribution, projection=self.projection)
        with self._lock:
            must_be_current(contribution, self._ledger.get(contribution.key))
            return self._ledger.put(contribution)

    def pull(self, selection: Selection, *, grouped: bool = False) -> Merged:
        """Return the sum of the selected contributions."""
        with self._lock:
            contributions = list(self._ledger)
        return merge(contributions, self.projection, selection, grouped=grouped)
