"""Commands for accounts: list, add, change, rotate and revoke them, and make wall links."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from edgemerge.cli.fleet import print_token, with_dates
from edgemerge.cli.group import LazyGroup, example, options
from edgemerge.cli.options import FILE, operator_connection, server_options
from edgemerge.cli.output import (
    confirm,
    headings,
    json_option,
    print_fields,
    print_json,
    print_table,
    remark,
)

SECTIONS = {
    "People": dict.fromkeys(("list", "add", "change", "rotate", "revoke"), __name__)
    | {"list": f"{__name__}:list_accounts"},
    "Screens": {"wall-link": f"{__name__}:wall_link"},
}
COLUMNS = headings("name", "role", "fleet", "state", "issued", "expires")
NEVER = "never"


@click.group(
    cls=LazyGroup,
    sections=SECTIONS,
    epilog=example(
        "export EDGEMERGE_SERVER=https://hub:8470 EDGEMERGE_TOKEN_FILE=admin.token",
        "edgemerge accounts list",
    ),
)
def accounts() -> None:
    """Manage the accounts of a server.

    For admins. A viewer sees everything and changes nothing, an operator also does the daily work,
    an admin also manages accounts, fleets and trust. Every command needs --server and --token-file,
    or the variables EDGEMERGE_SERVER and EDGEMERGE_TOKEN_FILE.
    """


def parse_validity(_ctx: click.Context, _option: click.Parameter, value: str | None) -> Any:
    """Return the seconds of such as 90d or "8 hours"; None for never, "" if not given."""
    from edgemerge.core.limit import seconds_of

    if value is None or value == NEVER:
        return "" if value is None else None
    seconds = seconds_of(value)
    if not seconds:
        raise click.BadParameter(f"found {value!r}, expected such as 90d, '8 hours' or {NEVER}")
    return seconds


def validity(valid_s: Any) -> dict[str, Any]:
    """Return what was said about expiry, or nothing."""
    return {} if valid_s == "" else {"valid_s": valid_s}


expires_option = click.option(
    "--expires",
    "valid_s",
    metavar="TIME",
    callback=parse_validity,
    help="When the token stops working: 90d, '8 hours' or never.",
)
role_option = click.option(
    "--role", type=click.Choice(["viewer", "operator", "admin"]), help="What the account may do."
)
out_options = options(
    click.option(
        "--out",
        type=FILE,
        help="Write the token to this file instead, readable by its owner only.",
    ),
)


@click.command("list", epilog=example("edgemerge accounts list --json"))
@server_options
@json_option
def list_accounts(*, as_json: bool, **where: Any) -> None:
    """List all accounts and wall links, without their tokens."""
    with operator_connection(**where) as client:
        found = [with_dates(each) for each in client.accounts()]
    print_json(found) if as_json else print_table(found, COLUMNS)


@click.command(
    epilog=example("edgemerge accounts add eve --role viewer --expires 90d --out eve.token")
)
@click.argument("name")
@role_option
@expires_option
@out_options
@server_options
@json_option
def add(
    name: str, role: str | None, valid_s: Any, out: Path | None, *, as_json: bool, **where: Any
) -> None:
    """Add an account and show its token, once.

    Without --role it is a viewer, and without --expires its token never expires.
    """
    with operator_connection(**where) as client:
        found = with_dates(client.add_account(name, role or "viewer", **validity(valid_s)))
    print_token(found, out, as_json=as_json)
    remark(f"The token of {name}, {found['role']}, {_until(found)}. It is not shown again.")


@click.command(epilog=example("edgemerge accounts change eve --role operator"))
@click.argument("name")
@role_option
@expires_option
@server_options
@json_option
def change(name: str, role: str | None, valid_s: Any, *, as_json: bool, **where: Any) -> None:
    """Change the role of an account, or when it expires.

    Its token stays, and its sessions end.
    """
    changed = ({} if role is None else {"role": role}) | validity(valid_s)
    if not changed:
        raise click.UsageError("found nothing to change, expected --role or --expires")
    with operator_connection(**where) as client:
        found = with_dates(client.change_account(name, **changed))
    print_json(found) if as_json else print_fields(found)


@click.command(epilog=example("edgemerge accounts rotate eve --out eve.token"))
@click.argument("name")
@expires_option
@out_options
@server_options
@json_option
def rotate(
    name: str, valid_s: Any, out: Path | None, *, server: str, as_json: bool, **where: Any
) -> None:
    """Give an account a new token, and show it once.

    The old token, its sessions and its links stop working at once. Without --expires the new one is
    valid for as long as the old one was.
    """
    with operator_connection(server=server, **where) as client:
        found = with_dates(client.rotate_account(name, **validity(valid_s)))
    if found.get("path"):
        found["token"] = server.rstrip("/") + found["path"]
    print_token(found, out, as_json=as_json)
    remark(f"The old one of {name} works no more. This one works {_until(found)}.")


@click.command(epilog=example("edgemerge accounts revoke eve --yes"))
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@server_options
@json_option
def revoke(name: str, *, yes: bool, as_json: bool, **where: Any) -> None:
    """Revoke an account or a wall link.

    Its token, sessions and links stop working at once. The last admin cannot be revoked.
    """
    confirm(f"Revoke {name}?", yes=yes)
    with operator_connection(**where) as client:
        client.revoke_account(name)
    print_json({"revoked": name}) if as_json else click.echo(f"Revoked {name}.")


@click.command("wall-link", epilog=example("edgemerge accounts wall-link hall-b pumps"))
@click.argument("name")
@click.argument("fleet")
@click.option(
    "--expires",
    "valid_s",
    metavar="TIME",
    callback=parse_validity,
    default="365d",
    show_default=True,
    help="When the link stops working: 90d or '8 hours'.",
)
@server_options
@json_option
def wall_link(
    name: str, fleet: str, valid_s: Any, *, server: str, as_json: bool, **where: Any
) -> None:
    """Make a link that shows FLEET on a wall screen without a sign-in.

    It opens the page of the devices, which follows by itself, and nothing else.
    """
    if valid_s is None:
        raise click.UsageError("found --expires never, expected a time: anybody with it may look")
    with operator_connection(server=server, **where) as client:
        found = with_dates(client.add_wall_link(fleet, name, valid_s=valid_s))
    found["token"] = server.rstrip("/") + found["path"]
    print_token(found, None, as_json=as_json)
    remark(f"The link {name} works {_until(found)}. It is not shown again.")


def _until(found: dict[str, Any]) -> str:
    return f"until {found['expires']}" if found["expires"] else "until it is revoked"
