"""The lazy command group, renamed commands and options, and exit codes.

Command modules must not import numpy (nor anything that does) at their top: `--help` imports all
of them, and the number of BLAS threads is set before numpy is imported.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from enum import IntEnum
from functools import partial
from importlib import import_module
from signal import SIGINT
from types import ModuleType
from typing import Any, TypeVar

import click

from edgemerge.core.errors import (
    CapacityError,
    DeniedError,
    EdgemergeError,
    FormatError,
    KindError,
    MismatchError,
    RejectedError,
    SampleError,
    SettingError,
    UnavailableError,
    UnknownError,
    install_command,
)

Command = TypeVar("Command", bound=Callable[..., Any])

BLAS_THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
MAX_SHORT_HELP = 1000  # characters: never cut


class ExitCode(IntEnum):
    """Exit codes of all commands; a command stopped by signal n exits with 128 + n."""

    FAILED = 1
    USAGE = 2
    REFUSED = 3
    UNREACHABLE = 4
    NO_DATA = 5


# The first match counts: UnavailableError and DeniedError are OSErrors as well.
EXIT_CODES: tuple[tuple[ExitCode, tuple[type[Exception], ...]], ...] = (
    (ExitCode.UNREACHABLE, (UnavailableError,)),
    (ExitCode.REFUSED, (DeniedError, RejectedError, MismatchError, FormatError)),
    (ExitCode.REFUSED, (SampleError, CapacityError)),
    (ExitCode.USAGE, (SettingError, KindError)),
    (ExitCode.NO_DATA, (UnknownError, FileNotFoundError)),
    (ExitCode.UNREACHABLE, (ConnectionError, TimeoutError, socket.gaierror)),
)
EXIT_CODE_HELP = (
    "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 refused by a check or by the server, "
    "4 unreachable, 5 no data (no such file, fleet or sample), 128 + n stopped by signal n."
)


class CommandError(click.ClickException):
    """An error that ends a command with one line on stderr.

    Args:
        message: What was found, what was expected, and what to do.
        code: The exit code. Default: wrong usage.
    """

    def __init__(self, message: str, code: ExitCode = ExitCode.USAGE) -> None:
        """Set message and exit code."""
        super().__init__(message)
        self.exit_code = code  # type: ignore[misc]  # click declares it for the class


NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENOSPC)


def exit_code(error: Exception) -> ExitCode:
    """Return the exit code for an error of ours or of the operating system.

    A wrong setting may be the name of a file: then what the operating system said counts.
    """
    if isinstance(error, SettingError | SampleError) and isinstance(error.__cause__, OSError):
        if error.__cause__.errno in NOT_WRITABLE:
            return ExitCode.FAILED
        if isinstance(error.__cause__, FileNotFoundError):
            return ExitCode.NO_DATA
    if isinstance(error, FileNotFoundError) and error.errno in NOT_WRITABLE:  # of its folder
        return ExitCode.FAILED
    return next((code for code, kinds in EXIT_CODES if isinstance(error, kinds)), ExitCode.FAILED)


def one_line(error: Exception) -> str:
    """Return the message of an error without line breaks and error numbers."""
    if isinstance(error, OSError) and error.filename is not None:
        advice = ""
        if isinstance(error, PermissionError):
            advice = "; choose another place, or let this user read and write there"
        return f"{error.filename}: {error.strerror}{advice}"
    return " ".join(str(error).split())


class LazyGroup(click.Group):
    """A group that imports its commands when they are used.

    Args:
        sections: For each heading of `--help` the commands below it, each with where it is
            defined: "module:attribute", or "module" if the attribute is the command's name.
        old: New names of renamed commands, by old name.
    """

    def __init__(
        self,
        *args: Any,
        sections: Mapping[str, Mapping[str, str]] | None = None,
        old: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        """Keep the table; nothing is imported yet."""
        super().__init__(*args, **kwargs)
        self.sections = sections or {}
        self.old = old or {}
        self.places = {name: at for part in self.sections.values() for name, at in part.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the sections."""
        return [*self.places, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in self.places:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self.places[cmd_name].partition(":")
        found = getattr(import_module(module), attribute or cmd_name)
        return found if isinstance(found, click.Command) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command; an unknown one is an error that names the most similar."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = get_close_matches(args[0], self.list_commands(ctx), n=1)
            if not near:
                raise
            raise click.UsageError(f"{error.message} Did you mean '{near[0]}'?", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands section by section; a narrow terminal wraps the text."""
        for title, part in self.sections.items():
            with formatter.section(title):
                found = ((name, self.get_command(ctx, name)) for name in part)
                formatter.write_dl(
                    [
                        (name, each.get_short_help_str(MAX_SHORT_HELP))
                        for name, each in found
                        if each
                    ]
                )

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; turn errors and signals into one line and an exit code.

        A handler of another signal than SIGINT raises KeyboardInterrupt with its number.
        """
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # the reader of a pipe closed it: click exits without a message
            raise
        except (EdgemergeError, OSError) as error:
            raise CommandError(one_line(error), exit_code(error)) from error
        except KeyboardInterrupt as interrupt:
            raise stopped(interrupt) from None


def stopped(interrupt: KeyboardInterrupt, words: str = "Stopped.") -> SystemExit:
    """Print that a signal stopped the command; return the exit with its exit code."""
    click.echo(words, err=True)
    return SystemExit(128 + next(iter(interrupt.args), SIGINT))


class Option(click.Option):
    """An option that still accepts old names and old values, and then prints the new ones.

    Args:
        old: The new name or value for each old one: `{"--inputs": "--n-inputs"}`.
    """

    def __init__(self, *args: Any, old: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        """Keep the table; `current_name` reads it."""
        super().__init__(*args, **kwargs)
        self.old = old or {}


option = partial(click.option, cls=Option)


def options(*decorators: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Return a decorator that adds several options, in this order."""

    def add(command: Command) -> Command:
        for decorate in reversed(decorators):
            command = decorate(command)
        return command

    return add


def current_name(token: str) -> str:
    """Return the new name of a renamed command, option or value, and print what to use.

    click calls it (as `token_normalize_func`) with every name, without leading dashes.
    """
    ctx = click.get_current_context(silent=True)
    if ctx is None:
        return token
    tables = [getattr(each, "old", {}) for each in (ctx.command, *ctx.command.params)]
    for written in (f"--{token}", token):
        for table in tables:
            if written in table:
                new: str = table[written]
                if not ctx.resilient_parsing:
                    click.echo(f"Note: {written} is now {new}; use {new} instead.", err=True)
                return new.removeprefix("--")
    return token


def example(*lines: str) -> str:
    r"""Return the epilog that shows how to call a command; click keeps the line breaks.

    Args:
        lines: Shell commands; a long one is continued after a backslash, as in a shell.
    """
    return "\n".join(["\b", "Example:", *(f"  {line}" for line in lines)])


def limit_blas_threads() -> None:
    """Set one BLAS thread, which is fastest for matrices of our size, unless the user set some.

    This works only before numpy is imported, so commands import what they need inside.
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
        raise missing_package(missing, extra) from error


def missing_package(name: str, extra: str) -> CommandError:
    """Return the error for a package that is not installed, with the command that installs it."""
    return CommandError(f"{name} is not installed: {install_command(extra)}", ExitCode.FAILED)


COMPLETION_VARIABLE = "_EDGEMERGE_COMPLETE"


@click.command(epilog=example("edgemerge completion bash"))
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    For bash, put this line into ~/.bashrc: eval "$(edgemerge completion bash)"
    """
    from click.shell_completion import get_completion_class

    maker = get_completion_class(shell)
    if maker is not None:
        top = click.get_current_context().find_root().command
        click.echo(maker(top, {}, "edgemerge", COMPLETION_VARIABLE).source())
