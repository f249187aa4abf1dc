"""Exchange within one process: for simulations, tests, and several detectors in one program."""

from __future__ import annotations

from threading import Lock

from edgemerge.core.faults import Faults
from edgemerge.core.ledger import KINDS, Contribution, Kind, Ledger, Merged, Selection
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
        self._ledgers = {kind: Ledger(projection, kind=kind) for kind in KINDS}
        self._lock = Lock()

    def push(self, contribution: Contribution) -> bool:
        """Store a contribution; return False if it was stored before."""
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
