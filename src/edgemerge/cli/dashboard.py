"""`edgemerge dashboard`: the address of the dashboard, and a link that signs in once."""

from __future__ import annotations

from pathlib import Path

import click

from edgemerge.cli.group import Failure
from edgemerge.cli.hub import connected, hub_options
from edgemerge.cli.output import at, json_option, remark, say_facts, say_json


@click.command()
@hub_options
@click.option("--open", "opening", is_flag=True, help="Open the link in the browser.")
@json_option
def dashboard(
    server: str, token_file: Path, ca_file: Path | None, *, opening: bool, as_json: bool
) -> None:
    """Say where the dashboard is, and make a link to sign in.

    The link works once, for ten minutes. Whoever has it can do what the operator can.
    """
    with connected(server=server, token_file=token_file, ca_file=ca_file) as hub:
        made = hub.sign_in_link()
    here = server.rstrip("/")
    link = here + made["path"]
    found = {"address": f"{here}/ui/", "link": link, "expires": at(made.get("expires"))}
    say_json(found) if as_json else say_facts(found)
    if opening:
        open_browser(link)


def open_browser(address: str) -> None:
    """Open an address in the browser of whoever runs this."""
    import webbrowser

    if not webbrowser.open(address):
        raise Failure("found no browser to open: copy the link into one")
    remark("Opened in the browser.")
