"""Commands on a device: `enrol` it, run its `agent`, `sync` a running one, `keys`, `monitor`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from edgemerge.cli.group import (
    CommandError,
    ExitCode,
    LazyGroup,
    example,
    exit_code,
    needs,
    option,
    options,
)
from edgemerge.cli.options import (
    INSECURE,
    ca_option,
    check_device_name,
    check_writable,
    insecure_option,
    read_own_token,
    server_connection,
)
from edgemerge.cli.output import (
    confirm,
    format_time,
    format_value,
    headings,
    json_option,
    limit_words,
    print_fields,
    print_json,
    print_table,
    progress,
    remark,
)

if TYPE_CHECKING:
    from edgemerge.agent.config import Config


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
@click.option(
    "--check",
    is_flag=True,
    help="Print what holds, with the fleet's configuration if it has one, and exit.",
)
@json_option
def agent(config: Path, overrides: tuple[str, ...], *, check: bool, as_json: bool) -> None:
    """Learn, score and exchange on this device.

    Runs as CONFIG.toml says until a signal stops it; then the exit code is 0. With --check it
    prints the configuration and runs nothing. A file with [[devices]] runs several devices; the
    exit code is then that of the first one that failed.
    """
    from threading import Event

    from edgemerge.agent.config import GatewayConfig, read_configuration
    from edgemerge.daemon import JsonFormatter, TextFormatter, log_to_stderr, stop_on_signals

    settings = read_configuration(config, environment=os.environ, overrides=overrides)
    if check:
        _print_config(settings, as_json=as_json)
        return
    for each in settings.devices:
        _need_extras(each)
    from edgemerge.agent.supervisor import run, run_gateway

    log_to_stderr(
        settings.log.level, form=JsonFormatter if settings.log.format == "json" else TextFormatter
    )
    stop = Event()
    with stop_on_signals(stop):
        if isinstance(settings, GatewayConfig):
            raise SystemExit(run_gateway(settings, stop=stop, exit_code=exit_code))
        raise SystemExit(run(settings, stop=stop))


def _need_extras(config: Any) -> None:
    """Say how to install what a configuration needs, before anything is started."""
    kinds = (config.source.kind, config.exchange.kind, *(sink.kind for sink in config.sinks))
    packages = {"mqtt": "paho.mqtt.client", "opcua": "asyncua", "modbus": "pymodbus"}
    for extra, package in packages.items():
        if extra in kinds:
            needs(extra, package)
    if config.next is not None:
        _need_extras(config.next)


def _print_config(settings: Any, *, as_json: bool) -> None:
    """Print what holds, and where it comes from; of several devices one after the other."""
    from edgemerge.agent.config import origins_of

    effective = [effective_config(each) for each in settings.devices]
    found = [
        config_as_json(config) | {"fleet_configuration": held.plain() | {"why": why}}
        | {"origins": origins_of(config, held)}
        for config, held, why in effective
    ]  # fmt: skip
    if settings.devices != (settings,):
        found = [{"state": str(settings.state), "devices": found}]
    if as_json:
        print_json(found[0])
        return
    for number, (config, held, why) in enumerate(effective):
        click.echo("\n" if number else "", nl=False)
        print_fields(config_summary(config) | {"fleet": fleet_words(held, why)})
        for key, origin in origins_of(config, held).items():
            if origin.startswith("the fleet"):
                click.echo(f"  {key} is set by {origin}")


def effective_config(config: Any) -> tuple[Any, Any, str]:
    """Return what holds on a device: its own configuration, and the fleet's that it has below it.

    Also returns what it has of the fleet's, and why that cannot be used, if so.
    """
    from edgemerge.agent.config import FleetConfiguration, with_fleet_tables
    from edgemerge.core.errors import SettingError

    held = FleetConfiguration.read(config.state)
    if not config.report.follow:
        return config, FleetConfiguration(), "report.follow is false"
    try:
        return with_fleet_tables(config, held.tables), held, ""
    except SettingError as error:
        return config, held, str(error)


def fleet_words(held: Any, why: str) -> str:
    """Say in words which version of the fleet's configuration is in force."""
    words = f"configuration version {held.version}" if held.version else "no configuration"
    if held.refused:
        words += f"; version {held.seen} was refused: {held.refused}"
    if held.restart:
        words += f"; after a restart: {', '.join(held.restart)}"
    return f"{words}; not used: {why}" if why else words


def config_as_json(config: Any) -> dict[str, Any]:
    """Return a configuration as plain JSON; it names files of secrets, never secrets."""
    from edgemerge.cli.files import describe_projection, with_old_keys

    shared = config.projection
    projection = None if shared is None else with_old_keys(describe_projection(shared))
    found = {name: _to_json(value) for name, value in _tables(config).items()}
    following = None if config.next is None else config_as_json(config.next)
    return found | {"projection": projection} | ({"next": following} if following else {})


def _tables(config: Any) -> dict[str, Any]:
    others = ("projection", "next", "given", "file")
    return {name: value for name, value in vars(config).items() if name not in others}


def config_summary(config: Any) -> dict[str, str]:
    """Return one line per table: its kind, and every value that is not the default."""
    shared = "from the fleet" if config.projection is None else str(config.projection)
    found = {name: _summary_line(value) for name, value in _tables(config).items()}
    found["projection"] = shared
    if config.next is not None:
        found["next"] = f"{config.next.state}, until it watches"
    return found


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


F = TypeVar("F", bound=Callable[..., Any])
device_options = options(
    click.option("--device", metavar="NAME", help="The device, if several run behind one agent."),
    json_option,
)


def place_argument(*, required: bool = False) -> Callable[[F], F]:
    """Take the configuration or the state folder of the agent, by default this folder."""
    options: dict[str, Any] = {"metavar": "CONFIG_OR_STATE" if required else "[CONFIG_OR_STATE]"}
    if not required:
        options["default"] = Path()
    return click.argument("place", type=click.Path(path_type=Path), **options)


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
@place_argument()
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
@device_options
def sync(
    place: Path,
    timeout_s: float,
    *,
    device: str | None,
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
    from edgemerge.cli.files import with_old_keys

    folder = find_state_folder(place, device)
    for name, keys in decisions.items():
        for key in keys:
            said = {"command": "trust", "decision": name.removesuffix("_decision"), **_key(key)}
            remark(ask_agent(folder, said | {"comment": comment}, timeout_s)["done"])
    with progress("waiting for the agent"):
        answer = ask_agent(folder, "undo" if undo else "sync", timeout_s)
    found = {"merge" if key == "told" else key: value for key, value in answer.items()}
    faults = {"faults": fault_words(found["faults"])} if "faults" in found else {}
    print_json(with_old_keys(found)) if as_json else print_fields(found | faults)
    if found.get("exchange", "ok") != "ok":
        denied = str(found["exchange"]).startswith(("denied", "refused"))
        raise CommandError(
            f"the exchange failed: {found['exchange']}",
            ExitCode.REFUSED if denied else ExitCode.UNREACHABLE,
        )


def fault_words(faults: Mapping[str, Any]) -> str:
    """Return in words which faults are shared, held back and known, and what went wrong."""
    known = [
        f"{each['name']} of {each['device']} ({format_value(each['samples'])} samples)"
        for each in faults["known"]
    ]
    parts = {"shared": faults["shared"], "held back": faults["held_back"], "known": known}
    parts["trouble"] = [faults["trouble"]] if faults["trouble"] else []
    return (
        "; ".join(f"{word} {', '.join(found)}" for word, found in parts.items() if found) or "none"
    )


def _key(text: str) -> dict[str, Any]:
    device, _, rest = text.partition("/")
    incarnation, _, pattern = rest.partition("/")
    if not (device and pattern and incarnation.isascii() and incarnation.isdecimal()):
        raise click.UsageError(f"found {text!r}, expected DEVICE/INCARNATION/PATTERN")
    return {"device": device, "incarnation": int(incarnation), "pattern": pattern}


@click.command(
    epilog=example(
        "edgemerge keys pump-3.toml",
        "edgemerge keys pump-3.toml --accept \\",
        f"    pump-9={'5f0c' * 16}",
    )
)
@place_argument()
@click.option(
    "--accept",
    "accepted",
    metavar="DEVICE=KEY",
    multiple=True,
    help="Take this key for this device from now on, in place of its first; can be repeated.",
)
@device_options
def keys(place: Path, accepted: tuple[str, ...], *, device: str | None, as_json: bool) -> None:
    """Show the keys that devices' signatures are checked with.

    Over MQTT and between peers a device signs what it shares, and others remember the first key
    under its name. When a device was replaced, compare the key that it shows as its own with the
    one that was refused, and --accept that. A running agent follows at its next exchange.
    """
    from edgemerge.signatures import CAN_SIGN, KEY_FILE, KNOWN_KEYS_FILE, KnownKeys, SigningKey

    folder = find_state_folder(place, device)
    if not folder.is_dir():
        raise CommandError(f"found no state folder {folder}: run the agent first")
    known = KnownKeys(folder / KNOWN_KEYS_FILE)
    for text in accepted:
        name, _, key = text.rpartition("=")
        if not name:
            raise CommandError(f'found --accept "{text}", expected DEVICE=KEY')
        known.accept(name, key)
    own = SigningKey.own(folder / KEY_FILE) if (folder / KEY_FILE).exists() else None
    why = "it is made at the first exchange" if CAN_SIGN else "install the extra tls of edgemerge"
    found = known.all()
    if as_json:
        print_json({"own": own.public if own else None, "known": found})
        return
    print_fields({"own": own.public if own else f"none: {why}"})
    rows = [{"device": name, "key": found[name]} for name in sorted(found)]
    print_table(rows, headings("device", "key"))


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
                f"no agent runs on {folder}: `edgemerge agent CONFIG.toml` starts one; it ends "
                f"with a file that does not grow, and `edgemerge show {folder}` shows what it kept",
                ExitCode.UNREACHABLE,
            ) from error
        raise


def find_state_folder(place: Path, device: str | None = None) -> Path:
    """Return a device's state folder: as it is, or as a configuration names it."""
    if place.is_dir():
        return place if device is None else place / device
    from edgemerge.agent.config import read_config

    return read_config(place, environment=os.environ, device=device).state


@click.command(
    epilog=example(
        "edgemerge enrol https://hub:8470 pumps pump-3 \\",
        "    --invitation-file invitation --token-file pump-3.token",
        "edgemerge enrol --config pump-3.toml --invitation-file invitation",
    )
)
@click.argument("url", required=False)
@click.argument("fleet", required=False)
@click.argument("device", required=False)
@click.option(
    "--config",
    "config_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Agent's configuration to take URL, FLEET, DEVICE, --token-file and --ca-file from.",
)
@click.option(
    "--invitation-file",
    type=click.Path(dir_okay=False, allow_dash=True),
    required=True,
    help="Output of `fleet invite`; - for standard input.",
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write the device's token to, readable by its owner only.",
)
@ca_option
@insecure_option
@click.option("--force", is_flag=True, help="Overwrite the token file.")
@json_option
def enrol(
    url: str | None,
    fleet: str | None,
    device: str | None,
    config_file: Path | None,
    invitation_file: str,
    token_file: Path | None,
    ca_file: Path | None,
    *,
    force: bool,
    as_json: bool,
) -> None:
    """Enrol this device with an invitation.

    DEVICE joins FLEET on the server at URL and gets a token of its own. Give the three, or the
    agent's configuration.
    """
    from edgemerge.files import write_atomically

    if config_file is not None:
        if url is not None:
            raise click.UsageError("found --config and URL: give one of them")
        agent = _enrolling(config_file)
        url, fleet, device = agent.exchange.url, agent.exchange.fleet, agent.device
        token_file = token_file or agent.exchange.token_file
        ca_file = ca_file or agent.exchange.ca_file
        if agent.exchange.insecure:
            click.get_current_context().meta[INSECURE] = True
    if url is None or fleet is None or device is None:
        raise click.UsageError("found no URL, FLEET and DEVICE: give them, or --config")
    if token_file is None:
        raise click.UsageError("found no file for the device's token: give --token-file")
    check_device_name(device)
    check_writable(token_file, force=force)  # the invitation works only once
    with server_connection(url, _read_invitation(invitation_file), ca_file) as client:
        found = client.enrol(fleet, device)
    write_atomically(f"{found.pop('token')}\n".encode(), token_file)
    found["token_file"] = str(token_file)
    print_json(found) if as_json else print_fields(found)


def _enrolling(path: Path) -> Config:
    """Return the configuration of the one device that can enrol with this file."""
    from edgemerge.agent.config import read_configuration

    found = read_configuration(path, environment=os.environ).devices
    if len(found) > 1:
        raise CommandError(f"{path} has {len(found)} devices: enrol each by URL, FLEET and DEVICE")
    if found[0].exchange.url is None or found[0].exchange.fleet is None:
        raise CommandError(f"{path} names no server: set url and fleet in [exchange]")
    return found[0]


def _read_invitation(path: str) -> str:
    found = sys.stdin.read(4096).strip() if path == "-" else read_own_token(Path(path))
    if not found:
        raise CommandError(
            "found no invitation on standard input: `edgemerge fleet invite` prints one"
        )
    return found


SECTIONS = {
    "Look": {"show": "edgemerge.cli.agent"},
    "Decide": {
        "review": "edgemerge.cli.agent",
        "acknowledge": "edgemerge.cli.agent",
        "snooze": "edgemerge.cli.agent",
    },
    "Learn": {
        "watch": "edgemerge.cli.agent",
        "relearn": "edgemerge.cli.agent",
        "accept-drift": "edgemerge.cli.agent:accept_drift",
    },
}
PATTERN_DECISIONS = ("approve", "fault", "dismiss", "undo")
EPISODE_COLUMNS = headings(
    "number", "began", "ended", "peak", "samples", "inputs", "pattern", number="EPISODE"
)
PATTERN_COLUMNS = headings(
    "name", "status", "first", "last", "samples", "peak", "inputs", "nearest", name="PATTERN"
)
DEVICE_COLUMNS = headings(
    *("device", "state", "data", "phase", "samples", "skipped", "episodes", "why"),
    episodes="OPEN EPISODES",
)
SHOWN_INPUTS = 3
TIMEOUT_S = 60.0


@click.group(cls=LazyGroup, sections=SECTIONS, epilog=example("edgemerge monitor show pump-3.toml"))
def monitor() -> None:
    """Review what a running agent found odd.

    CONFIG_OR_STATE is the agent's CONFIG.toml or its state folder.
    """


@click.command(epilog=example("edgemerge monitor show pump-3.toml"))
@place_argument()
@device_options
def show(place: Path, *, device: str | None, as_json: bool) -> None:
    """Show problems with the data, episodes, patterns, limit and drift.

    Episodes are shown until they are acknowledged. Of several devices behind one agent, one line
    for each is shown, unless --device chooses one.
    """
    folder = place if device or place.is_dir() else _gateway_folder(place)
    found = _ask(folder, device, {"command": "status"})
    if "devices" in found:
        rows = [_device_row(each) for each in found["devices"]]
        print_json(rows) if as_json else print_table(rows, DEVICE_COLUMNS)
        return
    shown = found["monitor"] | {"problems": found.get("problems", [])}
    print_json(shown) if as_json else print_monitor(shown)


def _gateway_folder(place: Path) -> Path:
    """Return the folder of the agent that runs a configuration, with one device or several."""
    from edgemerge.agent.config import read_configuration

    return read_configuration(place, environment=os.environ).state


def _device_row(device: dict[str, Any]) -> dict[str, Any]:
    """Return one line about a device: what the process says of it, and what it says itself."""
    from edgemerge.agent.control import send_command
    from edgemerge.core.errors import EdgemergeError

    empty = dict.fromkeys(("samples", "phase", "episodes", "skipped", "data"))
    row = {name: device[name] for name in ("device", "state", "why")} | empty
    if device["state"] != "running":
        return row
    try:
        found = send_command(Path(device["folder"]), "status", TIMEOUT_S)
    except EdgemergeError as error:
        return row | {"why": str(error)}
    monitor = found["monitor"]
    row |= {"samples": found["samples"], "skipped": found["skipped"], "phase": monitor["phase"]}
    row["data"] = _data_words(found)
    return row | {"episodes": sum(each["ended"] is None for each in monitor["episodes"])}


def print_monitor(status: Mapping[str, Any], **fields: Any) -> None:
    """Print a monitor's status: a summary that begins with `fields`, episodes and patterns."""
    print_fields(fields | _summary(status))
    for problem in status.get("problems", []):
        since = format_time(problem["since"])
        click.secho(f"\n{problem['name']} since {since}: {problem['words']}", fg="yellow")
    for title, rows, columns in (
        ("Episodes", status["episodes"], EPISODE_COLUMNS),
        ("Patterns", status["patterns"], PATTERN_COLUMNS),
    ):
        if rows:
            click.echo(f"\n{title}")
            print_table(map(_row, rows), columns)
    for title, rows in _fault_rows(status).items():
        if rows:
            click.echo(f"\n{title}")
            print_fields(rows)


def _fault_rows(status: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return which known faults the patterns are like, and which own faults are shared."""
    likes = {each["name"]: each.get("like") for each in status["patterns"]}
    # The agent has it in parts, a server as words.
    words = {n: x["words"] if isinstance(x, dict) else x for n, x in likes.items() if x}
    own = {each["name"]: each["sharing"] for each in status["patterns"] if each.get("sharing")}
    return {"Patterns beside known faults": words, "Faults of this device": own}


def _data_words(status: Mapping[str, Any]) -> str:
    return ", ".join(each["name"] for each in status.get("problems", [])) or "ok"


def _summary(status: Mapping[str, Any]) -> dict[str, Any]:
    done, limit, phase = status["commissioning"], status["limit"], status["phase"]
    of = "" if done["of"] is None else f" of {done['of']:g}"
    if phase == "commissioning":
        phase = f"commissioning: {done['samples']:g}{of} samples"
    return {
        "data": _data_words(status),
        "phase": phase,
        "ready": status["ready"],
        "learn": status["learn"],
        "limit": limit_words(limit),
        "drift": f"{status['drift']:.3g} (1 is none)",
        "outside the range": status["outside"],
        "snoozed until": format_time(status["snoozed_until"]),
        "episodes": len(status["episodes"]) or "none to acknowledge",
        "patterns": len(status["patterns"]) or "none",
    }


def _row(each: Mapping[str, Any]) -> dict[str, Any]:
    from edgemerge.delivery import factor_words

    names = [name for name in ("began", "ended", "first", "last") if name in each]
    times = {name: format_time(each[name]) for name in names}
    if "ended" in each and each["ended"] is None:
        times["ended"] = "open"
    inputs = factor_words(each["inputs"][:SHOWN_INPUTS])
    return {**each, **times, "inputs": inputs, "peak": float(f"{each['peak']:.4g}")}


@click.command(
    epilog=example(
        "edgemerge monitor review pump-3.toml odd-1 approve",
        "edgemerge monitor review pump-3.toml odd-2 fault bearing",
    )
)
@place_argument(required=True)
@click.argument("pattern")
@click.argument("decision", type=click.Choice(PATTERN_DECISIONS))
@click.argument("name", required=False)
@device_options
def review(
    place: Path, pattern: str, decision: str, name: str | None, *, device: str | None, as_json: bool
) -> None:
    """Say what a pattern is: normal, a fault, or nothing.

    approve makes it normal: it is learnt and may be shared. fault gives it a NAME, which later
    alarms carry. dismiss hides it. undo makes it unreviewed again, exactly.
    """
    if (name is not None) != (decision == "fault"):
        raise CommandError("a fault needs a NAME, and nothing else has one: fault bearing")
    said = {"command": "review", "pattern": pattern, "decision": decision, "name": name or ""}
    _decide(place, device, said, as_json=as_json)


@click.command(epilog=example("edgemerge monitor acknowledge pump-3.toml 7"))
@place_argument(required=True)
@click.argument("episode", type=int, required=False)
@device_options
def acknowledge(place: Path, episode: int | None, *, device: str | None, as_json: bool) -> None:
    """Mark an episode as seen, or all of them."""
    _decide(place, device, {"command": "acknowledge", "episode": episode}, as_json=as_json)


hours_option = click.option(
    "--hours",
    type=click.FloatRange(min=0, max=8760),
    help="Snooze for so many hours; 0 is off. The same as TIME.",
)


def snooze_time(time: str | None, hours: float | None) -> str:
    """Return the TIME of a snooze from either form of it."""
    if (time is None) == (hours is None):
        raise click.UsageError(
            f"found {'no TIME' if time is None else 'a TIME and --hours'} for snooze, expected "
            'one such as "2 hours", "2026-11-17T18:00" or "off"'
        )
    return time or (f"{hours:f} hours" if hours else "off")


@click.command(
    epilog=example(
        'edgemerge monitor snooze pump-3.toml "2 hours"',
        "edgemerge monitor snooze pump-3.toml off",
    )
)
@place_argument(required=True)
@click.argument("time", required=False)
@hours_option
@device_options
def snooze(
    place: Path, time: str | None, *, device: str | None, hours: float | None, as_json: bool
) -> None:
    """Raise no alarm and learn nothing for a while.

    TIME is how long ("2 hours"), until when (2026-11-17T18:00, in UTC unless it says otherwise),
    or off.
    """
    asked = {"command": "snooze", "time": snooze_time(time, hours)}
    _decide(place, device, asked, as_json=as_json)


@click.command(epilog=example("edgemerge monitor watch pump-3.toml"))
@place_argument()
@device_options
def watch(place: Path, *, device: str | None, as_json: bool) -> None:
    """End commissioning now: alarms are raised from now on."""
    _decide(place, device, {"command": "watch"}, as_json=as_json)


@click.command(epilog=example("edgemerge monitor relearn pump-3.toml --yes"))
@place_argument()
@click.option("--yes", is_flag=True, help="Do not ask.")
@device_options
def relearn(place: Path, *, device: str | None, yes: bool, as_json: bool) -> None:
    """Forget what this device saw and begin commissioning again.

    For after maintenance. What was adopted from others stays, and so do named faults. What this
    device had shared is replaced by its next release.
    """
    confirm("Forget all that this device has learnt by itself?", yes=yes)
    _decide(place, device, {"command": "relearn"}, as_json=as_json)


@click.command("accept-drift", epilog=example("edgemerge monitor accept-drift pump-3.toml"))
@place_argument()
@device_options
def accept_drift(place: Path, *, device: str | None, as_json: bool) -> None:
    """Take what was learnt up to now as normal, and go on learning.

    Drift is measured from here on.
    """
    _decide(place, device, {"command": "accept_drift"}, as_json=as_json)


def _decide(place: Path, device: str | None, said: dict[str, Any], *, as_json: bool) -> None:
    found = _ask(place, device, said)
    print_json(found) if as_json else click.echo(found["done"])


def _ask(place: Path, device: str | None, said: dict[str, Any]) -> dict[str, Any]:
    return ask_agent(find_state_folder(place, device), said, TIMEOUT_S)
