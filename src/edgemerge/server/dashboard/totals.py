"""Totals of a fleet: how many devices are how, what they learnt, and what sharing saved."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edgemerge.server.dashboard.figures import NOTHING, count, size
from edgemerge.server.dashboard.rows import Row
from edgemerge.server.reports.glimpses import STATES, Traffic

VALUE = 8  # bytes of one value of a raw row


@dataclass(frozen=True)
class Totals:
    """A fleet in a few numbers."""

    states: dict[str, int]
    alarms: int
    samples: float
    merges: int
    rows: float  # bytes that sending every sample as a raw row would have taken
    moved: int  # bytes of contributions and sums that were pushed and pulled
    shared: float | None  # when the newest contribution came

    @property
    def devices(self) -> int:
        """How many devices there are, those that were revoked left out."""
        return sum(self.states.values()) - self.states["revoked"]

    @property
    def saved(self) -> float:
        """Bytes that did not travel; below 0 if sharing took more than raw rows would have."""
        return self.rows - self.moved

    def words(self) -> dict[str, str]:
        """Give what the page shows, by the names that its places have."""
        return {
            "devices": count(self.devices),
            "states": self._states(),
            "alarms": count(self.alarms),
            "samples": count(self.samples),
            "merges": count(self.merges),
            "saved": size(self.saved) if self.rows or self.moved else NOTHING,
            "counted": self._counted(),
        }

    def _states(self) -> str:
        return ", ".join(f"{count(self.states[s])} {s}" for s in STATES if self.states[s])

    def _counted(self) -> str:
        """Say how what was saved is counted, also when it is nothing."""
        words = f"{size(self.rows)} as rows, {size(self.moved)} shared"
        return words if self.saved >= 0 else f"{words}: so far sharing took more"


def totals(rows: Iterable[Row], inputs: int, traffic: Iterable[Traffic], merges: int) -> Totals:
    """Add up the rows of a fleet whose samples have so many inputs."""
    listed = list(rows)
    samples = sum(row.learnt for row in listed)
    shares = [row.shared for row in listed if row.shared is not None]
    return Totals(
        states={state: sum(row.state == state for row in listed) for state in STATES},
        alarms=sum(row.alarm for row in listed),
        samples=samples,
        merges=merges,
        rows=samples * inputs * VALUE,
        moved=sum(each.pushed_bytes + each.pulled_bytes for each in traffic),
        shared=max(shares, default=None),
    )
