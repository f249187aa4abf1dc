"""Solved contributions: their profiles by digest, remembered while there is room."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from edgemerge.core.likeness import Profile
from edgemerge.core.projection import Projection
from edgemerge.core.stats import Stats
from edgemerge.server import contributions
from edgemerge.server.contributions import Entry
from edgemerge.server.store.database import Transaction

ROOM = 256 * 2**20  # bytes


def size_of(projection: Projection) -> int:
    """Give the bytes that a profile takes: U, P, V, B and a little."""
    N, n = projection.n_hidden, projection.n_inputs
    return 8 * (2 * N * (N + n) + 2 * n)


class Solved:
    """Profiles of contributions; those that were not asked for longest go first."""

    def __init__(self, room: int = ROOM) -> None:
        """Remember nothing yet."""
        self._room, self._used = room, 0
        self._known: OrderedDict[str, Profile] = OrderedDict()
        self._lock = Lock()

    def profile(self, tx: Transaction, entry: Entry, projection: Projection) -> Profile:
        """Give the profile of a contribution."""
        with self._lock:
            found = self._known.get(entry.digest)
            if found is not None:
                self._known.move_to_end(entry.digest)
                return found
        made = Profile.of(contributions.stats_of(tx, entry, projection))
        self._remember(entry.digest, made)
        return made

    def stats(self, tx: Transaction, entry: Entry, projection: Projection) -> Stats:
        """Give the sums of a contribution, from memory if it is solved."""
        with self._lock:
            found = self._known.get(entry.digest)
        return found.stats if found else contributions.stats_of(tx, entry, projection)

    def _remember(self, digest: str, profile: Profile) -> None:
        with self._lock:
            if digest not in self._known:
                self._used += size_of(profile.stats.projection)
            self._known[digest] = profile
            while self._used > self._room:
                _, gone = self._known.popitem(last=False)
                self._used -= size_of(gone.stats.projection)
