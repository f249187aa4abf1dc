"""Client of the server's HTTP API: fleets, devices, choices and audit; and a device's reports.

A report is sent once and never retried here. Of its answer only two numbers are used, each within
its bounds.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from math import inf
from socket import gaierror
from typing import Any, NamedTuple

from edgemerge.core.errors import EdgemergeError, FormatError, RejectedError, UnavailableError
from edgemerge.core.projection import Projection
from edgemerge.exchange.connection import Connection, Query, Reply, url_path
from edgemerge.wire.codec import decode, encode

BINARY_HEADERS = {"Content-Type": "application/octet-stream"}


class ServerClient:
    """A server of fleets, as its operator sees it; `token` is the operator's, or an invitation.

    Every call raises `AwayError`, `DeniedError`, `UnknownError` or `RejectedError`.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        ca_file: str | os.PathLike[str] | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        """Remember where the server is; nothing is sent yet."""
        self._connection = Connection(url, token, ca_file=ca_file, timeout_s=timeout_s)

    def create_fleet(
        self,
        fleet: str,
        projection: Projection,
        *,
        reads: str = "totals",
        least: int = 1,
        growing: bool = False,
    ) -> bool:
        """Create a fleet; False if the very same is there.

        `reads` is what its devices may see of each other: "totals" or "contributions"; `least`
        the least number of devices in a sum that is told; `growing` says that nobody forgets.
        """
        query: Query = {"reads": reads, "least": least, "growing": str(growing).lower()}
        sent = encode(projection)
        reply = self._ask("PUT", "fleets", fleet, query=query, body=sent, headers=BINARY_HEADERS)
        return reply.status == 201

    def fleets(self) -> list[dict[str, Any]]:
        """All fleets that the token may see."""
        return _list(self._ask("GET", "fleets"))

    def fleet(self, name: str) -> dict[str, Any]:
        """What is known about one fleet."""
        return _dict(self._ask("GET", "fleets", name))

    def projection(self, name: str) -> Projection:
        """The projection that a fleet has agreed on."""
        return read_projection(self._ask("GET", "fleets", name, "projection"), name)

    def delete_fleet(self, name: str) -> None:
        """Delete a fleet with everything in it."""
        self._ask("DELETE", "fleets", name)

    def invite(
        self, fleet: str, device: str | None = None, *, valid_s: int = 86400
    ) -> dict[str, Any]:
        """Make a token with which one device (this one, or any) can enrol once."""
        wanted = {"device": device, "valid_s": valid_s}
        return _dict(self._post(wanted, "fleets", fleet, "invitations"))

    def enrol(self, fleet: str, device: str) -> dict[str, Any]:
        """Turn an invitation into the device's own token, which is shown this once."""
        return _dict(self._post({"device": device}, "fleets", fleet, "devices"))

    def devices(self, fleet: str) -> list[dict[str, Any]]:
        """The devices that have enrolled."""
        return _list(self._ask("GET", "fleets", fleet, "devices"))

    def revoke(self, fleet: str, device: str) -> None:
        """Let a device's token work no more; what it contributed stays until it is dropped."""
        self._ask("DELETE", "fleets", fleet, "devices", device)

    def contributions(self, fleet: str) -> dict[str, Any]:
        """Which contributions are there, without their numbers."""
        return _dict(self._ask("GET", "fleets", fleet, "contributions"))

    def drop(self, fleet: str, device: str) -> int:
        """Forget all that a device contributed; say how many contributions that were."""
        dropped = _dict(self._ask("DELETE", "fleets", fleet, "contributions", device)).get(
            "dropped"
        )
        if type(dropped) is not int:
            raise RejectedError(
                f"found dropped={dropped!r}, expected a number: is this the server?"
            )
        return dropped

    def choices(self, fleet: str) -> list[dict[str, Any]]:
        """What operators chose about who is told what, newest first."""
        return _list(self._ask("GET", "fleets", fleet, "choices"))

    def adopt(self, fleet: str, sources: Sequence[str], targets: Sequence[str]) -> dict[str, Any]:
        """Let targets be told of these sources only, from now on."""
        chosen = {"kind": "adopt", "sources": list(sources), "targets": list(targets)}
        return _dict(self._post(chosen, "fleets", fleet, "choices"))

    def exclude(self, fleet: str, device: str, incarnation: int, pattern: str) -> dict[str, Any]:
        """Exclude one contribution, with its newer revisions, from all merges."""
        key = {"device": device, "incarnation": incarnation, "pattern": pattern}
        return _dict(self._post({"kind": "exclude", **key}, "fleets", fleet, "choices"))

    def undo(self, fleet: str, number: int) -> dict[str, Any]:
        """Undo a choice, as if it had never been; twice is once."""
        return _dict(self._ask("DELETE", "fleets", fleet, "choices", str(number)))

    def preview(
        self, fleet: str, sources: Sequence[str], targets: Sequence[str]
    ) -> list[dict[str, Any]]:
        """What being told of these sources only would do to each pattern of the targets."""
        chosen = {"sources": list(sources), "targets": list(targets)}
        return _list(self._post(chosen, "fleets", fleet, "preview"))

    def similarity(self, fleet: str, devices: Sequence[str] | None = None) -> dict[str, Any]:
        """How well each device's readout explains the data of each other, in groups."""
        return _dict(self._ask("GET", "fleets", fleet, "similarity", query={"device": devices}))

    def audit(self, fleet: str | None = None, after: int = 0, limit: int = 100) -> dict[str, Any]:
        """What has happened, of one fleet or all, after an entry's number."""
        query: Query = {"fleet": fleet, "after": after, "limit": limit}
        return _dict(self._ask("GET", "audit", query=query))

    def sign_in_link(self) -> dict[str, Any]:
        """Make a link that opens the dashboard, once; give its `url_path` and when it `expires`."""
        found = _dict(self._post({}, "sign-in-links"))
        if not re.fullmatch(r"/ui/sign-in\?link=[\w-]{1,200}", str(found.get("path")), re.ASCII):
            raise RejectedError(f"found path={found.get('path')!r}, expected /ui/sign-in?link=…")
        return found

    def status(self) -> dict[str, Any]:
        """How the server is."""
        return _dict(self._ask("GET", "status"))

    def close(self) -> None:
        """Close the connection; asking again opens it again."""
        self._connection.close()

    def __repr__(self) -> str:
        """Show where it is."""
        return f"Hub({self._connection.url})"

    def _ask(
        self,
        method: str,
        *segments: str,
        query: Query | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        asked = self._connection.ask(
            method, url_path(*segments), query=query, body=body, headers=headers
        )
        return asked.must_be(200, 201, 204)

    def _post(self, value: Mapping[str, Any], *segments: str) -> Reply:
        body, headers = json.dumps(value).encode(), {"Content-Type": "application/json"}
        return self._ask("POST", *segments, body=body, headers=headers)


def read_projection(reply: Reply, fleet: str) -> Projection:
    """Read what a fleet has agreed on."""
    try:
        found = decode(reply.must_be(200).body)
    except FormatError as error:
        raise RejectedError(f"{fleet}: found no projection: {error}") from error
    if not isinstance(found, Projection):
        raise RejectedError(f"{fleet}: found {type(found).__name__}, expected Projection")
    return found


def _dict(reply: Reply) -> dict[str, Any]:
    found = reply.json()
    if not isinstance(found, dict):
        raise RejectedError("found a reply that is no JSON object: is this the server?")
    return found


def _list(reply: Reply) -> list[dict[str, Any]]:
    found = reply.json()
    if not (isinstance(found, list) and all(isinstance(entry, dict) for entry in found)):
        raise RejectedError("found a reply that is no JSON list of objects: is this the server?")
    return found


MAX_REPORT_BYTES = 65_536  # bytes of a report; the server takes no more
MAX_ANSWER_BYTES = 4096  # bytes of an answer
MAX_DESIRED_BYTES = 2**18  # bytes of a desired-state document
DESIRED_FORMAT = 1
MAX_NAME_CHARS = 200
KEY_PARTS = 3  # device, incarnation and pattern
REPORT_TIMEOUT_S = 2.0
MIN_REPORT_INTERVAL_S, MAX_REPORT_INTERVAL_S = (
    0.2,
    3600.0,
)  # between two reports, whatever the server says
JSON_HEADERS = {"Content-Type": "application/json"}
TRIM_DIVISOR = 10  # of what does not fit, a tenth is left out at a time


class ReportAnswer(NamedTuple):
    """The answer to a report; None where a value is missing or invalid.

    `desired` is the revision of the device's desired state; older servers send only `choice`, the
    number of the operator's newest choice.
    """

    every_s: float | None = None
    choice: int | None = None
    desired: int | None = None


class DesiredState(NamedTuple):
    """What the operator wants of a device, as of one revision.

    `devices` are those whose contributions to adopt, None for all. `excluded` are contributions to
    leave out, as (device, incarnation, pattern); only their number where the fleet tells totals.
    """

    revision: int
    devices: tuple[str, ...] | None = None
    excluded: tuple[tuple[str, int, str], ...] | int = ()

    def plain(self) -> dict[str, Any]:
        """Return the document as plain JSON; `parse_desired` reads it back."""
        adopt = {"devices": self.devices, "excluded": self.excluded}
        return {"format": DESIRED_FORMAT, "revision": self.revision, "adopt": adopt}


def parse_desired(document: object) -> DesiredState:
    """Read a desired-state document; unknown keys are ignored.

    Raises:
        RejectedError: The document has another format or a value of the wrong type.

    >>> parse_desired({"format": 1, "revision": 7, "adopt": {"devices": ["pump-1"], "excluded": 2}})
    DesiredState(revision=7, devices=('pump-1',), excluded=2)
    """
    if not isinstance(document, dict) or document.get("format") != DESIRED_FORMAT:
        raise RejectedError(f"found no desired state of format {DESIRED_FORMAT}: update the agent")
    revision, adopt = _number(document.get("revision")), document.get("adopt")
    if revision is None or not isinstance(adopt, dict):
        raise RejectedError("found a desired state without `revision` and `adopt`")
    devices, excluded = adopt.get("devices"), adopt.get("excluded", [])
    if devices is not None and not (isinstance(devices, list) and all(map(_is_text, devices))):
        raise RejectedError("found adopt.devices in a desired state, expected a list of names")
    if isinstance(excluded, list) and all(map(_is_key, excluded)):
        excluded = tuple((device, number, pattern) for device, number, pattern in excluded)
    elif _number(excluded) is None:
        raise RejectedError("found adopt.excluded in a desired state, expected a list of keys")
    return DesiredState(revision, None if devices is None else tuple(devices), excluded)


def _is_text(found: object) -> bool:
    return isinstance(found, str) and 0 < len(found) <= MAX_NAME_CHARS


def _is_key(found: object) -> bool:
    if not isinstance(found, list) or len(found) != KEY_PARTS:
        return False
    return _is_text(found[0]) and _number(found[1]) is not None and _is_text(found[2])


class ReportClient:
    """Where a device's reports go, over a connection of its own."""

    def __init__(
        self,
        url: str,
        fleet: str,
        device: str,
        token: str,
        *,
        ca_file: str | os.PathLike[str] | None = None,
        timeout_s: float = REPORT_TIMEOUT_S,
    ) -> None:
        """Remember where the server is; nothing is sent yet."""
        self._connection = Connection(url, token, ca_file=ca_file, timeout_s=timeout_s)
        self._path = url_path("fleets", fleet, "devices", device, "report")
        self._desired_path = url_path("fleets", fleet, "devices", device, "desired")

    def send(self, report: dict[str, Any]) -> ReportAnswer:
        """Send a report, with so much in it as the server takes; give the answer.

        Raises `UnavailableError`, `DeniedError`, `UnknownError` (a server that knows no reports) or
        `RejectedError`.
        """
        body = encode_report(report)
        reply = self._connection.ask(
            "POST",
            self._path,
            body=body,
            headers=JSON_HEADERS,
            limit=MAX_ANSWER_BYTES,
            allow_loss=True,
        )
        return _read_answer(reply.must_be(200))

    def desired(self, known: int | None = None) -> DesiredState | None:
        """Fetch the desired state of this device; None if its revision is still `known`.

        Raises `UnavailableError`, `DeniedError`, `UnknownError` (a server that has no desired
        states) or `RejectedError`.
        """
        headers = {} if known is None else {"If-None-Match": f'"{known}"'}
        reply = self._connection.ask(
            "GET", self._desired_path, headers=headers, limit=MAX_DESIRED_BYTES
        )
        if reply.must_be(200, 304).status == 304:
            return None
        return parse_desired(reply.json())

    def close(self) -> None:
        """Close the connection; sending again opens it again."""
        self._connection.close()

    def __repr__(self) -> str:
        """Show where it leads."""
        return f"Reports({self._connection.url}{self._path})"


def encode_report(report: dict[str, Any], largest: int = MAX_REPORT_BYTES) -> bytes:
    """Write a report as JSON; of what is too much, origins go first, then the oldest of the rest.

    >>> encode_report({"sent": 1.0, "points": [{"at": 0.0}, {"at": 1.0}]}, largest=35)
    b'{"sent":1.0,"points":[{"at":1.0}]}'
    """
    report = dict(report)
    if report.get("merge"):
        report["merge"] = dict(report["merge"])
    while len(body := _json(report)) > largest and _trim(report):
        pass
    return body


def was_not_sent(error: EdgemergeError) -> bool:
    """Say whether a report that failed so cannot have reached the server."""
    found = error.__cause__
    return isinstance(error, UnavailableError) and isinstance(
        found, ConnectionRefusedError | gaierror
    )


def _json(report: dict[str, Any]) -> bytes:
    return json.dumps(report, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _trim(report: dict[str, Any]) -> bool:
    """Leave some out; say whether there was something."""
    merge = report.get("merge") or {}
    if origins := merge.get("origins"):
        merge["origins"] = origins[: -_trim_count(origins)]
        return True
    for name in ("alarms", "points"):
        if found := report.get(name):
            report[name] = found[_trim_count(found) :]
            return True
    return False


def _trim_count(things: list[Any]) -> int:
    return max(1, len(things) // TRIM_DIVISOR)


def _read_answer(reply: Reply) -> ReportAnswer:
    found = reply.json()
    if not isinstance(found, dict):
        raise RejectedError("found an answer that is no JSON object: is this the server?")
    numbers = (_number(found.get(name)) for name in ("choice", "desired"))
    return ReportAnswer(_interval(found.get("every_s")), *numbers)


def _interval(found: Any) -> float | None:
    """Give the interval within its bounds; None if it is no time.

    >>> [_interval(found) for found in (5, 0.001, 1e99, float("nan"), -1.0, "5", True)]
    [5.0, 0.2, 3600.0, None, None, None, None]
    """
    if type(found) not in (int, float) or not 0.0 < found < inf:
        return None
    return float(min(max(found, MIN_REPORT_INTERVAL_S), MAX_REPORT_INTERVAL_S))


def _number(found: object) -> int | None:
    return found if type(found) is int and 0 <= found < 2**63 else None
