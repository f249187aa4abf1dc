"""Merging: what operators look at and decide about who is told what, without a word of HTTP."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from threading import Thread
from time import monotonic, time

from edgemerge.core.contribution import Key
from edgemerge.core.errors import AwayError, EdgemergeError, SettingError
from edgemerge.server import contributions, fleets
from edgemerge.server.contributions import Entry
from edgemerge.server.merges import choices
from edgemerge.server.merges.choices import Choice, Rules
from edgemerge.server.merges.deciding import (
    Change,
    Names,
    adopting,
    must_be_devices,
    names,
    revoking,
    undoing,
)
from edgemerge.server.merges.likenesses import Likeness, compared, selected
from edgemerge.server.merges.previewing import Previewed, Previewing, is_bank
from edgemerge.server.merges.solved import Solved, size_of
from edgemerge.server.reports.glimpses import Glimpse
from edgemerge.server.store.database import Database
from edgemerge.server.store.writer import Writer
from edgemerge.server.telling import Teller
from edgemerge.server.tokens import Caller

__all__ = ["Choice", "Likeness", "Merging", "Previewed"]

LOOK_S = 1.0  # after which `newest_for` looks up what another process may have chosen
TARGETS = 200  # of one preview
TRIES = 3  # to find all patterns grouped, while devices push

log = logging.getLogger(__name__)


class Merging:
    """Choices, previews and likeness of fleets; any thread may call."""

    def __init__(
        self,
        database: Database,
        writer: Writer,
        teller: Teller,
        *,
        clock: Callable[[], float] = time,
        glimpse: Callable[[str, str], Glimpse | None] = lambda _fleet, _device: None,
        asked: Callable[[str, str], bool | None] = lambda _fleet, _device: None,
    ) -> None:
        """Start on what a service has.

        `glimpse` says what a device reports of itself, `asked` whether it asked for patterns last.
        """
        self._database, self._writer, self._teller = database, writer, teller
        self._clock, self._glimpse, self._asked = clock, glimpse, asked
        self._solved = Solved()
        self._looked: dict[str, tuple[float, Rules]] = {}

    def choices(self, fleet: str) -> list[Choice]:
        """Give the choices of a fleet, newest first, with the last ones that were undone."""
        with self._database.reading() as tx:
            fleets.get(tx, fleet)
            return choices.every(tx, fleet)

    def revoked(self, fleet: str) -> frozenset[Key]:
        """Give the keys of contributions that are told to nobody."""
        with self._database.reading() as tx:
            return self._teller.ruling.rules(tx, fleet).revoked

    def newest_for(self, fleet: str, device: str) -> int:
        """Give a number that is another after every choice about a device, made or undone.

        It is 0 as long as there is none. Nobody waits for it but the first who asks: when it is a
        second old it is looked up beside, for the next one, as another process may have chosen.
        """
        at, rules = self._looked.get(fleet) or self._look(fleet)
        if monotonic() - at >= LOOK_S:
            self._looked[fleet] = (monotonic(), rules)
            Thread(target=self._look_again, args=(fleet,), daemon=True).start()
        return rules.newest_for(device)

    def adopt(
        self, fleet: str, sources: Sequence[str], targets: Sequence[str], caller: Caller
    ) -> Choice:
        """Let targets be told of these sources only, from now on; of nobody if there is none."""
        whom, who = names("sources", sources, 0), names("targets", targets, 1)
        return self._write(fleet, adopting(fleet, whom, who, caller, self._clock()))

    def revoke(self, fleet: str, key: Key, caller: Caller) -> Choice:
        """Let a contribution be told to nobody from now on, nor any newer revision of it."""
        return self._write(fleet, revoking(fleet, key, caller, self._clock()))

    def undo(self, fleet: str, number: int, caller: Caller) -> Choice:
        """Undo a choice: from now on it is as if it had never been. Twice is once."""
        return self._write(fleet, undoing(fleet, number, caller, self._clock()))

    def preview(
        self, fleet: str, sources: Sequence[str], targets: Sequence[str]
    ) -> list[Previewed]:
        """Say what telling targets of these sources only would do to the level of their data."""
        whom, who = names("sources", sources, 0), names("targets", targets, 1)
        if len(who) > TARGETS:
            raise SettingError(f"found {len(who)} targets, expected at most {TARGETS} at once")
        return self._teller.mended(fleet, lambda: self._preview(fleet, whom, who))

    def likeness(self, fleet: str, devices: Sequence[str] | None = None) -> Likeness:
        """Compare devices: those with most samples, unless they are named."""
        with self._database.reading() as tx:
            projection = fleets.get(tx, fleet).projection
            must_be_devices(tx, fleet, devices or ())
            entries = contributions.every(tx, fleet)
            selection = selected(entries, devices, size_of(projection))
            profiles = [self._solved.profile(tx, each, projection) for each in selection.entries]
        return compared(selection, profiles)

    def _preview(self, name: str, sources: Names, targets: Names) -> list[Previewed]:
        self._teller.catch_up(name)
        for _ in range(TRIES):
            with self._database.reading() as tx:
                fleet = fleets.get(tx, name)
                must_be_devices(tx, name, sources, targets)
                now = self._teller.snapshot(tx, fleet)
                found = Previewing(tx, fleet, now, self._solved, partial(self._is_bank, name))
                if found.is_grouped_for(targets):
                    return list(found.rows(now.rules.adopting(sources, targets), targets))
            self._teller.place(name)
        raise AwayError(f"the patterns of {name} change all the time: try again", retry_s=2.0)

    def _is_bank(self, fleet: str, own: Sequence[Entry]) -> bool:
        device = own[0].device
        return is_bank(own, self._glimpse(fleet, device), grouped=self._asked(fleet, device))

    def _write(self, fleet: str, change: Change) -> Choice:
        made = self._writer.write(change)
        self._look_again(fleet)  # else devices would hear of it a moment later
        return made

    def _look(self, fleet: str) -> tuple[float, Rules]:
        with self._database.reading() as tx:
            found = monotonic(), self._teller.ruling.rules(tx, fleet)
        self._looked[fleet] = found
        return found

    def _look_again(self, fleet: str) -> None:
        try:
            self._look(fleet)
        except EdgemergeError as error:  # what is known holds until the next look
            log.warning("choices were not read", extra={"values": {"problem": str(error)}})
