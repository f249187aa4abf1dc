"""`edgemerge paper report`: one page of all results in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from edgemerge.cli.output import remark
from edgemerge.cli.paper import NEEDED, SHOWS, must_have, out_option


@click.command()
@out_option
@click.option(
    "--markdown",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a Markdown page there, with images/ beside it, instead of report.html.",
)
def report(out: Path, markdown: Path | None) -> None:
    """Make one page of the results in a folder.

    The page is made from the CSV and JSON files alone; nothing is computed again.
    """
    must_have(*NEEDED)
    from edgemerge.paper.results import result

    results = [result(name) for name in SHOWS]
    if markdown is None:
        build(out, results)
        return
    from edgemerge.paper.reporting import markdown as writing
    from edgemerge.paper.reporting.report import gather

    writing.save(gather(out, results), markdown, out)
    remark(f"Report: {markdown}")


def build(out: Path, results: Sequence[Any]) -> None:
    """Write report.html."""
    from edgemerge.paper.reporting.page import page
    from edgemerge.paper.reporting.report import gather
    from edgemerge.paper.running.whole import write

    write(page(gather(out, results)).encode(), out / "report.html")
    remark(f"Report: {out / 'report.html'}")
