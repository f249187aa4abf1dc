"""`edgemerge fleet`: what the operator of a server does; here with fleets as such."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from edgemerge.cli.agreement import agreed, projection_options
from edgemerge.cli.group import Commands
from edgemerge.cli.hub import connected, hub_options
from edgemerge.cli.output import (
    at,
    json_option,
    must_be_sure,
    remark,
    say_facts,
    say_json,
    say_table,
)

SECTIONS = {
    "Fleets": {
        "create": "edgemerge.cli.fleet",
        "list": "edgemerge.cli.fleet:list_fleets",
        "show": "edgemerge.cli.fleet",
        "delete": "edgemerge.cli.fleet",
    },
    "Devices": {
        "invite": "edgemerge.cli.fleet_devices",
        "devices": "edgemerge.cli.fleet_devices",
        "revoke": "edgemerge.cli.fleet_devices",
        "contributions": "edgemerge.cli.fleet_devices",
        "drop": "edgemerge.cli.fleet_devices",
    },
    "Who is told what": {
        "choices": "edgemerge.cli.fleet_choices",
        "adopt": "edgemerge.cli.fleet_choices",
        "withhold": "edgemerge.cli.fleet_choices",
        "undo": "edgemerge.cli.fleet_choices",
        "preview": "edgemerge.cli.fleet_choices",
    },
    "The server": {"audit": "edgemerge.cli.audit"},
}
COLUMNS = {
    "fleet": "FLEET",
    "devices": "DEVICES",
    "contributions": "CONTRIBUTIONS",
    "samples": "SAMPLES",
    "reads": "READS",
    "created": "CREATED",
}


@click.group(cls=Commands, sections=SECTIONS)
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
@hub_options
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
    projection = agreed(columns=[], **settings)
    with connected(server=server, token_file=token_file, ca_file=ca_file) as hub:
        made = hub.create_fleet(name, projection, reads=reads, least=least, growing=growing)
        found = dated(hub.fleet(name))
    say_json(found) if as_json else say_facts(found)
    remark(f"Fleet {name} is there now." if made else f"The same fleet {name} was there already.")


@click.command(name="list")
@hub_options
@json_option
def list_fleets(*, as_json: bool, **where: Any) -> None:
    """List all fleets."""
    with connected(**where) as hub:
        found = [dated(each) for each in hub.fleets()]
    say_json(found) if as_json else say_table(found, COLUMNS)


@click.command()
@click.argument("name", metavar="FLEET")
@click.option(
    "--save-projection",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the projection to this file.",
)
@hub_options
@json_option
def show(name: str, save_projection: Path | None, *, as_json: bool, **where: Any) -> None:
    """Say what a fleet has agreed on, and how much is in it."""
    with connected(**where) as hub:
        found = dated(hub.fleet(name))
        if save_projection:
            from edgemerge.files import save

            save(hub.projection(name), save_projection)
    say_json(found) if as_json else say_facts(found)


@click.command()
@click.argument("name", metavar="FLEET")
@click.option("--yes", is_flag=True, help="Do not ask.")
@hub_options
@json_option
def delete(name: str, *, yes: bool, as_json: bool, **where: Any) -> None:
    """Delete a fleet with everything in it.

    All devices and contributions of FLEET go; there is no way back.
    """
    must_be_sure(f"Delete fleet {name} with everything in it?", yes=yes)
    with connected(**where) as hub:
        hub.delete_fleet(name)
    say_json({"deleted": name}) if as_json else click.echo(f"Deleted fleet {name}.")


def dated(found: Mapping[str, Any]) -> dict[str, Any]:
    """Write the moments in a reply for people."""
    moments = {"created", "expires", "enrolled", "revoked", "seen", "received", "at"}
    return {key: at(value) if key in moments else value for key, value in found.items()}
