"""Everything the server can do, without HTTP: fleets, devices, contributions, pulls."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from time import monotonic, time
from typing import Any, TypeVar

from edgemerge.certificates import ServerCertificate
from edgemerge.core.errors import CapacityError, DeniedError, EdgemergeError, UnknownError
from edgemerge.core.ledger import Key, Selection
from edgemerge.server import audit, auth, contributions, faults, fleets, releases, totals
from edgemerge.server.audit import Entry
from edgemerge.server.auth import (
    PUSHES_PER_MINUTE,
    Accounts,
    Caller,
    Connections,
    Device,
    PushLimiter,
    ReportLimiter,
    Sessions,
)
from edgemerge.server.backup import current_timeline
from edgemerge.server.choices.operator import ChoiceService
from edgemerge.server.choices.rules import Rules
from edgemerge.server.contributions import CapacityUse, StoredContribution
from edgemerge.server.db.base import Database, DiskFullError, ValueDamagedError, Writer
from edgemerge.server.episodes import KEEP_DAYS, EpisodeService
from edgemerge.server.fleets import Fleet, must_be_plain_name, must_not_be_masked
from edgemerge.server.masked_epochs import MaskedService
from edgemerge.server.metrics import Metrics
from edgemerge.server.notifications import NotificationService
from edgemerge.server.reports.history import History
from edgemerge.server.reports.model import KEPT_DAYS, LatestReport, device_state, last_contact
from edgemerge.server.reviews import ReviewService
from edgemerge.server.schemas import ReportedMonitor, ReportRequest
from edgemerge.server.settings import ConfigurationService, SettingsService
from edgemerge.server.totals import PullResult, PullService
from edgemerge.server.trust import Waiting

T = TypeVar("T")
DISK_FULL_S = 10.0  # how long a full disk is remembered: small changes may still fit
CHECK_VALID_S = 1.0  # for which a check holds

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FleetCounts:
    """How much is in a fleet, and what of it is released to devices."""

    devices: int
    contributions: int
    samples: float
    released: str


class Service:
    """Fleets, devices and contributions on one database; any thread may call."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Callable[[], float] = time,
        history_days: float = KEPT_DAYS,
        episode_days: float = KEEP_DAYS,
        secrets_folder: Path | None = None,
        public_url: str | None = None,
        device_metrics: int = 0,
        certificate: ServerCertificate | None = None,
        audit_head_file: Path | None = None,
        audit_entries: int = audit.MAX_ENTRIES,
        pushes_per_minute: float = PUSHES_PER_MINUTE,
    ) -> None:
        """Start on a database that has its tables.

        Args:
            database: Where everything is stored.
            clock: The time, in Unix seconds.
            history_days: For how many days scores are kept.
            episode_days: For how many days episodes are kept.
            secrets_folder: The folder of files with secrets of receivers; none by default.
            public_url: The address of this server for people, for links in messages.
            device_metrics: Of how many devices metrics name fleet and device; 0: of none.
            certificate: What the server shows to those who connect; None without TLS.
            audit_head_file: Where the head of the audit log is kept beside the database.
            audit_entries: How many entries of the audit log are kept.
            pushes_per_minute: How often one device may push.
        """
        self.database, self.clock, self.certificate = database, clock, certificate
        with database.reading() as tx:
            self.timeline = current_timeline(tx)  # restoring needs servers that are stopped
        self.writer = Writer(database)
        self.pull_service = PullService(database, self.writer, clock)
        self.releases = releases.ReleaseService(database, self.writer, self.pull_service)
        self.faults = faults.FaultService(database, self.writer, self.pull_service.rules_cache)
        self.metrics = Metrics(self.writer, max_devices=device_metrics)
        self.history = History(database, self.writer, clock=clock, kept_days=history_days)
        self.notifications = NotificationService(
            database,
            self.writer,
            self.history,
            clock=clock,
            secrets_folder=secrets_folder,
            public_url=public_url,
        )
        self.report_limiter = ReportLimiter()
        self.connections = Connections()
        self.accounts = Accounts(database, self.writer, clock, self.connections)
        self.push_limiter = PushLimiter(pushes_per_minute)
        self.choices = ChoiceService(
            database,
            self.writer,
            self.pull_service,
            clock=clock,
            latest=self.history.latest,
            last_pull_was_grouped=self.history.last_pull_was_grouped,
        )
        self.reviews = ReviewService(
            database,
            self.writer,
            clock=clock,
            done=self._reviews_done,
            monitor=self._reported_monitor,
            changed=self.choices.refresh,
        )
        self.episodes = EpisodeService(
            database,
            self.writer,
            clock=clock,
            scores=self.history.recent_scores,
            keep_days=episode_days,
        )
        self.settings = SettingsService(
            database,
            self.writer,
            clock=clock,
            latest=self.history.latest,
            changed=self.choices.refresh,
        )
        self.masked = MaskedService(database, self.writer, clock)
        self.configurations = ConfigurationService(
            database, self.writer, clock=clock, changed=self.choices.refresh
        )
        self.sessions = Sessions(database, self.writer, clock)
        self._checked_at = -inf
        self._audit_head = audit.HeadFile(audit_head_file)
        self._audit_entries = audit_entries
        self.follow_audit_head()

    def follow_audit_head(self) -> None:
        """Compare the audit log with what is known of it outside of the database."""
        with self.database.reading() as tx:
            self._audit_head.follow(tx)

    def bound_audit_log(self) -> int:
        """Delete the oldest entries of an audit log that is too long; return how many.

        Nothing is deleted while something is missing, nor what the head file does not know yet.
        """
        if self.audit_problem is not None:
            return 0
        known, keep = self._audit_head.must_stay, self._audit_entries
        with self.database.reading() as tx:
            if not audit.is_too_long(tx, keep):
                return 0
        at = self.clock()
        deleted = self.writer.write(
            lambda tx: audit.delete_oldest(tx, at=at, keep=keep, before=known)
        )
        if deleted:
            values = {"entries": deleted, "kept": keep}
            log.info("deleted the oldest entries of the audit log", extra={"values": values})
        return deleted

    @property
    def audit_problem(self) -> str | None:
        """What is missing in the audit log; None if nothing is."""
        return self._audit_head.problem

    def close(self) -> None:
        """Write what waits, and let go of the database."""
        self.notifications.close()
        self.history.close()
        self.writer.close()
        with suppress(EdgemergeError, OSError):  # a database that is away must not keep us
            self.follow_audit_head()
        self.database.close()

    def caller(self, token: str) -> Caller:
        """Return whose token it is."""
        with self.database.reading() as tx:
            return auth.find_caller(tx, token, self.clock())

    def cut_invalid(self) -> None:
        """Cut connections whose tokens ended, perhaps on another server of this database."""
        used = self.connections.hashes()
        if used:
            with self.database.reading() as tx:
                invalid = auth.find_invalid(tx, used, self.clock())
            self.connections.cut(invalid)

    def create(
        self,
        fleet: Fleet,
        caller: Caller,
        *,
        any_trust: bool = False,
        any_min_devices: bool = False,
    ) -> bool:
        """Make a fleet; False if the same is there already, see `fleets.create`."""
        must_be_plain_name("fleet", fleet.name)
        shown = fleet.projection.fingerprint  # refuses what is no projection

        def change(tx: Any) -> bool:
            tx.lock(f"fleet {fleet.name}")
            made = fleets.create(tx, fleet, any_trust=any_trust, any_min_devices=any_min_devices)
            if made:
                about = self.clock(), caller.actor, "create", fleet.name, fleet.name
                audit.append(tx, *about, fingerprint=shown, trust=fleet.trust)
            return made

        return self.writer.write(change, fleet=fleet.name)

    def delete(self, name: str, caller: Caller) -> None:
        """Remove a fleet and everything in it."""

        def change(tx: Any) -> None:
            tx.lock(f"fleet {name}")
            fleets.delete(tx, name)
            audit.append(tx, self.clock(), caller.actor, "delete", name, name)

        self._make_room(change, name)
        self.report_limiter.forget(name)
        self.history.forget(name)
        self.episodes.forget(name)
        self.notifications.forget(name)

    def fleet(self, name: str) -> Fleet:
        """Return a fleet that must be there."""
        with self.database.reading() as tx:
            return fleets.get(tx, name)

    def fleets(self, caller: Caller) -> list[tuple[Fleet, FleetCounts]]:
        """Return the fleets that the caller may see, and how much is in each."""
        with self.database.reading() as tx:
            seen = fleets.all_fleets(tx) if caller.fleet is None else [fleets.get(tx, caller.fleet)]
            return [(fleet, _fleet_counts(tx, fleet)) for fleet in seen]

    def invite(
        self, name: str, device: str | None, valid_s: float, caller: Caller
    ) -> tuple[str, float]:
        """Make an invitation; give its token and when it expires."""
        return self._invite(name, device, valid_s, caller, action="invite")

    def replace(self, name: str, device: str, valid_s: float, caller: Caller) -> tuple[str, float]:
        """Make an invitation for the new hardware of a device that has enrolled before.

        All that is known of the device stays. Its token works until the invitation is used.
        """
        return self._invite(name, device, valid_s, caller, action="replace")

    def _invite(
        self, name: str, device: str | None, valid_s: float, caller: Caller, *, action: str
    ) -> tuple[str, float]:
        expires = self.clock() + valid_s

        def change(tx: Any) -> str:
            fleets.get(tx, name)
            if action == "replace" and auth.device_token_hash(tx, name, device or "") is None:
                raise UnknownError(
                    f"no device {device} in {name}, so there is nothing to replace: invite it"
                )
            subject = device or "any device"
            audit.append(tx, self.clock(), caller.actor, action, name, subject, expires=expires)
            return auth.invite(tx, name, device, expires)

        return self.with_fingerprint(self.writer.write(change, fleet=name)), expires

    def check_invitation(self, invitation: str, name: str) -> None:
        """Refuse an invitation that is unknown, used or expired; a valid one is not used up."""
        with self.database.reading() as tx:
            auth.check_invitation(tx, invitation, name, self.clock())

    def enrol(self, invitation: str, name: str, device: str) -> tuple[str, Fleet]:
        """Let a device in that has an invitation; give its token."""
        earlier: list[str | None] = []

        def change(tx: Any) -> tuple[str, Fleet]:
            earlier.append(auth.device_token_hash(tx, name, device))
            token = auth.enrol(tx, invitation, name, device, self.clock())
            again = {"again": True} if earlier[0] else {}
            actor = Caller(device, name).actor
            audit.append(tx, self.clock(), actor, "enrol", name, device, **again)
            return self.with_fingerprint(token), fleets.get(tx, name)

        found = self.writer.write(change, fleet=name)
        self._end_token(name, earlier[-1])
        return found

    def _end_token(self, fleet: str, token_hash: str | None) -> None:
        """Forget a token that works no more, and cut the connections that use it."""
        self.report_limiter.forget(fleet)
        if token_hash is not None:
            self.connections.cut({token_hash})

    def with_fingerprint(self, token: str) -> str:
        """Add the fingerprint of a certificate that no authority vouches for."""
        pin = self.certificate.pin if self.certificate else None
        return token if pin is None else f"{token}.{pin}"

    def revoke(self, name: str, device: str, caller: Caller) -> None:
        """Revoke a device's token, and cut its connections."""

        def change(tx: Any) -> str | None:
            auth.revoke_device(tx, name, device, self.clock())
            audit.append(tx, self.clock(), caller.actor, "revoke", name, device)
            return auth.device_token_hash(tx, name, device)

        self._end_token(name, self.writer.write(change, fleet=name))

    def devices(self, name: str) -> list[Device]:
        """Return the devices of a fleet."""
        with self.database.reading() as tx:
            fleets.get(tx, name)
            return auth.devices_of(tx, name)

    def device(self, name: str, device: str) -> tuple[Device, str, LatestReport | None]:
        """Return a device that must have enrolled, its state, and what it reported last."""
        found = [each for each in self.devices(name) if each.device == device]
        if not found:
            raise fleets.unknown_device(name, device)
        latest, seen = self.history.latest(name, device), found[0].seen
        last = last_contact(seen, self.history.traffic(name).get(device))
        revoked = found[0].revoked
        state = device_state(self.clock(), latest=latest, seen=last, revoked=revoked)
        return found[0], state, latest

    def take_report(self, fleet: str, device: str, report: ReportRequest, now: float) -> int:
        """Take a report in; return the revision of the device's desired state. It never waits."""
        self.history.take(fleet, device, report, now)
        latest = self.history.latest(fleet, device)
        self.episodes.take(fleet, latest)
        self.notifications.take(fleet, latest)
        reviews, first = report.status.reviews, self.choices.first_waiting_review(fleet, device)
        if reviews is not None and first is not None and first <= reviews.done:
            self.reviews.settle(fleet, device, reviews)
        return self.choices.desired_revision(fleet, device)

    def contributions(self, name: str, caller: Caller) -> tuple[Fleet, list[StoredContribution]]:
        """Return a fleet and the contributions that the caller may see, without their numbers."""
        with self.database.reading() as tx:
            fleet = fleets.get(tx, name)
            everything = caller.is_person or fleet.read_mode == "contributions"
            found = contributions.list_stored(tx, name, None if everything else caller.name)
            rules = self.pull_service.rules_cache.rules(tx, name)
            waiting = self._hidden(tx, fleet, caller, rules)
            return fleet, [c for c in found if _may_see(caller, c.key, rules, waiting)]

    def capacity(self, name: str) -> CapacityUse:
        """Return how the capacity of a fleet is used, up to which its sums are exact."""
        with self.database.reading() as tx:
            return contributions.capacity_use(tx, name)

    def contribution(self, name: str, key: Key, caller: Caller) -> tuple[StoredContribution, bytes]:
        """Return a single contribution, where the fleet allows it."""
        with self.database.reading() as tx:
            fleet = fleets.get(tx, name)
            own = key[0] == caller.name and not caller.is_person
            if not (caller.is_person or own or fleet.read_mode == "contributions"):
                raise DeniedError(f"{name} gives only totals: single contributions cannot be read")
            stored = contributions.find_stored(tx, name, key)
            rules = self.pull_service.rules_cache.rules(tx, name)
            waiting = self._hidden(tx, fleet, caller, rules)
            if stored is None or not _may_see(caller, key, rules, waiting):
                raise UnknownError(f"no contribution {'/'.join(map(str, key))} in {name}")
            return stored, contributions.read_bytes(tx, stored)

    def drop(
        self, name: str, device: str, caller: Caller, *, incarnation: int | None = None
    ) -> int:
        """Forget what a device contributed, in all or one incarnation, as if it never had."""
        if not caller.is_person and caller.name != device:
            raise DeniedError(f"{caller.name} may drop its own contributions only")
        if not caller.is_person:
            self.push_limiter.admit(caller)  # it is in the audit log, as a push is

        def change(tx: Any) -> int:
            tx.lock(f"fleet {name}")
            fleets.get(tx, name)
            releases.withdraw_device(tx, name, device, incarnation)
            found = contributions.drop_device(tx, name, device, incarnation)
            named = faults.drop_faults(tx, name, device, incarnation)
            which = {} if incarnation is None else {"incarnation": incarnation}
            if not found + named:
                of = f", incarnation {incarnation}," if which else ""
                raise UnknownError(
                    f"no contribution of {device}{of} in {name}: `edgemerge fleet contributions "
                    f"{name}` lists them"
                )
            fleets.next_epoch(tx, name)
            which |= {"contributions": found} | ({"faults": named} if named else {})
            audit.append(tx, self.clock(), caller.actor, "drop", name, device, **which)
            # Of another device, or of a fleet that is still too full: the next pull reports it.
            with suppress(ValueDamagedError, CapacityError):
                totals.count_changes(tx, fleets.get(tx, name), found)
            return found + named

        return self._make_room(change, name)

    def pull(
        self,
        name: str,
        selection: Selection,
        caller: Caller,
        known: str | None,
        *,
        grouped: bool = False,
    ) -> PullResult:
        """Return the sum, or one sum per pattern, that a caller may have."""
        fleet = self.fleet(name)
        must_not_be_masked(fleet)
        min_devices = 1 if caller.is_person else fleet.min_devices
        picks = selection.devices is not None or selection.without or selection.largest
        if (picks or selection.pattern is not None) and not caller.is_person:
            _must_give_contributions(fleet)
        if fleet.releases_totals and not caller.is_person:
            answer = self.releases.pull(name, selection, known=known, grouped=grouped)
        else:
            answer = self.pull_service.pull(
                name, selection, min_devices=min_devices, known=known, grouped=grouped
            )
        if not caller.is_person:
            size = len(answer.data or b"")
            self.history.pulled(name, caller.name, size, grouped=grouped)
        return answer

    def audit(self, fleet: str | None, after: int, limit: int) -> list[Entry]:
        """Return entries of the audit log in their order."""
        with self.database.reading() as tx:
            return audit.entries(tx, fleet=fleet, after=after, limit=limit)

    def audit_newest_first(
        self, fleet: str, before: int, limit: int, *, action: str = "", subject: str = ""
    ) -> list[Entry]:
        """Return entries of a fleet's audit log, newest first; see `audit.latest_entries`."""
        with self.database.reading() as tx:
            fleets.get(tx, fleet)
            return audit.latest_entries(
                tx, fleet=fleet, before=before, limit=limit, action=action, subject=subject
            )

    def check(self) -> None:
        """See that the database can be read and written, and took all that came of late."""
        if monotonic() - self.writer.disk_full_at < DISK_FULL_S:
            raise DiskFullError("the disk is full: free some space, or drop devices")
        if monotonic() - self._checked_at < CHECK_VALID_S:
            return  # needs no token, so it must not cost a write each time
        with self.database.reading() as tx:
            tx.one("select count(*) from fleets")
        self.writer.write(lambda tx: tx.run("update accounts set created = created"), 5.0)
        self._checked_at = monotonic()

    def _hidden(self, tx: Any, fleet: Fleet, caller: Caller, rules: Rules) -> Waiting:
        """Return what waits, for callers that may not see that; operators see all."""
        if caller.is_person:
            return {}
        stored = contributions.list_stored(tx, fleet.name)
        return self.pull_service.trust.waiting(tx, fleet, stored, rules)

    def _reviews_done(self, fleet: str, device: str) -> int:
        latest = self.history.latest(fleet, device)
        reviews = latest.status.reviews if latest else None
        return reviews.done if reviews else 0

    def _reported_monitor(self, fleet: str, device: str) -> ReportedMonitor | None:
        latest = self.history.latest(fleet, device)
        return latest.status.monitor if latest else None

    def _make_room(self, change: Callable[[Any], T], fleet: str) -> T:
        """Make a change that frees space, even when the disk is full."""
        try:
            found = self.writer.write(change, fleet=fleet)
        except DiskFullError:
            log.warning("the disk is full: the reserve is given up so that dropping works")
            self.database.make_room()
            found = self.writer.write(change, fleet=fleet)
            if not self.database.restore_reserve():
                log.warning("the disk is still nearly full: there is no reserve")
        self.writer.disk_full_at = -inf
        return found


def _must_give_contributions(fleet: Fleet) -> None:
    """Refuse to let a device choose what is in a sum: two such sums can be subtracted."""
    if fleet.read_mode == "totals":
        raise DeniedError(
            f"{fleet.name} gives only totals: choosing devices or a pattern would reveal single "
            "devices; an operator can"
        )


def _may_see(caller: Caller, key: Key, rules: Rules, waiting: Waiting) -> bool:
    """Return whether choices and trust let a caller see a contribution; its own it always may."""
    if caller.is_person or key[0] == caller.name:
        return True
    trusted = key not in waiting or rules.decided_on(key, caller.name)
    return trusted and rules.allows(key, caller.name)


def _fleet_counts(tx: Any, fleet: Fleet) -> FleetCounts:
    name = fleet.name
    devices = tx.one("select count(*) from devices where fleet = ? and revoked is null", name)
    total = "select count(*), coalesce(sum(samples), 0) from contributions"
    sums = tx.one(f"{total} where fleet = ? and body is not null", name)
    return FleetCounts(devices[0], sums[0], float(sums[1]), releases.describe(tx, fleet))
