"""Agreeing: the projection of a run, from a file or from settings; nodes are told it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgemerge.core.errors import SettingError
from edgemerge.core.projection import Projection
from edgemerge.files import load

SETTINGS = ("n-inputs", "n-hidden", "seed", "activation", "low", "high", "width", "grid-bits")
ENDS = ("low", "high")  # one number, or one for each input with commas between


def projection_of(config: Mapping[str, Any]) -> Projection:
    """Take the projection in the file that `projection` names, else build it from the settings."""
    if path := config.get("projection"):
        thing = load(str(path))
        found: Projection = getattr(getattr(thing, "stats", thing), "projection", thing)
        return found
    given = {name.replace("-", "_"): config[name] for name in SETTINGS if name in config}
    if not given.get("n_inputs"):
        raise SettingError(
            "the run does not say what devices agree on: set `projection` to a file of any "
            "device, or `n-inputs`, `low` and `high`"
        )
    return Projection(**given | {end: _ends(end, given[end]) for end in ENDS if end in given})


def _ends(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return [float(part) for part in value.split(",")]
    except ValueError as error:
        raise SettingError(f"found {name} = {value!r}, expected numbers with commas") from error
