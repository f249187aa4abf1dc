"""Event streams: what changed, as the browser's EventSource reads it; bounded in every way."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from time import monotonic
from typing import Any, NamedTuple, Protocol

from edgemerge.core.errors import EdgemergeError, UnknownError
from edgemerge.server.asking import in_thread

TICK_S = 0.5  # between two looks
SIGN_S = 10.0  # without a word, after which one is sent that means nothing
CHECK_S = 4.0  # after which it is looked whether who watches is still signed in
LONGEST_S = 600.0  # then the browser comes back
GONE = "event: gone\ndata: {}\n\n"

log = logging.getLogger(__name__)


class Event(NamedTuple):
    """What changed; `mark` says up to where, for who comes back."""

    mark: str
    data: dict[str, Any]

    @property
    def text(self) -> str:
        """The event as it is sent: one line of JSON has no line ends in it."""
        return f"id: {self.mark}\ndata: {json.dumps(self.data, separators=(',', ':'))}\n\n"


class Watch(Protocol):
    """Looks at what somebody wants to see."""

    def look(self) -> Event | None:
        """Give what changed since the last look, if anything did."""
        ...


async def events(
    watch: Watch,
    *,
    signed_in: Callable[[], bool],
    leaving: Callable[[], bool],
    longest_s: float = LONGEST_S,
) -> AsyncIterator[str]:
    """Give events until the time is over, the session ends, or the server is asked to stop."""
    yield "retry: 2000\n\n"
    started = spoken = checked = monotonic()
    while not leaving() and (now := monotonic()) - started < longest_s:
        if now - checked >= CHECK_S:
            checked = now
            if not await in_thread(signed_in):
                yield GONE
                return
        try:
            event = await in_thread(watch.look)
        except UnknownError:
            yield GONE
            return
        except EdgemergeError as error:
            log.warning("a stream ended", extra={"values": {"problem": str(error)}})
            return
        if event is not None or now - spoken >= SIGN_S:
            yield event.text if event else ": still here\n\n"
            spoken = now
        await asyncio.sleep(TICK_S)
