"""`edgemerge agent`: the program that runs on every device."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from edgemerge.cli.group import needs
from edgemerge.cli.output import json_option, plain, say_facts, say_json


@click.command()
@click.argument("config", type=click.Path(dir_okay=False, path_type=Path), metavar="CONFIG.toml")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="TABLE.KEY=VALUE",
    help="Over what the file and the environment say; may be repeated.",
)
@click.option("--check", is_flag=True, help="Say what it would do, and exit.")
@json_option
def agent(config: Path, overrides: tuple[str, ...], *, check: bool, as_json: bool) -> None:
    """Learn, score and exchange on this device.

    It does as CONFIG.toml says, until it is stopped. With --check, the configuration is read and
    told, and nothing runs.
    """
    from threading import Event

    from edgemerge.agent.config import read_config
    from edgemerge.daemon import Json, Lines, log_to_stderr, stop_on_signals

    told = read_config(config, environment=os.environ, overrides=overrides)
    if check:
        say_json(as_plain(told)) if as_json else say_facts(in_short(told))
        return
    if _speaks_mqtt(told):
        needs("mqtt", "paho.mqtt.client")
    from edgemerge.agent.running import run

    log_to_stderr(told.log.level, form=Json if told.log.form == "json" else Lines)
    stop = Event()
    stop_on_signals(stop)
    raise SystemExit(run(told, stop=stop))


def as_plain(config: Any) -> dict[str, Any]:
    """Write a configuration as plain JSON; it names files of secrets, never secrets."""
    from edgemerge.cli.showing import agreement

    names = [name for name in vars(config) if name != "projection"]
    found = {name: _plain(getattr(config, name)) for name in names}
    shared = config.projection
    return found | {"projection": None if shared is None else agreement(shared)}


def in_short(config: Any) -> dict[str, str]:
    """Give one line to a table: its kind, and what is not as by default."""
    tables = {name: value for name, value in vars(config).items() if name != "projection"}
    shared = "that of the fleet" if config.projection is None else str(config.projection)
    return {name: _line(value) for name, value in tables.items()} | {"projection": shared}


def _line(value: Any) -> str:
    if isinstance(value, tuple):
        return "; ".join(map(_line, value)) or "none"
    if not hasattr(value, "__dataclass_fields__"):
        return plain(_plain(value))
    usual, found = _plain(type(value)()), _plain(value)
    told = {key: each for key, each in found.items() if each != usual[key] and key != "kind"}
    parts = [found.get("kind", ""), plain(told) if told else ""]
    return ", ".join(filter(None, parts)) or "as by default"


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(each) for name, each in asdict(value).items()}
    return value


def _speaks_mqtt(config: Any) -> bool:
    return "mqtt" in {part.kind for part in (config.source, config.exchange, *config.sinks)}
