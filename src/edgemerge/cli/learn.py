"""`edgemerge learn`: samples from CSV into a learner in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from edgemerge.cli.agreement import agreed, projection_options
from edgemerge.cli.group import Failure
from edgemerge.cli.learners import counts, learner_in
from edgemerge.cli.output import json_option, remark, say_facts, say_json
from edgemerge.cli.samples import CSV, columns_option, rows_of


@click.command()
@click.argument("learner_file", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("samples", type=CSV)
@columns_option
@click.option(
    "--new", type=click.Choice(["bank", "detector"]), help="Start one that knows nothing yet."
)
@projection_options
@click.option("--forgetting", type=float, help="With --new: 1 never forgets, 0.999 does slowly.")
@click.option("--reject-above", type=float, help="With --new: samples above it are not learnt.")
@click.option("--max-patterns", type=int, help="With --new bank: its own patterns at most.")
@json_option
def learn(
    learner_file: Path,
    samples: str,
    columns: list[str],
    new: str | None,
    *,
    as_json: bool,
    **settings: Any,
) -> None:
    """Let a bank or detector in a file learn samples.

    SAMPLES are a CSV, or - for standard input. LEARNER_FILE is written when all are learnt, and
    not at all if one cannot be used.

    To begin: --new bank, and what devices must agree on to merge later: --projection FILE of
    another device, --like SAMPLES.csv, or --inputs, --low and --high.
    """
    from edgemerge.files import save

    learner = _started(learner_file, new, columns, settings)
    rejected, learnt = learner.rejected, 0
    names = learner.projection.names or ()
    with rows_of(samples, "learning", columns=columns, expected=names) as rows:
        for X in rows:
            learner.learn(X)
            learnt += len(X)
    save(learner, learner_file)
    told = {"learner": str(learner_file), "learnt": learnt - (learner.rejected - rejected)}
    told |= {"rejected": learner.rejected - rejected} | counts(learner)
    say_json(told) if as_json else say_facts(told)
    if not learnt:
        remark("There was no sample to learn.")


def _started(path: Path, new: str | None, columns: list[str], settings: dict[str, Any]) -> Any:
    given = {name: value for name, value in settings.items() if value is not None}
    if new is None:
        if given:
            raise Failure("settings are for a new learner: add --new bank, or leave them out")
        if not path.exists():
            raise Failure(f"{path}: No such file; --new bank starts one")
        return learner_in(path)
    if path.exists():
        raise Failure(f"{path} is there already: leave --new out to go on with it")
    return _made(new, columns, settings)


def _made(new: str, columns: list[str], settings: dict[str, Any]) -> Any:
    from edgemerge.core.bank import Bank
    from edgemerge.core.detector import Detector

    words = ("forgetting", "reject_above", "max_patterns")
    own = {word: value for word in words if (value := settings.pop(word)) is not None}
    if new == "detector" and "max_patterns" in own:
        raise Failure("a detector has one pattern: leave --max-patterns out, or use --new bank")
    projection = agreed(columns=columns, **settings)
    return (Bank if new == "bank" else Detector)(projection, **own)
