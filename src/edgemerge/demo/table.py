"""The demo in words: a table for people, a summary, and the same for machines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from statistics import fmean
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from edgemerge.demo.outcome import THRESHOLD, Outcome, Row

HEADINGS = {
    "own": "own\nnormal",
    "peers": "peers'\nnormal",
    "bearing": "bearing\nfault",
    "looseness": "loose-\nness",
    "lying": "lying\ndown",
}
WRONG, RIGHT = "bold yellow", "green"


TITLE = "Mean score before → after merging (1 is as usual, above 4 is an alarm)"


def table(outcome: Outcome) -> Group:
    """Show for each device the mean scores and the ROC-AUC, before → after merging."""
    sheet = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    sheet.add_column("device and\nwhat it learnt", no_wrap=True)
    for heading in (*(HEADINGS[group] for group in groups(outcome)), "ROC-AUC\n"):
        sheet.add_column(heading, justify="right", no_wrap=True)
    for before, after in zip(outcome.told(merged=False), outcome.told(merged=True), strict=True):
        sheet.add_row(f"{before.device} {before.pattern}", *_cells(outcome, before, after))
    return Group(Text(TITLE, style="bold"), sheet)


def groups(outcome: Outcome) -> tuple[str, ...]:
    """Name the kinds of samples that were judged."""
    return "own", "peers", *outcome.odd


def _cells(outcome: Outcome, before: Row, after: Row) -> Iterable[Text]:
    for group in groups(outcome):
        odd = group in outcome.odd
        old, new = before.scores[group].mean, after.scores[group].mean
        yield Text.assemble(_score(old, odd=odd), " → ", _score(new, odd=odd))
    yield Text(f"{before.auc:.2f} → {after.auc:.2f}")


def _score(mean: float, *, odd: bool) -> tuple[str, str]:
    return f"{mean:.1f}", RIGHT if (mean > THRESHOLD) == odd else WRONG


def summary(outcome: Outcome) -> str:
    """Say in plain words what happened and what was exchanged."""
    alone, merged = outcome.told(merged=False), outcome.told(merged=True)
    what = "samples with a fault" if outcome.name == "pumps" else "samples of what nobody learnt"
    return (
        "Alone, each device knew one pattern and raised a false alarm for "
        f"{_alarms(alone, 'peers')} of its peers' normal samples. After one exchange it is "
        f"{_alarms(merged, 'peers')}, and {_alarms(merged, *outcome.odd)} of the {what} "
        "raise an alarm.\n"
        f"Each device sent {_kilobytes(outcome.bytes_sums)} of sums instead of "
        f"{_kilobytes(outcome.bytes_samples)} of samples ({outcome.samples:,} rows of "
        f"{outcome.inputs} values); the sums stay this small however long it learns."
    )


def _alarms(rows: list[Row], *kinds: str) -> str:
    share = fmean(row.scores[group].alarms for row in rows for group in kinds)
    return f"{100 * share:.1f} %".replace(".0 ", " ")


def _kilobytes(count: int) -> str:
    return f"{count / 1000:.0f} kB"


def record(outcome: Outcome) -> dict[str, Any]:
    """Give settings, rows and sizes as plain values for JSON."""
    return {
        "data": outcome.name,
        "seed": outcome.seed,
        "threshold": THRESHOLD,
        "hidden": outcome.hidden,
        "samples_learnt": outcome.samples,
        "bytes_sums": outcome.bytes_sums,
        "bytes_samples": outcome.bytes_samples,
        "seconds": round(outcome.seconds, 1),
        "rows": [asdict(row) for row in outcome.rows],
    }
