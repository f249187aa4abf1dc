"""Requests as a stranger would send them, down to the byte, and all that a server has stored."""

import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from edgemerge import Projection, Stats
from edgemerge.core.ledger import Contribution
from edgemerge.server.db.migrations import MIGRATIONS
from edgemerge.wire.codec import encode
from tests.services.hub import Running
from tests.waiting import DEADLINE_S

SHARED = Projection(n_inputs=2, n_hidden=3, seed=5)
ROWS = [[0.1, 0.2], [0.3, -0.4], [-0.5, 0.6], [0.7, 0.1]]
STATEMENTS = "\n".join(each for migration in MIGRATIONS for each in migration.statements)
TABLES = [
    name
    for name in re.findall(r"create table (\w+)", STATEMENTS)
    if f"drop table {name}" not in STATEMENTS
]


class Answered(NamedTuple):
    """What came back; the names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


def ask(
    here: Running,
    method: str,
    path: str,
    *,
    token: str | None = None,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
) -> Answered:
    """Send one request, with the path as it is written here."""
    bearer = {} if token is None else {"Authorization": f"Bearer {token}"}
    connection = HTTPConnection(urlsplit(here.url).netloc, timeout=DEADLINE_S)
    try:
        connection.request(method, path, body, {**bearer, **(headers or {})})
        with connection.getresponse() as reply:
            found = {name.lower(): value for name, value in reply.getheaders()}
            return Answered(reply.status, found, reply.read())
    finally:
        connection.close()


@contextmanager
def line(here: Running) -> Iterator[socket.socket]:
    """Open a connection on which anything can be sent."""
    where = urlsplit(here.url)
    with socket.create_connection((where.hostname, where.port), DEADLINE_S) as opened:
        yield opened


def head(method: str, target: str, *lines: str, token: str | None = None) -> bytes:
    """Write the first lines of a request."""
    bearer = () if token is None else (f"Authorization: Bearer {token}",)
    every = (f"{method} {target} HTTP/1.1", "Host: hub", *bearer, *lines, "", "")
    return "\r\n".join(every).encode("latin-1")


def status_on(opened: socket.socket) -> int:
    """Read the status of the answer; 0 if the line was closed instead."""
    with opened.makefile("rb") as stream:
        words = stream.readline().split()
    return int(words[1]) if words else 0


def dump(here: Running) -> dict[str, list[tuple]]:
    """Give all rows of all tables, with what would be written in a moment."""
    here.service.history.flush()
    with here.service.database.reading() as tx:
        return {name: sorted(map(repr, tx.rows(f"select * from {name}"))) for name in TABLES}


def note(
    device: str,
    revision: int = 1,
    pattern: str = "normal",
    incarnation: int = 0,
    rows: Any = ROWS,
    projection: Projection = SHARED,
) -> Contribution:
    """Give a contribution."""
    return Contribution(device, Stats.of(projection, rows), revision, pattern, incarnation)


def address(given: Contribution, fleet: str = "mine") -> str:
    """Say where a contribution belongs."""
    return f"/fleets/{fleet}/contributions/{given.device}/{given.incarnation}/{given.pattern}"


def push(here: Running, token: str, given: Contribution, fleet: str = "mine") -> Answered:
    """Send a contribution as its device would."""
    return ask(here, "PUT", address(given, fleet), token=token, body=encode(given))
