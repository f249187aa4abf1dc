"""The demo in words: a table for people, a summary, and the same for machines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from statistics import fmean
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from edgemerge.demo.fleet import FAULTS, HIDDEN, LEARNT, THRESHOLD, Outcome, Row
from edgemerge.demo.simulation import BANDS

HEADINGS = {
    "own": "own\nnormal",
    "peers": "peers'\nnormal",
    "bearing": "bearing\nfault",
    "looseness": "loose-\nness",
}
FAULTY = {fault.name for fault in FAULTS}
WRONG, RIGHT = "bold yellow", "green"


def table(outcome: Outcome) -> Table:
    """Show for each pump the mean scores and the ROC-AUC, before → after merging."""
    sheet = Table(
        title="Mean score before → after merging (1 is as usual, above 4 is an alarm)",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    sheet.add_column("pump and\nwhat it learnt", no_wrap=True)
    for heading in (*HEADINGS.values(), "ROC-AUC\n"):
        sheet.add_column(heading, justify="right", no_wrap=True)
    for before, after in zip(outcome.told(merged=False), outcome.told(merged=True), strict=True):
        sheet.add_row(f"{before.device} {before.pattern}", *_cells(before, after))
    return sheet


def _cells(before: Row, after: Row) -> Iterable[Text]:
    for group in HEADINGS:
        old, new = before.scores[group].mean, after.scores[group].mean
        yield Text.assemble(_score(group, old), " → ", _score(group, new))
    yield Text(f"{before.auc:.2f} → {after.auc:.2f}")


def _score(group: str, mean: float) -> tuple[str, str]:
    return f"{mean:.1f}", RIGHT if (mean > THRESHOLD) == (group in FAULTY) else WRONG


def summary(outcome: Outcome) -> str:
    """Say in plain words what happened and what was exchanged."""
    alone, merged = outcome.told(merged=False), outcome.told(merged=True)
    return (
        "Alone, each pump knew one pattern and raised a false alarm for "
        f"{_alarms(alone, 'peers')} of its peers' normal samples. After one exchange it is "
        f"{_alarms(merged, 'peers')}, and {_alarms(merged, 'bearing', 'looseness')} of the samples "
        "with a fault still raise an alarm.\n"
        f"Each pump sent {_kilobytes(outcome.bytes_sums)} of sums instead of "
        f"{_kilobytes(outcome.bytes_samples)} of samples ({LEARNT:,} rows of {BANDS} levels); "
        "the sums stay this small however long it learns."
    )


def _alarms(rows: list[Row], *groups: str) -> str:
    share = fmean(row.scores[group].alarms for row in rows for group in groups)
    return f"{100 * share:.1f} %".replace(".0 ", " ")


def _kilobytes(count: int) -> str:
    return f"{count / 1000:.0f} kB"


def record(outcome: Outcome) -> dict[str, Any]:
    """Give settings, rows and sizes as plain values for JSON."""
    return {
        "seed": outcome.seed,
        "threshold": THRESHOLD,
        "hidden": HIDDEN,
        "samples_learnt": LEARNT,
        "bytes_sums": outcome.bytes_sums,
        "bytes_samples": outcome.bytes_samples,
        "rows": [asdict(row) for row in outcome.rows],
    }
