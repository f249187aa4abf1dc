"""The command line: each command parses, calls one library function and prints."""

from __future__ import annotations

import click

from edgemerge import __version__
from edgemerge.cli.group import Commands, one_blas_thread

SECTIONS = {
    "With files": {
        "learn": "edgemerge.cli.learn",
        "bulk": "edgemerge.cli.bulk",
        "score": "edgemerge.cli.score",
        "share": "edgemerge.cli.share",
        "merge": "edgemerge.cli.merge",
        "show": "edgemerge.cli.showing",
    },
    "Over a network": {
        "serve": "edgemerge.cli.serve",
        "fleet": "edgemerge.cli.fleet",
        "enrol": "edgemerge.cli.enrol",
        "agent": "edgemerge.cli.agent",
        "sync": "edgemerge.cli.sync",
        "dashboard": "edgemerge.cli.dashboard",
    },
    "Research": {"paper": "edgemerge.cli.paper", "simulate": "edgemerge.cli.simulate"},
    "Besides": {
        "demo": "edgemerge.cli.demo",
        "doctor": "edgemerge.cli.doctor",
        "completion": "edgemerge.cli.completion",
    },
}


@click.group(
    cls=Commands, sections=SECTIONS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="edgemerge", message="%(prog)s %(version)s")
def main() -> None:
    """Detectors that learn on each device what is normal, and add up exactly."""
    one_blas_thread()
