"""Who looks at the dashboard: boards that all share, and seats for so many streams."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Annotated

from anyio import create_task_group, sleep
from anyio.abc import TaskGroup
from fastapi import Depends, Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from edgemerge.core.errors import AwayError
from edgemerge.server.dashboard.board import Boards
from edgemerge.server.service import Service

SEATS = 64  # streams at once
LOOK_S = 0.5
PARTING_S = 1.0  # for the last words


@dataclass
class Watching:
    """What those who look have in common; `run` tells this run of the server from others."""

    boards: Boards
    noted: Callable[[int], object] = lambda _taken: None
    taken: int = 0
    run: str = field(default_factory=lambda: token_hex(4))

    def sit(self) -> None:
        """Take a seat, if there is one."""
        if self.taken >= SEATS:
            raise AwayError(
                f"{SEATS} pages are open already: close some, or load this one again later",
                retry_s=10.0,
            )
        self._note(self.taken + 1)

    def rise(self) -> None:
        """Give a seat back."""
        self._note(self.taken - 1)

    def _note(self, taken: int) -> None:
        self.taken = taken
        self.noted(taken)


async def watching_of(request: Request) -> Watching:
    """Give what those who look at this server have in common; made for the first of them."""
    state = request.app.state
    if not hasattr(state, "watching"):
        service: Service = state.service
        boards = Boards(service.database, service.history, service.clock)
        state.watching = Watching(boards, service.metrics.watching.set)
    found: Watching = state.watching
    return found


Lookers = Annotated[Watching, Depends(watching_of)]


class Stream(StreamingResponse):
    """Events for a page; the seat is given back however it ends."""

    def __init__(
        self, events: AsyncIterator[str], watching: Watching, leaving: Callable[[], bool]
    ) -> None:
        """Take a seat."""
        watching.sit()
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
            self._watching.rise()

    async def _give_up(self, both: TaskGroup) -> None:
        """End with the server, also for who has stopped to read and would hold it up."""
        while not self._leaving():
            await sleep(LOOK_S)
        await sleep(PARTING_S)
        both.cancel_scope.cancel()
