"""The report: what a folder of results shows, gathered from its CSV and JSON files alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from edgemerge.paper.data import terms
from edgemerge.paper.drawing import LABELS
from edgemerge.paper.plan import Claim, Row, Rows
from edgemerge.paper.reporting.tables import Table, table
from edgemerge.paper.results import Result
from edgemerge.paper.running import keeping
from edgemerge.paper.running.keeping import Record
from edgemerge.paper.running.rows import RowError

FEW = 40  # rows that are shown without asking for a smaller table
TITLE = "The paper's evaluation, reproduced"
ABOUT = (
    "Ito, Tsukada and Matsutani, *An On-Device Federated Learning Approach for Cooperative Model "
    "Update between Edge Devices* (IEEE Access 2021), evaluates merging OS-ELM detectors. "
    "Here each figure and table of its section 5 is made again, with its baselines and with ours, "
    "and some that go past it."
)
MARKS = {True: "✓", False: "✗", None: "–"}
WORDS = {True: "Holds", False: "Does not hold", None: "Not measured"}


@dataclass(frozen=True)
class Section:
    """One result: its figures, its table, what it was to show, and how it was made."""

    name: str
    title: str
    note: str
    record: Record
    rows: Rows
    table: Table | None
    figures: dict[str, Figure]
    claims: list[Claim]

    def named(self, end: str) -> str:
        """Say what a picture shows, for those who do not see it."""
        return f"{self.title} ({end})" if end else self.title


@dataclass(frozen=True)
class Absent:
    """A result that is not in the folder."""

    name: str
    title: str
    why: str


@dataclass(frozen=True)
class Report:
    """All results, in the order of the paper."""

    sections: list[Section]
    absent: list[Absent]

    def claims(self) -> Iterator[tuple[Section, Claim]]:
        """Go through all claims."""
        return ((section, claim) for section in self.sections for claim in section.claims)


def gather(folder: Path, results: Sequence[Result]) -> Report:
    """Read a folder."""
    parts = [_part(folder, each) for each in results]
    sections = [part for part in parts if isinstance(part, Section)]
    if not sections:
        raise RowError(f"{folder} holds no results: run `edgemerge paper all --out {folder}`")
    return Report(sections, [part for part in parts if isinstance(part, Absent)])


def _part(folder: Path, result: Result) -> Section | Absent:
    kept = keeping.read(folder, result.NAME)
    if kept is None:
        return Absent(result.NAME, result.TITLE, _why(result))
    return Section(
        name=result.NAME,
        title=result.TITLE,
        note=getattr(result, "NOTE", ""),
        record=kept.record,
        rows=kept.rows,
        table=_table(result, kept.rows),
        figures=result.plot(kept.rows),
        claims=result.claims(kept.rows),
    )


def _table(result: Result, rows: Rows) -> Table | None:
    smaller = getattr(result, "table", None)
    shown: Rows = smaller(rows) if smaller else rows if len(rows) <= FEW else []
    return table([_labelled(row) for row in shown], result.TITLE) if shown else None


def _labelled(row: Row) -> Row:
    """Call methods as the figures do."""
    method = str(row.get("method", ""))
    return {**row, "method": LABELS[method]} if method in LABELS else row


def _why(result: Result) -> str:
    if "driving" in result.DATA:
        get = "everyone has to get from the makers; `edgemerge paper data` says how"
        return f"It needs data that {get}. {terms('driving')}"
    return "It was not run."


def how(name: str) -> str:
    """Say how to get a result that is not there."""
    return f"`edgemerge paper {name}` makes it."


def verdict(report: Report) -> str:
    """Say how many claims hold.

    >>> verdict(Report([], []))
    'Of 0 claims 0 hold, 0 do not, and 0 were not measured.'
    """
    found = [claim.holds for _, claim in report.claims()]
    hold, fail, none = (found.count(each) for each in (True, False, None))
    return f"Of {len(found)} claims {hold} hold, {fail} do not, and {none} were not measured."
