"""How Home Assistant finds a device by itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

BIRTH = "homeassistant/status"


@dataclass(frozen=True)
class Topics:
    """The topics of one device: `<prefix>/<site>/<device>/` and status, score, alarm, cmd."""

    prefix: str
    site: str
    device: str

    def __getitem__(self, name: str) -> str:
        """Give one of them."""
        return f"{self.prefix}/{self.site}/{self.device}/{name}"

    @property
    def id(self) -> str:
        """Give a name for the device made of letters, digits, "_" and "-" only."""
        name = f"{self.prefix}_{self.site}_{self.device}"
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)
        return plain if plain == name else f"{plain}_{sha256(name.encode()).hexdigest()[:8]}"


def discovery(topics: Topics, version: str) -> tuple[str, dict[str, Any]]:
    """Give the topic and the message by which Home Assistant learns of the device."""
    up = {"availability": [{"topic": topics["status"], "value_template": "{{ value_json.state }}"}]}
    components: dict[str, dict[str, Any]] = {
        "score": {
            "p": "sensor",
            "name": "Score",
            "state_topic": topics["score"],
            "state_class": "measurement",
            "value_template": "{{ value_json.score }}",
        }
        | up,
        "alarm": {
            "p": "binary_sensor",
            "name": "Alarm",
            "device_class": "problem",
            "state_topic": topics["alarm"],
            "value_template": "{{ 'ON' if value_json.alarm else 'OFF' }}",
        }
        | up,
        "status": {
            "p": "sensor",
            "name": "Status",
            "state_topic": topics["status"],
            "value_template": "{{ value_json.state }}",
        },
    }
    for name, component in components.items():
        component["unique_id"] = f"{topics.id}_{name}"
    return f"homeassistant/device/{topics.id}/config", {
        "dev": {"ids": topics.id, "name": topics.device},
        "o": {"name": "edgemerge", "sw": version},
        "cmps": components,
    }
