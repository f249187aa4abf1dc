"""Exchange over HTTP: with a server that stores contributions and sums them up."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import TypeVar, Unpack

from edgemerge.core.errors import (
    FormatError,
    MismatchError,
    RejectedError,
    SettingError,
    StaleError,
    must_be,
)
from edgemerge.core.faults import Faults
from edgemerge.core.ledger import Contribution, Kind, Merged, Selection
from edgemerge.core.projection import Projection
from edgemerge.exchange.client import BINARY_HEADERS, fetch_projection
from edgemerge.exchange.connection import (
    MAX_REPLY_BYTES,
    Connection,
    ConnectionOptions,
    Query,
    Reply,
    url_path,
)
from edgemerge.exchange.protocol import must_be_contribution, must_be_selection
from edgemerge.wire.codec import decode_with_form, encode

MAX_CACHED_PULLS = 8  # answers kept, so that the server need not send unchanged ones again
A = TypeVar("A", Merged, Faults)
ROUTES: dict[Kind, str] = {"normal": "contributions", "fault": "faults"}


class HttpExchange:
    """A fleet on a server, as one device sees it.

    The server knows the device by its token, so `Selection.receiver` must be the device that has
    enrolled. A selection with a `rule` cannot be sent. When `push` returns, the server has
    committed the contribution to its disk.

    Args:
        url: Address of the server, http:// or https://.
        fleet: Name of the fleet.
        token: The device's token, from enrolling.
        projection: What all devices share; None: ask the server when it is first needed.
        options: `ca_file`, `timeout_s`, `insecure` and `pins_file` of the `Connection`.
    """

    def __init__(
        self,
        url: str,
        fleet: str,
        token: str,
        *,
        projection: Projection | None = None,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        """Send nothing yet."""
        if projection is not None:
            must_be(projection, Projection, "build the one that all devices share")
        must_be(fleet, str, "name the fleet")
        self.fleet = fleet
        self._connection = Connection(url, token, **options)
        self._projection = projection
        self._answers: OrderedDict[tuple[Selection, bool], tuple[str, Merged]] = OrderedDict()
        self._faults: tuple[Selection, str, Faults] | None = None  # the last answer and its tag
        self._lock = Lock()

    @property
    def projection(self) -> Projection:
        """What all devices of the fleet share; asked of the server if it was not given."""
        if self._projection is None:
            self._projection = fetch_projection(self._connection, self.fleet)
        return self._projection

    @property
    def timeline(self) -> str:
        """The server's history, as its last answer named it; "" if it does not name it.

        It is another one after the server was restored from a backup.
        """
        return self._connection.timeline

    def own_revisions(self, device: str, incarnation: int) -> dict[str, int]:
        """Return the revisions of a device's contributions with samples that the server has.

        Args:
            device: The device that has enrolled.
            incarnation: Its incarnation.
        """
        where = url_path("fleets", self.fleet, "contributions")
        found = self._connection.ask("GET", where).must_be(200).json()
        try:
            return {
                str(each["pattern"]): int(each["revision"])
                for each in found["contributions"]
                if (each["device"], each["incarnation"]) == (device, incarnation)
                and each["samples"] > 0
            }
        except (KeyError, TypeError, ValueError) as error:
            raise RejectedError(f"{self}: found no list of contributions: {error!r}") from error

    def push(self, contribution: Contribution) -> bool:
        """Store a contribution; return False if it was stored before."""
        must_be_contribution(contribution)
        try:
            where = url_path("fleets", self.fleet, ROUTES[contribution.kind], *contribution.key)
        except SettingError as error:
            raise RejectedError(f"{contribution}: {error}") from error
        reply = self._connection.ask(
            "PUT", where, body=encode(contribution), headers=BINARY_HEADERS
        )
        if reply.status == 409:
            raise StaleError(f"{contribution.device}: {reply.error_text}", _newest_revision(reply))
        return reply.must_be(200, 201).status == 201

    def pull(self, selection: Selection, *, grouped: bool = False) -> Merged:
        """Return the sum of the selected contributions; unchanged sums are not sent again."""
        must_be_selection(selection)
        if selection.rule is not None:
            raise SettingError(
                f"found {selection}, expected one without a rule: a server selects by receiver, "
                "devices, without, pattern and largest only"
            )
        if selection.devices == ():  # without a device in the query the server would sum all
            return Merged(self.projection)
        with self._lock:
            tag, known = self._answers.get((selection, grouped), ("", None))
        headers = {"If-None-Match": tag} if known else {}
        where = url_path("fleets", self.fleet, "patterns" if grouped else "total")
        reply = self._connection.ask("GET", where, query=_pull_query(selection), headers=headers)
        if reply.status == 304 and known:
            return known
        merged = self._read(reply.must_be(200), selection)
        with self._lock:
            self._answers.pop((selection, grouped), None)
            if new_tag := reply.headers.get("etag"):
                self._answers[selection, grouped] = new_tag, merged
            while len(self._answers) > MAX_CACHED_PULLS:
                self._answers.popitem(last=False)
        return merged

    def pull_faults(self, selection: Selection) -> Faults:
        """Return the faults that others named, those that are alike as one.

        Unchanged faults are not sent again.

        Args:
            selection: Whose; the server selects by its receiver, devices and without.
        """
        known = self._faults if self._faults and self._faults[0] == selection else None
        headers = {"If-None-Match": known[1]} if known else {}
        where = url_path("fleets", self.fleet, "faults")
        chosen = {name: _pull_query(selection)[name] for name in ("device", "without")}
        reply = self._connection.ask("GET", where, query=chosen, headers=headers)
        if reply.status == 304 and known:
            return known[2]
        faults = self._read_faults(reply.must_be(200), selection)
        if tag := reply.headers.get("etag"):
            self._faults = selection, tag, faults
        return faults

    def _read_faults(self, reply: Reply, selection: Selection) -> Faults:
        found, _ = self._decoded(reply, Faults)
        if len(selection.matching(found.origins)) < len(found.origins):
            raise RejectedError(
                f"{self} sent faults of devices that {selection} leaves out: is this token that of "
                "another device?"
            )
        return found.keep_encoded(reply.body)

    def close(self) -> None:
        """Close the connection; the next call opens it again."""
        self._connection.close()

    def __repr__(self) -> str:
        """Show the address."""
        return f"HttpExchange({self._connection.url}, {self.fleet})"

    def _decoded(self, reply: Reply, kind: type[A]) -> tuple[A, str]:
        """Return what an answer holds, which must be of this kind, and its form."""
        try:
            found, form = decode_with_form(
                reply.body, limit=MAX_REPLY_BYTES, projection=self.projection
            )
        except FormatError as error:
            raise RejectedError(f"{self}: the answer cannot be read: {error}") from error
        if not isinstance(found, kind):
            raise RejectedError(f"{self}: found {type(found).__name__}, expected {kind.__name__}")
        if found.projection != self.projection:
            raise MismatchError(
                f"{self} sent sums of {found.projection}, expected {self.projection}: "
                "every device must build the same Projection"
                + self.projection.advice_for(found.projection)
            )
        return found, form

    def _read(self, reply: Reply, selection: Selection) -> Merged:
        merged, form = self._decoded(reply, Merged)
        selected = set(selection.matching(merged.origins))
        for origin in merged.origins:
            if origin not in selected:
                raise RejectedError(
                    f"{self} sent a sum with {origin.device}, which {selection} leaves out: "
                    "is this token that of another device?"
                )
        return merged.keep_encoded(reply.body) if form == "exact" else merged


def _pull_query(selection: Selection) -> Query:
    return {
        "incarnation": selection.incarnation,
        "device": None if selection.devices is None else tuple(selection.devices),
        "without": tuple(selection.without) or None,
        "pattern": selection.pattern,
        "largest": selection.largest,  # `max_contributions`; older servers know this name only
    }


def _newest_revision(reply: Reply) -> int:
    found = reply.json()
    newest = found.get("newest") if isinstance(found, dict) else None
    if type(newest) is not int or not 0 <= newest < 2**63:
        raise RejectedError(f"found 409 with newest={str(newest)[:40]!r}, expected a revision")
    return newest
