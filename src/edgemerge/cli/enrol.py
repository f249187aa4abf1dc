"""`edgemerge enrol`: an invitation becomes a device's own token."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from edgemerge.cli.group import Failure
from edgemerge.cli.hub import asking, ca_option, token_in
from edgemerge.cli.output import json_option, say_facts, say_json


@click.command()
@click.argument("url")
@click.argument("fleet")
@click.argument("device")
@click.option(
    "--invitation-file",
    type=click.Path(dir_okay=False, allow_dash=True),
    required=True,
    help="What `fleet invite` printed; - for standard input.",
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="Where to write the device's own token, for nobody else to read.",
)
@ca_option
@click.option("--force", is_flag=True, help="Overwrite the token file.")
@json_option
def enrol(
    url: str,
    fleet: str,
    device: str,
    invitation_file: str,
    token_file: Path,
    ca_file: Path | None,
    *,
    force: bool,
    as_json: bool,
) -> None:
    """Enrol this device with an invitation.

    DEVICE becomes part of FLEET on the server at URL, and gets a token of its own.
    """
    from edgemerge.files import write

    _refuse_unless_writable(token_file, force=force)
    with asking(url, _invitation(invitation_file), ca_file) as hub:
        found = hub.enrol(fleet, device)
    write(f"{found.pop('token')}\n".encode(), token_file)
    found["token_file"] = str(token_file)
    say_json(found) if as_json else say_facts(found)


def _invitation(path: str) -> str:
    found = sys.stdin.read(4096).strip() if path == "-" else token_in(Path(path))
    if not found:
        raise Failure("found no invitation on standard input: `edgemerge fleet invite` prints one")
    return found


def _refuse_unless_writable(path: Path, *, force: bool) -> None:
    """An invitation works once: what comes of it must not be lost for want of a place."""
    if path.exists() and not force:
        raise Failure(f"{path} is there already: --force overwrites it")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise Failure(f"{path.parent} is not a folder that can be written to: make it first")
