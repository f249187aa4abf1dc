"""Settings of a device that operators change: versions, until one is undone.

The newest version stands in the device's desired-state document, and the device's reports say which
version it has applied, or why it refused it. What a version leaves empty is as the device's own
file says. `epoch` is that of the fleet when a version was made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from edgemerge.core.errors import SettingError, UnknownError
from edgemerge.core.limit import Limit
from edgemerge.server import audit, fleets
from edgemerge.server.auth import Caller
from edgemerge.server.backup import numbers_begin
from edgemerge.server.choices.rules import ChangedError
from edgemerge.server.db.base import Database, SqlRow, Transaction, Writer
from edgemerge.server.reports.model import LatestReport
from edgemerge.server.schemas import ReportedSettings, SettingsRequest

MAX_VERSIONS = 100  # of a device; the oldest are forgotten
WHERE_DEVICE = "where fleet = ? and device = ?"
COLUMNS = "version, at, actor, epoch, body"
CHOSEN = ("label", "limit", "false_alarms")


@dataclass(frozen=True)
class DeviceSettings:
    """One version of a device's settings.

    Args:
        version: Counts from 1 for each device; 0: nothing was ever set.
        at: When it was made, in Unix seconds.
        by: Who made it.
        label: What people call the device, "" for nothing but its name.
        limit: A fixed limit of the alarm level; None: see `false_alarms`.
        false_alarms: A promised rate, such as "1 per week"; without both, as the device's file
            says.
        comment: Words for those who read it later.
        undoes: The version that this one took back, if it did.
        epoch: The fleet's epoch.
    """

    version: int = 0
    at: float = 0.0
    by: str = ""
    label: str = ""
    limit: float | None = None
    false_alarms: float | str | None = None
    comment: str = ""
    undoes: int | None = None
    epoch: int = 0

    @property
    def chosen(self) -> dict[str, Any]:
        """What was set, without the circumstances."""
        return {name: getattr(self, name) for name in CHOSEN}

    @property
    def plain(self) -> dict[str, Any]:
        """What the device gets to read of it."""
        return {"version": self.version, **self.chosen}

    @property
    def body(self) -> str:
        """What was set, as it is stored."""
        said = self.chosen | {"comment": self.comment, "undoes": self.undoes}
        return json.dumps(said, separators=(",", ":"))


def versions_of(
    tx: Transaction, fleet: str, device: str, limit: int = MAX_VERSIONS
) -> list[DeviceSettings]:
    """Return the versions of a device's settings, newest first."""
    sql = f"select {COLUMNS} from settings {WHERE_DEVICE} order by version desc limit ?"
    return [_from_row(row) for row in tx.rows(sql, fleet, device, limit)]


def settings_of(tx: Transaction, fleet: str, device: str) -> DeviceSettings:
    """Return the settings of a device that are in force."""
    return next(iter(versions_of(tx, fleet, device, 1)), DeviceSettings())


def labels_of(tx: Transaction, fleet: str) -> dict[str, str]:
    """Return what people call the devices of a fleet, those without a label left out."""
    rows = tx.rows(
        "select s.device, s.body from settings s where s.fleet = ? and s.version ="
        " (select max(t.version) from settings t where t.fleet = s.fleet and t.device = s.device)",
        fleet,
    )
    found = {device: str(json.loads(body)["label"]) for device, body in rows}
    return {device: label for device, label in found.items() if label}


def _from_row(row: SqlRow) -> DeviceSettings:
    version, at, actor, epoch, body = row
    return DeviceSettings(version=version, at=at, by=actor, epoch=epoch, **json.loads(body))


SettingsState = Literal["none", "waiting", "applied", "refused"]


def settings_state(
    versions: Sequence[DeviceSettings], reported: ReportedSettings | None
) -> tuple[SettingsState, str]:
    """Return what became of the newest version, by what the device reported; and why."""
    if not versions:
        return "none", ""
    if reported is None or reported.version != versions[0].version:
        return "waiting", ""
    return ("refused", reported.refused) if reported.refused else ("applied", "")


def check_settings(asked: SettingsRequest) -> None:
    """Refuse what no agent would take in its own configuration either."""
    Limit(asked.limit, asked.false_alarms)
    for name in ("label", "comment"):
        text = getattr(asked, name)
        if not text.isprintable():
            raise SettingError(f"found {name} {text[:80]!r}, expected one printable line")


class SettingsService:
    """Changes settings of devices, undoes changes and lists them; any thread may call."""

    def __init__(
        self,
        database: Database,
        writer: Writer,
        *,
        clock: Callable[[], float],
        latest: Callable[[str, str], LatestReport | None],
        changed: Callable[[str], None],
    ) -> None:
        """Start on a database.

        Args:
            database: Where settings are stored.
            writer: What commits changes.
            clock: The time of changes, in Unix seconds.
            latest: Returns what a device reported last.
            changed: Is called with the name of a fleet after settings changed.
        """
        self._database, self._writer = database, writer
        self._clock, self._latest, self._changed = clock, latest, changed

    def versions(self, fleet: str, device: str) -> list[DeviceSettings]:
        """Return the versions of a device's settings, newest first."""
        with self._database.reading() as tx:
            _must_be_known(tx, fleet, device)
            return versions_of(tx, fleet, device)

    def change(
        self, fleet: str, device: str, asked: SettingsRequest, caller: Caller
    ) -> DeviceSettings:
        """Make a new version; settings that are in force already are not made again."""
        check_settings(asked)
        made = DeviceSettings(at=self._clock(), by=caller.actor, **asked.model_dump())

        def choose(now: DeviceSettings, _before: DeviceSettings) -> DeviceSettings | None:
            return None if now.chosen == made.chosen else made

        return self._store(fleet, device, choose, "settings")

    def undo(self, fleet: str, device: str, version: int, caller: Caller) -> DeviceSettings:
        """Go back to the settings before a version, which must be the newest; twice is once."""

        def choose(now: DeviceSettings, before: DeviceSettings) -> DeviceSettings | None:
            if now.undoes == version:
                return None
            if now.version != version or not version:
                raise ChangedError(
                    f"found version {now.version} of the settings of {device} in force, expected "
                    f"{version}: look at them again"
                )
            back = replace(before, at=self._clock(), by=caller.actor, comment="")
            return replace(back, undoes=version)

        return self._store(fleet, device, choose, "undo settings")

    def _store(
        self,
        fleet: str,
        device: str,
        choose: Callable[[DeviceSettings, DeviceSettings], DeviceSettings | None],
        action: str,
    ) -> DeviceSettings:
        latest = self._latest(fleet, device)
        reported = latest.status.settings if latest else None
        # Above all that the device knows, also if this database is older than the device's state.
        least = reported.version if reported else 0

        def write(tx: Transaction) -> DeviceSettings:
            tx.lock(f"fleet {fleet}")
            _must_be_known(tx, fleet, device)
            known = [*versions_of(tx, fleet, device, 2), DeviceSettings(), DeviceSettings()]
            found = choose(known[0], known[1])
            if found is None:
                return known[0]
            version = max(known[0].version, least, numbers_begin(tx)) + 1
            made = replace(found, version=version, epoch=fleets.next_epoch(tx, fleet))
            _write(tx, fleet, device, made, action)
            return made

        made = self._writer.write(write, fleet=fleet)
        self._changed(fleet)
        return made


def _write(tx: Transaction, fleet: str, device: str, made: DeviceSettings, action: str) -> None:
    tx.run(
        f"insert into settings (fleet, device, {COLUMNS}) values (?, ?, ?, ?, ?, ?, ?)",
        *(fleet, device, made.version, made.at, made.by, made.epoch, made.body),
    )
    tx.run(
        f"delete from settings {WHERE_DEVICE} and version <= (select version from settings"
        f" {WHERE_DEVICE} order by version desc limit 1 offset {MAX_VERSIONS})",
        *(fleet, device, fleet, device),
    )
    names = ("version", *CHOSEN, "comment", "undoes")
    said = {name: value for name, value in asdict(made).items() if name in names}
    said = {name: value for name, value in said.items() if value not in (None, "")}
    audit.append(tx, at=made.at, actor=made.by, action=action, fleet=fleet, subject=device, **said)


def _must_be_known(tx: Transaction, fleet: str, device: str) -> None:
    """Refuse a device that has neither enrolled nor been invited by its name."""
    fleets.get(tx, fleet)
    for table in ("devices", "invitations"):
        if tx.one(f"select 1 from {table} {WHERE_DEVICE} limit 1", fleet, device) is not None:
            return
    raise UnknownError(f"no device {device} in {fleet}: its devices are listed")
