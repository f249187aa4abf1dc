"""Commands about a running agent's monitor: its episodes and patterns, and what to do with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from edgemerge.cli.agent import ask_agent, find_state_folder
from edgemerge.cli.group import CommandError, LazyGroup, example
from edgemerge.cli.output import (
    confirm,
    format_time,
    headings,
    json_option,
    print_fields,
    print_json,
    print_table,
)

SECTIONS = {
    "Look": {"show": "edgemerge.cli.monitor"},
    "Decide": {
        "review": "edgemerge.cli.monitor",
        "acknowledge": "edgemerge.cli.monitor",
        "snooze": "edgemerge.cli.monitor",
    },
    "Learn": {
        "watch": "edgemerge.cli.monitor",
        "relearn": "edgemerge.cli.monitor",
        "accept-drift": "edgemerge.cli.monitor:accept_drift",
    },
}
PATTERN_DECISIONS = ("approve", "fault", "dismiss", "undo")
EPISODE_COLUMNS = headings(
    "number", "began", "ended", "peak", "samples", "inputs", "pattern", number="EPISODE"
)
PATTERN_COLUMNS = headings(
    "name", "status", "first", "last", "samples", "peak", "inputs", "nearest", name="PATTERN"
)
SHOWN_INPUTS = 3
TIMEOUT_S = 60.0

F = TypeVar("F", bound=Callable[..., Any])


def place_argument(*, required: bool = False) -> Callable[[F], F]:
    """Take the configuration or the state folder of the agent, by default this folder."""
    options: dict[str, Any] = {"metavar": "CONFIG_OR_STATE" if required else "[CONFIG_OR_STATE]"}
    if not required:
        options["default"] = Path()
    return click.argument("place", type=click.Path(path_type=Path), **options)


@click.group(cls=LazyGroup, sections=SECTIONS, epilog=example("edgemerge monitor show pump-3.toml"))
def monitor() -> None:
    """Review what a running agent found odd.

    CONFIG_OR_STATE is the agent's CONFIG.toml or its state folder.
    """


@click.command(epilog=example("edgemerge monitor show pump-3.toml"))
@place_argument()
@json_option
def show(place: Path, *, as_json: bool) -> None:
    """Show episodes, patterns, limit and drift.

    Episodes are shown until they are acknowledged.
    """
    found = _ask(place, {"command": "status"})["monitor"]
    if as_json:
        print_json(found)
        return
    print_monitor(found)


def print_monitor(status: Mapping[str, Any], **fields: Any) -> None:
    """Print a monitor's status: a summary that begins with `fields`, episodes and patterns."""
    print_fields(fields | _summary(status))
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


def _summary(status: Mapping[str, Any]) -> dict[str, Any]:
    done, limit, phase = status["commissioning"], status["limit"], status["phase"]
    of = "" if done["of"] is None else f" of {done['of']:g}"
    if phase == "commissioning":
        phase = f"commissioning: {done['samples']:g}{of} samples"
    missing = f", {limit['missing']:g} samples missing" if limit["missing"] else ""
    return {
        "phase": phase,
        "ready": status["ready"],
        "learn": status["learn"],
        "limit": f"{limit['value'] or 0:g} ({limit['kind']}{missing})",
        "drift": f"{status['drift']:.3g} (1 is none)",
        "outside the range": status["outside"],
        "snoozed until": format_time(status["snoozed_until"]),
        "episodes": len(status["episodes"]) or "none to acknowledge",
        "patterns": len(status["patterns"]) or "none",
    }


def _row(each: Mapping[str, Any]) -> dict[str, Any]:
    names = [name for name in ("began", "ended", "first", "last") if name in each]
    times = {name: format_time(each[name]) for name in names}
    if "ended" in each and each["ended"] is None:
        times["ended"] = "open"
    inputs = ", ".join(f"{name} {share:.3g}" for name, share in each["inputs"][:SHOWN_INPUTS])
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
@json_option
def review(place: Path, pattern: str, decision: str, name: str | None, *, as_json: bool) -> None:
    """Say what a pattern is: normal, a fault, or nothing.

    approve makes it normal: it is learnt and may be shared. fault gives it a NAME, which later
    alarms carry. dismiss hides it. undo makes it unreviewed again, exactly.
    """
    if (name is not None) != (decision == "fault"):
        raise CommandError("a fault needs a NAME, and nothing else has one: fault bearing")
    said = {"command": "review", "pattern": pattern, "decision": decision, "name": name or ""}
    _decide(place, said, as_json=as_json)


@click.command(epilog=example("edgemerge monitor acknowledge pump-3.toml 7"))
@place_argument(required=True)
@click.argument("episode", type=int, required=False)
@json_option
def acknowledge(place: Path, episode: int | None, *, as_json: bool) -> None:
    """Mark an episode as seen, or all of them."""
    _decide(place, {"command": "acknowledge", "episode": episode}, as_json=as_json)


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
@json_option
def snooze(place: Path, time: str | None, *, hours: float | None, as_json: bool) -> None:
    """Raise no alarm and learn nothing for a while.

    TIME is how long ("2 hours"), until when (2026-11-17T18:00, in UTC unless it says otherwise),
    or off.
    """
    asked = {"command": "snooze", "time": snooze_time(time, hours)}
    _decide(place, asked, as_json=as_json)


@click.command(epilog=example("edgemerge monitor watch pump-3.toml"))
@place_argument()
@json_option
def watch(place: Path, *, as_json: bool) -> None:
    """End commissioning now: alarms are raised from now on."""
    _decide(place, {"command": "watch"}, as_json=as_json)


@click.command(epilog=example("edgemerge monitor relearn pump-3.toml --yes"))
@place_argument()
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def relearn(place: Path, *, yes: bool, as_json: bool) -> None:
    """Forget what this device saw and begin commissioning again.

    For after maintenance. What was adopted from others stays, and so do named faults. What this
    device had shared is replaced by its next release.
    """
    confirm("Forget all that this device has learnt by itself?", yes=yes)
    _decide(place, {"command": "relearn"}, as_json=as_json)


@click.command("accept-drift", epilog=example("edgemerge monitor accept-drift pump-3.toml"))
@place_argument()
@json_option
def accept_drift(place: Path, *, as_json: bool) -> None:
    """Take what was learnt up to now as normal, and go on learning.

    Drift is measured from here on.
    """
    _decide(place, {"command": "accept_drift"}, as_json=as_json)


def _decide(place: Path, said: dict[str, Any], *, as_json: bool) -> None:
    found = _ask(place, said)
    print_json(found) if as_json else click.echo(found["done"])


def _ask(place: Path, said: dict[str, Any]) -> dict[str, Any]:
    return ask_agent(find_state_folder(place), said, TIMEOUT_S)
