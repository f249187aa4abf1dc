"""States of all devices, counted: how many are online, quiet, offline or revoked."""

from __future__ import annotations

from collections import Counter

from edgemerge.server.reports.glimpses import state_of
from edgemerge.server.reports.history import History
from edgemerge.server.reports.tracks import Track, Who
from edgemerge.server.store.database import Transaction


def states(tx: Transaction, history: History, now: float) -> Counter[str]:
    """Count the devices of all fleets by their state."""
    found: Counter[str] = Counter()
    tracks, unknown = history.everywhere(), Track()
    for fleet, device, seen, revoked in tx.rows("select fleet, device, seen, revoked from devices"):
        track = tracks.get(Who(fleet, device), unknown)
        last = max(seen or 0.0, track.traffic.last) or None
        found[state_of(now, glimpse=track.glimpse, seen=last, revoked=revoked)] += 1
    return found
