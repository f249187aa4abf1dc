"""What the report says, whatever its format: sections, tables, claims, and how results were made.

All of it is read from the CSV and JSON files of a folder of results.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from math import floor, log10
from pathlib import Path

from matplotlib.figure import Figure

from edgemerge.paper.claims import (
    CLOSE,
    DRIVING_ELSEWHERE,
    FAILS,
    FILE,
    HOLDS,
    IN_PART,
    NOT_RUN,
    SLIGHTLY,
    judge_claims,
)
from edgemerge.paper.data import terms
from edgemerge.paper.data.catalog import MissingDataError
from edgemerge.paper.plan import Claim, Result, Row, Rows
from edgemerge.paper.plotting import LABELS
from edgemerge.paper.running import result_files
from edgemerge.paper.running.progress import format_duration
from edgemerge.paper.running.result_files import Record

DIGITS = 3
CellValue = str | int | float | None


@dataclass(frozen=True)
class Table:
    """Cells as text, under headings; which columns are numbers, which cells are bold."""

    title: str
    head: list[str]
    lines: list[list[str]]
    numbers: list[bool]
    bold: Collection[tuple[int, int]] = field(default_factory=frozenset)  # line, column


def make_table(rows: Rows, title: str) -> Table:
    """Return rows as a table; columns are in the order in which they appear."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    columns = [format_column([row.get(key) for row in rows]) for key in keys]
    lines = [list(line) for line in zip(*columns, strict=True)]
    numbers = [not any(isinstance(row.get(key), str) for row in rows) for key in keys]
    return Table(title, [key.replace("_", " ") for key in keys], lines, numbers)


def format_column(values: Sequence[CellValue]) -> list[str]:
    """Format the values of a column.

    >>> format_column([0.5, 0.89731, 1.0])
    ['0.500', '0.897', '1.000']
    >>> format_column([1234567, 12, None])
    ['1,234,567', '12', '']
    >>> format_column([12.3456, 1500.0])
    ['12', '1,500']
    >>> format_column([0.00012, 3.0])
    ['0.00012', '3']
    """
    sizes = [abs(value) for value in values if isinstance(value, float) and value]
    digits = _digits(max(sizes)) if sizes else 0
    alike = not sizes or min(sizes) >= 10.0 ** (1 - digits)
    return [_format_cell(value, digits if alike else None) for value in values]


def _digits(size: float) -> int:
    """Return the decimals for numbers up to this size."""
    order = floor(log10(size))
    return DIGITS - 1 - order if order < -1 else max(0, DIGITS - max(0, order))


def _format_cell(value: CellValue, digits: int | None) -> str:
    match value:
        case None:
            return ""
        case int():
            return f"{value:,}"
        case float() if digits is not None:
            return f"{value:,.{digits}f}"
        case float():
            return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{DIGITS}g}"
    return str(value)


MAX_ROWS_SHOWN = 40  # rows that are shown without asking for a smaller table
REPORT_TITLE = "The paper's evaluation, reproduced"
ABOUT = (
    "Ito, Tsukada and Matsutani, *An On-Device Federated Learning Approach for Cooperative Model "
    "Update between Edge Devices* (IEEE Access 2021), evaluates merging OS-ELM detectors. "
    "Here the figures and tables of its section 5 are computed again, with its baselines and ours, "
    "and some beyond it; the summary names those that were not run."
)
MARKS = {True: "✓", False: "✗", None: "–"}
VERDICTS = {True: "Holds", False: "Does not hold", None: "Not measured"}


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
    more_tables: list[Table] = field(default_factory=list)

    def named(self, end: str) -> str:
        """Return the alternative text of a figure."""
        return f"{self.title} ({end})" if end else self.title


@dataclass(frozen=True)
class AbsentResult:
    """A result that is not in the folder."""

    name: str
    title: str
    why: str


@dataclass(frozen=True)
class Report:
    """All results, in the order of the paper."""

    sections: list[Section]
    absent: list[AbsentResult]
    paper_claims: Rows = field(default_factory=list)  # the paper's own, judged by all results

    def claims(self) -> Iterator[tuple[Section, Claim]]:
        """Iterate over all claims."""
        return ((section, claim) for section in self.sections for claim in section.claims)


def read_report(folder: Path, results: Sequence[Result]) -> Report:
    """Return the report of the results in a folder."""
    parts = [_read_section(folder, each) for each in results]
    sections = [part for part in parts if isinstance(part, Section)]
    if not sections:
        raise MissingDataError(
            f"{folder} holds no results: run `edgemerge paper all --out {folder}`"
        )
    absent = [part for part in parts if isinstance(part, AbsentResult)]
    return Report(sections, absent, judge_claims({each.name: each.rows for each in sections}))


def _read_section(folder: Path, result: Result) -> Section | AbsentResult:
    kept = result_files.read_result(folder, result.NAME)
    if kept is None:
        return AbsentResult(result.NAME, result.TITLE, _why_absent(result))
    return Section(
        name=result.NAME,
        title=result.TITLE,
        note=getattr(result, "NOTE", ""),
        record=kept.record,
        rows=kept.rows,
        table=_section_table(result, kept.rows),
        figures=result.plot(kept.rows),
        claims=result.claims(kept.rows),
        more_tables=_more_tables(result, kept.rows),
    )


def _more_tables(result: Result, rows: Rows) -> list[Table]:
    named = getattr(result, "tables", None)
    found: dict[str, Rows] = named(rows) if named else {}
    return [make_table(shown, title) for title, shown in found.items() if shown]


def _section_table(result: Result, rows: Rows) -> Table | None:
    if hasattr(result, "tables"):
        return None
    smaller = getattr(result, "table", None)
    shown: Rows = smaller(rows) if smaller else rows if len(rows) <= MAX_ROWS_SHOWN else []
    return make_table([_labelled(row) for row in shown], result.TITLE) if shown else None


def _labelled(row: Row) -> Row:
    """Replace a method's name by its label in the figures."""
    method = str(row.get("method", ""))
    return {**row, "method": LABELS[method]} if method in LABELS else row


def _why_absent(result: Result) -> str:
    if "driving" in result.DATA:
        get = "everyone has to get from the makers; `edgemerge paper data` says how"
        return f"It needs data that {get}. {terms('driving')} It was {DRIVING_ELSEWHERE}."
    return "It was not run."


def how_to_run(name: str) -> str:
    """Return advice on how to make a result that is not there."""
    return f"`edgemerge paper {name}` makes it."


def count_verdicts(report: Report) -> str:
    """Return how many claims hold, in a sentence.

    >>> count_verdicts(Report([], []))
    'Of 0 claims 0 hold and 0 do not; not measured: 0.'
    """
    found = [claim.holds for _, claim in report.claims()]
    hold, fail, none = (found.count(each) for each in (True, False, None))
    return f"Of {len(found)} claims {hold} hold and {fail} do not; not measured: {none}."


MAX_SETTINGS_SHOWN = 3  # settings of one method


def rerun_command(record: Record) -> str:
    """Return the command that makes a result again."""
    command = f"edgemerge paper {record.result} --seed {record.seed} --trials {record.trials}"
    return f"{command} --baseline-trials {record.baseline_trials}{' --quick' * record.quick}"


def record_facts(record: Record) -> dict[str, str]:
    """Return how a result was made; words between backticks are code."""
    found = {"Command": f"`{rerun_command(record)}`"}
    if record.quick:
        found["Quick"] = "yes: a part of the data, so the numbers differ from those of a full run"
    if record.baselines:
        found["Baselines"] = f"not run: {record.baselines}"
    found["Rows"] = f"`{record.result}.csv`"
    found["Made"] = f"{record.date}, edgemerge {record.version}"
    found["Time"] = _time(record)
    found["Data"] = "; ".join(f"{name}, SHA-256 {key[:16]}…" for name, key in record.data.items())
    each = list(record.settings.values())
    alike = len(each) > MAX_SETTINGS_SHOWN and all(one == each[0] for one in each)
    for name, settings in {"all": each[0]}.items() if alike else record.settings.items():
        hidden = len(settings) - MAX_SETTINGS_SHOWN
        shown = ", ".join(f"`{each}`" for each in settings[:MAX_SETTINGS_SHOWN])
        found[f"Settings of {name}"] = f"{shown} and {hidden} more" if hidden > 0 else shown
    return {word: text for word, text in found.items() if text}


def _time(record: Record) -> str:
    time = f"{format_duration(record.seconds)}, {record.jobs} job{'s' * (record.jobs != 1)}"
    if record.jobs_before:
        time += f", {record.jobs_before} of them done in an earlier run"
    if record.job_seconds:
        time += f"; the jobs alone took {format_duration(record.job_seconds)}"
    return time


OWN_SCALE_SINCE = "2026-11-17"  # scores after a merge, and AUC of them, may differ since


def remarks(report: Report) -> list[str]:
    """Return remarks on how the numbers were made."""
    sections = report.sections
    found = {
        "Made quickly, from a part of the data, so that the numbers are rough": [
            each.name for each in sections if each.record.quick
        ],
        "Made without networks as baselines, where there are any": [
            each.name for each in sections if each.record.baselines
        ],
        "Made before own samples set the scale of scores after a merge (decision 0028)": [
            each.name for each in sections if each.record.date < OWN_SCALE_SINCE
        ],
        "Not run, and listed at the end": [each.name for each in report.absent],
    }
    return [f"{words}: {', '.join(names)}." for words, names in found.items() if names]


def machines(report: Report) -> dict[str, str]:
    """Return the machine and packages for each group of results."""
    found: dict[str, list[str]] = {}
    for section in report.sections:
        found.setdefault(_machine(section.record), []).append(section.name)
    return {", ".join(names): words for words, names in found.items()}


def _machine(record: Record) -> str:
    it = record.machine
    formats = {
        "processor": "{}",
        "system": "{}",
        "cores": "{} cores",
        "memory_gb": "{} GB of memory",
        "python": "Python {}",
    }
    parts = [text.format(it[key]) for key, text in formats.items() if it.get(key)]
    parts += [f"{name} {each}" for name, each in record.packages.items()]
    return ", ".join(parts) or "unknown"


MEANS_TITLE = (
    "Mean ROC-AUC over all pairs of two different patterns, ± its standard deviation over trials "
    "(number of trials)"
)
CLAIMS_TITLE = "All claims, those that do not hold first"


BY_PERSON = {"auc-by-person": {"dataset": "har by person"}}  # a column of its own beside HAR


def mean_auc_table(report: Report) -> Table | None:
    """Return the mean ROC-AUC of each method on each data set, the best in bold."""
    rows = [
        {**row, **BY_PERSON.get(each.name, {})}
        for each in report.sections
        if each.name in ("auc", *BY_PERSON)
        for row in each.rows
    ]
    rows = [row for row in rows if (row["device_a"], row["device_b"]) == ("all", "others")]
    if not rows:
        return None
    datasets = sorted({row["dataset"] for row in rows})
    methods = list(dict.fromkeys(row["method"] for row in rows))
    found = {(row["dataset"], row["method"]): row for row in rows}
    lines = [
        [LABELS.get(str(one), str(one)), *(_auc_cell(found.get((each, one))) for each in datasets)]
        for one in methods
    ]
    best = set()
    for column, dataset in enumerate(datasets, start=1):
        here = [row for row in rows if row["dataset"] == dataset]
        best.add((methods.index(max(here, key=lambda row: row["auc"])["method"]), column))
    names = [str(each).partition(" ") for each in datasets]
    head = ["method", *(f"{first.upper()}{blank}{rest}" for first, blank, rest in names)]
    return Table(MEANS_TITLE, head, lines, [False, *(True for _ in datasets)], best)


def _auc_cell(row: Row | None) -> str:
    if row is None:
        return "–"
    spread = f" ± {row['spread']:.3f}" if row["trials"] != 1 else ""
    return f"{row['auc']:.3f}{spread} ({row['trials']})"


PAPER_CLAIMS_TITLE = "The paper's claims, each as a row"
PAPER_CLAIM_COLUMNS = ("claim", "where", "found", "interval", "verdict", "result")


def paper_claims_note(report: Report) -> str:
    """Return what the table of the paper's claims shows, and how many hold."""
    verdicts = [row["verdict"] for row in report.paper_claims]
    hold, part, fail, none = (verdicts.count(each) for each in (HOLDS, IN_PART, FAILS, NOT_RUN))
    return (
        "What the paper says, in our words, with its section and what was found here. "
        f"Of {len(verdicts)} claims {hold} hold, {part} hold in part and {fail} do not; not run "
        f"here: {none}. "
        "Intervals are those of 95 % of Student's t, for means over all trials of a method; where "
        "methods are compared, the means are over the trials that all of them have. "
        f"The paper gives no margins: within {CLOSE} of ROC-AUC is as accurate, and up to "
        f"{SLIGHTLY} above is slightly higher; both were set when the rows of auc were known. "
        f"`{FILE}` also says what was measured; `edgemerge paper claims` makes it from the results."
    )


def paper_claims_table(report: Report) -> Table:
    """Return a table of the paper's claims, those that were judged before those that were not."""
    rows = sorted(report.paper_claims, key=lambda row: row["verdict"] == NOT_RUN)
    lines = [[str(row[key]) for key in PAPER_CLAIM_COLUMNS] for row in rows]
    head = ["claim", "section", "found", "95 % interval", "verdict", "result"]
    return Table(PAPER_CLAIMS_TITLE, head, lines, [False] * len(head))


def failed_claims_first(report: Report) -> list[tuple[Section, Claim]]:
    """Return all claims, those that do not hold first."""
    return sorted(report.claims(), key=lambda each: each[1].holds is not False)


def claims_table(report: Report) -> Table:
    """Return a table of all claims of all results."""
    lines = [
        [MARKS[claim.holds], claim.text, claim.found, section.name]
        for section, claim in failed_claims_first(report)
    ]
    return Table(CLAIMS_TITLE, ["", "claim", "found", "result"], lines, [False] * 4)
