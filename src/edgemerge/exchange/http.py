"""Exchange over HTTP: with a server that keeps contributions and adds them up."""

from __future__ import annotations

import os
from collections import OrderedDict
from threading import Lock

from edgemerge.core.errors import (
    FormatError,
    MismatchError,
    RejectedError,
    SettingError,
    StaleError,
)
from edgemerge.core.ledger import Contribution, Merged
from edgemerge.core.projection import Projection
from edgemerge.exchange.client import BINARY_HEADERS, read_projection
from edgemerge.exchange.connection import MAX_REPLY_BYTES, Connection, Query, Reply, url_path
from edgemerge.exchange.protocol import Wish
from edgemerge.wire.codec import decode, encode

MAX_CACHED_PULLS = (
    8  # wishes whose answers are kept, so that an unchanged one need not be sent again
)


class HttpExchange:
    """One device's view of its fleet on a server.

    Who asks is known by the token, so `Wish.device` must be the device that has enrolled. What the
    fleet does not let a device see is a `DeniedError`. When `push` returns, the server has
    committed the contribution to its disk.
    """

    def __init__(
        self,
        url: str,
        fleet: str,
        token: str,
        *,
        projection: Projection | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        """Remember where the server is; nothing is sent yet."""
        self.fleet = fleet
        self._connection = Connection(url, token, ca_file=ca_file, timeout_s=timeout_s)
        self._projection = projection
        self._told: OrderedDict[Wish, tuple[str, Merged]] = OrderedDict()
        self._lock = Lock()

    @property
    def projection(self) -> Projection:
        """What the fleet has agreed on; fetched from it if it was not given."""
        if self._projection is None:
            reply = self._connection.ask("GET", url_path("fleets", self.fleet, "projection"))
            self._projection = read_projection(reply, self.fleet)
        return self._projection

    def push(self, contribution: Contribution) -> bool:
        """Leave a contribution; False if it was there already."""
        try:
            where = url_path("fleets", self.fleet, "contributions", *contribution.key)
        except SettingError as error:
            raise RejectedError(f"{contribution}: {error}") from error
        reply = self._connection.ask(
            "PUT", where, body=encode(contribution), headers=BINARY_HEADERS
        )
        if reply.status == 409:
            raise StaleError(f"{contribution.device}: {reply.words}", _newest_revision(reply))
        return reply.must_be(200, 201).status == 201

    def pull(self, wish: Wish) -> Merged:
        """Fetch what others have left; what has not changed is not sent again."""
        if wish.devices == ():  # the address would mean all of them
            return Merged(self.projection)
        with self._lock:
            tag, known = self._told.get(wish, ("", None))
        headers = {"If-None-Match": tag} if known else {}
        where = url_path("fleets", self.fleet, "patterns" if wish.grouped else "total")
        reply = self._connection.ask("GET", where, query=_pull_query(wish), headers=headers)
        if reply.status == 304 and known:
            return known
        told = self._read(reply.must_be(200), wish)
        self._remember(wish, reply.headers.get("etag"), told)
        return told

    def close(self) -> None:
        """Close the connection; asking again opens it again."""
        self._connection.close()

    def __repr__(self) -> str:
        """Show where it leads."""
        return f"HttpExchange({self._connection.url}, {self.fleet})"

    def _read(self, reply: Reply, wish: Wish) -> Merged:
        try:
            told = decode(reply.body, limit=MAX_REPLY_BYTES, projection=self.projection)
        except FormatError as error:
            raise RejectedError(f"{self}: what it told cannot be read: {error}") from error
        if not isinstance(told, Merged):
            raise RejectedError(f"{self}: found {type(told).__name__}, expected Told")
        if told.projection != self.projection:
            raise MismatchError(
                f"{self} told sums of {told.projection}, expected {self.projection}: "
                "every device must build the same Projection"
            )
        unwanted = [origin for origin in told.origins if not wish.wants(origin.key, 1.0)]
        if unwanted:
            raise RejectedError(
                f"{self} told of {unwanted[0].device}, which {wish} leaves out: "
                "is this token that of another device?"
            )
        return told

    def _remember(self, wish: Wish, tag: str | None, told: Merged) -> None:
        with self._lock:
            self._told.pop(wish, None)
            if tag:
                self._told[wish] = tag, told
            while len(self._told) > MAX_CACHED_PULLS:
                self._told.popitem(last=False)


def _pull_query(wish: Wish) -> Query:
    return {
        "incarnation": wish.incarnation,
        "device": wish.devices,
        "without": wish.without or None,
        "pattern": wish.pattern,
        "largest": wish.largest or None,
    }


def _newest_revision(reply: Reply) -> int:
    found = reply.json()
    newest = found.get("newest") if isinstance(found, dict) else None
    if type(newest) is not int or not 0 <= newest < 2**63:
        raise RejectedError(f"found 409 with newest={str(newest)[:40]!r}, expected a revision")
    return newest
