"""`edgemerge fleet`: what an operator does with the devices of a fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from edgemerge.cli.fleet import dated
from edgemerge.cli.hub import connected, hub_options
from edgemerge.cli.output import json_option, must_be_sure, remark, say_json, say_table

DEVICES = {
    "device": "DEVICE",
    "contributions": "CONTRIBUTIONS",
    "samples": "SAMPLES",
    "seen": "SEEN",
    "revoked": "REVOKED",
}
CONTRIBUTIONS = {
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
@hub_options
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
    with connected(**where) as hub:
        found = dated(hub.invite(fleet, device, valid_s=valid_s))
    if out:
        from edgemerge.files import write

        write(f"{found.pop('token')}\n".encode(), out)
        found["file"] = str(out)
    if as_json:
        say_json(found)
    else:
        click.echo(found.get("file") or found["token"])
    remark(f"For {device or 'any one device'}, once, until {found['expires']}.")


@click.command()
@click.argument("fleet")
@hub_options
@json_option
def devices(fleet: str, *, as_json: bool, **where: Any) -> None:
    """List the devices that have enrolled."""
    with connected(**where) as hub:
        found = [dated(each) for each in hub.devices(fleet)]
    say_json(found) if as_json else say_table(found, DEVICES)


@click.command()
@click.argument("fleet")
@click.argument("device")
@hub_options
@json_option
def revoke(fleet: str, device: str, *, as_json: bool, **where: Any) -> None:
    """Let the token of a device work no more.

    What DEVICE contributed stays until it is dropped.
    """
    with connected(**where) as hub:
        hub.revoke(fleet, device)
    if as_json:
        say_json({"fleet": fleet, "revoked": device})
    else:
        click.echo(f"Revoked {device} of {fleet}. What it contributed stays; `drop` removes it.")


@click.command()
@click.argument("fleet")
@hub_options
@json_option
def contributions(fleet: str, *, as_json: bool, **where: Any) -> None:
    """List what the devices have contributed."""
    with connected(**where) as hub:
        found = hub.contributions(fleet)
    found["contributions"] = [dated(each) for each in found["contributions"]]
    say_json(found) if as_json else say_table(found["contributions"], CONTRIBUTIONS)


@click.command()
@click.argument("fleet")
@click.argument("device")
@click.option("--yes", is_flag=True, help="Do not ask.")
@hub_options
@json_option
def drop(fleet: str, device: str, *, yes: bool, as_json: bool, **where: Any) -> None:
    """Take out everything that a device contributed.

    As if DEVICE had never been heard: every sum that FLEET tells is made anew.
    """
    must_be_sure(f"Take all contributions of {device} out of {fleet}?", yes=yes)
    with connected(**where) as hub:
        dropped = hub.drop(fleet, device)
    if as_json:
        say_json({"fleet": fleet, "device": device, "dropped": dropped})
    else:
        click.echo(f"Dropped {dropped} contributions of {device}.")
