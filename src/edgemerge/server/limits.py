"""Limits: what a request may take up before it is refused, so that memory has a bound."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi import Request
from starlette.requests import ClientDisconnect

from edgemerge.core.errors import AwayError, EdgemergeError

WORDS = 65_536  # bytes of a request in JSON


class TooLargeError(EdgemergeError, ValueError):
    """More bytes than what was asked for can have."""


class CutShortError(EdgemergeError, ValueError):
    """A request that ended before it was complete, or took too long."""


@dataclass(frozen=True)
class Limits:
    """How much may be under way at once, and how long a request may take to arrive."""

    bytes_under_way: int = 256 * 2**20
    requests_under_way: int = 1024
    seconds: float = 60.0


class Load:
    """What is under way now."""

    def __init__(self, limits: Limits) -> None:
        """Start with nothing."""
        self.limits = limits
        self.bytes = self.requests = 0

    @asynccontextmanager
    async def body(self, request: Request, cap: int) -> AsyncIterator[bytes]:
        """Give the body of a request, unless it is too large or too much is under way."""
        declared = _declared(request)
        if declared is not None and declared > cap:
            raise TooLargeError(f"found {declared} bytes, expected at most {cap}")
        reserved = cap if declared is None else declared
        if self.bytes + reserved > self.limits.bytes_under_way:
            raise AwayError("too much is under way: try again", retry_s=2.0)
        self.bytes += reserved
        try:
            yield await self._read(request, cap)
        finally:
            self.bytes -= reserved

    async def _read(self, request: Request, cap: int) -> bytes:
        parts, size = [], 0
        try:
            async with asyncio.timeout(self.limits.seconds):
                async for part in request.stream():
                    size += len(part)
                    if size > cap:
                        raise TooLargeError(f"found more than {cap} bytes, expected at most that")
                    parts.append(part)
        except (ClientDisconnect, TimeoutError) as error:
            raise CutShortError("the request ended before it was complete") from error
        return b"".join(parts)


def _declared(request: Request) -> int | None:
    if "transfer-encoding" in request.headers:  # then a length says nothing about the body
        return None
    text = request.headers.get("content-length", "")
    return int(text) if text.isdecimal() else None
