"""`edgemerge serve`: the server."""

from __future__ import annotations

from pathlib import Path

import click

from edgemerge.cli.group import Failure, needs

FILE = click.Path(dir_okay=False, path_type=Path)
THERE = click.Path(dir_okay=False, exists=True, path_type=Path)
LEVELS = click.Choice(["debug", "info", "warning", "error"])


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
@click.option("--operator-token-file", type=FILE, help="The operator's token.")
@click.option("--port-file", type=FILE, help="Write the port to this file once it is open.")
@click.option("--tls-cert", type=THERE, help="Certificate, to serve https.")
@click.option("--tls-key", type=THERE, help="Its private key.")
@click.option(
    "--log-level", type=LEVELS, default="info", show_default=True, help="What to log, and above."
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
    from edgemerge.daemon import Json, Lines, log_to_stderr

    if (tls_cert is None) != (tls_key is None):
        raise Failure("found one of --tls-cert and --tls-key, expected both or none")
    if database.startswith(("postgres:", "postgresql:")):
        needs("postgres", "psycopg")
    running = needs("server", "edgemerge.server.running")
    log_to_stderr(log_level, form=Json if log_json else Lines)
    running.serve(
        database=database,
        host=host,
        port=port,
        operator_token_file=operator_token_file,
        port_file=port_file,
        tls_cert=tls_cert,
        tls_key=tls_key,
    )
