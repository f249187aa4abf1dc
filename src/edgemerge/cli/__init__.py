"""The command line: each command parses, calls one library function and prints."""

from __future__ import annotations

import click

from edgemerge import __version__
from edgemerge.cli.group import EXIT_CODE_HELP, LazyGroup, current_name, example, limit_blas_threads

SECTIONS = {
    "With files": {
        "init": "edgemerge.cli.init",
        **dict.fromkeys(("learn", "bulk", "score"), "edgemerge.cli.files"),
        "replay": "edgemerge.cli.files",
        **dict.fromkeys(("share", "merge", "show", "export"), "edgemerge.cli.files"),
    },
    "Over a network": {
        "serve": "edgemerge.cli.serve",
        **dict.fromkeys(("certificate", "backup", "restore"), "edgemerge.cli.serve"),
        "fleet": "edgemerge.cli.fleet",
        "accounts": "edgemerge.cli.serve",
        "enrol": "edgemerge.cli.agent",
        "agent": "edgemerge.cli.agent",
        "sync": "edgemerge.cli.agent",
        "keys": "edgemerge.cli.agent",
        "monitor": "edgemerge.cli.agent",
        "bridge": "edgemerge.cli.serve",
        "dashboard": "edgemerge.cli.serve",
    },
    "Research": {"paper": "edgemerge.cli.paper", "simulate": "edgemerge.cli.demo"},
    "Other": {
        "demo": "edgemerge.cli.demo",
        "doctor": "edgemerge.cli.doctor",
        "completion": "edgemerge.cli.group",
    },
}


@click.group(
    cls=LazyGroup,
    sections=SECTIONS,
    context_settings={"help_option_names": ["-h", "--help"], "token_normalize_func": current_name},
    epilog=f"{example('edgemerge demo')}\n\n{EXIT_CODE_HELP}",
)
@click.version_option(__version__, prog_name="edgemerge", message="%(prog)s %(version)s")
def main() -> None:
    """Anomaly detection that learns on each device and merges exactly.

    Each device learns what is normal for it; what several devices learnt adds up to the same model
    as if one had seen all of their data.
    """
    limit_blas_threads()
