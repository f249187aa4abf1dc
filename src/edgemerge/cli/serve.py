"""Commands of the server: run it (`serve`), and sign in to its pages (`dashboard`)."""

from __future__ import annotations

from pathlib import Path

import click

from edgemerge.cli.group import CommandError, needs
from edgemerge.cli.options import operator_connection, server_options
from edgemerge.cli.output import format_time, json_option, print_fields, print_json, remark

NEW_FILE = click.Path(dir_okay=False, path_type=Path)
EXISTING_FILE = click.Path(dir_okay=False, exists=True, path_type=Path)
LOG_LEVELS = click.Choice(["debug", "info", "warning", "error"])


@click.command()
@click.option(
    "--database",
    metavar="PATH|URL",
    default="edgemerge.sqlite",
    show_default=True,
    help="A file, or postgresql://...",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8470, show_default=True, help="0: any."
)
@click.option("--operator-token-file", type=NEW_FILE, help="The operator's token.")
@click.option("--port-file", type=NEW_FILE, help="Write the port to this file once it is open.")
@click.option("--tls-cert", type=EXISTING_FILE, help="Certificate, to serve https.")
@click.option("--tls-key", type=EXISTING_FILE, help="Its private key.")
@click.option(
    "--log-level",
    type=LOG_LEVELS,
    default="info",
    show_default=True,
    help="What to log, and above.",
)
@click.option("--log-json", is_flag=True, help="Log one JSON object to a line.")
def serve(
    database: str,
    host: str,
    port: int,
    operator_token_file: Path | None,
    port_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    log_level: str,
    *,
    log_json: bool,
) -> None:
    """Run the server, until it is stopped.

    It keeps what the devices of fleets contribute and tells them sums of it. The first time, it
    makes a token for the operator, in a file beside the database or in --operator-token-file.
    """
    from edgemerge.daemon import JsonFormatter, TextFormatter, log_to_stderr

    if (tls_cert is None) != (tls_key is None):
        raise CommandError("found one of --tls-cert and --tls-key, expected both or none")
    if database.startswith(("postgres:", "postgresql:")):
        needs("postgres", "psycopg")
    running = needs("server", "edgemerge.server.main")
    log_to_stderr(log_level, form=JsonFormatter if log_json else TextFormatter)
    running.serve(
        database=database,
        host=host,
        port=port,
        operator_token_file=operator_token_file,
        port_file=port_file,
        tls_cert=tls_cert,
        tls_key=tls_key,
    )


@click.command()
@server_options
@click.option("--open", "opening", is_flag=True, help="Open the link in the browser.")
@json_option
def dashboard(
    server: str, token_file: Path, ca_file: Path | None, *, opening: bool, as_json: bool
) -> None:
    """Say where the dashboard is, and make a link to sign in.

    The link works once, for ten minutes. Whoever has it can do what the operator can.
    """
    with operator_connection(server=server, token_file=token_file, ca_file=ca_file) as hub:
        made = hub.sign_in_link()
    here = server.rstrip("/")
    link = here + made["path"]
    found = {"address": f"{here}/ui/", "link": link, "expires": format_time(made.get("expires"))}
    print_json(found) if as_json else print_fields(found)
    if opening:
        open_browser(link)


def open_browser(address: str) -> None:
    """Open an address in the browser of whoever runs this."""
    import webbrowser

    if not webbrowser.open(address):
        raise CommandError("found no browser to open: copy the link into one")
    remark("Opened in the browser.")
