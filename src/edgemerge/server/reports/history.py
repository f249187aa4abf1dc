"""History: what devices report, kept within bounds; it never makes a share wait."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from edgemerge.core.errors import EdgemergeError
from edgemerge.server.reports import history_rows
from edgemerge.server.reports.fresh import ALARMS, MERGES, Fresh
from edgemerge.server.reports.glimpses import Glimpse, Minute, Traffic
from edgemerge.server.reports.historian import ALONE_S, EVERY_S, Historian
from edgemerge.server.reports.minutes import DAY, joined, number
from edgemerge.server.reports.report_forms import AlarmAsked, MergeAsked, ReportAsked
from edgemerge.server.reports.tracks import MOST, Track, Tracks, Who
from edgemerge.server.store.database import Database, Transaction
from edgemerge.server.store.writer import Writer

T = TypeVar("T")
log = logging.getLogger(__name__)


class History:
    """The newest of each device in memory, and its past in the database; any thread may call."""

    def __init__(
        self,
        database: Database,
        writer: Writer,
        *,
        clock: Callable[[], float],
        every_s: float | None = None,
        most: int = MOST,
    ) -> None:
        """Start with what is in the database; write to it every `every_s`, by default as suits."""
        often = EVERY_S if database.is_shared else ALONE_S
        self._database, self._clock = database, clock
        self._tracks = Tracks(most)
        self._historian = Historian(
            self._tracks, database, writer, clock=clock, every_s=every_s or often
        )

    def close(self) -> None:
        """Write what is left."""
        self._historian.close()

    def take(self, fleet: str, device: str, report: ReportAsked, now: float) -> None:
        """Take a report in; nothing is waited for."""
        self._tracks.take(Who(fleet, device), report, now)

    def every_s(self, now: float) -> float:
        """Say how often each device may report, so that all together are not too many."""
        return self._tracks.every_s(now)

    @property
    def seq(self) -> int:
        """The number of the newest change."""
        return self._tracks.seq

    def glimpses(self, fleet: str) -> dict[str, Glimpse]:
        """Give the newest of every device of a fleet that has ever reported."""
        tracks = self._tracks.of(fleet)
        return {name: one.glimpse for name, one in tracks.items() if one.glimpse is not None}

    def glimpse(self, fleet: str, device: str) -> Glimpse | None:
        """Give the newest of a device."""
        return self._tracks.find(Who(fleet, device)).glimpse

    def changed(self, fleet: str, since: int) -> list[Glimpse]:
        """Give what has changed since a number, in the order of the changes."""
        newer = (one for one in self.glimpses(fleet).values() if one.seq > since)
        return sorted(newer, key=lambda one: one.seq)

    def minutes(self, fleet: str, device: str, *, since: float) -> list[Minute]:
        """Give the minutes of a device, of the last day at most, oldest first.

        A minute that is being written at this very moment may be missing, or be counted twice.
        """
        first = max(number(since), number(self._clock()) - DAY)
        stored = self._stored(lambda tx: history_rows.minutes_of(tx, fleet, device, first)) or {}
        for fresh in self._unwritten(fleet, device):
            stored = joined(stored, fresh.minutes.items())
        return [stored[minute] for minute in sorted(stored) if minute >= first]

    def alarms(self, fleet: str, device: str, *, limit: int = ALARMS) -> list[AlarmAsked]:
        """Give the newest alarms of a device, newest first."""
        fresh = [alarm for some in self._unwritten(fleet, device) for alarm in some.alarms]
        stored = self._stored(lambda tx: history_rows.alarms_of(tx, fleet, device, limit)) or []
        both = {(alarm.at, alarm.sample): alarm for alarm in [*stored, *fresh]}
        return [both[key] for key in sorted(both, reverse=True)][: min(limit, ALARMS)]

    def merges(self, fleet: str, device: str, *, limit: int = MERGES) -> list[MergeAsked]:
        """Give the newest merges of a device, newest first; that one has all its origins.

        Of those before it a long list of origins is left out.
        """
        fresh = [merge for some in self._unwritten(fleet, device) for merge in some.merges]
        stored = self._stored(lambda tx: history_rows.merges_of(tx, fleet, device, limit)) or []
        both = {merge.at: merge for merge in [*fresh, *stored]}
        return [both[at] for at in sorted(both, reverse=True)][: min(limit, MERGES)]

    def pushed(self, fleet: str, device: str, size: int) -> None:
        """Count a contribution that was kept, and its bytes."""
        traffic = Traffic(pushes=1, pushed_bytes=size, last=self._clock())
        self._tracks.count(Who(fleet, device), traffic)

    def pulled(self, fleet: str, device: str, size: int, *, grouped: bool) -> None:
        """Count sums that were told, and their bytes: 0 if the device had them already."""
        traffic = Traffic(pulls=1, pulled_bytes=size, last=self._clock(), grouped=grouped)
        self._tracks.count(Who(fleet, device), traffic)

    def asks_for_patterns(self, fleet: str, device: str) -> bool | None:
        """Say whether a device asked for patterns last: a bank does, a detector does not."""
        return self._tracks.find(Who(fleet, device)).traffic.grouped

    def traffic(self, fleet: str) -> dict[str, Traffic]:
        """Give what every device of a fleet has pushed and pulled."""
        return {name: one.traffic for name, one in self._tracks.of(fleet).items()}

    def merged(self, fleet: str) -> int:
        """Count the merges that a fleet has reported, ever."""
        return sum(one.merged for one in self._tracks.of(fleet).values())

    def forget(self, fleet: str) -> None:
        """Forget a fleet that was deleted."""
        self._historian.forget(fleet)

    def everywhere(self) -> dict[Who, Track]:
        """Give what is remembered of all devices of all fleets, to be read only."""
        return self._tracks.every()

    def flush(self) -> None:
        """Write all that waits now."""
        self._historian.flush()

    def refresh(self) -> None:
        """Take in now what other servers on the same database wrote."""
        self._historian.read()

    def unwritten_s(self) -> float:
        """Say for how long the oldest that is not in the database has waited."""
        oldest = self._tracks.oldest()
        return 0.0 if oldest is None else max(0.0, self._clock() - oldest)

    def _unwritten(self, fleet: str, device: str) -> list[Fresh]:
        return self._tracks.find(Who(fleet, device)).unwritten

    def _stored(self, read: Callable[[Transaction], T]) -> T | None:
        """Read what is stored; if the database is broken, there is what is in memory."""
        try:
            with self._database.reading() as tx:
                return read(tx)
        except EdgemergeError as error:
            log.warning("history cannot be read", extra={"values": {"problem": str(error)}})
            return None
