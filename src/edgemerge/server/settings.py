"""What operators set on devices: settings of one, and the configuration of a fleet, in versions.

The newest version stands in the device's desired-state document, and the device's reports say which
version it has applied, or why it refused it. What a version leaves empty is as the device's own
file says. `epoch` is that of the fleet when a version was made.

A fleet's configuration has tables like those of an agent's file, for all devices or for a single
one, whose tables go on top. The versions of a fleet count both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from edgemerge.core.errors import SettingError
from edgemerge.core.limit import Limit
from edgemerge.exchange.configuration import check_tables, overlay, without_addresses
from edgemerge.server import audit, fleets
from edgemerge.server.auth import Caller
from edgemerge.server.backup import numbers_begin
from edgemerge.server.choices.rules import ChangedError
from edgemerge.server.db.base import WHERE_DEVICE, Database, SqlRow, Transaction, Writer
from edgemerge.server.reports.model import LatestReport
from edgemerge.server.schemas import (
    ConfigurationRequest,
    ReportedConfiguration,
    ReportedSettings,
    SettingsRequest,
)

MAX_VERSIONS = 100  # of a device; the oldest are forgotten
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
    _must_be_printable("label", asked.label)
    _must_be_printable("comment", asked.comment)


def _must_be_printable(name: str, text: str) -> None:
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
            back = replace(before, at=self._clock(), by=caller.actor, comment="", undoes=version)
            whose = f"the settings of {device}"
            return None if _is_undone(now, version, whose) else back

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
    audit.append(tx, made.at, made.by, action, fleet, device, **said)


def _is_undone(now: DeviceSettings | ConfigurationVersion, version: int, whose: str) -> bool:
    """Return whether a version is undone already; refuse one that is not in force any more."""
    if now.undoes == version:
        return True
    if now.version != version or not version:
        raise ChangedError(
            f"found version {now.version} of {whose} in force, expected {version}: look again"
        )
    return False


def _must_be_known(tx: Transaction, fleet: str, device: str) -> None:
    """Refuse a device that has neither enrolled nor been invited by its name."""
    fleets.get(tx, fleet)
    for table in ("devices", "invitations"):
        if tx.one(f"select 1 from {table} {WHERE_DEVICE} limit 1", fleet, device) is not None:
            return
    raise fleets.unknown_device(fleet, device)


EVERY_DEVICE = ""  # whose configuration is that of the whole fleet
CONFIGURATION_COLUMNS = "version, device, at, actor, epoch, body"


@dataclass(frozen=True)
class ConfigurationVersion:
    """One version of a fleet's configuration, for all devices or for one.

    Args:
        version: Counts from 1 for each fleet; 0: nothing was ever set.
        device: The device that it is for; "" for all.
        at: When it was made, in Unix seconds.
        by: Who made it.
        tables: What is set.
        comment: Words for those who read it later.
        undoes: The version that this one took back, if it did.
        epoch: The fleet's epoch.
    """

    version: int = 0
    device: str = EVERY_DEVICE
    at: float = 0.0
    by: str = ""
    tables: Mapping[str, Any] = field(default_factory=dict)
    comment: str = ""
    undoes: int | None = None
    epoch: int = 0

    @property
    def body(self) -> str:
        """What was set, as it is stored."""
        said = {"tables": self.tables, "comment": self.comment, "undoes": self.undoes}
        return json.dumps(said, separators=(",", ":"))


def configurations_of(
    tx: Transaction, fleet: str, device: str, limit: int = MAX_VERSIONS
) -> list[ConfigurationVersion]:
    """Return the versions of a configuration, of all devices ("") or of one, newest first."""
    sql = f"select {CONFIGURATION_COLUMNS} from configurations {WHERE_DEVICE}"
    rows = tx.rows(f"{sql} order by version desc limit ?", fleet, device, limit)
    return [
        ConfigurationVersion(version, name, at, actor, epoch=epoch, **json.loads(body))
        for version, name, at, actor, epoch, body in rows
    ]


def configuration_for(tx: Transaction, fleet: str, device: str) -> dict[str, Any]:
    """Return what a device gets to read: the fleet's tables with its own on top."""
    found = [
        next(iter(configurations_of(tx, fleet, each, 1)), ConfigurationVersion())
        for each in (EVERY_DEVICE, device)
    ]
    tables = overlay(found[0].tables, found[1].tables)
    return {"version": max(each.version for each in found), "tables": tables}


def configuration_state(
    version: int, reported: ReportedConfiguration | None
) -> tuple[SettingsState, str]:
    """Return what became of a version, by what the device reported; and why."""
    if not version and not (reported and reported.seen):
        return "none", ""
    if reported is None or reported.seen != version:
        return "waiting", ""
    if reported.refused:
        return "refused", reported.refused
    waits = ", ".join(reported.restart)
    return "applied", f"after its next restart: {waits}" if waits else ""


class ConfigurationService:
    """Changes configurations of fleets, undoes changes and lists them; any thread may call."""

    def __init__(
        self,
        database: Database,
        writer: Writer,
        *,
        clock: Callable[[], float],
        changed: Callable[[str], None],
    ) -> None:
        """Start on a database.

        Args:
            database: Where configurations are stored.
            writer: What commits changes.
            clock: The time of changes, in Unix seconds.
            changed: Is called with the name of a fleet after one changed.
        """
        self._database, self._writer = database, writer
        self._clock, self._changed = clock, changed

    def versions(self, fleet: str, device: str = EVERY_DEVICE) -> list[ConfigurationVersion]:
        """Return the versions of all devices or of one, newest first."""
        with self._database.reading() as tx:
            _must_be_target(tx, fleet, device)
            return configurations_of(tx, fleet, device)

    def wanted(self, fleet: str) -> dict[str, dict[str, Any]]:
        """Return what each enrolled device gets to read, by name."""
        with self._database.reading() as tx:
            fleets.get(tx, fleet)
            names = tx.rows("select device from devices where fleet = ? order by device", fleet)
            return {device: configuration_for(tx, fleet, device) for (device,) in names}

    def change(
        self, fleet: str, device: str, asked: ConfigurationRequest, caller: Caller
    ) -> ConfigurationVersion:
        """Make a new version; tables that are in force already are not made again."""
        tables = check_tables(asked.tables)
        _check_limits(tables.get("monitor", {}))
        _must_be_printable("comment", asked.comment)
        made = ConfigurationVersion(
            device=device, at=self._clock(), by=caller.actor, tables=tables, comment=asked.comment
        )

        def choose(
            now: ConfigurationVersion, _before: ConfigurationVersion
        ) -> ConfigurationVersion | None:
            return None if now.tables == tables else made

        return self._store(fleet, device, choose, "configure")

    def undo(self, fleet: str, device: str, version: int, caller: Caller) -> ConfigurationVersion:
        """Go back to the tables before a version, which must be the newest; twice is once."""

        def choose(
            now: ConfigurationVersion, before: ConfigurationVersion
        ) -> ConfigurationVersion | None:
            back = replace(before, at=self._clock(), by=caller.actor, comment="", undoes=version)
            whose = f"the configuration of {device or fleet}"
            return None if _is_undone(now, version, whose) else back

        return self._store(fleet, device, choose, "undo configuration")

    def _store(
        self,
        fleet: str,
        device: str,
        choose: Callable[[ConfigurationVersion, ConfigurationVersion], ConfigurationVersion | None],
        action: str,
    ) -> ConfigurationVersion:
        def write(tx: Transaction) -> ConfigurationVersion:
            tx.lock(f"fleet {fleet}")
            _must_be_target(tx, fleet, device)
            empty = ConfigurationVersion(device=device)
            known = [*configurations_of(tx, fleet, device, 2), empty, empty]
            found = choose(known[0], known[1])
            if found is None:
                return known[0]
            row = tx.one("select max(version) from configurations where fleet = ?", fleet)
            version = max((row and row[0]) or 0, numbers_begin(tx)) + 1
            made = replace(found, version=version, epoch=fleets.next_epoch(tx, fleet))
            _write_configuration(tx, fleet, made, action)
            return made

        made = self._writer.write(write, fleet=fleet)
        self._changed(fleet)
        return made


def _check_limits(monitor: Mapping[str, Any]) -> None:
    try:
        Limit(monitor.get("limit"), monitor.get("false_alarms"))
    except TypeError as error:
        raise SettingError(f"found monitor = {monitor}, expected other types: {error}") from error


def _write_configuration(
    tx: Transaction, fleet: str, made: ConfigurationVersion, action: str
) -> None:
    tx.run(
        f"insert into configurations (fleet, {CONFIGURATION_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?)",
        *(fleet, made.version, made.device, made.at, made.by, made.epoch, made.body),
    )
    tx.run(
        f"delete from configurations {WHERE_DEVICE} and version not in (select version from"
        f" configurations {WHERE_DEVICE} order by version desc limit {MAX_VERSIONS})",
        *(fleet, made.device, fleet, made.device),
    )
    said = {"version": made.version, "tables": without_addresses(made.tables)}
    said |= {name: value for name in ("comment", "undoes") if (value := getattr(made, name))}
    audit.append(tx, made.at, made.by, action, fleet, made.device or "all devices", **said)


def _must_be_target(tx: Transaction, fleet: str, device: str) -> None:
    if device == EVERY_DEVICE:
        fleets.get(tx, fleet)
    else:
        _must_be_known(tx, fleet, device)
