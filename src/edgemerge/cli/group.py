"""The group that imports its commands when they are used, and how commands fail.

Command modules must not import numpy (nor anything that does) at their top: `--help` imports all
of them, and the number of BLAS threads is set before numpy is imported.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

import click

from edgemerge.core.errors import EdgemergeError

BLAS_THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


class LazyGroup(click.Group):
    """Commands by section, each with its place: "module:attribute", or "module" for its name."""

    def __init__(
        self, *args: Any, sections: Mapping[str, Mapping[str, str]] | None = None, **kwargs: Any
    ) -> None:
        """Remember where the commands are; none is imported yet."""
        super().__init__(*args, **kwargs)
        self.sections = sections or {}
        self.places = {name: at for part in self.sections.values() for name, at in part.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Give the names in the order of the sections."""
        return [*self.places, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in self.places:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self.places[cmd_name].partition(":")
        found = getattr(import_module(module), attribute or cmd_name)
        return found if isinstance(found, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands down section by section, one line each."""
        width = formatter.width - 6 - max(map(len, self.places), default=0)
        for title, part in self.sections.items():
            with formatter.section(title):
                found = ((name, self.get_command(ctx, name)) for name in part)
                formatter.write_dl(
                    [(name, each.get_short_help_str(width)) for name, each in found if each]
                )

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; our own errors and those of the file system end it with code 2."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # the reader has seen enough: click ends quietly
            raise
        except (EdgemergeError, OSError) as error:
            raise CommandError(one_line(error)) from error


class CommandError(click.ClickException):
    """A command that could not do what it was asked."""

    exit_code = 2


def one_line(error: Exception) -> str:
    """Say what went wrong, without line breaks and error numbers."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())


def limit_blas_threads() -> None:
    """For matrices of our size one thread beats many; a setting of the user's is left alone.

    It counts only before numpy is imported, which is why commands import what they need inside.
    """
    if not any(name in os.environ for name in BLAS_THREAD_VARIABLES):
        os.environ.update(dict.fromkeys(BLAS_THREAD_VARIABLES, "1"))


def needs(extra: str, module: str) -> ModuleType:
    """Import an optional part of edgemerge, or say how to install it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or module).partition(".")[0]
        if missing == "edgemerge":  # then no extra helps
            raise
        raise CommandError(f"{missing} is missing: pip install 'edgemerge[{extra}]'") from error


COMPLETION_VARIABLE = "_EDGEMERGE_COMPLETE"


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
        click.echo(maker(top, {}, "edgemerge", COMPLETION_VARIABLE).source())
