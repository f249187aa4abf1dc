"""What a fleet may be told, by what was sent and acknowledged: nothing here asks a server."""

from functools import lru_cache

import numpy as np

from edgemerge import Contribution, Ledger, Projection, Stats
from edgemerge.core.ledger import Origin
from tests.cases import machine
from tests.servers_many.possible import Possible

PLACES = {"idle": 0.2, "busy": 0.8}


@lru_cache(maxsize=30_000)
def share(shared: Projection, device: str, pattern: str, revision: int) -> Contribution:
    """What a device has seen of a pattern by a revision: always the same."""
    rng = np.random.default_rng([revision, *device.encode(), *pattern.encode()])
    X = machine(PLACES[pattern], 1 + int(rng.integers(6)), rng, shared.n_inputs)
    return Contribution(device, Stats.of(shared, X), revision, pattern)


class Truth:
    """One fleet: which revision of each key is held, which are withheld, who is told of whom."""

    def __init__(self, fleet: str, projection: Projection, reads: str):
        self.fleet, self.projection, self.reads = fleet, projection, reads
        self.held, self.withheld, self.sources = Possible(), Possible(False), Possible()
        self.checked = 0

    def mark(self):
        return self.held.mark(), self.withheld.mark(), self.sources.mark()

    def must_allow(self, told, wish, mark, where):
        """Refuse what was told unless it is current, exact, and what was wanted."""
        possible = self.held, self.withheld, self.sources
        held, withheld, sources = (one.since(m) for one, m in zip(possible, mark, strict=True))
        found = {origin.key: origin.revision for origin in told.origins}
        for key in {*self.held.subjects(), *found}:
            allowed = {None}
            if wish.matching([Origin(*key, 0)]):
                receiver = wish.receiver
                allowed = _states(key, held[key], withheld[key], sources[receiver], receiver)
            said = found.get(key)
            assert said in allowed, f"{where} told {key} at {said}, expected one of {allowed}"
        for part in told.parts:
            parts = [self._stats(origin) for origin in part.origins]
            assert part.stats == Stats.total(self.projection, parts), f"{where} told a wrong sum"
        self.checked += 1

    def ledger(self) -> Ledger:
        """The union of all that is told now; nothing may be in doubt any more."""
        ledger = Ledger(self.projection)
        for key in self.held.subjects():
            (revision,), (withheld,) = self.held.now(key), self.withheld.now(key)
            if revision is not None and not withheld:
                ledger.put(share(self.projection, key[0], key[2], revision))
        return ledger

    def _stats(self, origin) -> Stats:
        return share(self.projection, origin.device, origin.pattern, origin.revision).stats


def _states(key, held, withheld, sources, asker):
    """Which revisions of a key may be told, None if it may be missing."""
    let = {
        not hidden and (chosen is None or key[0] in chosen or key[0] == asker)
        for hidden in withheld
        for chosen in (sources if asker is not None else {None})
    }
    return (held if True in let else frozenset()) | ({None} if False in let else frozenset())
