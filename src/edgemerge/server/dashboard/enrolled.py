"""The devices of a fleet as the database knows them: who was let in, and what it shared."""

from __future__ import annotations

from typing import NamedTuple

from edgemerge.server import fleets
from edgemerge.server.fleets import Fleet
from edgemerge.server.store.database import Database


class Enrolled(NamedTuple):
    """A device that was let in, and what the server has of it."""

    device: str
    revoked: float | None
    seen: float | None  # when it pushed last
    shared: float | None  # when the newest of what it contributed came
    revision: int | None
    samples: float


def enrolled(database: Database, fleet: str) -> tuple[Fleet, list[Enrolled]]:
    """Give a fleet, which must be there, and its devices in order of their names."""
    with database.reading() as tx:
        found = fleets.get(tx, fleet)
        rows = tx.rows(
            "select d.device, d.revoked, d.seen, max(c.received), max(c.revision),"
            " coalesce(sum(c.samples), 0) from devices d left join contributions c"
            " on c.fleet = d.fleet and c.device = d.device and c.body is not null"
            " where d.fleet = ? group by d.device, d.revoked, d.seen order by d.device",
            fleet,
        )
    return found, [Enrolled(*row) for row in rows]
