"""`edgemerge completion`: the script that lets a shell complete commands, options and files."""

from __future__ import annotations

import click

VARIABLE = "_EDGEMERGE_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what lets a shell complete commands.

    For bash, put this line into ~/.bashrc: eval "$(edgemerge completion bash)"
    """
    from click.shell_completion import get_completion_class

    maker = get_completion_class(shell)
    if maker is not None:
        top = click.get_current_context().find_root().command
        click.echo(maker(top, {}, "edgemerge", VARIABLE).source())
