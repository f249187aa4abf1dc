"""`edgemerge fleet`: what an operator chooses about who is told what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from edgemerge.cli.fleet import dated
from edgemerge.cli.hub import connected, hub_options
from edgemerge.cli.output import at, json_option, remark, say_json, say_table

Command = TypeVar("Command", bound=Callable[..., Any])

CHOICES = {
    "number": "NUMBER",
    "at": "AT",
    "actor": "ACTOR",
    "what": "WHAT",
    "undone": "UNDONE",
}
PREVIEW = {
    "device": "DEVICE",
    "pattern": "PATTERN",
    "samples": "SAMPLES",
    "joined": "JOINED",
    "alone": "ALONE",
    "before": "BEFORE",
    "after": "AFTER",
    "shift": "SHIFT",
}
DIGITS = 4  # of a loss: more would only look exact
NAMES = 5  # that a line shows
SOON = "Devices that report hear of it soon, others at their next exchange."

device_options = (
    click.option("--from", "sources", metavar="DEVICE", multiple=True, help="A source; repeat it."),
    click.option("--from-nobody", is_flag=True, help="Choose no source at all."),
    click.option(
        "--to", "targets", metavar="DEVICE", multiple=True, required=True, help="A target; repeat."
    ),
)


def selecting(command: Command) -> Command:
    """Add the options that select sources and targets."""
    for option in reversed(device_options):
        command = option(command)
    return command


@click.command()
@click.argument("fleet")
@click.option("--all", "undone", is_flag=True, help="Show those that were undone, too.")
@hub_options
@json_option
def choices(fleet: str, *, undone: bool, as_json: bool, **where: Any) -> None:
    """List what was chosen about who is told what."""
    with connected(**where) as hub:
        found = [each for each in hub.choices(fleet) if undone or each["undone"] is None]
    shown = [{**dated(each), "undone": at(each["undone"])} for each in found]
    say_json(shown) if as_json else say_table(
        [{**each, "what": what(each)} for each in shown], CHOICES
    )
    if not shown:
        remark(f"Nothing was chosen: every device of {fleet} is told of all others.")


@click.command()
@click.argument("fleet")
@selecting
@hub_options
@json_option
def adopt(
    fleet: str,
    sources: tuple[str, ...],
    targets: tuple[str, ...],
    *,
    from_nobody: bool,
    as_json: bool,
    **where: Any,
) -> None:
    """Choose of whom devices are told.

    From now on the targets adopt what the sources contribute, and nothing of others. The newest
    choice for a device counts; `preview` shows before what it would do.
    """
    must_be_said(sources, from_nobody=from_nobody)
    with connected(**where) as hub:
        made = hub.adopt(fleet, sources, targets)
    tell(made, as_json=as_json)


@click.command()
@click.argument("fleet")
@click.argument("device")
@click.argument("incarnation", type=click.IntRange(min=0))
@click.argument("pattern")
@hub_options
@json_option
def withhold(
    fleet: str, device: str, incarnation: int, pattern: str, *, as_json: bool, **where: Any
) -> None:
    """Tell one contribution to nobody.

    `contributions` lists them with INCARNATION and PATTERN. It is kept, with all newer revisions,
    so that `undo` brings it back; `drop` forgets, and `revoke` locks the device itself out.
    """
    with connected(**where) as hub:
        made = hub.withhold(fleet, device, incarnation, pattern)
    tell(made, as_json=as_json)


@click.command()
@click.argument("fleet")
@click.argument("number", type=click.IntRange(min=1))
@hub_options
@json_option
def undo(fleet: str, number: int, *, as_json: bool, **where: Any) -> None:
    """Undo a choice, as if it had never been.

    `choices` lists them with their NUMBER. Undoing twice does no harm.
    """
    with connected(**where) as hub:
        found = hub.undo(fleet, number)
    if as_json:
        say_json({**dated(found), "undone": at(found["undone"])})
    else:
        click.echo(f"Undone {number}: {what(found)}.")
    remark(SOON)


@click.command()
@click.argument("fleet")
@selecting
@hub_options
@json_option
def preview(
    fleet: str,
    sources: tuple[str, ...],
    targets: tuple[str, ...],
    *,
    from_nobody: bool,
    as_json: bool,
    **where: Any,
) -> None:
    """Show what `adopt` would do, and do nothing.

    For each pattern of each target the loss of its own data: ALONE, as it is told now (BEFORE), and
    with the selection (AFTER); SHIFT is AFTER / BEFORE, JOINED the samples of others in it.
    """
    must_be_said(sources, from_nobody=from_nobody)
    with connected(**where) as hub:
        found = hub.preview(fleet, sources, targets)
    if as_json:
        say_json(found)
    else:
        losses = ("alone", "before", "after", "shift")
        rounded = ({word: float(f"{row[word]:.{DIGITS}g}") for word in losses} for row in found)
        say_table([{**row, **few} for row, few in zip(found, rounded, strict=True)], PREVIEW)
    if not found:
        remark("None of the targets has contributed anything yet: there is nothing to compare.")


def must_be_said(sources: tuple[str, ...], *, from_nobody: bool) -> None:
    """Refuse a selection without sources that does not say so."""
    if bool(sources) == from_nobody:
        raise click.UsageError("say which sources: --from DEVICE, or --from-nobody for none")


def tell(made: dict[str, Any], *, as_json: bool) -> None:
    """Print a choice that was made."""
    if as_json:
        say_json(dated(made))
    else:
        click.echo(f"Choice {made['number']}: {what(made)}.")
    remark(SOON)


def what(choice: dict[str, Any]) -> str:
    """Say in words what a choice decides."""
    if choice["kind"] == "revoke":
        key = f"{choice['device']}/{choice['incarnation']}/{choice['pattern']}"
        return f"{key} is told to nobody"
    return f"{some(choice['targets'])} told of {some(choice['sources'])} only"


def some(names: list[str]) -> str:
    """Name a few, and how many more there are."""
    more = len(names) - NAMES
    return (", ".join(names[:NAMES]) or "nobody") + (f" and {more} more" if more > 0 else "")
