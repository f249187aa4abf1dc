"""The command line: each command parses, calls one library function and prints."""

from __future__ import annotations

import click

from edgemerge import __version__
from edgemerge.cli.group import LazyGroup, limit_blas_threads

SECTIONS = {
    "With files": {
        "learn": "edgemerge.cli.files",
        "bulk": "edgemerge.cli.files",
        "score": "edgemerge.cli.files",
        "share": "edgemerge.cli.files",
        "merge": "edgemerge.cli.files",
        "show": "edgemerge.cli.files",
    },
    "Over a network": {
        "serve": "edgemerge.cli.serve",
        "fleet": "edgemerge.cli.fleet",
        "enrol": "edgemerge.cli.agent",
        "agent": "edgemerge.cli.agent",
        "sync": "edgemerge.cli.agent",
        "dashboard": "edgemerge.cli.serve",
    },
    "Research": {"paper": "edgemerge.cli.paper", "simulate": "edgemerge.cli.simulate"},
    "Besides": {
        "demo": "edgemerge.cli.demo",
        "doctor": "edgemerge.cli.doctor",
        "completion": "edgemerge.cli.group",
    },
}


@click.group(
    cls=LazyGroup, sections=SECTIONS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="edgemerge", message="%(prog)s %(version)s")
def main() -> None:
    """Detectors that learn on each device what is normal, and add up exactly."""
    limit_blas_threads()
