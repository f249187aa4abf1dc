"""`edgemerge merge`: a learner adopts what others saw; or contributions are summed up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from edgemerge.cli.group import Failure
from edgemerge.cli.learners import counts, detectors, learner_in
from edgemerge.cli.output import json_option, progress, remark, say_facts, say_json

HIGH = 2.0  # times its level before, from which on a merge deserves a word

ROUNDED = 2.0**-11


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="File to write."
)
@click.option(
    "--without", multiple=True, metavar="DEVICE", help="Leave this device out, such as one's own."
)
@click.option("--total", is_flag=True, help="Sum contributions up; no learner comes first.")
@click.option(
    "--as",
    "kind",
    type=click.Choice(["ledger", "stats"]),
    default="ledger",
    show_default=True,
    help="With --total: keep every origin, or the bare sum.",
)
@json_option
def merge(
    files: tuple[Path, ...],
    out: Path,
    without: tuple[str, ...],
    *,
    total: bool,
    kind: str,
    as_json: bool,
) -> None:
    """Let a learner in a file adopt what others saw.

    FILES are the learner's, then contributions: of `share`, ledgers, or what an exchange told.
    What it was told before is replaced, so give all that it is to know; the same twice counts
    once. --out may be the learner's own file.

    With --total, FILES are contributions only, and their sum is written.
    """
    with progress("merging"):
        told = _summed(files, without, kind, out) if total else _adopted(files, without, out)
    say_json(told) if as_json else say_facts(told)
    if max(told.get("level_shift", {}).values(), default=0.0) > HIGH:
        remark("Its own samples are rebuilt worse than before: look at what was merged.")


def _adopted(files: tuple[Path, ...], without: tuple[str, ...], out: Path) -> dict[str, Any]:
    from edgemerge.core.bank import Bank
    from edgemerge.files import save

    if len(files) < 2:
        raise Failure("found one file, expected a learner and contributions: LEARNER_FILE FILE...")
    learner = learner_in(files[0])
    if isinstance(learner, Bank):
        learner.catch_up()  # so that before and after are of the same samples
    heard = _heard(files[1:], learner.projection, without)
    _refuse_own(learner, heard)
    before, readouts = counts(learner), _readouts(learner)
    if isinstance(learner, Bank):
        if heard.bare:
            raise Failure("found sums without their origin, expected contributions for a bank")
        learner.adopt(heard.contributions)
    else:
        learner.adopt(heard.total)
    save(learner, out)
    after = {"others_before": before["others_samples"]} | counts(learner)
    return {
        "out": str(out),
        "devices": heard.devices,
        **after,
        "level_shift": _level(learner, readouts),
    }


def _summed(
    files: tuple[Path, ...], without: tuple[str, ...], kind: str, out: Path
) -> dict[str, Any]:
    from edgemerge.cli.agreement import projection_in
    from edgemerge.files import save

    heard = _heard(files, projection_in(files[0]), without)
    if kind == "ledger" and (heard.parts or heard.bare):
        raise Failure("found sums that cannot be taken apart into a ledger: add --as stats")
    save(heard.ledger if kind == "ledger" else heard.total, out)
    told = {"out": str(out), "kind": kind, "devices": heard.devices}
    return told | {"contributions": len(heard.ledger), "samples": heard.total.count}


def _heard(files: tuple[Path, ...], projection: Any, without: tuple[str, ...]) -> Any:
    from edgemerge.cli.heard import Heard

    heard = Heard(projection, without)
    for path in files:
        heard.take(path)
    heard.must_be_apart()
    return heard


def _refuse_own(learner: Any, heard: Any) -> None:
    own = [each.own for each in detectors(learner).values() if each.own.count]
    mine = [note.device for note in heard.ledger if any(_alike(note.stats, each) for each in own)]
    if mine:
        raise Failure(
            f"found in a contribution of {mine[0]} what this learner saw itself, which would then "
            f"count twice: add --without {mine[0]}"
        )


def _alike(some: Any, own: Any) -> bool:
    from numpy import allclose

    near = ROUNDED * own.count  # a contribution may come in a form that rounds
    return bool(some.count == own.count and allclose(some.C, own.C, rtol=ROUNDED, atol=near))


def _readouts(learner: Any) -> dict[str, Any]:
    return {name: each.readout for name, each in detectors(learner).items() if each.own.count}


def _level(learner: Any, before: dict[str, Any]) -> dict[str, float]:
    """Say for each pattern by what the merge multiplies the loss of its own samples."""
    from edgemerge.core.threshold import loss_shift

    after = detectors(learner)
    return {
        name: round(loss_shift(after[name].own, readout, after[name].readout), 4)
        for name, readout in before.items()
    }
