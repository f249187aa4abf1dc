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
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Literal, TypeVar

from edgemerge.core.errors import SettingError
from edgemerge.core.limit import Limit
from edgemerge.exchange.configuration import check_tables, overlay, without_addresses
from edgemerge.server import audit, fleets
from edgemerge.server.auth import Caller
from edgemerge.server.backup import numbers_begin
from edgemerge.server.choices.rules import ChangedError
from edgemerge.server.db.base import WHERE_DEVICE, Database, Transaction, Writer
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

    table: ClassVar = "settings"
    word: ClassVar = "settings"

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
    def shown(self) -> dict[str, Any]:
        """What was set, as the audit log has it."""
        return self.chosen


def versions_of(tx: Transaction, fleet: str, device: str) -> list[DeviceSettings]:
    """Return the versions of a device's settings, newest first."""
    return _read_versions(tx, DeviceSettings, fleet, device)


def settings_of(tx: Transaction, fleet: str, device: str) -> DeviceSettings:
    """Return the settings of a device that are in force."""
    return _in_force(tx, DeviceSettings, fleet, device)


def labels_of(tx: Transaction, fleet: str) -> dict[str, str]:
    """Return what people call the devices of a fleet, those without a label left out."""
    rows = tx.rows(
        "select s.device, s.body from settings s where s.fleet = ? and s.version ="
        " (select max(t.version) from settings t where t.fleet = s.fleet and t.device = s.device)",
        fleet,
    )
    found = {device: str(json.loads(body)["label"]) for device, body in rows}
    return {device: label for device, label in found.items() if label}


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


EVERY_DEVICE = ""  # whose configuration is that of the whole fleet


@dataclass(frozen=True)
class ConfigurationVersion:
    """One version of a fleet's configuration, for all devices or for one.

    Args:
        version: Counts from 1 for each fleet; 0: nothing was ever set.
        at: When it was made, in Unix seconds.
        by: Who made it.
        tables: What is set.
        comment: Words for those who read it later.
        undoes: The version that this one took back, if it did.
        epoch: The fleet's epoch.
    """

    table: ClassVar = "configurations"
    word: ClassVar = "configuration"

    version: int = 0
    at: float = 0.0
    by: str = ""
    tables: Mapping[str, Any] = field(default_factory=dict)
    comment: str = ""
    undoes: int | None = None
    epoch: int = 0

    @property
    def chosen(self) -> dict[str, Any]:
        """What was set, without the circumstances."""
        return {"tables": self.tables}

    @property
    def shown(self) -> dict[str, Any]:
        """What was set, as the audit log has it."""
        return {"tables": without_addresses(self.tables)}


Above = Callable[[Transaction], int]  # gives a number that a new version must be above
V = TypeVar("V", DeviceSettings, ConfigurationVersion)


def _read_versions(
    tx: Transaction, kind: type[V], fleet: str, device: str, limit: int = MAX_VERSIONS
) -> list[V]:
    """Return versions, newest first."""
    sql = f"select {COLUMNS} from {kind.table} {WHERE_DEVICE} order by version desc limit ?"
    return [
        kind(version=version, at=at, by=actor, epoch=epoch, **json.loads(body))
        for version, at, actor, epoch, body in tx.rows(sql, fleet, device, limit)
    ]


def _in_force(tx: Transaction, kind: type[V], fleet: str, device: str) -> V:
    return next(iter(_read_versions(tx, kind, fleet, device, 1)), kind())


class _VersionStore(Generic[V]):
    """Makes new versions, and takes the newest back."""

    def __init__(
        self,
        kind: type[V],
        writer: Writer,
        clock: Callable[[], float],
        changed: Callable[[str], None],
    ) -> None:
        self._kind: type[V] = kind
        self._writer, self._clock, self._changed = writer, clock, changed

    def change(self, fleet: str, device: str, made: V, action: str, above: Above) -> V:
        """Make a new version, above a number; what is in force already is not made again."""
        return self._store(
            *(fleet, device, action, above),
            lambda now, _before: None if now.chosen == made.chosen else made,
        )

    def undo(self, fleet: str, device: str, version: int, caller: Caller, above: Above) -> V:
        """Go back to what was before a version, which must be the newest; twice is once."""

        def choose(now: V, before: V) -> V | None:
            if now.undoes == version:
                return None
            if now.version != version or not version:
                raise ChangedError(
                    f"found version {now.version} of the {now.word} of {device or fleet} in force, "
                    f"expected {version}: look again"
                )
            return replace(before, at=self._clock(), by=caller.actor, comment="", undoes=version)

        return self._store(fleet, device, f"undo {self._kind.word}", above, choose)

    def _store(
        self,
        fleet: str,
        device: str,
        action: str,
        above: Above,
        choose: Callable[[V, V], V | None],
    ) -> V:
        def write(tx: Transaction) -> V:
            tx.lock(f"fleet {fleet}")
            _must_be_target(tx, fleet, device)
            known: list[V] = _read_versions(tx, self._kind, fleet, device, 2)
            known += [self._kind(), self._kind()]
            found = choose(known[0], known[1])
            if found is None:
                return known[0]
            version = max(known[0].version, above(tx), numbers_begin(tx)) + 1
            made = replace(found, version=version, epoch=fleets.next_epoch(tx, fleet))
            _write(tx, fleet, device, made, action)
            return made

        made = self._writer.write(write, fleet=fleet)
        self._changed(fleet)
        return made


def _write(
    tx: Transaction,
    fleet: str,
    device: str,
    made: DeviceSettings | ConfigurationVersion,
    action: str,
) -> None:
    about = {"comment": made.comment, "undoes": made.undoes}
    body = json.dumps(made.chosen | about, separators=(",", ":"))
    tx.run(
        f"insert into {made.table} (fleet, device, {COLUMNS}) values (?, ?, ?, ?, ?, ?, ?)",
        *(fleet, device, made.version, made.at, made.by, made.epoch, body),
    )
    tx.run(
        f"delete from {made.table} {WHERE_DEVICE} and version <= (select version from {made.table}"
        f" {WHERE_DEVICE} order by version desc limit 1 offset {MAX_VERSIONS})",
        *(fleet, device, fleet, device),
    )
    said = {"version": made.version, **made.shown, **about}
    said = {name: value for name, value in said.items() if value not in (None, "")}
    audit.append(tx, made.at, made.by, action, fleet, device or "all devices", **said)


def _must_be_target(tx: Transaction, fleet: str, device: str) -> None:
    """Refuse a device that has neither enrolled nor been invited by its name."""
    fleets.get(tx, fleet)
    if device == EVERY_DEVICE:
        return
    for table in ("devices", "invitations"):
        if tx.one(f"select 1 from {table} {WHERE_DEVICE} limit 1", fleet, device) is not None:
            return
    raise fleets.unknown_device(fleet, device)


def configuration_for(tx: Transaction, fleet: str, device: str) -> dict[str, Any]:
    """Return what a device gets to read: the fleet's tables with its own on top."""
    found = [_in_force(tx, ConfigurationVersion, fleet, each) for each in (EVERY_DEVICE, device)]
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
        self._database, self._clock, self._latest = database, clock, latest
        self._store = _VersionStore(DeviceSettings, writer, clock, changed)

    def versions(self, fleet: str, device: str) -> list[DeviceSettings]:
        """Return the versions of a device's settings, newest first."""
        with self._database.reading() as tx:
            _must_be_target(tx, fleet, device)
            return versions_of(tx, fleet, device)

    def change(
        self, fleet: str, device: str, asked: SettingsRequest, caller: Caller
    ) -> DeviceSettings:
        """Make a new version; settings that are in force already are not made again."""
        check_settings(asked)
        made = DeviceSettings(at=self._clock(), by=caller.actor, **asked.model_dump())
        return self._store.change(fleet, device, made, "settings", self._reported(fleet, device))

    def undo(self, fleet: str, device: str, version: int, caller: Caller) -> DeviceSettings:
        """Go back to the settings before a version, which must be the newest; twice is once."""
        return self._store.undo(fleet, device, version, caller, self._reported(fleet, device))

    def _reported(self, fleet: str, device: str) -> Above:
        """Return the version that the device knows, also if this database is older than that."""
        latest = self._latest(fleet, device)
        reported = latest.status.settings if latest else None
        return lambda _tx: reported.version if reported else 0


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
        self._database, self._clock = database, clock
        self._store = _VersionStore(ConfigurationVersion, writer, clock, changed)

    def versions(self, fleet: str, device: str = EVERY_DEVICE) -> list[ConfigurationVersion]:
        """Return the versions of all devices or of one, newest first."""
        with self._database.reading() as tx:
            _must_be_target(tx, fleet, device)
            return _read_versions(tx, ConfigurationVersion, fleet, device)

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
            at=self._clock(), by=caller.actor, tables=tables, comment=asked.comment
        )
        return self._store.change(fleet, device, made, "configure", _newest(fleet))

    def undo(self, fleet: str, device: str, version: int, caller: Caller) -> ConfigurationVersion:
        """Go back to the tables before a version, which must be the newest; twice is once."""
        return self._store.undo(fleet, device, version, caller, _newest(fleet))


def _newest(fleet: str) -> Above:
    """Return the newest version of all devices and of each."""
    sql = "select coalesce(max(version), 0) from configurations where fleet = ?"
    return lambda tx: int((tx.one(sql, fleet) or (0,))[0])


def _check_limits(monitor: Mapping[str, Any]) -> None:
    try:
        Limit(monitor.get("limit"), monitor.get("false_alarms"))
    except TypeError as error:
        raise SettingError(f"found monitor = {monitor}, expected other types: {error}") from error
