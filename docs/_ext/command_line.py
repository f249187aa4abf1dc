"""The directive `command-line`: the help text of every command, taken from the program itself."""

from collections.abc import Iterator

import click
from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

from edgemerge.cli import main

WIDTH = 80


def commands(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    """The command and those below it, each with its name as typed and its help text."""
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                inner = click.Context(below, context, name, terminal_width=WIDTH)
                yield from commands(below, inner)


class CommandLine(Directive):
    """One section for each command."""

    def run(self) -> list[nodes.Node]:
        """Make the sections."""
        top = click.Context(main, info_name="edgemerge", terminal_width=WIDTH)
        return [self._section(name, text) for name, text in commands(main, top)]

    def _section(self, name: str, text: str) -> nodes.Node:
        section = nodes.section(ids=[nodes.make_id(name)], names=[nodes.fully_normalize_name(name)])
        section += nodes.title(name, name)
        section += nodes.literal_block(text, text, language="text")
        return section


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive; the page is read anew in every build."""
    app.add_directive("command-line", CommandLine)
    return {"parallel_read_safe": True}
