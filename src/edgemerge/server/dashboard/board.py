"""The board: the table of a fleet, kept up to date for everybody who looks at it.

However many look, each change is worked out once. Every change has a number, so that one who was
away is sent what changed since, and one who saw another run of the server is sent everything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from secrets import token_hex
from threading import Lock
from typing import Protocol

from edgemerge.core.errors import UnknownError
from edgemerge.server.dashboard.enrolled import Enrolled, enrolled
from edgemerge.server.dashboard.rows import Row, in_alarm, row_of
from edgemerge.server.dashboard.totals import Totals, totals
from edgemerge.server.fleets import Fleet
from edgemerge.server.reports.glimpses import Glimpse, Traffic, state_of
from edgemerge.server.store.database import Database

MEMORY_S = 0.4  # how old a look at the reports may be
DATABASE_S = 2.0  # how old a look at the database may be


class Reported(Protocol):
    """What a fleet reports, as far as the table needs it."""

    def glimpses(self, fleet: str) -> dict[str, Glimpse]:
        """Give the newest of each device."""
        ...

    def traffic(self, fleet: str) -> dict[str, Traffic]:
        """Give what each device pushed and pulled."""
        ...

    def merged(self, fleet: str) -> int:
        """Count the merges of the fleet."""
        ...


@dataclass(frozen=True)
class Seen:
    """What there is to see: the mark of this moment, the rows that changed, and the totals."""

    mark: str
    fleet: Fleet
    rows: list[Row]
    totals: Totals


class Board:
    """The table of one fleet; any thread may look."""

    def __init__(self, fleet: str, database: Database, history: Reported) -> None:
        """Know nothing yet."""
        self._name, self._database, self._history = fleet, database, history
        self._run = token_hex(4)
        self._lock = Lock()
        self._number = 0
        self._rows: dict[str, Row] = {}
        self._numbers: dict[str, int] = {}
        self._made_of: dict[str, object] = {}
        self._looked = self._asked = -inf
        self._fleet: Fleet | None = None
        self._enrolled: list[Enrolled] = []
        self._totals: Totals | None = None

    def look(self, now: float, *, since: str = "", database_s: float = DATABASE_S) -> Seen:
        """Give the rows that changed since a mark; of no mark, or one of another run, all."""
        with self._lock:
            fleet = self._ask(now, database_s)
            sums = self._refresh(now, min(MEMORY_S, database_s), fleet)
            after = self._after(since)
            rows = [row for name, row in self._rows.items() if self._numbers[name] > after]
            return Seen(f"{self._run}-{self._number}", fleet, rows, sums)

    def _after(self, since: str) -> int:
        run, _, number = since.partition("-")
        return int(number) if run == self._run and number.isdecimal() else -1

    def _ask(self, now: float, database_s: float) -> Fleet:
        if self._fleet is None or not 0.0 <= now - self._asked < database_s:
            self._fleet, self._enrolled = enrolled(self._database, self._name)
            self._asked = now
            for gone in self._rows.keys() - {known.device for known in self._enrolled}:
                del self._rows[gone], self._numbers[gone], self._made_of[gone]
        return self._fleet

    def _refresh(self, now: float, memory_s: float, fleet: Fleet) -> Totals:
        if self._totals is None or not 0.0 <= now - self._looked < memory_s:
            glimpses = self._history.glimpses(self._name)
            traffic = self._history.traffic(self._name)
            for known in self._enrolled:
                moved = traffic.get(known.device, Traffic())
                self._see(known, glimpses.get(known.device), _heard(known, moved), now)
            merges = self._history.merged(self._name)
            inputs = fleet.projection.n_inputs
            self._totals = totals(self._rows.values(), inputs, traffic.values(), merges)
            self._looked = now
        return self._totals

    def _see(
        self, known: Enrolled, glimpse: Glimpse | None, seen: float | None, now: float
    ) -> None:
        state = state_of(now, glimpse=glimpse, seen=seen, revoked=known.revoked)
        alarm = in_alarm(glimpse, state, now)
        made_of = known, glimpse and (glimpse.seq, glimpse.heard), state, alarm
        if self._made_of.get(known.device) == made_of:
            return
        self._made_of[known.device] = made_of
        row = row_of(known, glimpse, state, alarm=alarm)
        if row != self._rows.get(known.device):
            self._number += 1
            self._rows[known.device], self._numbers[known.device] = row, self._number


class Boards:
    """The boards of all fleets of a server."""

    def __init__(self, database: Database, history: Reported, clock: Callable[[], float]) -> None:
        """Have none yet."""
        self._database, self._history, self._clock = database, history, clock
        self._boards: dict[str, Board] = {}
        self._lock = Lock()

    def look(self, fleet: str, *, since: str = "", database_s: float = DATABASE_S) -> Seen:
        """Look at a fleet, which must be there."""
        try:
            return self._of(fleet).look(self._clock(), since=since, database_s=database_s)
        except UnknownError:
            with self._lock:
                self._boards.pop(fleet, None)
            raise

    def _of(self, fleet: str) -> Board:
        with self._lock:
            made = Board(fleet, self._database, self._history)
            return self._boards.setdefault(fleet, made)


def _heard(known: Enrolled, moved: Traffic) -> float | None:
    """Say when a device pushed or pulled last."""
    return max((at for at in (known.seen, moved.last or None) if at is not None), default=None)
