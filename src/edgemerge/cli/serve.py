"""Commands of the server: `serve`, `backup`, `restore`, `bridge`, `dashboard`, and accounts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from edgemerge.cli.fleet import print_token, token_out_options, with_dates, yes_option
from edgemerge.cli.group import CommandError, ExitCode, LazyGroup, example, needs, option
from edgemerge.cli.options import (
    DEFAULT_PORT,
    FILE,
    allows_plain_http,
    ca_option,
    check_writable,
    insecure_option,
    operator_connection,
    operator_options,
    projection_of,
    server_options,
)
from edgemerge.cli.output import (
    confirm,
    format_time,
    headings,
    json_option,
    print_fields,
    print_json,
    print_json_line,
    print_table,
    remark,
)

EXISTING_FILE = click.Path(dir_okay=False, exists=True, path_type=Path)
LOG_LEVELS = click.Choice(["debug", "info", "warning", "error"])


def serve_option(name: str, former: str = "", **attributes: Any) -> Callable[[Any], Any]:
    """Return an option of `serve` that can also be set as EDGEMERGE_<NAME>."""
    names = filter(None, (name, former))
    variables = ["EDGEMERGE_" + each.strip("-").replace("-", "_").upper() for each in names]
    old = {former: name} if former else None
    return option(name, old=old, envvar=variables, show_envvar=True, **attributes)


@click.command(epilog=example("edgemerge serve --database hub.sqlite --host 0.0.0.0"))
@serve_option(
    "--database",
    metavar="PATH|URL",
    default="edgemerge.sqlite",
    show_default=True,
    help="SQLite file, or postgresql://... of a PostgreSQL database.",
)
@serve_option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@serve_option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="Port to listen on; 0 takes any free one.",
)
@serve_option(
    "--admin-token-file",
    former="--operator-token-file",
    type=FILE,
    help="File of the first admin's token.  [default: beside the database]",
)
@serve_option("--port-file", type=FILE, help="Write the port to this file once it is open.")
@serve_option("--tls-cert", type=EXISTING_FILE, help="Certificate of your own, to serve https.")
@serve_option("--tls-key", type=EXISTING_FILE, help="Private key of the certificate.")
@serve_option(
    "--tls-file",
    type=FILE,
    help="File of the certificate that the server makes for itself, to serve https on this machine "
    "too.  [default: beyond this machine, beside the database]",
)
@serve_option(
    "--audit-head-file",
    type=FILE,
    help="File of the audit log's head, best on another disk.  [default: beside the database]",
)
@serve_option(
    "--audit-entries",
    type=click.IntRange(1000, 1_000_000_000),
    default=1_000_000,
    show_default=True,
    help="Entries of the audit log that are kept; the oldest are deleted.",
)
@serve_option(
    "--pushes-per-minute",
    type=click.FloatRange(1.0, 1_000_000.0),
    default=120.0,
    show_default=True,
    help="Contributions that one device may push in a minute.",
)
@serve_option("--insecure", is_flag=True, help="Serve plain http beyond this machine.")
@serve_option(
    "--history-days",
    type=click.IntRange(1, 3660),
    default=90,
    show_default=True,
    help="Days for which scores are kept, for charts.",
)
@serve_option(
    "--episode-days",
    type=click.IntRange(1, 3660),
    default=365,
    show_default=True,
    help="Days for which alarm episodes are kept.",
)
@serve_option(
    "--public-url",
    metavar="URL",
    help="Address of this server for people, for links in messages to receivers.",
)
@serve_option(
    "--secrets-folder",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Folder of files with secrets of receivers, which they name as --secret-file.",
)
@serve_option(
    "--device-metrics",
    type=click.IntRange(0, 100_000),
    default=0,
    show_default=True,
    help="Show metrics of up to so many single devices, with their names.",
)
@serve_option(
    "--log-level",
    type=LOG_LEVELS,
    default="info",
    show_default=True,
    help="Lowest level to log.",
)
@serve_option("--log-json", is_flag=True, help="Log one JSON object per line.")
def serve(
    database: str,
    host: str,
    port: int,
    tls_cert: Path | None,
    tls_key: Path | None,
    public_url: str | None,
    log_level: str,
    *,
    log_json: bool,
    **settings: Any,
) -> None:
    """Run the server until a signal stops it.

    It stores the contributions of the devices of fleets and serves their sums. On its first start
    it writes a token for the first admin. Every option can be set by its variable; an option on the
    command line wins.
    """
    from edgemerge.daemon import JsonFormatter, TextFormatter, log_to_stderr

    if (tls_cert is None) != (tls_key is None):
        raise CommandError("found one of --tls-cert and --tls-key, expected both or none")
    if public_url is not None and not public_url.startswith(("http://", "https://")):
        raise CommandError(f'found --public-url "{public_url}", expected http://… or https://…')
    _needs_driver(database)
    running = needs("server", "edgemerge.server.main")
    log_to_stderr(log_level, form=JsonFormatter if log_json else TextFormatter)
    running.serve(
        database=database,
        host=host,
        port=port,
        tls_cert=tls_cert,
        tls_key=tls_key,
        public_url=public_url,
        **settings,
    )


database_option = serve_option(
    "--database",
    metavar="PATH|URL",
    required=True,
    help="SQLite file, or postgresql://... of a PostgreSQL database, as for `edgemerge serve`.",
)


@click.command(epilog=example("edgemerge backup --database hub.sqlite --out hub.backup"))
@database_option
@click.option("--out", type=FILE, required=True, help="File to write; it is replaced at once.")
@json_option
def backup(database: str, out: Path, *, as_json: bool) -> None:
    """Write everything in a server's database to one file, while the server runs.

    The file has the state of one moment, a checksum, and the same form for SQLite and PostgreSQL.
    Keep it as safe as the database: it holds the hashes of tokens, and the secrets of receivers as
    they are. It does not hold the TLS key, the first admin's token file, the file of the audit
    log's head and the folder of secrets: copy those yourself.
    """
    _needs_driver(database)
    facts = needs("server", "edgemerge.server.backup").backup(database, out)
    found = {"file": str(out), **_backup_fields(facts)}
    print_json(found) if as_json else print_fields(found)


@click.command(epilog=example("edgemerge restore hub.backup --database hub.sqlite --replace"))
@click.argument("file", type=FILE)
@database_option
@click.option(
    "--replace",
    "replace_existing",
    is_flag=True,
    help="Replace a database that has content; it is kept under another name.",
)
@serve_option(
    "--audit-head-file",
    type=FILE,
    help="File of the audit log's head, as for `edgemerge serve`.  [default: beside the database]",
)
@json_option
def restore(
    file: Path,
    database: str,
    audit_head_file: Path | None,
    *,
    replace_existing: bool,
    as_json: bool,
) -> None:
    """Put the content of a backup into a database; stop its servers first.

    The backup can be of the other kind of database. Its checksum, tables and audit log are checked
    before anything changes. The restore is an entry in the audit log.
    """
    _needs_driver(database)
    restoring = needs("server", "edgemerge.server.backup")
    head_file = audit_head_file or restoring.default_head_file(database)
    done = restoring.restore(
        file, database, replace_existing=replace_existing, audit_head_file=head_file
    )
    found = {
        **_backup_fields(done.backup),
        "replaced": str(done.replaced) if done.replaced else "",
        "audit_head": done.audit_head,
        "timeline": done.timeline,
    }
    print_json(found) if as_json else print_fields({**found, "replaced": done.replaced or "none"})
    remark(
        f"What happened after {format_time(done.backup.made)} is lost, except what devices share "
        "again by themselves."
    )
    remark("Repeat revocations, drops, reviews and settings since then.")
    remark("Devices that enrolled since then need a new invitation; older invitations are void.")
    if done.voided:
        remark(f"{done.voided} sessions, sign-in links and invitations no longer work.")


def _backup_fields(facts: Any) -> dict[str, Any]:
    names = ("schema", "fleets", "devices", "contributions", "size", "sha256")
    return {"made": format_time(facts.made), **{name: getattr(facts, name) for name in names}}


def _needs_driver(database: str) -> None:
    if database.startswith(("postgres:", "postgresql:")):
        needs("postgres", "psycopg")


@click.command(
    epilog=example(
        "edgemerge certificate hub.sqlite.tls.pem --next",
        "edgemerge certificate hub.sqlite.tls.pem --switch",
    )
)
@click.argument("file", type=FILE)
@click.option(
    "--next",
    "makes_next",
    is_flag=True,
    help="Make the certificate that will replace it; devices learn of it at their next exchange.",
)
@click.option("--switch", is_flag=True, help="Replace it by the next one.")
@json_option
def certificate(file: Path, *, makes_next: bool, switch: bool, as_json: bool) -> None:
    """Show or change the certificate that a server made for itself.

    FILE is beside the server's database and ends with .tls.pem. A running server follows it within
    seconds. Devices recognise the certificate by its fingerprint, so switch when all of them have
    exchanged since the next one was made; the others must enrol again.
    """
    from edgemerge import certificates

    if makes_next and switch:
        raise CommandError("found --next and --switch, expected one of them: first --next")
    if makes_next:
        certificates.prepare_next(file)
    if switch:
        certificates.switch_to_next(file)
    coming = certificates.next_file(file)
    found = {"file": str(file), "sha256": certificates.read_fingerprint(file)}
    found["next"] = certificates.read_fingerprint(coming) if coming.exists() else ""
    print_json(found) if as_json else print_fields(found)


@click.command(
    epilog=example(
        "edgemerge bridge --server https://hub:8470 --fleet pumps --tokens tokens \\",
        "    --serial /dev/ttyUSB0 --serial /dev/ttyUSB1:57600",
    )
)
@click.option("--server", metavar="URL", envvar="EDGEMERGE_SERVER", help="Address of the server.")
@click.option("--fleet", help="Name of the fleet on the server.")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Exchange through this folder instead of a server; needs --projection.",
)
@click.option("--projection", type=FILE, help="What the devices share, for --folder.")
@click.option(
    "--tokens",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Folder with DEVICE.token for each device, as `edgemerge enrol` writes it.",
)
@click.option(
    "--serial",
    "lines",
    multiple=True,
    metavar="PATH[:BAUD]",
    help="Serial line to a device, 115200 baud unless given; can be repeated.",
)
@click.option("--listen", metavar="HOST:PORT", help="Take devices over TCP; port 0: any.")
@click.option("--port-file", type=FILE, help="Write the port to this file once it is open.")
@ca_option
@insecure_option
@click.option(
    "--log-level", type=LOG_LEVELS, default="info", show_default=True, help="Lowest level."
)
@json_option
def bridge(
    server: str | None,
    fleet: str | None,
    tokens: Path,
    lines: tuple[str, ...],
    listen: str | None,
    port_file: Path | None,
    log_level: str,
    *,
    as_json: bool,
    **where: Any,
) -> None:
    """Connect small devices on serial lines or TCP to a fleet.

    Devices use edgemerge_link.h, which `edgemerge export` writes. Each proves with its own token
    who it is. Runs until a signal stops it. With --json it prints each report of a device as a
    line.
    """
    from threading import Event

    from edgemerge.daemon import log_to_stderr, stop_on_signals
    from edgemerge.embedded.bridge import Bridge, TokenFolder
    from edgemerge.files import write_atomically

    if not lines and not listen:
        raise CommandError(
            "found neither --serial nor --listen, expected one: --serial /dev/ttyUSB0 for a serial "
            "line, --listen 127.0.0.1:8471 for devices over TCP"
        )
    if not tokens.is_dir():
        raise CommandError(f"{tokens} is no folder: put DEVICE.token of each device into one")
    where |= {"tokens": tokens, "insecure": allows_plain_http()}
    connect = _uplinks(server, fleet, where, show=print_json_line if as_json else None)
    log_to_stderr(log_level)
    stop = Event()
    with stop_on_signals(stop):
        found = Bridge(TokenFolder(tokens), connect, stop)
        for line in lines:
            found.open_serial(*_serial_line(line))
        if listen:
            port = found.listen(*_host_and_port(listen))
            if port_file:
                write_atomically(f"{port}\n".encode(), port_file)
        found.wait()


def _uplinks(
    server: str | None,
    fleet: str | None,
    where: dict[str, Any],
    show: Callable[[dict[str, Any]], None] | None,
) -> Callable[[str, str], Any]:
    """Return how a device reaches its fleet: on a server, or through a folder."""
    from dataclasses import asdict

    from edgemerge.embedded.bridge import DeviceReport, ServerReports, Uplink
    from edgemerge.exchange.client import ReportClient
    from edgemerge.exchange.folder import FolderExchange
    from edgemerge.exchange.http import HttpExchange
    from edgemerge.files import load

    folder, projection, ca_file = (where[name] for name in ("folder", "projection", "ca_file"))
    if (folder is None) == (server is None or fleet is None):
        raise CommandError("give --server and --fleet, or --folder and --projection")
    if folder is not None and projection is None:
        raise CommandError("--folder needs --projection: a folder does not say what devices share")
    shared = None if projection is None else projection_of(load(projection))

    def connect(device: str, token: str) -> Uplink:
        exchange: Any
        reports: list[Callable[[DeviceReport], None]] = []
        if show is not None:
            reports.append(lambda report: show(asdict(report)))
        if folder is not None:
            exchange = FolderExchange(folder, shared)  # type: ignore[arg-type]  # checked above
        else:
            address, pins = (str(server), str(fleet)), where["tokens"] / f"{device}.pins"
            options = {"ca_file": ca_file, "insecure": where["insecure"], "pins_file": pins}
            exchange = HttpExchange(*address, token, **options)
            reports.append(ServerReports(ReportClient(*address, device, token, **options).send))

        def report_all(report: DeviceReport) -> None:
            for each in reports:
                each(report)

        return Uplink(exchange, report_all)

    return connect


def _serial_line(line: str) -> tuple[str, int]:
    path, _, baud = line.rpartition(":")
    if not path:
        return line, 115200
    if not baud.isdigit():
        raise CommandError(f'found --serial "{line}", expected PATH or PATH:BAUD')
    return path, int(baud)


def _host_and_port(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise CommandError(f'found --listen "{listen}", expected HOST:PORT')
    return host.strip("[]"), int(port)


@click.command(
    epilog=example("edgemerge dashboard --server https://hub:8470 --token-file admin.token")
)
@server_options
@click.option("--open", "opening", is_flag=True, help="Open the link in the browser.")
@json_option
def dashboard(
    server: str, token_file: Path, ca_file: Path | None, *, opening: bool, as_json: bool
) -> None:
    """Print the dashboard's address and a link to sign in.

    The link works once, within ten minutes, and gives the rights of the token's account.
    """
    with operator_connection(server=server, token_file=token_file, ca_file=ca_file) as client:
        made = client.sign_in_link()
    here = server.rstrip("/")
    link = here + made["path"]
    found = {"address": f"{here}/ui/", "link": link, "expires": format_time(made.get("expires"))}
    print_json(found) if as_json else print_fields(found)
    if opening:
        open_browser(link)


def open_browser(address: str) -> None:
    """Open an address in the user's browser."""
    import webbrowser

    if not webbrowser.open(address):
        raise CommandError("found no browser to open: copy the link into one", ExitCode.FAILED)
    remark("Opened in the browser.")


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


@click.command("list", epilog=example("edgemerge accounts list --json"))
@operator_options
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
@token_out_options
@operator_options
def add(
    name: str,
    role: str | None,
    *,
    valid_s: Any,
    out: Path | None,
    force: bool,
    as_json: bool,
    **where: Any,
) -> None:
    """Add an account and show its token, once.

    Without --role it is a viewer, and without --expires its token never expires.
    """
    check_writable(out, force=force)
    with operator_connection(**where) as client:
        found = with_dates(client.add_account(name, role or "viewer", **validity(valid_s)))
    print_token(found, out, as_json=as_json)
    remark(f"The token of {name}, {found['role']}, {_until(found)}. It is not shown again.")


@click.command(epilog=example("edgemerge accounts change eve --role operator"))
@click.argument("name")
@role_option
@expires_option
@operator_options
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


@click.command(epilog=example("edgemerge accounts rotate eve --out eve.token --force"))
@click.argument("name")
@expires_option
@token_out_options
@operator_options
def rotate(
    name: str,
    *,
    valid_s: Any,
    out: Path | None,
    force: bool,
    server: str,
    as_json: bool,
    **where: Any,
) -> None:
    """Give an account a new token, and show it once.

    The old token, its sessions and its links stop working at once. Without --expires the new one is
    valid for as long as the old one was.
    """
    check_writable(out, force=force)
    with operator_connection(server=server, **where) as client:
        found = with_dates(client.rotate_account(name, **validity(valid_s)))
    if found.get("path"):
        found["token"] = server.rstrip("/") + found["path"]
    print_token(found, out, as_json=as_json)
    remark(f"The old token of {name} no longer works. The new one works {_until(found)}.")


@click.command(epilog=example("edgemerge accounts revoke eve --yes"))
@click.argument("name")
@yes_option
@operator_options
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
@operator_options
def wall_link(
    name: str, fleet: str, valid_s: Any, *, server: str, as_json: bool, **where: Any
) -> None:
    """Make a link that shows FLEET on a wall screen without a sign-in.

    It opens the page of the devices, which follows by itself, and nothing else.
    """
    if valid_s is None:
        raise click.UsageError(
            "found --expires never, expected a time: anyone with the link can see the fleet"
        )
    with operator_connection(server=server, **where) as client:
        found = with_dates(client.add_wall_link(fleet, name, valid_s=valid_s))
    found["token"] = server.rstrip("/") + found["path"]
    print_token(found, None, as_json=as_json)
    remark(f"The link {name} works {_until(found)}. It is not shown again.")


def _until(found: dict[str, Any]) -> str:
    return f"until {found['expires']}" if found["expires"] else "until it is revoked"
