"""Client of the server's HTTP API: fleets, devices, choices and audit; and a device's reports.

A report is sent once and never retried here. Numbers in its answer are limited to sensible ranges.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from functools import partial
from math import inf
from socket import gaierror
from time import time
from typing import Any, NamedTuple, Unpack

from edgemerge.core.errors import EdgemergeError, FormatError, RejectedError, UnavailableError
from edgemerge.core.projection import Projection
from edgemerge.exchange.connection import Connection, ConnectionOptions, Query, Reply, url_path
from edgemerge.wire.codec import decode, encode

BINARY_HEADERS = {"Content-Type": "application/octet-stream"}
JSON_HEADERS = {"Content-Type": "application/json"}


class ServerClient:
    """The HTTP API for operators, and for devices that enrol.

    Every method raises `UnavailableError`, `DeniedError`, `UnknownError` or `RejectedError`.

    Args:
        url: Address of the server, http:// or https://.
        token: The token of an account, or an invitation to enrol with.
        options: `ca_file`, `timeout_s`, `insecure` and `pins_file` of the `Connection`.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        """Send nothing yet."""
        self._connection = Connection(url, token, **options)

    def create_fleet(
        self,
        fleet: str,
        projection: Projection,
        *,
        reads: str = "totals",
        least: int | None = None,
        growing: bool = False,
        trust: str | None = None,
        **noise: Any,
    ) -> bool:
        """Create a fleet; return False if it exists with the same settings.

        Args:
            fleet: Name of the fleet.
            projection: What all devices share.
            reads: What devices may read of each other: "totals", "contributions", or "masked":
                totals of which the server itself cannot read the parts.
            least: With "totals", devices get no sum, and no difference of two sums, that is about
                fewer than so many other devices; 1: they get every change at once. None: 3 with
                "totals", else 1.
            growing: Whether devices never forget, so that sums that decrease are rejected.
            trust: "members", "quorum:K" or "person"; None: "members" for a new fleet, and any for
                one that exists.
            noise: Of a masked fleet: "epsilon" and "delta", and if wanted "radius" and "release";
                or "centred_on", a fleet with `release="mean"`, whose projection is given. None is
                as if left out.
        """
        # `min_devices` and `no_forgetting`; older servers know these names only
        asked = {"least": least, "trust": trust, **noise}
        chosen = {name: str(value) for name, value in asked.items() if value is not None}
        query: Query = {"reads": reads, "growing": str(growing).lower(), **chosen}
        body = encode(projection)
        reply = self._ask("PUT", "fleets", fleet, query=query, body=body, headers=BINARY_HEADERS)
        return reply.status == 201

    def form_cohorts(self, fleet: str, **options: Any) -> list[dict[str, Any]]:
        """Form the cohorts of a masked fleet of all devices that have registered their keys.

        Args:
            fleet: Name of the fleet.
            options: Fields of the request: "least", "slots", "size", "collect_s", "missing",
                "colluding" and "mix"; those left out have the server's defaults.
        """
        return self._post(options, "fleets", fleet, "cohorts").json_objects()

    def cohorts(self, fleet: str, *, ended: bool = False) -> list[dict[str, Any]]:
        """Return the cohorts of a masked fleet, each with its epoch.

        Args:
            fleet: Name of the fleet.
            ended: Whether ended and dropped ones are listed, too; False by default.
        """
        query: Query = {"ended": "true"} if ended else {}
        return self._ask("GET", "fleets", fleet, "cohorts", query=query).json_objects()

    def suspects(self, fleet: str) -> dict[str, Any]:
        """Return the devices of a masked fleet that were most often in a cohort that differed.

        Args:
            fleet: Name of the fleet.
        """
        return self._ask("GET", "fleets", fleet, "suspects").json_object()

    def drop_cohort(self, fleet: str, cohort: int) -> None:
        """End a cohort of a masked fleet, and take all that it has added up out of the total.

        Args:
            fleet: Name of the fleet.
            cohort: The number of the cohort.
        """
        self._ask("DELETE", "fleets", fleet, "cohorts", str(cohort))

    def forget_keys(self, fleet: str, device: str) -> None:
        """Let a device of a masked fleet register new keys.

        Args:
            fleet: Name of the fleet.
            device: Name of the device.
        """
        self._ask("DELETE", "fleets", fleet, "masked", device, "keys")

    def fleets(self) -> list[dict[str, Any]]:
        """Return all fleets that the token may see."""
        return self._ask("GET", "fleets").json_objects()

    def fleet(self, name: str) -> dict[str, Any]:
        """Return the settings and counts of one fleet."""
        return self._ask("GET", "fleets", name).json_object()

    def projection(self, name: str) -> Projection:
        """Return the projection of a fleet."""
        return fetch_projection(self._connection, name)

    def set_trust(self, fleet: str, trust: str) -> dict[str, Any]:
        """Change which contributions enter others' sums at once; return the fleet.

        Args:
            fleet: Name of the fleet.
            trust: "members", "quorum:K" or "person".
        """
        return self._put({"trust": trust}, "fleets", fleet, "trust").json_object()

    def waiting(self, fleet: str) -> list[dict[str, Any]]:
        """Return the contributions that wait for approval, the longest first."""
        return self._ask("GET", "fleets", fleet, "waiting").json_objects()

    def decide(
        self,
        fleet: str,
        key: tuple[str, int, str],
        decision: str,
        *,
        revision: int | None = None,
        comment: str = "",
    ) -> dict[str, Any]:
        """Approve a contribution as it is now, or dismiss it; `undo` takes it back.

        Args:
            fleet: Name of the fleet.
            key: Device, incarnation and pattern.
            decision: "approve" or "dismiss".
            revision: The revision that was looked at; another one is refused. None: any.
            comment: One line for those who read the log.
        """
        about = dict(zip(("device", "incarnation", "pattern"), key, strict=True))
        asked = {"kind": decision, **about, "revision": revision, "comment": comment}
        return self._post(asked, "fleets", fleet, "choices").json_object()

    def delete_fleet(self, name: str) -> None:
        """Delete a fleet with everything in it."""
        self._ask("DELETE", "fleets", name)

    def invite(
        self, fleet: str, device: str | None = None, *, valid_s: float = 86400
    ) -> dict[str, Any]:
        """Create an invitation, with which one device (this one, or any) can enrol once."""
        body = {"device": device, "valid_s": valid_s}
        return self._post(body, "fleets", fleet, "invitations").json_object()

    def replace(self, fleet: str, device: str, *, valid_s: int = 86400) -> dict[str, Any]:
        """Create an invitation for new hardware of a device; what is known of the device stays."""
        body = {"valid_s": valid_s}
        return self._post(body, "fleets", fleet, "devices", device, "replacement").json_object()

    def enrol(self, fleet: str, device: str) -> dict[str, Any]:
        """Use an invitation; return the device's own token, which is not shown again."""
        return self._post({"device": device}, "fleets", fleet, "devices").json_object()

    def devices(self, fleet: str) -> list[dict[str, Any]]:
        """Return the enrolled devices."""
        return self._ask("GET", "fleets", fleet, "devices").json_objects()

    def revoke(self, fleet: str, device: str) -> None:
        """Revoke a device's token; its contributions stay until they are dropped."""
        self._ask("DELETE", "fleets", fleet, "devices", device)

    def device(self, fleet: str, device: str) -> dict[str, Any]:
        """Return a device: its state, and the status it reported last."""
        return self._ask("GET", "fleets", fleet, "devices", device).json_object()

    def reviews(self, fleet: str, device: str) -> list[dict[str, Any]]:
        """Return the reviews of a device, newest first: waiting, done or refused."""
        return self._ask("GET", "fleets", fleet, "devices", device, "reviews").json_objects()

    def review(self, fleet: str, device: str, decision: str, **words: Any) -> dict[str, Any]:
        """Decide about a device's pattern or episode; the device acts when it next reports.

        Args:
            fleet: Name of the fleet.
            device: Name of the device.
            decision: "approve", "fault", "dismiss" or "undo" a pattern; "acknowledge", "snooze",
                "watch", "relearn" or "accept_drift".
            **words: `pattern`, `name` of the fault, `episode` (None: all), `until` (Unix seconds;
                None ends a snooze) and `comment`, as far as the decision needs them.
        """
        asked = {"decision": decision, **words}
        return self._post(asked, "fleets", fleet, "devices", device, "reviews").json_object()

    def episodes(
        self,
        fleet: str,
        *,
        since: float = 0.0,
        open_only: bool = False,
        device: str | None = None,
        limit: int = 100,
    ) -> dict[str, Any]:
        """Return `episodes` in the order of their changes, where to go on, and if there are more.

        Args:
            fleet: Name of the fleet.
            since: Return those that changed after this: Unix seconds, or `next` of an earlier
                answer. The default returns all.
            open_only: Leave out episodes that have ended.
            device: Return those of this device only.
            limit: The most to return, up to 1000.
        """
        opened = "true" if open_only else None
        query: Query = {"since": repr(since), "open": opened, "device": device, "limit": limit}
        return self._ask("GET", "fleets", fleet, "episodes", query=query).json_object()

    def settings(self, fleet: str, device: str) -> dict[str, Any]:
        """Return the settings of a device that operators changed, and what became of them."""
        return self._ask("GET", "fleets", fleet, "devices", device, "settings").json_object()

    def change_settings(self, fleet: str, device: str, **chosen: Any) -> dict[str, Any]:
        """Replace the settings of a device; it applies them once, when it next reports.

        Args:
            fleet: Name of the fleet.
            device: Name of the device.
            **chosen: `label`, and `limit` or `false_alarms`, and a `comment`; what is left out is
                as the device's own file says.
        """
        return self._put(chosen, "fleets", fleet, "devices", device, "settings").json_object()

    def undo_settings(self, fleet: str, device: str, version: int) -> dict[str, Any]:
        """Go back to the settings before a version, which must be the newest; twice is once."""
        path = ("fleets", fleet, "devices", device, "settings", str(version))
        return self._ask("DELETE", *path).json_object()

    def configuration(self, fleet: str, device: str | None = None) -> dict[str, Any]:
        """Return the configuration of a fleet's agents, or of one device, and what became of it."""
        return self._ask("GET", *_configuration_path(fleet, device)).json_object()

    def configure(
        self,
        fleet: str,
        tables: Mapping[str, Any],
        *,
        device: str | None = None,
        comment: str = "",
    ) -> dict[str, Any]:
        """Replace the configuration of a fleet's agents; each applies it when it next reports.

        Args:
            fleet: Name of the fleet.
            tables: As in the agent's file; only keys of `ALLOWED_KEYS`, and some sinks.
            device: A single device, whose tables go on top; None for all.
            comment: One line for those who read the log.
        """
        asked = {"tables": tables, "comment": comment}
        return self._put(asked, *_configuration_path(fleet, device)).json_object()

    def undo_configuration(
        self, fleet: str, version: int, *, device: str | None = None
    ) -> dict[str, Any]:
        """Go back to the configuration before a version, which must be the newest."""
        path = _configuration_path(fleet, device)
        return self._ask("DELETE", *path, str(version)).json_object()

    def receivers(self, fleet: str) -> list[dict[str, Any]]:
        """Return who is told of what happens in a fleet, without secrets."""
        return self._ask("GET", "fleets", fleet, "receivers").json_objects()

    def set_receiver(self, fleet: str, receiver: str, **settings: Any) -> dict[str, Any]:
        """Tell a receiver what happens in a fleet; the server calls its address.

        Args:
            fleet: Name of the fleet.
            receiver: Name of the receiver; one of that name is replaced.
            **settings: `kind` ("webhook", "ntfy", "slack" or "email"), and as the kind needs them
                `url`, or `host`, `port`, `security`, `sender`, `to` and `username`; `secret`, which
                is never shown again, or `secret_file`; `events` and `every_s`.
        """
        return self._put(settings, "fleets", fleet, "receivers", receiver).json_object()

    def remove_receiver(self, fleet: str, receiver: str) -> None:
        """Remove a receiver; what it has not been told is not sent any more."""
        self._ask("DELETE", "fleets", fleet, "receivers", receiver)

    def test_receiver(self, fleet: str, receiver: str) -> dict[str, Any]:
        """Send a test message; return whether it was taken (`delivered`), and why not."""
        return self._post({}, "fleets", fleet, "receivers", receiver, "test").json_object()

    def contributions(self, fleet: str) -> dict[str, Any]:
        """Return the list of contributions, without their sums."""
        return self._ask("GET", "fleets", fleet, "contributions").json_object()

    def drop(self, fleet: str, device: str, *, incarnation: int | None = None) -> int:
        """Delete contributions of a device; return their number.

        Args:
            fleet: Its fleet.
            device: The device.
            incarnation: Delete those of this incarnation only; None (the default): all of them.
        """
        only = () if incarnation is None else (str(incarnation),)
        reply = self._ask("DELETE", "fleets", fleet, "contributions", device, *only)
        dropped = reply.json_object().get("dropped")
        if type(dropped) is not int:
            raise RejectedError(
                f"found dropped={dropped!r}, expected a number: is this the server?"
            )
        return dropped

    def choices(self, fleet: str) -> list[dict[str, Any]]:
        """Return the operators' choices (who adopts from whom), newest first."""
        return self._ask("GET", "fleets", fleet, "choices").json_objects()

    def adopt(self, fleet: str, sources: Sequence[str], targets: Sequence[str]) -> dict[str, Any]:
        """Choose that the targets adopt from these sources only, from now on."""
        chosen = {"kind": "adopt", "sources": list(sources), "targets": list(targets)}
        return self._post(chosen, "fleets", fleet, "choices").json_object()

    def exclude(self, fleet: str, device: str, incarnation: int, pattern: str) -> dict[str, Any]:
        """Exclude one contribution and its newer revisions from all merges."""
        key = {"device": device, "incarnation": incarnation, "pattern": pattern}
        return self._post({"kind": "exclude", **key}, "fleets", fleet, "choices").json_object()

    def undo(self, fleet: str, number: int) -> dict[str, Any]:
        """Undo a choice; undoing it twice has no further effect."""
        return self._ask("DELETE", "fleets", fleet, "choices", str(number)).json_object()

    def preview(
        self, fleet: str, sources: Sequence[str], targets: Sequence[str]
    ) -> list[dict[str, Any]]:
        """Return what adopting from these sources only would do to each pattern of the targets."""
        chosen = {"sources": list(sources), "targets": list(targets)}
        return self._post(chosen, "fleets", fleet, "preview").json_objects()

    def similarity(self, fleet: str, devices: Sequence[str] | None = None) -> dict[str, Any]:
        """Return how well each device's readout explains the data of each other, in groups."""
        return self._ask(
            "GET", "fleets", fleet, "similarity", query={"device": devices}
        ).json_object()

    def audit(self, fleet: str | None = None, after: int = 0, limit: int = 100) -> dict[str, Any]:
        """Return entries of the audit log after a number, of one fleet or all."""
        query: Query = {"fleet": fleet, "after": after, "limit": limit}
        return self._ask("GET", "audit", query=query).json_object()

    def accounts(self) -> list[dict[str, Any]]:
        """Return all accounts and wall links, without their tokens; for admins."""
        return self._ask("GET", "accounts").json_objects()

    def add_account(self, name: str, role: str, *, valid_s: float | None = None) -> dict[str, Any]:
        """Add an account; return it with its `token`, which is not shown again.

        Args:
            name: Its name.
            role: "viewer", "operator" or "admin".
            valid_s: After how many seconds its token expires; None: never.
        """
        return self._post(
            {"name": name, "role": role, "valid_s": valid_s}, "accounts"
        ).json_object()

    def change_account(self, name: str, **changed: Any) -> dict[str, Any]:
        """Change an account; its token stays, and its sessions end.

        Args:
            name: Its name.
            **changed: `role`, and `valid_s` (None: it never expires); what is left out stays.
        """
        return self._put(changed, "accounts", name).json_object()

    def rotate_account(self, name: str, **changed: Any) -> dict[str, Any]:
        """Give an account a new token, or a wall link a new `path`; the old one ends at once.

        Args:
            name: Its name.
            **changed: `valid_s`, after which it expires (None: never); without it, as before.
        """
        return self._post(changed, "accounts", name, "rotate").json_object()

    def revoke_account(self, name: str) -> None:
        """Revoke an account or a wall link; its sessions end at once."""
        self._ask("DELETE", "accounts", name)

    def add_wall_link(
        self, fleet: str, name: str, *, valid_s: float = 365 * 86_400.0
    ) -> dict[str, Any]:
        """Make a link that shows the page of a fleet without a sign-in; return its `path`.

        Args:
            fleet: Name of the fleet.
            name: What the link is called in the list of accounts.
            valid_s: After how many seconds it expires. Default: a year.
        """
        return self._post(
            {"name": name, "valid_s": valid_s}, "fleets", fleet, "wall-links"
        ).json_object()

    def sign_in_link(self) -> dict[str, Any]:
        """Create a link that signs in to the dashboard once; return its `path` and `expires`."""
        found = self._post({}, "sign-in-links").json_object()
        if not re.fullmatch(r"/ui/sign-in\?link=[\w-]{1,200}", str(found.get("path")), re.ASCII):
            raise RejectedError(f"found path={found.get('path')!r}, expected /ui/sign-in?link=…")
        return found

    def status(self) -> dict[str, Any]:
        """Return the status of the server."""
        return self._ask("GET", "status").json_object()

    def close(self) -> None:
        """Close the connection; the next call opens it again."""
        self._connection.close()

    def __repr__(self) -> str:
        """Show the address."""
        return f"ServerClient({self._connection.url})"

    def _ask(
        self,
        method: str,
        *segments: str,
        query: Query | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        path = url_path(*segments)
        reply = self._connection.ask(method, path, query=query, body=body, headers=headers)
        return reply.must_be(200, 201, 204)

    def _post(self, value: Mapping[str, Any], *segments: str) -> Reply:
        return self._ask("POST", *segments, body=json.dumps(value).encode(), headers=JSON_HEADERS)

    def _put(self, value: Mapping[str, Any], *segments: str) -> Reply:
        return self._ask("PUT", *segments, body=json.dumps(value).encode(), headers=JSON_HEADERS)


def fetch_projection(connection: Connection, fleet: str) -> Projection:
    """Ask the server for the projection of a fleet.

    Args:
        connection: To the server.
        fleet: Name of the fleet.
    """
    reply = connection.ask("GET", url_path("fleets", fleet, "projection"))
    try:
        found = decode(reply.must_be(200).body)
    except FormatError as error:
        raise RejectedError(f"{fleet}: found no projection: {error}") from error
    if not isinstance(found, Projection):
        raise RejectedError(f"{fleet}: found {type(found).__name__}, expected Projection")
    return found


# The bounds of a report: the server takes no more, and devices cut what they send to fit.
MAX_REPORT_BYTES = 65_536
MAX_REPORT_POINTS, MAX_REPORT_ALARMS, MAX_REPORT_EPISODES = 240, 20, 32
MAX_REPORT_PATTERNS, MAX_REPORT_PROBLEMS = 64, 16
MAX_REPORT_ORIGINS = 2000  # of more, the first are named and all are counted
MAX_REASONS, MAX_VALUES = 8, 64  # inputs of an alarm, and of a reading
MAX_NAME_CHARS, MAX_UNIT_CHARS, MAX_TEXT_CHARS = 200, 40, 500
MAX_NUMBER, MAX_TIMESTAMP = 1e300, 1e11  # the time in seconds since 1970
MAX_COMMENT_CHARS = 500  # of a decision

MAX_ANSWER_BYTES = 4096
MAX_DESIRED_BYTES = 2**18  # of a desired-state document
DESIRED_FORMAT = 1
KEY_PARTS = 3  # device, incarnation and pattern
REPORT_TIMEOUT_S = 2.0
MIN_REPORT_INTERVAL_S, MAX_REPORT_INTERVAL_S = 0.2, 3600.0  # whatever the server asks for
CLOCK_TOLERANCE_S = 60.0  # by which clocks of device and server may differ: answers take time
TRIM_DIVISOR = 10  # a tenth of a list is removed at a time until the report fits


class ReportAnswer(NamedTuple):
    """The answer to a report; None where a value is missing or invalid.

    `desired` is the revision of the device's desired state; older servers send only `choice`, the
    number of the operator's newest choice. `monitor` says that the server takes the status of the
    monitor, `settings` that it takes the version of settings and values of inputs, `problems` that
    it takes problems with the data, `configuration` that it takes the version of that; older ones
    refuse them.
    """

    every_s: float | None = None
    choice: int | None = None
    desired: int | None = None
    monitor: bool = False
    settings: bool = False
    problems: bool = False
    configuration: bool = False


class DesiredState(NamedTuple):
    """What the operator wants of a device, as of one revision.

    `devices` are those whose contributions to adopt, None for all. `excluded` are contributions to
    leave out, as (device, incarnation, pattern); only their number where devices read totals only.
    `reviews` are decisions about the device's patterns and episodes, each with a "number"; None if
    the server knows none. `settings` are those of the device that an operator changed, with a
    "version"; None if the server knows none. `configuration` is the fleet's, with a "version" and
    "tables", likewise.
    """

    revision: int
    devices: tuple[str, ...] | None = None
    excluded: tuple[tuple[str, int, str], ...] | int = ()
    reviews: tuple[dict[str, Any], ...] | None = None
    settings: dict[str, Any] | None = None
    configuration: dict[str, Any] | None = None

    def plain(self) -> dict[str, Any]:
        """Return the document as plain JSON; `parse_desired` reads it back."""
        adopt = {"devices": self.devices, "excluded": self.excluded}
        found = {"format": DESIRED_FORMAT, "revision": self.revision, "adopt": adopt}
        found |= {} if self.reviews is None else {"reviews": list(self.reviews)}
        later = {"settings": self.settings, "configuration": self.configuration}
        return found | {name: each for name, each in later.items() if each is not None}


def parse_desired(document: object) -> DesiredState:
    """Read a desired-state document; unknown keys are ignored.

    Raises:
        RejectedError: The document has another format or a value of the wrong type.

    >>> parse_desired({"format": 1, "revision": 7, "adopt": {"devices": ["pump-1"], "excluded": 2}})
    DesiredState(revision=7, devices=('pump-1',), excluded=2, reviews=None, settings=None,
                 configuration=None)
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
    names = None if devices is None else tuple(devices)
    later = (_versioned(document.get(name)) for name in ("settings", "configuration"))
    return DesiredState(revision, names, excluded, _reviews(document.get("reviews")), *later)


def _versioned(found: object) -> dict[str, Any] | None:
    has_version = isinstance(found, dict) and _number(found.get("version")) is not None
    return found if has_version else None  # type: ignore[return-value] # it is a dict then


def in_device_time(desired: DesiredState, date: str, now: float) -> DesiredState:
    """Return a desired state whose snoozes end by the clock of the device, if that is wrong.

    Args:
        desired: The document, whose times are those of the server.
        date: The date of the server's answer, as HTTP has it; "" if it has none.
        now: The time by the clock of the device, in Unix seconds.

    >>> date = "Thu, 01 Jan 1970 00:00:00 GMT"
    >>> reviews = ({"number": 1, "decision": "snooze", "until": 7200.0},)
    >>> wrong = in_device_time(DesiredState(1, reviews=reviews), date, now=86400.0)
    >>> wrong.reviews[0]["until"]
    93600.0
    """
    try:
        ahead = now - parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):  # no date, or none that can be read
        return desired
    if abs(ahead) < CLOCK_TOLERANCE_S or not desired.reviews:
        return desired
    return desired._replace(reviews=tuple(_shifted(each, ahead) for each in desired.reviews))


def _shifted(review: dict[str, Any], seconds: float) -> dict[str, Any]:
    until = review.get("until")
    return {**review, "until": until + seconds} if isinstance(until, int | float) else review


def _reviews(found: object) -> tuple[dict[str, Any], ...] | None:
    """Return the reviews that have a number; the agent refuses those that it does not know."""
    if not isinstance(found, list):
        return None
    return tuple(each for each in found if isinstance(each, dict) and _number(each.get("number")))


def _configuration_path(fleet: str, device: str | None) -> tuple[str, ...]:
    whose = () if device is None else ("devices", device)
    return ("fleets", fleet, *whose, "configuration")


def _is_text(found: object) -> bool:
    return isinstance(found, str) and 0 < len(found) <= MAX_NAME_CHARS


def _is_key(found: object) -> bool:
    if not isinstance(found, list) or len(found) != KEY_PARTS:
        return False
    return _is_text(found[0]) and _number(found[1]) is not None and _is_text(found[2])


class ReportClient:
    """Sends a device's reports to the server, and fetches its desired state.

    Args:
        url: Address of the server, http:// or https://.
        fleet: Name of the fleet.
        device: Name of this device.
        token: The device's token.
        options: `ca_file`, `timeout_s`, `insecure` and `pins_file` of the `Connection`.
    """

    def __init__(
        self,
        url: str,
        fleet: str,
        device: str,
        token: str,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        """Send nothing yet."""
        chosen: ConnectionOptions = {"timeout_s": REPORT_TIMEOUT_S, **options}
        self._connection = Connection(url, token, **chosen)
        self._path = url_path("fleets", fleet, "devices", device, "report")
        self._desired_path = url_path("fleets", fleet, "devices", device, "desired")

    def send(self, report: dict[str, Any]) -> ReportAnswer:
        """Send a report, trimmed to `MAX_REPORT_BYTES`; return the answer.

        Raises:
            UnavailableError: The server cannot be reached now.
            DeniedError: The token is not valid for this device.
            UnknownError: The server does not support reports.
            RejectedError: The server refused the report, or its answer is not valid.
        """
        reply = self._connection.ask(
            "POST",
            self._path,
            body=encode_report(report),
            headers=JSON_HEADERS,
            limit=MAX_ANSWER_BYTES,
            allow_loss=True,
        )
        answer = reply.must_be(200).json_object()
        choice, desired = (_number(answer.get(name)) for name in ("choice", "desired"))
        takes = (
            answer.get(name) is True
            for name in ("monitor", "settings", "problems", "configuration")
        )
        return ReportAnswer(_interval(answer.get("every_s")), choice, desired, *takes)

    def desired(self, known: int | None = None) -> DesiredState | None:
        """Fetch the desired state of this device; None if its revision is still `known`.

        Raises:
            UnavailableError: The server cannot be reached now.
            DeniedError: The token is not valid for this device.
            UnknownError: The server has no desired state for it.
            RejectedError: The document is not valid.
        """
        headers = {} if known is None else {"If-None-Match": f'"{known}"'}
        reply = self._connection.ask(
            "GET", self._desired_path, headers=headers, limit=MAX_DESIRED_BYTES
        )
        if reply.must_be(200, 304).status == 304:
            return None
        found = parse_desired(reply.json())
        return in_device_time(found, reply.headers.get("date", ""), time())

    def close(self) -> None:
        """Close the connection; the next call opens it again."""
        self._connection.close()

    def __repr__(self) -> str:
        """Show the address."""
        return f"ReportClient({self._connection.url}{self._path})"


def encode_report(report: dict[str, Any], largest: int = MAX_REPORT_BYTES) -> bytes:
    """Encode a report as JSON; if it is too large, remove origins first, then the oldest entries.

    Episodes of the monitor go last, and of these the newest stay.

    >>> encode_report({"sent": 1.0, "points": [{"at": 0.0}, {"at": 1.0}]}, largest=35)
    b'{"sent":1.0,"points":[{"at":1.0}]}'
    """
    report = dict(report)
    if report.get("merge"):
        report["merge"] = dict(report["merge"])
    if (status := report.get("status")) and status.get("monitor"):
        report["status"] = status | {"monitor": dict(status["monitor"])}
    dump = partial(json.dumps, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    while len(body := dump(report).encode()) > largest and _trim(report):
        pass
    return body


def was_not_sent(error: EdgemergeError) -> bool:
    """Return whether a report that failed with this error cannot have reached the server."""
    refused = isinstance(error.__cause__, ConnectionRefusedError | gaierror)
    return isinstance(error, UnavailableError) and refused


def _trim(report: dict[str, Any]) -> bool:
    """Remove some entries; return whether there were any."""
    merge = report.get("merge") or {}
    if origins := merge.get("origins"):
        merge["origins"] = origins[: -_trim_count(origins)]
        return True
    for name in ("alarms", "points"):
        if found := report.get(name):
            report[name] = found[_trim_count(found) :]
            return True
    monitor = (report.get("status") or {}).get("monitor") or {}
    for name in ("events", "episodes", "patterns"):
        if found := monitor.get(name):
            monitor[name] = found[_trim_count(found) :]
            return True
    return False


def _trim_count(things: list[Any]) -> int:
    return max(1, len(things) // TRIM_DIVISOR)


def _interval(found: Any) -> float | None:
    """Return the interval, limited to its range; None if it is not a positive number.

    >>> [_interval(found) for found in (5, 0.001, 1e99, float("nan"), -1.0, "5", True)]
    [5.0, 0.2, 3600.0, None, None, None, None]
    """
    if type(found) not in (int, float) or not 0.0 < found < inf:
        return None
    return float(min(max(found, MIN_REPORT_INTERVAL_S), MAX_REPORT_INTERVAL_S))


def _number(found: object) -> int | None:
    return found if type(found) is int and 0 <= found < 2**63 else None
