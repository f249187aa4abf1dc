"""What the configuration of a fleet may set on its devices: an explicit list of keys.

The server checks a document against it before it stores one, and the agent does so again before it
applies one, since it does not trust the server. What is not in the list is set by the device's own
file alone: programs to run, paths, secrets, the exchange, the release gate, what is adopted, and
whether readings are reported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from edgemerge.core.errors import SettingError

Tables = dict[str, Any]

PLAIN_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"  # of a fleet, a device or an account

MAX_CONFIGURATION_BYTES = 2**14
MAX_SINKS = 8
MAX_REPORT_INTERVAL_S = 3600.0  # so that a device hears of the next version
ALLOWED_KEYS: dict[str, tuple[str, ...]] = {
    "monitor": ("learn", "limit", "false_alarms", "votes", "commissioning"),
    "quality": ("no_data_s", "stuck_rows", "rate_hz"),
    "sync": ("every_s", "jitter"),
    "report": ("every_s",),
    "save": ("every", "every_s"),
    "source": (
        *("columns", "units", "time", "header", "encoding", "delimiter", "decimal", "skip_lines"),
        *("time_format", "time_zone", "interval_s", "nodes", "registers", "unit_id", "word_order"),
    ),
    "features": (
        *("kind", "length", "step", "statistics", "bands", "rate_hz", "low_hz", "high_hz"),
        *("states", "low", "high"),
    ),
    "learner": ("kind", "ridge", "forgetting", "reject_above", "max_patterns"),
}
# What a sample is, and what is made of it: these hold from a device's first sample on.
SAMPLE_TABLES = ("source", "features", "learner")
SINK_KINDS = ("mqtt", "webhook", "email", "syslog")
SINK_KEYS = (
    *("kind", "host", "port", "prefix", "site", "scores_per_s", "discovery", "url", "preset"),
    *("template", "link", "sender", "to", "security", "protocol"),
)
NOT_HERE = "only the device's own file sets it"
HIDDEN = "…"  # stands for what may be a secret


def check_tables(found: object) -> Tables:
    """Return the tables of a fleet's configuration, if all of it may be set from elsewhere.

    Raises:
        SettingError: It names the first key that may not, or says what else is wrong.

    >>> check_tables({"monitor": {"limit": 5}})
    {'monitor': {'limit': 5}}
    >>> check_tables({"sync": {"gate": 0}})
    Traceback (most recent call last):
    edgemerge.core.errors.SettingError: found sync.gate in a fleet's configuration: ...
    """
    if not isinstance(found, dict):
        raise SettingError("found a configuration that is no table, expected such as [monitor]")
    try:
        size = len(json.dumps(found, allow_nan=False).encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise SettingError(f"found a configuration that is no plain JSON: {error}") from error
    if size > MAX_CONFIGURATION_BYTES:
        raise SettingError(
            f"found a configuration of {size} bytes, expected {MAX_CONFIGURATION_BYTES} at most"
        )
    for name, table in found.items():
        if name == "sinks":
            _check_sinks(table)
        elif name not in ALLOWED_KEYS:
            raise _not_allowed(name, [*ALLOWED_KEYS, "sinks"])
        elif not isinstance(table, dict):
            raise SettingError(f"found {name} = {table!r}, expected a table")
        else:
            _check_keys(name, table, ALLOWED_KEYS[name])
    _check_interval(found.get("report", {}).get("every_s"))
    return found


def _check_keys(name: str, table: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    for key, value in table.items():
        if key not in allowed:
            raise _not_allowed(f"{name}.{key}", [f"{name}.{each}" for each in allowed])
        parts = value if isinstance(value, list) else [value]
        if not all(isinstance(each, str | int | float | bool) for each in parts):
            raise SettingError(
                f"found {name}.{key} = {value!r}, expected a value or a list of them"
            )


def _check_sinks(sinks: object) -> None:
    if not isinstance(sinks, list) or len(sinks) > MAX_SINKS:
        raise SettingError(f"found sinks = {sinks!r}, expected at most {MAX_SINKS} [[sinks]]")
    for number, sink in enumerate(sinks):
        name = f"sinks.{number}"
        if not isinstance(sink, dict):
            raise SettingError(f"found {name} = {sink!r}, expected a table")
        if sink.get("kind") not in SINK_KINDS:
            raise SettingError(
                f"found {name}.kind = {sink.get('kind')!r} in a fleet's configuration, expected "
                f"one of {', '.join(SINK_KINDS)}: {NOT_HERE}"
            )
        _check_keys(name, sink, SINK_KEYS)
        if "@" in str(sink.get("url", "")).partition("://")[2].partition("/")[0]:
            raise SettingError(f"found a password in {name}.url: {NOT_HERE}")
        if "url" in sink and (host_of(sink["url"]) == HIDDEN or HIDDEN in str(sink["url"])):
            raise SettingError(
                f"found no whole address in {name}.url, expected http://… or https://…"
            )


def _check_interval(every_s: object) -> None:
    if every_s is None:
        return
    is_number = type(every_s) in (int, float)
    if not is_number or not 0.0 < every_s <= MAX_REPORT_INTERVAL_S:  # type: ignore[operator] # a number
        raise SettingError(
            f"found report.every_s = {every_s!r}, expected above 0 and at most "
            f"{MAX_REPORT_INTERVAL_S:g}: a device gets the next version when it reports"
        )


def _not_allowed(key: str, allowed: list[str]) -> SettingError:
    return SettingError(
        f"found {key} in a fleet's configuration: {NOT_HERE}. It may have {', '.join(allowed)}"
    )


def table_lines(tables: Mapping[str, Any]) -> list[str]:
    """Return each key with its value, for people.

    >>> table_lines({"monitor": {"limit": 5}, "sinks": [{"kind": "syslog"}]})
    ['monitor.limit = 5', 'sinks = [{"kind": "syslog"}]']
    """
    lines = []
    for name, table in tables.items():
        if isinstance(table, dict):
            lines += [f"{name}.{key} = {_written(value)}" for key, value in table.items()]
        else:
            lines.append(f"{name} = {_written(table)}")
    return lines


def _written(value: object) -> str:
    return json.dumps(value).replace("\\u2026", HIDDEN)  # all else is escaped: it may be anything


def without_addresses(tables: Mapping[str, Any]) -> Tables:
    """Return tables in which sinks name only the host of an address, and show no template.

    With the whole address of a webhook anyone can send messages to it.

    >>> without_addresses({"sinks": [{"kind": "webhook", "url": "https://chat.example/in/k3y"}]})
    {'sinks': [{'kind': 'webhook', 'url': 'https://chat.example/…'}]}
    """
    found = dict(tables)
    if "sinks" in found:
        found["sinks"] = [
            sink
            | ({"url": host_of(sink["url"])} if "url" in sink else {})
            | ({"template": HIDDEN} if "template" in sink else {})
            for sink in found["sinks"]
        ]
    return found


def host_of(url: object) -> str:
    """Return an address without path, query and password; nothing of one that is none."""
    try:
        parts = urlsplit(str(url))
    except ValueError:
        return HIDDEN
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return HIDDEN
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/{HIDDEN}"


def overlay(below: Mapping[str, Any], above: Mapping[str, Any]) -> Tables:
    """Return tables with those of a single device on top; its sinks replace the others.

    >>> overlay({"sync": {"every_s": 60, "jitter": 0}}, {"sync": {"every_s": 5}})
    {'sync': {'every_s': 5, 'jitter': 0}}
    """
    found = dict(below)
    for name, table in above.items():
        both = isinstance(table, dict) and isinstance(found.get(name), dict)
        found[name] = without_rival_limit(found[name], table) | table if both else table
    return found


def without_rival_limit(below: Mapping[str, Any], above: Mapping[str, Any]) -> Tables:
    """Return a table without `limit` and `false_alarms` if another one on top sets either."""
    rivals = ("limit", "false_alarms")
    if not any(name in above for name in rivals):
        return dict(below)
    return {name: value for name, value in below.items() if name not in rivals}
