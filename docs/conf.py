"""Sphinx settings. Nothing on the built pages comes from another host."""

import sys
from importlib.metadata import version as installed_version
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "edgemerge"
author = "the edgemerge authors"
release = version = installed_version("edgemerge")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "command_line",
    "http_api",
    "results",
]
exclude_patterns = ["_build", "_ext"]
myst_heading_anchors = 3

default_role = "code"
autodoc_member_order = "bysource"
NAMED_TYPES = ("Activation", "Array", "ArrayLike", "End", "Scores", "Stats", "Weights")
autodoc_type_aliases = {name: name for name in NAMED_TYPES}

html_theme = "furo"
html_title = "edgemerge"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False


def part_from_words(_app, _what, _name, _thing, _options, lines) -> None:
    """Let a code word be followed by ², which reStructuredText allows only after a null space."""
    lines[:] = [line.replace("`²", "`\\ ²") for line in lines]


def setup(app: Sphinx) -> None:
    """Connect what happens while pages are made from docstrings."""
    app.connect("autodoc-process-docstring", part_from_words)
