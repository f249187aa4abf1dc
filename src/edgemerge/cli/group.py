"""A group of commands that are imported when used, and fail with one line for the user."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

import click

from edgemerge.core.errors import EdgemergeError

THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


class Commands(click.Group):
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
            raise Failure(in_one_line(error)) from error


class Failure(click.ClickException):
    """A command that could not do what it was asked."""

    exit_code = 2


def in_one_line(error: Exception) -> str:
    """Say what went wrong, without line breaks and error numbers."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())


def one_blas_thread() -> None:
    """For matrices of our size one thread beats many; a setting of the user's is left alone.

    It counts only before numpy is imported, which is why commands import what they need inside.
    """
    if not any(name in os.environ for name in THREADS):
        os.environ.update(dict.fromkeys(THREADS, "1"))


def needs(extra: str, module: str) -> ModuleType:
    """Import an optional part of edgemerge, or say how to install it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or module).partition(".")[0]
        if missing == "edgemerge":  # then no extra helps
            raise
        raise Failure(f"{missing} is missing: pip install 'edgemerge[{extra}]'") from error
