"""Results of the demo before and after merging: scores, table, summary and JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Group, JustifyMethod
from rich.table import Table
from rich.text import Text

Array = NDArray[np.float64]

THRESHOLD = 4.0  # alarm above four times the usual squared error


@dataclass(frozen=True)
class ScoreSummary:
    """Scores of samples of one kind: mean, range of the middle 90 %, share of alarms."""

    mean: float
    low: float
    high: float
    alarms: float

    @classmethod
    def of(cls, scores: Array) -> ScoreSummary:
        """Summarise the scores of many samples."""
        low, high = np.quantile(scores, [0.05, 0.95])
        alarms = np.mean(scores > THRESHOLD)
        return cls(float(scores.mean()), float(low), float(high), float(alarms))


@dataclass(frozen=True)
class DeviceRow:
    """One device, before or after merging; `auc` is the ROC-AUC of odd against normal samples."""

    device: str
    pattern: str
    merged: bool
    scores: Mapping[str, ScoreSummary]
    auc: float


@dataclass(frozen=True)
class LastingFault:
    """A fault that comes to stay on one device, and what a person makes of it.

    Attributes:
        device: The device.
        kind: The fault.
        samples: How long it lasted.
        alarms: How many of these were in alarm.
        inputs: The inputs that carried the alarm, the largest first.
        found_as: The pattern that its samples formed.
        again: The pattern that the alarm named when the fault came back, after the review.
        messages: The titles of the messages that its agent sent, in order.
    """

    device: str
    kind: str
    samples: int
    alarms: int
    inputs: tuple[str, ...]
    found_as: str
    again: str
    messages: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """Result of the demo; `curves` are (3, k): low, mean and high spectra of each kind."""

    name: str
    seed: int
    odd: tuple[str, ...]
    rows: list[DeviceRow]
    curves: Mapping[str, Array] = field(default_factory=dict)
    hidden: int = 0
    inputs: int = 0
    samples: int = 0
    bytes_sums: int = 0
    seconds: float = 0.0
    fault: LastingFault | None = None

    @property
    def bytes_samples(self) -> int:
        """The bytes of one device's samples."""
        return self.samples * self.inputs * np.float64().nbytes

    def device_rows(self, *, merged: bool) -> list[DeviceRow]:
        """Return the rows from before or after merging."""
        return [row for row in self.rows if row.merged is merged]


def row_of(
    device: str,
    pattern: str,
    normal: Mapping[str, Array],
    odd: Mapping[str, Array],
    *,
    merged: bool,
) -> DeviceRow:
    """Summarise a device's scores of all normal samples, and of each kind of odd ones."""
    peers = np.concatenate([scores for name, scores in normal.items() if name != device])
    groups = {"own": normal[device], "peers": peers} | dict(odd)
    return DeviceRow(
        device=device,
        pattern=pattern,
        merged=merged,
        scores={group: ScoreSummary.of(scores) for group, scores in groups.items()},
        auc=roc_auc(np.concatenate([*normal.values()]), np.concatenate([*odd.values()])),
    )


def roc_auc(normal: Array, odd: Array) -> float:
    """Return how often an odd sample scores above a normal one; a tie counts half.

    >>> roc_auc(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0]))
    0.75
    """
    ranked = np.sort(normal)
    below = np.searchsorted(ranked, odd, "left") + np.searchsorted(ranked, odd, "right")
    return float(below.mean() / (2 * len(ranked)))


HEADINGS = {
    "own": "own\nnormal",
    "peers": "peers'\nnormal",
    "bearing": "bearing\nfault",
    "looseness": "loose-\nness",
    "lying": "lying\ndown",
}
WRONG_STYLE, RIGHT_STYLE = "bold yellow", "green"


TITLE = "Mean score before → after merging (1 is as usual, above 4 is an alarm)"


def result_table(outcome: Outcome) -> Group:
    """Return a table of mean scores and ROC-AUC per device, before → after merging."""
    groups = "own", "peers", *outcome.odd
    table = plain_table(("device and\nwhat it learnt", "left"), gap=1)
    for heading in (*(HEADINGS[group] for group in groups), "ROC-AUC\n"):
        table.add_column(heading, justify="right", no_wrap=True)
    rows = (outcome.device_rows(merged=merged) for merged in (False, True))
    for before, after in zip(*rows, strict=True):
        cells = []
        for group in groups:
            means = (each.scores[group].mean for each in (before, after))
            old, new = (_score_cell(mean, odd=group in outcome.odd) for mean in means)
            cells.append(Text.assemble(old, " → ", new))
        cells.append(Text(f"{before.auc:.2f} → {after.auc:.2f}"))
        table.add_row(f"{before.device} {before.pattern}", *cells)
    return Group(Text(TITLE, style="bold"), table)


def plain_table(*columns: tuple[str, JustifyMethod], gap: int) -> Table:
    """Return a table without frame, with these headings and so many spaces between columns."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, gap, 0, 0))
    for heading, justify in columns:
        table.add_column(heading, justify=justify, no_wrap=True)
    return table


def _score_cell(mean: float, *, odd: bool) -> tuple[str, str]:
    return f"{mean:.1f}", RIGHT_STYLE if (mean > THRESHOLD) == odd else WRONG_STYLE


def summary_text(outcome: Outcome) -> str:
    """Return a summary of what happened and what was exchanged."""
    alone, merged = (outcome.device_rows(merged=merged) for merged in (False, True))
    what = "samples with a fault" if outcome.name == "pumps" else "samples of what no device learnt"
    return (
        "Alone, each device knew one pattern and raised a false alarm for "
        f"{_alarm_rate(alone, 'peers')} of its peers' normal samples. After one exchange it is "
        f"{_alarm_rate(merged, 'peers')}, and {_alarm_rate(merged, *outcome.odd)} of the {what} "
        "raise an alarm.\n"
        f"Each device sent {outcome.bytes_sums / 1000:.0f} kB of sums instead of "
        f"{outcome.bytes_samples / 1000:.0f} kB of samples ({outcome.samples:,} rows of "
        f"{outcome.inputs} values); the sums stay this small however long it learns."
        + ("" if outcome.fault is None else _fault_text(outcome.fault))
    )


def _fault_text(fault: LastingFault) -> str:
    return (
        f"\nThen “{fault.kind}” began on {fault.device} and stayed: {fault.alarms} of its "
        f"{fault.samples} samples are in alarm, which begins with the third, and none was learnt. "
        f"They formed the pattern {fault.found_as}, mainly in {', '.join(fault.inputs)}. After a "
        f"person had named it, the alarm said “{fault.again}” when it came back."
        + (f"\nMessages that were sent: {', '.join(fault.messages)}." if fault.messages else "")
    )


def _alarm_rate(rows: list[DeviceRow], *kinds: str) -> str:
    share = fmean(row.scores[group].alarms for row in rows for group in kinds)
    return f"{100 * share:.1f} %".replace(".0 ", " ")


def outcome_as_json(outcome: Outcome) -> dict[str, Any]:
    """Return settings, rows and sizes as plain values for JSON."""
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
        "fault": None if outcome.fault is None else asdict(outcome.fault),
    }
