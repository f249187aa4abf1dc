"""`edgemerge score`: how unusual samples from CSV are, line by line as they come."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import click

from edgemerge.cli.learners import learner_in
from edgemerge.cli.output import remark
from edgemerge.cli.samples import CSV, columns_option, rows_of

CARRIERS = 3  # inputs named for an alarm


@click.command()
@click.argument("learner_file", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("samples", type=CSV)
@columns_option
@click.option(
    "--alarm-above", type=float, default=4.0, show_default=True, help="A higher score is an alarm."
)
@click.option("--explain", is_flag=True, help="Name the inputs that carry an alarm.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object to a line.")
def score(
    learner_file: Path,
    samples: str,
    columns: list[str],
    alarm_above: float,
    *,
    explain: bool,
    as_json: bool,
) -> None:
    """Say how unusual samples are for a learner in a file.

    SAMPLES are a CSV, or - for standard input. A score of 1 is as usual, 4 is four times as odd;
    so are the numbers of the inputs that --explain names. Nothing is learnt. Results are CSV,
    printed as samples come in.
    """
    learner = learner_in(learner_file)
    total = alarms = 0
    write = _json_lines if as_json else _csv_lines(explain=explain)
    names = learner.projection.names or ()
    words = None if sys.stdout.isatty() else "scoring"  # else a bar and results share lines
    with rows_of(samples, words, columns=columns, expected=names) as rows:
        for X in rows:
            judged = list(_judged(learner, X, total, alarm_above))
            for verdict, x in zip(judged, X, strict=True):
                if explain:
                    verdict["why"] = _why(learner, x, rows.names) if verdict["alarm"] else []
            click.echo("\n".join(map(write, judged)))
            total, alarms = total + len(X), alarms + sum(v["alarm"] for v in judged)
    remark(f"{total:,} samples, {alarms:,} above {alarm_above:g}")


def _judged(learner: Any, X: Any, before: int, limit: float) -> Iterator[dict[str, Any]]:
    several = hasattr(learner, "closest") and len(learner) > 0
    for i, found in enumerate(learner.score(X)):
        verdict = {"sample": before + i + 1, "score": round(float(found), 4)}
        verdict["alarm"] = bool(found > limit)
        if several:
            verdict["pattern"] = learner.closest(X[i])
        yield verdict


def _why(learner: Any, x: Any, names: list[str]) -> list[dict[str, Any]]:
    shares = learner.explain(x)
    most = sorted(range(len(shares)), key=lambda i: -shares[i])[:CARRIERS]
    return [{"input": names[i], "times": round(float(shares[i]), 2)} for i in most]


def _json_lines(verdict: dict[str, Any]) -> str:
    return json.dumps(verdict, ensure_ascii=False)


def _csv_lines(*, explain: bool) -> Callable[[dict[str, Any]], str]:
    def write(verdict: dict[str, Any]) -> str:
        line = StringIO()
        writer = csv.writer(line, lineterminator="\n")
        if verdict["sample"] == 1:
            writer.writerow(verdict)
        cells = verdict | {"alarm": int(verdict["alarm"])}
        if explain:
            cells["why"] = " ".join(f"{w['input']}={w['times']:g}" for w in verdict["why"])
        writer.writerow(cells.values())
        return line.getvalue().removesuffix("\n")

    return write
