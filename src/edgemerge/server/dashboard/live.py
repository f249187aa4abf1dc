"""The live stream of a fleet or of a device, and whether one is still signed in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response

from edgemerge.server.asking import Name, Serving
from edgemerge.server.dashboard.board import Boards
from edgemerge.server.dashboard.device_watch import DeviceWatch
from edgemerge.server.dashboard.events import Event, Watch, events
from edgemerge.server.dashboard.signed_in import SignedInFeed, cookie_of
from edgemerge.server.dashboard.watching import Lookers, Stream
from edgemerge.server.names import NAME

router = APIRouter(include_in_schema=False)

Since = Annotated[str, Query(max_length=100)]
LastSeen = Annotated[str | None, Header(alias="Last-Event-ID", max_length=100)]


@router.get("/ui/session")
def session(session: SignedInFeed) -> dict[str, Any]:
    """Say who is signed in, to a script that has lost its stream."""
    return {"name": session.name, "expires": session.expires}


@router.get("/ui/fleets/{fleet}/live")
async def live(
    request: Request,
    fleet: Name,
    _session: SignedInFeed,
    service: Serving,
    lookers: Lookers,
    device: Annotated[str | None, Query(pattern=NAME)] = None,
    since: Since = "",
    last_seen: LastSeen = None,
) -> Response:
    """Send what changes, as long as somebody looks."""
    mark, cookie = last_seen or since, cookie_of(request)
    watch: Watch = FleetWatch(lookers.boards, fleet, mark)
    if device is not None:
        watch = DeviceWatch(service, lookers, fleet, device, mark)
    over = leaving(request)
    there = service.sessions.session
    told = events(watch, signed_in=lambda: there(cookie) is not None, leaving=over)
    return Stream(told, lookers, over)


def leaving(request: Request) -> Callable[[], bool]:
    """Give what says whether the server was asked to stop: streams must not hold it up."""
    found: Callable[[], bool] = getattr(request.app.state, "leaving", lambda: False)
    return found


class FleetWatch:
    """Sees the rows of a fleet that change, and its totals."""

    def __init__(self, boards: Boards, fleet: str, mark: str) -> None:
        """Begin where somebody stopped to look, or anew."""
        self._boards, self._fleet, self._mark = boards, fleet, mark
        self._totals: dict[str, str] | None = None

    def look(self) -> Event | None:
        """Give what changed."""
        seen = self._boards.look(self._fleet, since=self._mark)
        words = seen.totals.words()
        if not seen.rows and words == self._totals:
            return None
        self._mark, self._totals = seen.mark, words
        return Event(seen.mark, {"rows": [row.told() for row in seen.rows], "totals": words})
