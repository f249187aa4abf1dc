"""Checks of contributions for a receiver, against what it has shared itself.

A device that adopts a sum cannot look at the single contributions in it, so the server does. What
does not fit is left out of the sums for this receiver alone. Each pair is checked once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import sha256
from threading import Lock
from time import monotonic

from edgemerge.core.errors import UnavailableError
from edgemerge.core.ledger import Key
from edgemerge.core.similarity import LevelCheck, can_check
from edgemerge.server.contributions import StoredContribution, current_contributions, read_stats
from edgemerge.server.db.base import Transaction
from edgemerge.server.fleets import Fleet

MAX_REMEMBERED = 200_000  # pairs
CHECK_TIMEOUT_S = 10.0  # of one pull; the next one goes on where it ended

Refusals = Mapping[Key, str]


class LevelChecks:
    """Leaves out what does not fit a receiver, and remembers why; any thread may call."""

    def __init__(self) -> None:
        """Start with nothing checked."""
        self._reasons: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._refused: dict[tuple[str, str], Refusals] = {}
        self._lock = Lock()

    def fitting(
        self,
        tx: Transaction,
        fleet: Fleet,
        receiver: str | None,
        chosen: list[StoredContribution],
        contributions: Sequence[StoredContribution],
        *,
        trusted: frozenset[str] | None,
        apart: bool,
    ) -> tuple[list[StoredContribution], Refusals]:
        """Return those chosen that fit what the receiver has shared, and why others do not.

        Args:
            tx: The transaction to read in.
            fleet: The fleet.
            receiver: The device that would adopt them; for None, an operator, all fit.
            chosen: What it would adopt.
            contributions: All that the fleet has.
            trusted: Devices that an operator chose for it: what they sent was decided upon.
            apart: Whether it keeps patterns apart, as a bank does.

        Raises:
            UnavailableError: There is much to check; what was done is remembered.
        """
        if receiver is None:
            return chosen, {}
        decided = {receiver, *(trusted or ())}  # its own is what it saw in earlier incarnations
        own = current_contributions(contributions, receiver)
        if not can_check(sum(stored.samples for stored in own), fleet.projection):
            return chosen, {}
        of = sha256(f"{apart} {[stored.digest for stored in own]}".encode()).hexdigest()
        read = partial(read_stats, tx, projection=fleet.projection)
        check: LevelCheck | None = None
        end = monotonic() + CHECK_TIMEOUT_S
        refused: dict[Key, str] = {}
        for stored in chosen:
            if stored.device in decided:
                continue
            reason = self._known((of, stored.digest))
            if reason is None:
                if monotonic() > end:
                    raise UnavailableError("there is much to check: try again", retry_s=1.0)
                check = check or LevelCheck({each.pattern: read(each) for each in own}, apart=apart)
                reason = check.reason(read(stored))
                self._remember((of, stored.digest), reason)
            if reason:
                refused[stored.key] = reason
        return [stored for stored in chosen if stored.key not in refused], refused

    def record(self, fleet: str, receiver: str, refused: Refusals) -> Refusals:
        """Keep what was left out of the last sum for a device; return what is new of it."""
        with self._lock:
            before = self._refused.get((fleet, receiver), {})
            self._refused[fleet, receiver] = refused
        return {key: why for key, why in refused.items() if key not in before}

    def refusals_for(self, fleet: str, receiver: str) -> Refusals:
        """Return what was left out of the last sum for a device, and why."""
        with self._lock:
            return self._refused.get((fleet, receiver), {})

    def refusals_of(self, fleet: str, device: str) -> dict[str, Refusals]:
        """Return which receivers leave out contributions of a device, and why."""
        with self._lock:
            known = [(who, each) for (name, who), each in self._refused.items() if name == fleet]
        found = {
            who: {key: why for key, why in each.items() if key[0] == device} for who, each in known
        }
        return {who: each for who, each in sorted(found.items()) if each}

    def _known(self, pair: tuple[str, str]) -> str | None:
        with self._lock:
            found = self._reasons.get(pair)
            if found is not None:
                self._reasons.move_to_end(pair)
            return found

    def _remember(self, pair: tuple[str, str], reason: str) -> None:
        with self._lock:
            self._reasons[pair] = reason
            while len(self._reasons) > MAX_REMEMBERED:
                self._reasons.popitem(last=False)
