"""What an agent was given: the TOML file, over it the environment, over it the flags."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgemerge.agent.tables import Text
from edgemerge.core.errors import SettingError

PREFIX = "EDGEMERGE_"

Keys = list[str]


def read_toml(path: Path) -> dict[str, Any]:
    """Read the file as it is."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise SettingError(
            f"{path} cannot be read ({error.strerror}): name the TOML file of the agent"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"{path} is not TOML: {error}") from error


def of_environment(
    environment: Mapping[str, str], top: Iterable[str]
) -> Iterator[tuple[Keys, str]]:
    """Find EDGEMERGE_TABLE__KEY, and EDGEMERGE_KEY for the keys above all tables.

    >>> list(of_environment({"EDGEMERGE_SYNC__EVERY_S": "60", "EDGEMERGE_DATA": "x"}, ["device"]))
    [(['sync', 'every_s'], '60')]
    """
    for name, value in sorted(environment.items()):
        if name.startswith(PREFIX):
            keys = name.removeprefix(PREFIX).lower().split("__")
            if len(keys) > 1 or keys[0] in top:
                yield keys, value


def of_flags(overrides: Sequence[str]) -> Iterator[tuple[Keys, str]]:
    """Take `--set table.key=value` apart."""
    for flag in overrides:
        name, equals, value = flag.partition("=")
        if not equals:
            raise SettingError(f"found --set {flag}, expected --set table.key=value")
        yield name.strip().split("."), value.strip()


def put(given: dict[str, Any], keys: Keys, value: str) -> None:
    """Set one value; `sinks.0.path` is in the first sink, and the next number adds one."""
    table: Any = given
    for key in keys[:-1]:
        table = _below(table, key, ".".join(keys))
    if not isinstance(table, dict):
        raise _lost(".".join(keys))
    table[keys[-1]] = Text(value)


def _below(table: Any, key: str, name: str) -> Any:
    if isinstance(table, list):
        if not key.isdecimal() or int(key) > len(table):
            raise _lost(name)
        if int(key) == len(table):
            table.append({})
        return table[int(key)]
    if not isinstance(table, dict):
        raise _lost(name)
    return table.setdefault(key, [] if key == "sinks" else {})


def _lost(name: str) -> SettingError:
    return SettingError(
        f"found the setting {name}, expected table.key (sync.every_s), or sinks.0.key for a sink"
    )
