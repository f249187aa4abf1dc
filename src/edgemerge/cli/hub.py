"""Options that say which server to ask and as whom, and the connection to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from edgemerge.cli.group import Failure
from edgemerge.cli.output import progress, remark

Command = TypeVar("Command", bound=Callable[..., Any])

FILE = click.Path(dir_okay=False, path_type=Path)

ca_option = click.option(
    "--ca-file",
    type=FILE,
    envvar="EDGEMERGE_CA_FILE",
    help="Certificates to trust; needed if the server made its own.",
)
OPTIONS = (
    click.option(
        "--server",
        metavar="URL",
        required=True,
        envvar="EDGEMERGE_SERVER",
        show_envvar=True,
        help="Such as https://hub:8470.",
    ),
    click.option(
        "--token-file",
        type=FILE,
        required=True,
        envvar="EDGEMERGE_TOKEN_FILE",
        show_envvar=True,
        help="The operator's token.",
    ),
    ca_option,
)


def hub_options(command: Command) -> Command:
    """Add the options; `connected` takes them."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


@contextmanager
def connected(*, server: str, token_file: Path, ca_file: Path | None) -> Iterator[Any]:
    """Ask a server with the token in a file, showing that something happens while it lasts."""
    with asking(server, token_in(token_file), ca_file) as hub:
        yield hub


@contextmanager
def asking(server: str, token: str | None, ca_file: Path | None) -> Iterator[Any]:
    """Ask a server with a token."""
    from edgemerge.exchange.hub import Hub

    hub = Hub(server, token, ca_file=str(ca_file) if ca_file else None)
    try:
        with progress(f"asking {server}"):
            yield hub
    finally:
        hub.close()


def token_in(path: Path) -> str:
    """Read the token in a file, with a word if others could read it too."""
    token = path.read_text(encoding="utf-8", errors="replace").strip()
    if not token:
        raise Failure(f"{path} is empty, expected a token")
    if open_to_others(path):
        remark(f"{path} can be read by others: chmod 600 {path}")
    return token


def open_to_others(path: Path) -> bool:
    """Say whether anybody but its owner may read a file."""
    return bool(path.stat().st_mode & 0o077)
