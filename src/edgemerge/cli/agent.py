"""Commands on a device: `enrol` it, run its `agent`, and `sync` a running one."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from edgemerge.cli.group import CommandError, ExitCode, example, needs, option, options
from edgemerge.cli.options import ca_option, read_own_token, server_connection
from edgemerge.cli.output import (
    format_value,
    json_option,
    print_fields,
    print_json,
    progress,
    remark,
)


@click.command(
    epilog=example(
        "edgemerge agent pump-3.toml --check", "edgemerge agent pump-3.toml --set sync.every_s=60"
    )
)
@click.argument("config", type=click.Path(dir_okay=False, path_type=Path), metavar="CONFIG.toml")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="TABLE.KEY=VALUE",
    help="Override the file and the environment; can be repeated.",
)
@click.option("--check", is_flag=True, help="Print the configuration and exit.")
@json_option
def agent(config: Path, overrides: tuple[str, ...], *, check: bool, as_json: bool) -> None:
    """Learn, score and exchange on this device.

    Runs as CONFIG.toml says until a signal stops it; then the exit code is 0. With --check it
    prints the configuration and runs nothing.
    """
    from threading import Event

    from edgemerge.agent.config import read_config
    from edgemerge.daemon import JsonFormatter, TextFormatter, log_to_stderr, stop_on_signals

    settings = read_config(config, environment=os.environ, overrides=overrides)
    if check:
        print_json(config_as_json(settings)) if as_json else print_fields(config_summary(settings))
        return
    sinks = [sink.kind for sink in settings.sinks]
    if "mqtt" in (settings.source.kind, settings.exchange.kind, *sinks):
        needs("mqtt", "paho.mqtt.client")
    from edgemerge.agent.runner import run

    log_to_stderr(
        settings.log.level, form=JsonFormatter if settings.log.format == "json" else TextFormatter
    )
    stop = Event()
    with stop_on_signals(stop):
        raise SystemExit(run(settings, stop=stop))


def config_as_json(config: Any) -> dict[str, Any]:
    """Return a configuration as plain JSON; it names files of secrets, never secrets."""
    from edgemerge.cli.files import describe_projection, with_old_keys

    shared = config.projection
    projection = None if shared is None else with_old_keys(describe_projection(shared))
    tables = {name: value for name, value in vars(config).items() if name != "projection"}
    return {name: _to_json(value) for name, value in tables.items()} | {"projection": projection}


def config_summary(config: Any) -> dict[str, str]:
    """Return one line per table: its kind, and every value that is not the default."""
    tables = {name: value for name, value in vars(config).items() if name != "projection"}
    shared = "from the fleet" if config.projection is None else str(config.projection)
    return {name: _summary_line(value) for name, value in tables.items()} | {"projection": shared}


def _summary_line(value: Any) -> str:
    if isinstance(value, tuple):
        return "; ".join(map(_summary_line, value)) or "none"
    if not hasattr(value, "__dataclass_fields__"):
        return format_value(_to_json(value))
    usual, found = _to_json(type(value)()), _to_json(value)
    changed = {key: each for key, each in found.items() if each != usual[key] and key != "kind"}
    parts = [found.get("kind", ""), format_value(changed) if changed else ""]
    return ", ".join(filter(None, parts)) or "default"


def _to_json(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return [_to_json(each) for each in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: _to_json(each) for name, each in asdict(value).items()}
    return value


DECISION_HELP = {
    "approve": "Adopt this contribution that waits, and newer ones like it; can be repeated.",
    "dismiss": "Never adopt this contribution, nor list it; can be repeated.",
    "undo-decision": "Undo the last decision about this contribution; can be repeated.",
}


@click.command(
    epilog=example(
        "edgemerge sync pump-3.toml", "edgemerge sync pump-3.toml --approve pump-9/0/normal"
    )
)
@click.argument(
    "place", type=click.Path(path_type=Path), default=Path(), metavar="[CONFIG_OR_STATE]"
)
@option(
    "--undo-merge",
    "undo",
    old={"--undo": "--undo-merge"},
    is_flag=True,
    help="Undo the last merge instead of exchanging.",
)
@option(
    "--timeout-s",
    old={"--timeout": "--timeout-s"},
    type=float,
    default=60.0,
    show_default=True,
    help="Seconds to wait for the agent.",
)
@options(
    *(
        click.option(
            f"--{name}",
            metavar="DEVICE/INCARNATION/PATTERN",
            multiple=True,
            help=words,
        )
        for name, words in DECISION_HELP.items()
    )
)
@click.option("--comment", default="", help="One line about the decision.")
@json_option
def sync(
    place: Path,
    timeout_s: float,
    *,
    undo: bool,
    as_json: bool,
    comment: str,
    **decisions: tuple[str, ...],
) -> None:
    """Make the running agent exchange now.

    CONFIG_OR_STATE is its CONFIG.toml or its state folder, by default this folder. The result is
    printed; `untrusted` in it lists contributions that wait, if sync.trust is not members and the
    exchange has no server. Decide about them with --approve and --dismiss.
    """
    folder = find_state_folder(place)
    for name, keys in decisions.items():
        for key in keys:
            said = {"command": "trust", "decision": name.removesuffix("_decision"), **_key(key)}
            remark(ask_agent(folder, said | {"comment": comment}, timeout_s)["done"])
    with progress("waiting for the agent"):
        found = ask_agent(folder, "undo" if undo else "sync", timeout_s)
    print_json(found) if as_json else print_fields(found)
    if found.get("exchange", "ok") != "ok":
        denied = str(found["exchange"]).startswith(("denied", "refused"))
        raise CommandError(
            f"the exchange failed: {found['exchange']}",
            ExitCode.REFUSED if denied else ExitCode.UNREACHABLE,
        )


def _key(text: str) -> dict[str, Any]:
    device, _, rest = text.partition("/")
    incarnation, _, pattern = rest.partition("/")
    if not (device and pattern and incarnation.isascii() and incarnation.isdecimal()):
        raise click.UsageError(f"found {text!r}, expected DEVICE/INCARNATION/PATTERN")
    return {"device": device, "incarnation": int(incarnation), "pattern": pattern}


def ask_agent(folder: Path, command: str | dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """Send a command to the agent; if none runs, say how to start it."""
    from edgemerge.agent.control import send_command
    from edgemerge.core.errors import UnavailableError

    try:
        return send_command(folder, command, timeout_s)
    except UnavailableError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and not isinstance(cause, TimeoutError):
            raise CommandError(
                f"no agent runs on {folder}: `edgemerge agent CONFIG.toml` starts one",
                ExitCode.UNREACHABLE,
            ) from error
        raise


def find_state_folder(place: Path) -> Path:
    """Return a state folder as it is, or the one that a configuration names."""
    if place.is_dir():
        return place
    from edgemerge.agent.config import read_config

    return read_config(place, environment=os.environ).state


@click.command(
    epilog=example(
        "edgemerge enrol https://hub:8470 pumps pump-3 \\",
        "    --invitation-file invitation --token-file pump-3.token",
    )
)
@click.argument("url")
@click.argument("fleet")
@click.argument("device")
@click.option(
    "--invitation-file",
    type=click.Path(dir_okay=False, allow_dash=True),
    required=True,
    help="Output of `fleet invite`; - for standard input.",
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="File to write the device's token to, readable by its owner only.",
)
@ca_option
@click.option("--force", is_flag=True, help="Overwrite the token file.")
@json_option
def enrol(
    url: str,
    fleet: str,
    device: str,
    invitation_file: str,
    token_file: Path,
    ca_file: Path | None,
    *,
    force: bool,
    as_json: bool,
) -> None:
    """Enrol this device with an invitation.

    DEVICE joins FLEET on the server at URL and gets a token of its own.
    """
    from edgemerge.files import write_atomically

    _check_writable(token_file, force=force)
    with server_connection(url, _read_invitation(invitation_file), ca_file) as client:
        found = client.enrol(fleet, device)
    write_atomically(f"{found.pop('token')}\n".encode(), token_file)
    found["token_file"] = str(token_file)
    print_json(found) if as_json else print_fields(found)


def _read_invitation(path: str) -> str:
    found = sys.stdin.read(4096).strip() if path == "-" else read_own_token(Path(path))
    if not found:
        raise CommandError(
            "found no invitation on standard input: `edgemerge fleet invite` prints one"
        )
    return found


def _check_writable(path: Path, *, force: bool) -> None:
    """Check before the invitation is used, since it works only once."""
    if path.exists() and not force:
        raise CommandError(f"{path} already exists: --force overwrites it")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise CommandError(f"{path.parent} is not a writable folder: make it first")
