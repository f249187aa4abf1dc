"""What a device's page shows of its settings, and what its form asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from edgemerge.core.errors import SettingError
from edgemerge.server.dashboard.formatting import score
from edgemerge.server.dashboard.sign_in import Form
from edgemerge.server.http import validation_message
from edgemerge.server.schemas import ReportedSettings, SettingsRequest
from edgemerge.server.settings import DeviceSettings, SettingsState, settings_state

SHOWN_VERSIONS = 5


def describe_settings(one: DeviceSettings) -> str:
    """Describe what was set.

    >>> describe_settings(DeviceSettings(1, label="Pump of hall B", limit=5.0))
    'label “Pump of hall B”, limit 5'
    >>> describe_settings(DeviceSettings(2, false_alarms="1 per week"))
    'false alarms: 1 per week'
    """
    words = [f"label “{one.label}”"] if one.label else []
    if one.limit is not None:
        words.append(f"limit {score(one.limit)}")
    if one.false_alarms is not None:
        words.append(f"false alarms: {one.false_alarms}")
    return ", ".join(words) or "as the device's own file says"


@dataclass(frozen=True)
class SettingsView:
    """The settings of a device; `reported` is what it said of them last."""

    versions: list[DeviceSettings]  # newest first
    reported: ReportedSettings | None

    @property
    def now(self) -> DeviceSettings:
        """Those in force."""
        return self.versions[0] if self.versions else DeviceSettings()

    @property
    def state(self) -> SettingsState:
        """What became of them."""
        return settings_state(self.versions, self.reported)[0]

    @property
    def why(self) -> str:
        """Why the device refused them."""
        return settings_state(self.versions, self.reported)[1]

    @property
    def kind(self) -> str:
        """Which limit is chosen: "own", "limit" or "false_alarms"."""
        if self.now.limit is not None:
            return "limit"
        return "own" if self.now.false_alarms is None else "false_alarms"

    @property
    def shown(self) -> list[tuple[DeviceSettings, str]]:
        """The last versions, each with its words."""
        return [(each, describe_settings(each)) for each in self.versions[:SHOWN_VERSIONS]]


def read_settings(form: Form) -> SettingsRequest:
    """Read settings from the form of the page; of the limits, the one that was chosen."""
    asked: dict[str, Any] = {"label": form.one("label"), "comment": form.one("comment")}
    kind = form.one("kind")
    if kind == "limit":
        asked["limit"] = _number(form.one("limit"))
    elif kind == "false_alarms":
        asked["false_alarms"] = form.one("false_alarms")
    elif kind != "own":
        raise SettingError(f"found kind {kind[:20]!r}, expected own, limit or false_alarms")
    try:
        return SettingsRequest(**asked)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        raise SettingError(validation_message(found)) from error


def _number(text: str) -> float:
    try:
        return float(text.replace(",", "."))
    except ValueError:
        raise SettingError(f"found limit {text[:20]!r}, expected a number such as 4.5") from None
