"""Commands of the operator: fleets, devices, contributions, choices and the audit log."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import click

from edgemerge.cli.group import CommandError, LazyGroup
from edgemerge.cli.options import (
    build_projection,
    operator_connection,
    projection_options,
    server_options,
)
from edgemerge.cli.output import (
    confirm,
    format_time,
    json_option,
    print_fields,
    print_json,
    print_table,
    remark,
)
from edgemerge.core.errors import RejectedError

FIRST_HASH = "0" * 64
HASHED_FIELDS = ("seq", "at", "actor", "action", "fleet", "subject", "detail")


def entry_hash(entry: Mapping[str, Any]) -> str:
    """Give the hash that an entry must have."""
    told = {word: entry.get(word) for word in HASHED_FIELDS}
    text = json.dumps(told, separators=(",", ":"), sort_keys=True)
    return sha256((str(entry.get("previous")) + text).encode()).hexdigest()


def verify_chain(entries: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Pass on entries from the first one on; stop with an error where the chain does not hold.

    >>> entry = dict.fromkeys(HASHED_FIELDS, "") | {"seq": 1, "previous": FIRST_HASH}
    >>> [found["seq"] for found in verify_chain([entry | {"hash": entry_hash(entry)}])]
    [1]
    >>> list(verify_chain([entry | {"hash": FIRST_HASH}]))
    Traceback (most recent call last):
    edgemerge.core.errors.RejectedError: the audit log was changed at entry 1: ...
    """
    previous, seq = FIRST_HASH, 0
    for entry in entries:
        if entry.get("seq") != seq + 1:
            raise _chain_error(seq + 1, f"the next one is {entry.get('seq')}")
        if entry.get("previous") != previous:
            raise _chain_error(seq + 1, "it does not follow from the one before")
        if entry.get("hash") != entry_hash(entry):
            raise _chain_error(seq + 1, "its hash is not that of its words")
        previous, seq = entry["hash"], entry["seq"]
        yield entry


def _chain_error(seq: int, why: str) -> RejectedError:
    return RejectedError(
        f"the audit log was changed at entry {seq}: {why}; compare with a copy of the database"
    )


SECTIONS = {
    "Fleets": {
        "create": "edgemerge.cli.fleet",
        "list": "edgemerge.cli.fleet:list_fleets",
        "show": "edgemerge.cli.fleet",
        "delete": "edgemerge.cli.fleet",
    },
    "Devices": {
        "invite": "edgemerge.cli.fleet",
        "devices": "edgemerge.cli.fleet",
        "revoke": "edgemerge.cli.fleet",
        "contributions": "edgemerge.cli.fleet",
        "drop": "edgemerge.cli.fleet",
    },
    "Who is told what": {
        "choices": "edgemerge.cli.fleet",
        "adopt": "edgemerge.cli.fleet",
        "withhold": "edgemerge.cli.fleet",
        "undo": "edgemerge.cli.fleet",
        "preview": "edgemerge.cli.fleet",
    },
    "The server": {"audit": "edgemerge.cli.fleet"},
}
FLEET_COLUMNS = {
    "fleet": "FLEET",
    "devices": "DEVICES",
    "contributions": "CONTRIBUTIONS",
    "samples": "SAMPLES",
    "reads": "READS",
    "created": "CREATED",
}


@click.group(cls=LazyGroup, sections=SECTIONS)
def fleet() -> None:
    """Create fleets and look after their devices.

    For the operator of a server, whose token is in --token-file.
    """


@click.command()
@click.argument("name", metavar="FLEET")
@projection_options
@click.option(
    "--reads",
    type=click.Choice(["totals", "contributions"]),
    default="totals",
    show_default=True,
    help="What devices may read of each other: sums of several, or single contributions.",
)
@click.option("--least", type=int, default=1, show_default=True, help="Devices in a sum, at least.")
@click.option("--growing", is_flag=True, help="Refuse sums that have fallen: nobody forgets.")
@server_options
@json_option
def create(
    name: str,
    reads: str,
    least: int,
    server: str,
    token_file: Path,
    ca_file: Path | None,
    *,
    growing: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Create a fleet, whose devices all share one projection.

    Say which FLEET is to have: --projection FILE, --like SAMPLES.csv, or --inputs, --low and
    --high. It cannot be changed later.
    """
    projection = build_projection(columns=[], **settings)
    with operator_connection(server=server, token_file=token_file, ca_file=ca_file) as hub:
        made = hub.create_fleet(name, projection, reads=reads, least=least, growing=growing)
        found = with_dates(hub.fleet(name))
    print_json(found) if as_json else print_fields(found)
    remark(f"Fleet {name} is there now." if made else f"The same fleet {name} was there already.")


@click.command(name="list")
@server_options
@json_option
def list_fleets(*, as_json: bool, **where: Any) -> None:
    """List all fleets."""
    with operator_connection(**where) as hub:
        found = [with_dates(each) for each in hub.fleets()]
    print_json(found) if as_json else print_table(found, FLEET_COLUMNS)


@click.command()
@click.argument("name", metavar="FLEET")
@click.option(
    "--save-projection",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the projection to this file.",
)
@server_options
@json_option
def show(name: str, save_projection: Path | None, *, as_json: bool, **where: Any) -> None:
    """Say what a fleet has agreed on, and how much is in it."""
    with operator_connection(**where) as hub:
        found = with_dates(hub.fleet(name))
        if save_projection:
            from edgemerge.files import save

            save(hub.projection(name), save_projection)
    print_json(found) if as_json else print_fields(found)


@click.command()
@click.argument("name", metavar="FLEET")
@click.option("--yes", is_flag=True, help="Do not ask.")
@server_options
@json_option
def delete(name: str, *, yes: bool, as_json: bool, **where: Any) -> None:
    """Delete a fleet with everything in it.

    All devices and contributions of FLEET go; there is no way back.
    """
    confirm(f"Delete fleet {name} with everything in it?", yes=yes)
    with operator_connection(**where) as hub:
        hub.delete_fleet(name)
    print_json({"deleted": name}) if as_json else click.echo(f"Deleted fleet {name}.")


def with_dates(found: Mapping[str, Any]) -> dict[str, Any]:
    """Write the moments in a reply for people."""
    moments = {"created", "expires", "enrolled", "revoked", "seen", "received", "at"}
    return {key: format_time(value) if key in moments else value for key, value in found.items()}


DEVICE_COLUMNS = {
    "device": "DEVICE",
    "contributions": "CONTRIBUTIONS",
    "samples": "SAMPLES",
    "seen": "SEEN",
    "revoked": "REVOKED",
}
CONTRIBUTION_COLUMNS = {
    "device": "DEVICE",
    "incarnation": "INC",
    "pattern": "PATTERN",
    "revision": "REV",
    "samples": "SAMPLES",
    "bytes": "BYTES",
    "received": "RECEIVED",
}


@click.command()
@click.argument("fleet")
@click.argument("device", required=False)
@click.option("--valid-s", type=int, default=86400, show_default=True, help="Seconds to use it.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the token to this file instead, for nobody else to read.",
)
@server_options
@json_option
def invite(
    fleet: str,
    device: str | None,
    valid_s: int,
    out: Path | None,
    *,
    as_json: bool,
    **where: Any,
) -> None:
    """Print a token with which one device can enrol.

    It works once, for DEVICE or else for any device, and within its time.
    """
    with operator_connection(**where) as hub:
        found = with_dates(hub.invite(fleet, device, valid_s=valid_s))
    if out:
        from edgemerge.files import write_atomically

        write_atomically(f"{found.pop('token')}\n".encode(), out)
        found["file"] = str(out)
    if as_json:
        print_json(found)
    else:
        click.echo(found.get("file") or found["token"])
    remark(f"For {device or 'any one device'}, once, until {found['expires']}.")


@click.command()
@click.argument("fleet")
@server_options
@json_option
def devices(fleet: str, *, as_json: bool, **where: Any) -> None:
    """List the devices that have enrolled."""
    with operator_connection(**where) as hub:
        found = [with_dates(each) for each in hub.devices(fleet)]
    print_json(found) if as_json else print_table(found, DEVICE_COLUMNS)


@click.command()
@click.argument("fleet")
@click.argument("device")
@server_options
@json_option
def revoke(fleet: str, device: str, *, as_json: bool, **where: Any) -> None:
    """Let the token of a device work no more.

    What DEVICE contributed stays until it is dropped.
    """
    with operator_connection(**where) as hub:
        hub.revoke(fleet, device)
    if as_json:
        print_json({"fleet": fleet, "revoked": device})
    else:
        click.echo(f"Revoked {device} of {fleet}. What it contributed stays; `drop` removes it.")


@click.command()
@click.argument("fleet")
@server_options
@json_option
def contributions(fleet: str, *, as_json: bool, **where: Any) -> None:
    """List what the devices have contributed."""
    with operator_connection(**where) as hub:
        found = hub.contributions(fleet)
    found["contributions"] = [with_dates(each) for each in found["contributions"]]
    print_json(found) if as_json else print_table(found["contributions"], CONTRIBUTION_COLUMNS)


@click.command()
@click.argument("fleet")
@click.argument("device")
@click.option("--yes", is_flag=True, help="Do not ask.")
@server_options
@json_option
def drop(fleet: str, device: str, *, yes: bool, as_json: bool, **where: Any) -> None:
    """Take out everything that a device contributed.

    As if DEVICE had never been heard: every sum that FLEET tells is made anew.
    """
    confirm(f"Take all contributions of {device} out of {fleet}?", yes=yes)
    with operator_connection(**where) as hub:
        dropped = hub.drop(fleet, device)
    if as_json:
        print_json({"fleet": fleet, "device": device, "dropped": dropped})
    else:
        click.echo(f"Dropped {dropped} contributions of {device}.")


Command = TypeVar("Command", bound=Callable[..., Any])

CHOICE_COLUMNS = {
    "number": "NUMBER",
    "at": "AT",
    "actor": "ACTOR",
    "what": "WHAT",
    "undone": "UNDONE",
}
PREVIEW_COLUMNS = {
    "device": "DEVICE",
    "pattern": "PATTERN",
    "samples": "SAMPLES",
    "joined": "JOINED",
    "alone": "ALONE",
    "before": "BEFORE",
    "after": "AFTER",
    "shift": "SHIFT",
}
LOSS_DIGITS = 4  # of a loss: more would only look exact
MAX_NAMES = 5  # that a line shows
EFFECT_NOTE = "Devices that report hear of it soon, others at their next exchange."

SELECTION_OPTIONS = (
    click.option("--from", "sources", metavar="DEVICE", multiple=True, help="A source; repeat it."),
    click.option("--from-nobody", is_flag=True, help="Choose no source at all."),
    click.option(
        "--to", "targets", metavar="DEVICE", multiple=True, required=True, help="A target; repeat."
    ),
)


def selection_options(command: Command) -> Command:
    """Add the options that select sources and targets."""
    for option in reversed(SELECTION_OPTIONS):
        command = option(command)
    return command


@click.command()
@click.argument("fleet")
@click.option("--all", "undone", is_flag=True, help="Show those that were undone, too.")
@server_options
@json_option
def choices(fleet: str, *, undone: bool, as_json: bool, **where: Any) -> None:
    """List what was chosen about who is told what."""
    with operator_connection(**where) as hub:
        found = [each for each in hub.choices(fleet) if undone or each["undone"] is None]
    shown = [{**with_dates(each), "undone": format_time(each["undone"])} for each in found]
    print_json(shown) if as_json else print_table(
        [{**each, "what": describe_choice(each)} for each in shown], CHOICE_COLUMNS
    )
    if not shown:
        remark(f"Nothing was chosen: every device of {fleet} is told of all others.")


@click.command()
@click.argument("fleet")
@selection_options
@server_options
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
    check_sources(sources, from_nobody=from_nobody)
    with operator_connection(**where) as hub:
        made = hub.adopt(fleet, sources, targets)
    print_choice(made, as_json=as_json)


@click.command()
@click.argument("fleet")
@click.argument("device")
@click.argument("incarnation", type=click.IntRange(min=0))
@click.argument("pattern")
@server_options
@json_option
def withhold(
    fleet: str, device: str, incarnation: int, pattern: str, *, as_json: bool, **where: Any
) -> None:
    """Tell one contribution to nobody.

    `contributions` lists them with INCARNATION and PATTERN. It is kept, with all newer revisions,
    so that `undo` brings it back; `drop` forgets, and `revoke` locks the device itself out.
    """
    with operator_connection(**where) as hub:
        made = hub.withhold(fleet, device, incarnation, pattern)
    print_choice(made, as_json=as_json)


@click.command()
@click.argument("fleet")
@click.argument("number", type=click.IntRange(min=1))
@server_options
@json_option
def undo(fleet: str, number: int, *, as_json: bool, **where: Any) -> None:
    """Undo a choice, as if it had never been.

    `choices` lists them with their NUMBER. Undoing twice does no harm.
    """
    with operator_connection(**where) as hub:
        found = hub.undo(fleet, number)
    if as_json:
        print_json({**with_dates(found), "undone": format_time(found["undone"])})
    else:
        click.echo(f"Undone {number}: {describe_choice(found)}.")
    remark(EFFECT_NOTE)


@click.command()
@click.argument("fleet")
@selection_options
@server_options
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
    check_sources(sources, from_nobody=from_nobody)
    with operator_connection(**where) as hub:
        found = hub.preview(fleet, sources, targets)
    if as_json:
        print_json(found)
    else:
        losses = ("alone", "before", "after", "shift")
        rounded = (
            {word: float(f"{row[word]:.{LOSS_DIGITS}g}") for word in losses} for row in found
        )
        print_table(
            [{**row, **few} for row, few in zip(found, rounded, strict=True)], PREVIEW_COLUMNS
        )
    if not found:
        remark("None of the targets has contributed anything yet: there is nothing to compare.")


def check_sources(sources: tuple[str, ...], *, from_nobody: bool) -> None:
    """Refuse a selection without sources that does not say so."""
    if bool(sources) == from_nobody:
        raise click.UsageError("say which sources: --from DEVICE, or --from-nobody for none")


def print_choice(made: dict[str, Any], *, as_json: bool) -> None:
    """Print a choice that was made."""
    if as_json:
        print_json(with_dates(made))
    else:
        click.echo(f"Choice {made['number']}: {describe_choice(made)}.")
    remark(EFFECT_NOTE)


def describe_choice(choice: dict[str, Any]) -> str:
    """Say in words what a choice decides."""
    if choice["kind"] in ("exclude", "revoke"):
        key = f"{choice['device']}/{choice['incarnation']}/{choice['pattern']}"
        return f"{key} is told to nobody"
    return f"{join_names(choice['targets'])} told of {join_names(choice['sources'])} only"


def join_names(names: list[str]) -> str:
    """Name a few, and how many more there are."""
    more = len(names) - MAX_NAMES
    return (", ".join(names[:MAX_NAMES]) or "nobody") + (f" and {more} more" if more > 0 else "")


AUDIT_PAGE_SIZE = 500
AUDIT_COLUMNS = {
    "seq": "SEQ",
    "at": "AT",
    "actor": "ACTOR",
    "action": "ACTION",
    "fleet": "FLEET",
    "subject": "SUBJECT",
}


@click.command()
@click.option("--fleet", help="Show only what concerns this fleet.")
@click.option("--last", type=click.IntRange(min=0), default=20, show_default=True, help="Entries.")
@click.option("--known", metavar="HASH", help="A head noted earlier; it must still be there.")
@server_options
@json_option
def audit(fleet: str | None, last: int, known: str | None, *, as_json: bool, **where: Any) -> None:
    """Show who did what, after checking the record.

    Each entry is sealed by a hash that covers the one before. Whoever rewrites all of it goes
    unnoticed, unless you note the head that is printed and give it as --known later.
    """
    shown: deque[Any] = deque(maxlen=last)
    seq, head, met = 0, "", known is None
    with operator_connection(**where) as hub:
        for entry in verify_chain(_audit_entries(hub)):
            seq, head = entry["seq"], entry["hash"]
            met = met or head == known
            if fleet in (None, entry["fleet"]):
                shown.append(with_dates(entry))
    if not met:
        raise CommandError(
            f"found no entry with the hash {known}: the audit log was rewritten since"
        )
    if as_json:
        print_json({"verified": seq, "head": head, "entries": list(shown)})
    else:
        print_table(shown, AUDIT_COLUMNS)
    remark(f"All {seq:,} entries are as they were written. Head: {head}")


def _audit_entries(hub: Any) -> Iterator[dict[str, Any]]:
    after = 0
    while found := hub.audit(after=after, limit=AUDIT_PAGE_SIZE)["entries"]:
        yield from found
        after = found[-1]["seq"]
