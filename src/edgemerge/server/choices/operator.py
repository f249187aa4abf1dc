"""What an operator can do about choices: adopt, exclude, decide, undo, preview, compare devices."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from threading import Thread
from time import monotonic, time

from edgemerge.core.errors import EdgemergeError, SettingError, UnavailableError
from edgemerge.core.ledger import Key
from edgemerge.core.trust import Trust
from edgemerge.exchange.client import MAX_COMMENT_CHARS
from edgemerge.server import audit, fleets
from edgemerge.server.auth import Caller
from edgemerge.server.choices.preview import (
    DeviceSimilarity,
    PatternPreview,
    Preview,
    compare_devices,
    is_bank,
    select_patterns,
)
from edgemerge.server.choices.rules import (
    Change,
    Choice,
    Decision,
    Desired,
    DeviceNames,
    Rules,
    adopt_change,
    choices_of,
    decide_change,
    exclude_change,
    must_be_devices,
    must_have_enough_sources,
    undo_change,
    unique_names,
)
from edgemerge.server.contributions import StoredContribution, list_stored, profile_bytes
from edgemerge.server.db.base import Database, Transaction, Writer
from edgemerge.server.fleets import Fleet
from edgemerge.server.reports.model import LatestReport
from edgemerge.server.reviews import waiting_reviews
from edgemerge.server.schemas import COMMENT_PATTERN
from edgemerge.server.settings import configuration_for, settings_of
from edgemerge.server.totals import MAX_GROUPING_TRIES, PullService
from edgemerge.server.trust import Waiting, WaitingContribution

# After which `desired_revision` looks up what another process may have chosen.
RULES_MAX_AGE_S = 1.0
MAX_TARGETS = 200  # of one preview

log = logging.getLogger(__name__)


class ChoiceService:
    """Choices, previews and similarity of devices; any thread may call."""

    def __init__(
        self,
        database: Database,
        writer: Writer,
        pull_service: PullService,
        *,
        clock: Callable[[], float] = time,
        latest: Callable[[str, str], LatestReport | None] = lambda _fleet, _device: None,
        last_pull_was_grouped: Callable[[str, str], bool | None] = lambda _fleet, _device: None,
    ) -> None:
        """Start on a database.

        Args:
            database: Where choices and contributions are stored.
            writer: What commits changes.
            pull_service: Its snapshots and rules are shared.
            clock: The time of choices, in Unix seconds.
            latest: Returns what a device reported last.
            last_pull_was_grouped: Returns whether a device pulled patterns last, None if unknown.
        """
        self._database, self._writer, self._pull_service = database, writer, pull_service
        self._clock, self._latest = clock, latest
        self._last_pull_was_grouped = last_pull_was_grouped
        self._profiles = pull_service.profiles
        self._rules: dict[str, tuple[float, Rules]] = {}  # by fleet, with the time of reading

    def list_choices(self, fleet: str) -> list[Choice]:
        """Return the choices of a fleet, newest first, with the last ones that were undone."""
        with self._database.reading() as tx:
            fleets.get(tx, fleet)
            return choices_of(tx, fleet)

    def excluded(self, fleet: str) -> frozenset[Key]:
        """Return the keys of contributions that are excluded."""
        with self._database.reading() as tx:
            return self._pull_service.rules_cache.rules(tx, fleet).excluded

    def desired(self, fleet: str, device: str) -> tuple[Fleet, Desired]:
        """Return the desired state of an enrolled device, and the fleet's settings."""
        with self._database.reading() as tx:
            agreed = fleets.get(tx, fleet)
            must_be_devices(tx, fleet, (device,))
            found = self._pull_service.rules_cache.rules(tx, fleet).desired(device)
            settings = settings_of(tx, fleet, device).plain
            reviews = waiting_reviews(tx, fleet, device)
            configuration = configuration_for(tx, fleet, device)
            return agreed, replace(
                found, reviews=reviews, settings=settings, configuration=configuration
            )

    def desired_revision(self, fleet: str, device: str) -> int:
        """Return the revision of a device's desired state, 0 as long as nothing was decided.

        Reports must not wait for the database: after the first call it comes from memory, and is
        read again in the background when it is a second old, as another process may have chosen.
        """
        return self._recent_rules(fleet).desired_revision(device)

    def first_waiting_review(self, fleet: str, device: str) -> int | None:
        """Return the number of the review that has waited longest, likewise from memory."""
        return self._recent_rules(fleet).first_waiting(device)

    def adopt(
        self, fleet: str, sources: Sequence[str], targets: Sequence[str], caller: Caller
    ) -> Choice:
        """Let targets adopt from these sources only, from now on; from none if there is none."""
        whom, who = unique_names("sources", sources, 0), unique_names("targets", targets, 1)
        return self._write(fleet, adopt_change(fleet, whom, who, caller, self._clock()))

    def exclude(self, fleet: str, key: Key, caller: Caller) -> Choice:
        """Exclude a contribution, and every newer revision of it, from all pulls."""
        return self._write(fleet, exclude_change(fleet, key, caller, self._clock()))

    def decide(
        self,
        fleet: str,
        key: Key,
        decision: Decision,
        caller: Caller,
        *,
        comment: str = "",
        revision: int | None = None,
    ) -> Choice:
        """Approve a contribution as it is now, or dismiss it; see `core.trust`.

        Args:
            fleet: The fleet.
            key: The contribution.
            decision: "approve" or "dismiss".
            caller: Who decides.
            comment: Words for those who read it later.
            revision: The revision that was looked at; another one is refused. None: any.
        """
        if not re.fullmatch(COMMENT_PATTERN, comment) or len(comment) > MAX_COMMENT_CHARS:
            raise SettingError(
                f"found comment {comment[:80]!r}, expected one line of at most "
                f"{MAX_COMMENT_CHARS} characters"
            )
        about = fleet, key, decision, caller, self._clock()
        return self._write(fleet, decide_change(*about, comment=comment, revision=revision))

    def waiting(self, fleet: str) -> Waiting:
        """Return why contributions wait, by key, with what was dismissed."""
        with self._database.reading() as tx:
            return self._waiting(tx, fleets.get(tx, fleet))[0]

    def list_waiting(self, fleet: str, limit: int | None = None) -> list[WaitingContribution]:
        """Return what waits for approval, the longest first, and what it is like."""
        with self._database.reading() as tx:
            agreed = fleets.get(tx, fleet)
            waiting, contributions, rules = self._waiting(tx, agreed)
            trust = self._pull_service.trust
            return trust.describe(tx, agreed, contributions, waiting, rules, limit)

    def _waiting(
        self, tx: Transaction, fleet: Fleet
    ) -> tuple[Waiting, list[StoredContribution], Rules]:
        rules = self._pull_service.rules_cache.rules(tx, fleet.name)
        contributions = list_stored(tx, fleet.name)
        waiting = self._pull_service.trust.waiting(tx, fleet, contributions, rules)
        return waiting, contributions, rules

    def set_trust(self, fleet: str, trust: Trust, caller: Caller) -> bool:
        """Change which contributions enter others' sums at once; return whether it was another."""

        def change(tx: Transaction) -> bool:
            tx.lock(f"fleet {fleet}")
            before = fleets.get(tx, fleet).trust
            if before == str(trust):
                return False
            fleets.store_trust(tx, fleet, trust)
            about = self._clock(), caller.actor, "trust", fleet, fleet
            audit.append(tx, *about, before=before, after=str(trust))
            return True

        changed = self._writer.write(change, fleet=fleet)
        self.refresh(fleet)
        return changed

    def undo(self, fleet: str, number: int, caller: Caller) -> Choice:
        """Undo a choice: from now on it is as if it had never been. Twice is once."""
        return self._write(fleet, undo_change(fleet, number, caller, self._clock()))

    def preview(
        self, fleet: str, sources: Sequence[str], targets: Sequence[str]
    ) -> list[PatternPreview]:
        """Return what adopting from these sources only would do to the level of targets' data."""
        whom, who = unique_names("sources", sources, 0), unique_names("targets", targets, 1)
        if len(who) > MAX_TARGETS:
            raise SettingError(f"found {len(who)} targets, expected at most {MAX_TARGETS} at once")
        return self._pull_service.rebuild_if_damaged(fleet, lambda: self._preview(fleet, whom, who))

    def similarity(self, fleet: str, devices: Sequence[str] | None = None) -> DeviceSimilarity:
        """Compare devices: those with most samples, unless they are named."""
        with self._database.reading() as tx:
            projection = fleets.get(tx, fleet).projection
            must_be_devices(tx, fleet, devices or ())
            stored = list_stored(tx, fleet)
            selection = select_patterns(stored, devices, profile_bytes(projection))
            chosen = selection.contributions
            profiles = [self._profiles.profile(tx, each, projection) for each in chosen]
        return compare_devices(selection, profiles)

    def _preview(
        self, name: str, sources: DeviceNames, targets: DeviceNames
    ) -> list[PatternPreview]:
        self._pull_service.catch_up(name)
        for _ in range(MAX_GROUPING_TRIES):
            with self._database.reading() as tx:
                fleet = fleets.get(tx, name)
                must_be_devices(tx, name, sources, targets)
                must_have_enough_sources(fleet, sources, targets)
                now = self._pull_service.snapshot(tx, fleet)
                is_bank = partial(self._is_bank, name)
                checks, trust = self._pull_service.checks, self._pull_service.trust
                waiting = trust.waiting(tx, fleet, now.contributions, now.rules)
                found = Preview(tx, fleet, now, self._profiles, is_bank, checks, waiting)
                if found.is_grouping_current(targets):
                    return list(found.rows(now.rules.adopting(sources, targets), targets))
            self._pull_service.group(name)
        raise UnavailableError(
            f"the patterns of {name} change all the time: try again", retry_s=2.0
        )

    def _is_bank(self, fleet: str, own: Sequence[StoredContribution]) -> bool:
        device = own[0].device
        grouped = self._last_pull_was_grouped(fleet, device)
        return is_bank(own, self._latest(fleet, device), grouped=grouped)

    def _write(self, fleet: str, change: Change) -> Choice:
        made = self._writer.write(change, fleet=fleet)
        self.refresh(fleet)  # else devices would hear of it a moment later
        return made

    def _recent_rules(self, fleet: str) -> Rules:
        at, rules = self._rules.get(fleet) or self._read_rules(fleet)
        if monotonic() - at >= RULES_MAX_AGE_S:
            self._rules[fleet] = (monotonic(), rules)
            Thread(target=self.refresh, args=(fleet,), daemon=True).start()
        return rules

    def _read_rules(self, fleet: str) -> tuple[float, Rules]:
        with self._database.reading() as tx:
            found = monotonic(), self._pull_service.rules_cache.rules(tx, fleet)
        self._rules[fleet] = found
        return found

    def refresh(self, fleet: str) -> None:
        """Read again what was decided, as far as the database answers."""
        try:
            self._read_rules(fleet)
        except EdgemergeError as error:  # what is known holds until the next attempt
            log.warning("choices were not read", extra={"values": {"problem": str(error)}})
