"""The historian: a thread that writes the history down, whenever nobody waits for the writer.

On the way it reads what other servers on the same database wrote, and deletes what is too old.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from threading import Event, Lock, Thread
from time import monotonic
from typing import TypeVar

from edgemerge.core.errors import EdgemergeError
from edgemerge.server.reports import history_rows
from edgemerge.server.reports.history_rows import NAMED
from edgemerge.server.reports.minutes import DAY, number
from edgemerge.server.reports.tracks import Tracks, Who
from edgemerge.server.store.database import Database, Transaction
from edgemerge.server.store.writer import Writer

EVERY_S = 5.0  # where several servers share a database and read what the others wrote
ALONE_S = 60.0  # where one has it for itself: a disk should not be worn out for pictures
AT_ONCE = 32  # devices in one change
PATIENCE_S = 10.0  # after which one change is made although others wait
LOOK_S = 0.02  # how often it is looked whether somebody waits
FULL_S = 60.0  # for which nothing is written after the disk was full
PARTING_S = 5.0
START = ("", "")

T = TypeVar("T")
log = logging.getLogger(__name__)


class Historian:
    """Brings tracks and database together, every few seconds."""

    def __init__(
        self,
        tracks: Tracks,
        database: Database,
        writer: Writer,
        *,
        clock: Callable[[], float],
        every_s: float = EVERY_S,
    ) -> None:
        """Read what is there, and start the thread."""
        self._tracks, self._database, self._writer, self._clock = tracks, database, writer, clock
        self._fleets: dict[str, float] = {}
        self._swept, self._every_s = START, every_s
        self._troubled = False
        self._stopping, self._turn = Event(), Lock()
        self._guarded(self.read)
        self._thread = Thread(target=self._work, name="historian", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write what is left, within a bounded time, and stop."""
        self._stopping.set()
        self._thread.join(timeout=PARTING_S)
        if not self._thread.is_alive():
            self._guarded(self.flush)

    def forget(self, fleet: str) -> None:
        """Forget a fleet that was deleted here."""
        self._fleets.pop(fleet, None)  # one of the same name that is made now is another
        self._tracks.forget(fleet)

    def flush(self) -> None:
        """Write all that waits now, also the minute that has only begun."""
        end = monotonic() + PARTING_S
        while monotonic() < end and self._written(over=True, timeout_s=PARTING_S):
            pass

    def write(self) -> None:
        """Write what waits, in small changes; each when no other change waits, if it can be."""
        while self._may_write() and self._written(over=False):
            pass

    def read(self) -> None:
        """Take in what other servers wrote, and forget fleets that are gone."""
        with self._database.reading() as tx:
            self._forget_fleets(dict(tx.rows("select fleet, created from fleets")))
            known = self._tracks.versions()
            for key, version in history_rows.versions(tx).items():
                name = Who(*key)
                row = None if known.get(name) == version else history_rows.read(tx, *name)
                if row is not None:
                    self._tracks.learn(name, row)

    def sweep(self) -> None:
        """Delete minutes that are too old of the next few devices, also if those are silent."""
        least = number(self._clock()) - DAY
        with self._database.reading() as tx:
            sql = "select fleet, device from reports where (fleet, device) > (?, ?)"
            some = tx.rows(f"{sql} order by fleet, device limit {AT_ONCE}", *self._swept)
            old = f"select 1 from minutes {NAMED} and minute < ? limit 1"
            found = [key for key in some if tx.one(old, *key, least)]
        self._swept = some[-1] if some else START
        if found and self._may_write():
            self._change(lambda tx: _sweep(tx, found, least))

    def pause_s(self) -> float:
        """Say how long to wait: a large fleet reports once, so rows side by side go together."""
        reporting = self._tracks.every_s(self._clock())
        return reporting if reporting > max(EVERY_S, self._every_s) else self._every_s

    def _work(self) -> None:
        while not self._stopping.wait(self.pause_s()):
            for step in (self.write, self.read, self.sweep):
                self._guarded(step)

    def _guarded(self, step: Callable[[], None]) -> None:
        """Do a step; trouble with the database is logged when it begins and when it is over."""
        try:
            step()
        except EdgemergeError as error:
            if not self._troubled:
                log.warning("history stays in memory", extra={"values": {"problem": str(error)}})
            self._troubled = True
        except Exception:
            log.exception("history could not be kept")

    def _may_write(self) -> bool:
        """Wait for a moment in which no other change waits, but not for ever."""
        if monotonic() - self._writer.full_at < FULL_S:
            return False
        end = monotonic() + PATIENCE_S
        while self._writer.waiting and monotonic() < end:
            if self._stopping.wait(LOOK_S):
                return False
        return not self._stopping.is_set()

    def _written(self, *, over: bool, timeout_s: float = 30.0) -> bool:
        """Write what some devices have; False if there was nothing."""
        with self._turn:
            sheets = self._tracks.collect(AT_ONCE, self._clock(), over=over)
            try:
                if sheets:
                    write = partial(history_rows.write, sheets=sheets)
                    self._tracks.written(self._change(write, timeout_s))
            finally:
                self._tracks.put_back(sheets)  # of what was written nothing is left to put back
        return bool(sheets)

    def _change(self, change: Callable[[Transaction], T], timeout_s: float = 30.0) -> T:
        found = self._writer.write(change, timeout_s)
        if self._troubled:
            log.info("history is written again")
        self._troubled = False
        return found

    def _forget_fleets(self, found: dict[str, float]) -> None:
        for fleet, created in self._fleets.items():
            if found.get(fleet) != created:  # deleted by another server, or made anew
                self._tracks.forget(fleet)
        self._fleets = found


def _sweep(tx: Transaction, keys: list[tuple[str, str]], least: int) -> None:
    for fleet, device in keys:
        tx.run(f"delete from minutes {NAMED} and minute < ?", fleet, device, least)
