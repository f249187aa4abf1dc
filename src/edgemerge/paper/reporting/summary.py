"""The report's summary in numbers: the mean ROC-AUC of each method, and all claims."""

from __future__ import annotations

from edgemerge.paper.drawing import LABELS
from edgemerge.paper.plan import Claim, Row, Rows
from edgemerge.paper.reporting.report import MARKS, Report, Section
from edgemerge.paper.reporting.tables import Table

TITLE = "Mean ROC-AUC over all pairs of two different patterns, ± its spread over trials (number)"
CLAIMS = "All claims, those that do not hold first"


def means(report: Report) -> Table | None:
    """Give the mean ROC-AUC of each method on each data set, the best in bold."""
    rows = [row for each in report.sections if each.name == "auc" for row in each.rows]
    rows = [row for row in rows if (row["device_a"], row["device_b"]) == ("all", "others")]
    if not rows:
        return None
    datasets, methods = (list(dict.fromkeys(row[key] for row in rows)) for key in _KEYS)
    found = {(row["dataset"], row["method"]): row for row in rows}
    lines = [
        [LABELS.get(str(one), str(one)), *(_cell(found.get((each, one))) for each in datasets)]
        for one in methods
    ]
    best = {(methods.index(_best(rows, each)), 1 + i) for i, each in enumerate(datasets)}
    numbers = [False, *(True for _ in datasets)]
    return Table(TITLE, ["method", *(str(each).upper() for each in datasets)], lines, numbers, best)


_KEYS = ("dataset", "method")


def _cell(row: Row | None) -> str:
    if row is None:
        return "–"
    spread = f" ± {row['spread']:.3f}" if row["trials"] != 1 else ""
    return f"{row['auc']:.3f}{spread} ({row['trials']})"


def _best(rows: Rows, dataset: str | int | float) -> str | int | float:
    here = [row for row in rows if row["dataset"] == dataset]
    return max(here, key=lambda row: row["auc"])["method"]


def ordered(report: Report) -> list[tuple[Section, Claim]]:
    """Give all claims, those that do not hold first."""
    return sorted(report.claims(), key=lambda each: each[1].holds is not False)


def claims(report: Report) -> Table:
    """Give all claims of all results."""
    lines = [
        [MARKS[claim.holds], claim.text, claim.found, section.name]
        for section, claim in ordered(report)
    ]
    return Table(CLAIMS, ["", "claim", "found", "result"], lines, [False] * 4)
