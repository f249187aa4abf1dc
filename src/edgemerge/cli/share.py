"""`edgemerge share`: what a learner saw itself, as files for others to merge."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from edgemerge.cli.group import Failure
from edgemerge.cli.learners import learner_in
from edgemerge.cli.output import json_option, remark, say_json, say_table

ENOUGH = 2  # samples for each hidden value; below it, single samples can be told from the sums
COLUMNS = {"file": "FILE", "pattern": "PATTERN", "samples": "SAMPLES", "bytes": "BYTES"}


@click.command()
@click.argument("learner_file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--device", required=True, help="Name of this device.")
@click.option("--revision", type=int, required=True, help="Higher with every share.")
@click.option(
    "--incarnation", type=int, default=0, help="Higher when a device starts again from nothing."
)
@click.option("--pattern", help="Name of what a detector knows. Default: normal.")
@click.option(
    "--form",
    type=click.Choice(["exact", "float32", "root16"]),
    default="exact",
    show_default=True,
    help="The last two round the sums, for links that cannot carry more.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    help="File; for a bank a folder, with a file for each pattern.",
)
@json_option
def share(
    learner_file: Path,
    device: str,
    revision: int,
    incarnation: int,
    pattern: str | None,
    form: str,
    out: Path,
    *,
    as_json: bool,
) -> None:
    """Write what a learner saw itself, for others to merge.

    LEARNER_FILE does not change. Raise the revision with every share.
    """
    from edgemerge.core.codec import encode
    from edgemerge.files import write

    notes = _shared(learner_in(learner_file), pattern, device, revision, incarnation)
    told = []
    for path, note in _placed(notes, out).items():
        data = encode(note, form)
        write(data, path)
        told.append({"file": str(path), "device": device, "pattern": note.pattern})
        told[-1] |= {"samples": note.stats.count, "bytes": len(data)}
        if note.stats.count < ENOUGH * note.stats.projection.n_hidden:
            remark(
                f"{path}: {note.stats.count:g} samples are few enough to be told from the sums; "
                f"share after {ENOUGH * note.stats.projection.n_hidden} or more"
            )
    say_json(told) if as_json else say_table(told, COLUMNS)


def _shared(
    learner: Any, pattern: str | None, device: str, revision: int, incarnation: int
) -> list[Any] | Any:
    from edgemerge.core.bank import Bank

    if not isinstance(learner, Bank):
        origin = {"revision": revision, "incarnation": incarnation}
        return learner.share(device, pattern=pattern or "normal", **origin)
    if pattern:
        raise Failure("a bank names its patterns itself: leave --pattern out")
    notes = learner.share(device, revision=revision, incarnation=incarnation)
    if not notes:
        raise Failure("this bank has seen nothing itself: let it learn first")
    return notes


def _placed(notes: list[Any] | Any, out: Path) -> dict[Path, Any]:
    if not isinstance(notes, list) and not out.is_dir():
        return {out: notes}
    found = notes if isinstance(notes, list) else [notes]
    out.mkdir(parents=True, exist_ok=True)
    return {out / f"{quote(n.device, '')}.{quote(n.pattern, '')}.safetensors": n for n in found}
