"""A reply over HTTP: read within its limits, and judged by its status."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from http.client import HTTPResponse, IncompleteRead
from typing import Any

from edgemerge.core.errors import AwayError, DeniedError, RejectedError, UnknownError

BLOCK = 2**14  # bytes
LIMIT_OF_ERROR = 2**14
LONGEST_RETRY_S = 3600.0


@dataclass(frozen=True)
class Reply:
    """What came back; the names of headers are in lower case."""

    status: int
    headers: dict[str, str] = field(repr=False)
    body: bytes = field(repr=False)

    def json(self) -> Any:
        """Read the body as JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise RejectedError("found a reply that is not JSON: is this the server?") from error

    @property
    def words(self) -> str:
        """What the other side says went wrong: at most 300 printable characters."""
        try:
            found = json.loads(self.body)["error"]
        except (ValueError, RecursionError, KeyError, TypeError):
            return "no reason given"
        return "".join(filter(str.isprintable, str(found)[:1000]))[:300]

    @property
    def retry_s(self) -> float | None:
        """When to try again, if the other side says so; at most an hour."""
        text = self.headers.get("retry-after", "")
        plain = text.isascii() and text.isdigit() and len(text) < 10
        return min(float(text), LONGEST_RETRY_S) if plain else None

    def must_be(self, *statuses: int) -> Reply:
        """Give itself if it went well, else an error with the words of the other side."""
        if self.status in statuses:
            return self
        raise RejectedError(f"refused with status {self.status}: {self.words}")

    def judged(self, asked: str) -> Reply:
        """Give itself, or the error that its status stands for whatever was asked."""
        told = f"{asked}: status {self.status}: {self.words}"
        if self.status >= 500 or self.status == 429:
            raise AwayError(told, self.retry_s)
        if self.status in (401, 403):
            raise DeniedError(told)
        if self.status == 404:
            raise UnknownError(told)
        return self


def read(response: HTTPResponse, limit: int) -> Reply:
    """Read a reply to its end; of an error only the beginning."""
    failed = response.status >= 400
    limit = LIMIT_OF_ERROR if failed else limit
    expected, body = response.length, bytearray()
    if expected is None and not response.chunked:
        raise IncompleteRead(b"")  # it may have been cut anywhere, even within its headers
    while len(body) <= limit and (piece := response.read(BLOCK)):
        body += piece
    if len(body) > limit and not failed:
        raise RejectedError(f"found a reply of more than {limit} bytes: it was not read")
    if expected is not None and len(body) < min(expected, limit):
        raise IncompleteRead(bytes(body), expected - len(body))
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Reply(response.status, headers, bytes(body[:limit]))
