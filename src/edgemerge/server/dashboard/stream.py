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

POLL_S = 0.5  # between two polls
KEEPALIVE_S = 10.0  # of silence, after which an empty comment is sent
SESSION_CHECK_S = 4.0  # between two checks that the viewer is still signed in
MAX_STREAM_S = 600.0  # then the browser reconnects
GONE_EVENT = "event: gone\ndata: {}\n\n"

log = logging.getLogger(__name__)


class Event(NamedTuple):
    """What changed, and an id by which a client that reconnects continues after it."""

    id: str
    data: dict[str, Any]

    @property
    def text(self) -> str:
        """The event as it is sent: one line of JSON has no line ends in it."""
        return f"id: {self.id}\ndata: {json.dumps(self.data, separators=(',', ':'))}\n\n"


class EventSource(Protocol):
    """Where the events of a stream come from."""

    def poll(self) -> Event | None:
        """Return what changed since the last call, if anything did."""
        ...


async def event_stream(
    source: EventSource,
    *,
    signed_in: Callable[[], bool],
    is_stopping: Callable[[], bool],
    generation: Callable[[], int] = lambda: 0,
    longest_s: float = MAX_STREAM_S,
) -> AsyncIterator[str]:
    """Yield events until the time is over, the session ends, or the server stops.

    The session is checked when `generation` rises, and now and then, since it may end elsewhere.
    """
    yield "retry: 2000\n\n"
    started = sent = checked = monotonic()
    seen = generation()
    while not is_stopping() and (now := monotonic()) - started < longest_s:
        if now - checked >= SESSION_CHECK_S or seen != generation():
            checked, seen = now, generation()
            if not await run_in_thread(signed_in):
                yield GONE_EVENT
                return
        try:
            event = await run_in_thread(source.poll)
        except UnknownError:
            yield GONE_EVENT
            return
        except EdgemergeError as error:
            log.warning("a stream ended", extra={"values": {"problem": str(error)}})
            return
        if event is not None or now - sent >= KEEPALIVE_S:
            yield event.text if event else ": still here\n\n"
            sent = now
        await asyncio.sleep(POLL_S)


MAX_STREAMS = 64  # streams at once
SHUTDOWN_POLL_S = 0.5
SHUTDOWN_GRACE_S = 1.0  # to send what is left


@dataclass
class Viewers:
    """What open pages share; `run` identifies this run of the server."""

    tables: FleetTables
    on_count: Callable[[int], object] = lambda _count: None
    count: int = 0
    run: str = field(default_factory=lambda: token_hex(4))

    def open_stream(self) -> None:
        """Count a stream, or refuse it if there are too many."""
        if self.count >= MAX_STREAMS:
            raise UnavailableError(
                f"{MAX_STREAMS} pages are open already: close some, or load this one again later",
                retry_s=10.0,
            )
        self._change(1)

    def close_stream(self) -> None:
        """Count a stream no more."""
        self._change(-1)

    def _change(self, by: int) -> None:
        self.count += by
        self.on_count(self.count)


async def viewers_of(request: Request) -> Viewers:
    """Return what open pages share; made for the first of them."""
    state = request.app.state
    if not hasattr(state, "viewers"):
        service: Service = state.service
        tables = FleetTables(service.database, service.history, service.clock)
        state.viewers = Viewers(tables, service.metrics.open_streams.set)
    found: Viewers = state.viewers
    return found


ViewersDep = Annotated[Viewers, Depends(viewers_of)]


class EventStreamResponse(StreamingResponse):
    """Events for a page; counted as an open stream until it ends, however it ends."""

    def __init__(
        self, events: AsyncIterator[str], viewers: Viewers, is_stopping: Callable[[], bool]
    ) -> None:
        """Count the stream."""
        viewers.open_stream()
        self._viewers, self._is_stopping = viewers, is_stopping
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # a proxy must not wait
        super().__init__(events, headers=headers, media_type="text/event-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until they end or the client disconnects."""
        try:
            async with create_task_group() as both:
                both.start_soon(self._cancel_on_stop, both)
                await super().__call__(scope, receive, send)
                both.cancel_scope.cancel()
        finally:
            self._viewers.close_stream()

    async def _cancel_on_stop(self, both: TaskGroup) -> None:
        """End with the server, also when the client has stopped reading."""
        while not self._is_stopping():
            await sleep(SHUTDOWN_POLL_S)
        await sleep(SHUTDOWN_GRACE_S)
        both.cancel_scope.cancel()
