"""Reports over HTTP: what a device says about itself, and what the server answers.

A report is sent once, and a failure is told: nothing here tries again. Of the answer nothing is
believed but two numbers, each within its bounds.
"""

from __future__ import annotations

import json
import os
from math import inf
from socket import gaierror
from typing import Any, NamedTuple

from edgemerge.core.errors import AwayError, EdgemergeError, RejectedError
from edgemerge.exchange.connection import Connection, path
from edgemerge.exchange.reply import Reply

LARGEST = 65_536  # bytes of a report; the server takes no more
LIMIT = 4096  # bytes of an answer
TIMEOUT_S = 2.0
SHORTEST_S, LONGEST_S = 0.2, 3600.0  # between two reports, whatever the server says
JSON = {"Content-Type": "application/json"}
SHARE = 10  # of what does not fit, a tenth is left out at a time


class Heard(NamedTuple):
    """When to report again, and the operator's newest choice; None where no sense was made."""

    every_s: float | None = None
    choice: int | None = None


class Reports:
    """Where a device's reports go, over a connection of its own."""

    def __init__(
        self,
        url: str,
        fleet: str,
        device: str,
        token: str,
        *,
        ca_file: str | os.PathLike[str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Remember where the server is; nothing is sent yet."""
        self._connection = Connection(url, token, ca_file=ca_file, timeout_s=timeout_s)
        self._path = path("fleets", fleet, "devices", device, "report")

    def send(self, report: dict[str, Any]) -> Heard:
        """Send a report, with so much in it as the server takes; give the answer.

        Raises `AwayError`, `DeniedError`, `UnknownError` (a server that knows no reports) or
        `RejectedError`.
        """
        body = written(report)
        reply = self._connection.ask(
            "POST", self._path, body=body, headers=JSON, limit=LIMIT, may_be_lost=True
        )
        return _heard(reply.must_be(200))

    def close(self) -> None:
        """Close the connection; sending again opens it again."""
        self._connection.close()

    def __repr__(self) -> str:
        """Show where it leads."""
        return f"Reports({self._connection.url}{self._path})"


def written(report: dict[str, Any], largest: int = LARGEST) -> bytes:
    """Write a report as JSON; of what is too much, origins go first, then the oldest of the rest.

    >>> written({"sent": 1.0, "points": [{"at": 0.0}, {"at": 1.0}]}, largest=35)
    b'{"sent":1.0,"points":[{"at":1.0}]}'
    """
    report = dict(report)
    if report.get("merge"):
        report["merge"] = dict(report["merge"])
    while len(body := _json(report)) > largest and _lessen(report):
        pass
    return body


def never_left(error: EdgemergeError) -> bool:
    """Say whether a report that failed so cannot have reached the server."""
    found = error.__cause__
    return isinstance(error, AwayError) and isinstance(found, ConnectionRefusedError | gaierror)


def _json(report: dict[str, Any]) -> bytes:
    return json.dumps(report, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _lessen(report: dict[str, Any]) -> bool:
    """Leave some out; say whether there was something."""
    merge = report.get("merge") or {}
    if origins := merge.get("origins"):
        merge["origins"] = origins[: -_some(origins)]
        return True
    for name in ("alarms", "points"):
        if found := report.get(name):
            report[name] = found[_some(found) :]
            return True
    return False


def _some(things: list[Any]) -> int:
    return max(1, len(things) // SHARE)


def _heard(reply: Reply) -> Heard:
    found = reply.json()
    if not isinstance(found, dict):
        raise RejectedError("found an answer that is no JSON object: is this the server?")
    return Heard(_interval(found.get("every_s")), _number(found.get("choice")))


def _interval(found: Any) -> float | None:
    """Give the interval within its bounds; None if it is no time.

    >>> [_interval(found) for found in (5, 0.001, 1e99, float("nan"), -1.0, "5", True)]
    [5.0, 0.2, 3600.0, None, None, None, None]
    """
    if type(found) not in (int, float) or not 0.0 < found < inf:
        return None
    return float(min(max(found, SHORTEST_S), LONGEST_S))


def _number(found: object) -> int | None:
    return found if type(found) is int and 0 <= found < 2**63 else None
