"""Profiles of stored contributions, solved once and kept while there is room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from edgemerge.core.projection import Projection
from edgemerge.core.similarity import Profile
from edgemerge.core.stats import Stats
from edgemerge.server.contributions import StoredContribution, read_stats
from edgemerge.server.db.base import Transaction

CACHE_BYTES = 256 * 2**20  # bytes


def profile_bytes(projection: Projection) -> int:
    """Return the bytes that a profile takes: U, P, V, B and a little."""
    N, n = projection.n_hidden, projection.n_inputs
    return 8 * (2 * N * (N + n) + 2 * n)


class ProfileCache:
    """Profiles of contributions; those that were not asked for longest go first."""

    def __init__(self, room: int = CACHE_BYTES) -> None:
        """Remember nothing yet."""
        self._room, self._used = room, 0
        self._known: OrderedDict[str, Profile] = OrderedDict()
        self._lock = Lock()

    def profile(
        self, tx: Transaction, stored: StoredContribution, projection: Projection
    ) -> Profile:
        """Return the profile of a contribution."""
        return self.find(stored.digest, lambda: read_stats(tx, stored, projection))

    def find(self, digest: str, read: Callable[[], Stats]) -> Profile:
        """Return the profile of sums with this digest; `read` gives them if they are not known."""
        with self._lock:
            found = self._known.get(digest)
            if found is not None:
                self._known.move_to_end(digest)
                return found
        made = Profile.of(read())
        with self._lock:
            if digest not in self._known:
                self._used += profile_bytes(made.stats.projection)
            self._known[digest] = made
            while self._used > self._room:
                _, gone = self._known.popitem(last=False)
                self._used -= profile_bytes(gone.stats.projection)
        return made

    def stats(self, tx: Transaction, stored: StoredContribution, projection: Projection) -> Stats:
        """Return the sums of a contribution, from memory if it is solved."""
        with self._lock:
            found = self._known.get(stored.digest)
        return found.stats if found else read_stats(tx, stored, projection)
