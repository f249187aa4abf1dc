"""Server-sent event streams: polling, keep-alive, session checks, and a limit on open streams."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from secrets import token_hex
from time import monotonic
from typing import Annotated, Any, NamedTuple, Protocol

from anyio import create_task_group, sleep
from anyio.abc import TaskGroup
from fastapi import Depends, Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from edgemerge.core.errors import EdgemergeError, UnavailableError, UnknownError
from edgemerge.server.dashboard.fleet_table import FleetTables
from edgemerge.server.http import run_in_thread
from edgemerge.server.service import Service

POLL_S = 0.5  # between two looks
KEEPALIVE_S = 10.0  # of silence, after which an empty comment is sent
SESSION_CHECK_S = 4.0  # between two checks that the viewer is still signed in
MAX_STREAM_S = 600.0  # then the browser comes back
GONE_EVENT = "event: gone\ndata: {}\n\n"

log = logging.getLogger(__name__)


class Event(NamedTuple):
    """What changed; `mark` says up to where, for who comes back."""

    mark: str
    data: dict[str, Any]

    @property
    def text(self) -> str:
        """The event as it is sent: one line of JSON has no line ends in it."""
        return f"id: {self.mark}\ndata: {json.dumps(self.data, separators=(',', ':'))}\n\n"


class EventSource(Protocol):
    """Looks at what somebody wants to see."""

    def look(self) -> Event | None:
        """Give what changed since the last look, if anything did."""
        ...


async def event_stream(
    watch: EventSource,
    *,
    signed_in: Callable[[], bool],
    leaving: Callable[[], bool],
    longest_s: float = MAX_STREAM_S,
) -> AsyncIterator[str]:
    """Give events until the time is over, the session ends, or the server is asked to stop."""
    yield "retry: 2000\n\n"
    started = spoken = checked = monotonic()
    while not leaving() and (now := monotonic()) - started < longest_s:
        if now - checked >= SESSION_CHECK_S:
            checked = now
            if not await run_in_thread(signed_in):
                yield GONE_EVENT
                return
        try:
            event = await run_in_thread(watch.look)
        except UnknownError:
            yield GONE_EVENT
            return
        except EdgemergeError as error:
            log.warning("a stream ended", extra={"values": {"problem": str(error)}})
            return
        if event is not None or now - spoken >= KEEPALIVE_S:
            yield event.text if event else ": still here\n\n"
            spoken = now
        await asyncio.sleep(POLL_S)


MAX_STREAMS = 64  # streams at once
SHUTDOWN_POLL_S = 0.5
SHUTDOWN_GRACE_S = 1.0  # for the last words


@dataclass
class Viewers:
    """What those who look have in common; `run` tells this run of the server from others."""

    boards: FleetTables
    noted: Callable[[int], object] = lambda _taken: None
    taken: int = 0
    run: str = field(default_factory=lambda: token_hex(4))

    def open_stream(self) -> None:
        """Take a seat, if there is one."""
        if self.taken >= MAX_STREAMS:
            raise UnavailableError(
                f"{MAX_STREAMS} pages are open already: close some, or load this one again later",
                retry_s=10.0,
            )
        self._note(self.taken + 1)

    def close_stream(self) -> None:
        """Give a seat back."""
        self._note(self.taken - 1)

    def _note(self, taken: int) -> None:
        self.taken = taken
        self.noted(taken)


async def viewers_of(request: Request) -> Viewers:
    """Give what those who look at this server have in common; made for the first of them."""
    state = request.app.state
    if not hasattr(state, "watching"):
        service: Service = state.service
        boards = FleetTables(service.database, service.history, service.clock)
        state.watching = Viewers(boards, service.metrics.watching.set)
    found: Viewers = state.watching
    return found


ViewersDep = Annotated[Viewers, Depends(viewers_of)]


class EventStreamResponse(StreamingResponse):
    """Events for a page; the seat is given back however it ends."""

    def __init__(
        self, events: AsyncIterator[str], watching: Viewers, leaving: Callable[[], bool]
    ) -> None:
        """Take a seat."""
        watching.open_stream()
        self._watching, self._leaving = watching, leaving
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # a proxy must not wait
        super().__init__(events, headers=headers, media_type="text/event-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until they end or nobody reads them any more."""
        try:
            async with create_task_group() as both:
                both.start_soon(self._give_up, both)
                await super().__call__(scope, receive, send)
                both.cancel_scope.cancel()
        finally:
            self._watching.close_stream()

    async def _give_up(self, both: TaskGroup) -> None:
        """End with the server, also for who has stopped to read and would hold it up."""
        while not self._leaving():
            await sleep(SHUTDOWN_POLL_S)
        await sleep(SHUTDOWN_GRACE_S)
        both.cancel_scope.cancel()
