"""`edgemerge sync`: lets the agent that runs here exchange now, or undo its last merge."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from edgemerge.cli.group import Failure
from edgemerge.cli.output import json_option, progress, say_facts, say_json


@click.command()
@click.argument("place", type=click.Path(path_type=Path), default=Path())
@click.option("--undo", is_flag=True, help="Take back what the last exchange told.")
@click.option(
    "--timeout", "timeout_s", type=float, default=60.0, show_default=True, help="Seconds."
)
@json_option
def sync(place: Path, timeout_s: float, *, undo: bool, as_json: bool) -> None:
    """Let the agent that runs here exchange now.

    PLACE is its state folder or its CONFIG.toml. What happened is printed.
    """
    folder = state_folder(place)
    with progress("waiting for the agent"):
        found = answer(folder, "undo" if undo else "sync", timeout_s)
    say_json(found) if as_json else say_facts(found)
    if found.get("exchange", "ok") != "ok":
        raise Failure(f"the exchange did not work: {found['exchange']}")


def answer(folder: Path, command: str, timeout_s: float) -> dict[str, Any]:
    """Ask the agent; where none runs, say how to start it."""
    from edgemerge.agent.control import ask
    from edgemerge.core.errors import AwayError

    try:
        return ask(folder, {"command": command}, timeout_s)
    except AwayError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and not isinstance(cause, TimeoutError):
            raise Failure(
                f"no agent runs on {folder}: `edgemerge agent CONFIG.toml` starts one"
            ) from error
        raise


def state_folder(place: Path) -> Path:
    """Give the state folder, which a configuration names."""
    if place.is_dir():
        return place
    from edgemerge.agent.config import read_config

    return read_config(place, environment=os.environ).state
